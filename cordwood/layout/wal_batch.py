"""Many records of a WAL under one header: the body of a BATCH record.

A record of 100 bytes under a header of its own costs 40 bytes and half a microsecond; in
a batch it costs 4 bytes and a tenth of that. ::

    0     4      records, 1 or more
    4     4·n    length of each, in bytes
    4+4n  ...    their bodies back to back, to the end

Little-endian; under the record's own CRC. Record number i of a batch at offset `o` has the logical
offset `o + i`: the offsets ascend, lie inside the batch, and differ from those of all other
records.

Source: docs/design.md §4 ("coalescing is worth 13 times"); `layout.wal_block`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from cordwood.block import Buffer
from cordwood.errors import Malformed
from cordwood.layout.wal_run import Numbers, RecordRun

_COUNT = struct.Struct("<I")
LENGTH_BYTES = 4
BATCH_HEAD_BYTES = _COUNT.size


def batch_bytes(records: int, body_bytes: int) -> int:
    """Bytes of the body of a batch."""
    return BATCH_HEAD_BYTES + LENGTH_BYTES * records + body_bytes


def cut_batches(lengths: Numbers, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut records, of which the lengths are given, into batches `[start, stop)`.

    A batch's body has at most `bytes_max` bytes, or one record.
    """
    ends = np.cumsum(lengths + LENGTH_BYTES)
    start, done = 0, 0
    while start < len(lengths):
        room = done + bytes_max - BATCH_HEAD_BYTES
        stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def pack_batch(bodies: Sequence[Buffer], lengths: Numbers) -> list[Buffer]:
    """The body of a batch record, in parts."""
    return [_COUNT.pack(len(bodies)) + lengths.astype("<u4").tobytes(), b"".join(bodies)]


def read_batch(body: Buffer, offset: int) -> RecordRun:
    """The records of a batch with its header at logical `offset`.

    Raises:
        Malformed: it is no batch that a Cordwood writer makes.
    """
    size = len(body)
    count = _COUNT.unpack_from(body)[0] if size >= BATCH_HEAD_BYTES else 0
    first = BATCH_HEAD_BYTES + LENGTH_BYTES * count
    if not count or first > size:
        raise Malformed(f"a WAL batch of {size} bytes says {count} records")
    lengths = np.frombuffer(body, "<u4", count, BATCH_HEAD_BYTES).astype(np.int64)
    stops = first + np.cumsum(lengths)
    if stops[-1] != size:
        raise Malformed(f"a WAL batch of {size} bytes holds {int(stops[-1])}")
    return RecordRun(
        memoryview(body), offset + np.arange(count, dtype=np.int64), stops - lengths, stops
    )
