"""Runs of WAL records read at once: headers as columns, and no object for any record.

A start reads each record of a ring. Reading them one by one took 3 µs for each record, mostly to
make objects. Here one loop step for each record follows the lengths, and numpy and the checksum
library do the rest for the whole run.

The CRC of a header is linear in its bits, so that of 36 bytes is the XOR of what each of
them gives, looked up in tables: one look-up for all headers of a run at a time.

It accepts the same records as `wal_block.unpack_wal_record`; a Hypothesis test compares them.

Source: `layout.wal_block` (the bytes); docs/sources/hotpath.md §6 (objects are what costs).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from cordwood.layout.wal_block import (
    WAL_BODY_BYTES_MAX,
    WAL_RECORD_HEADER_BYTES,
    WAL_UNIT_BYTES,
    WalKind,
)

Numbers = NDArray[np.int64]
Headers = NDArray[np.void]

_OFFSET_MAX = (1 << 63) - 1
_MAGIC = int.from_bytes(b"CWR1", "little")
_FLAG_LAST = 1
# Magic, kind, flags, length: enough to see a record's kind without an object for it.
_STEP = struct.Struct("<IBBxxI")
_HEADER = np.dtype(
    {
        "names": [
            "magic", "kind", "flags", "reserved", "length", "body_crc", "offset", "durable",
            "incarnation", "crc",
        ],
        "formats": ["<u4", "u1", "u1", "<u2", "<u4", "<u4", "<u8", "<u8", "<u4", "<u4"],
        "offsets": [0, 4, 5, 6, 8, 12, 16, 24, 32, 36],
        "itemsize": WAL_RECORD_HEADER_BYTES,
    }
)  # fmt: skip
_SUMMED_BYTES = WAL_RECORD_HEADER_BYTES - 4


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Live records of a WAL, in order; iterating makes a pair of offset and body for each.

    Attributes:
        data: memory that holds all their bodies; a run keeps all of it.
        offsets: logical, ascending.
        starts, stops: where each body lies in `data`.
    """

    data: memoryview
    offsets: Numbers
    starts: Numbers
    stops: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        data = self.data
        places = zip(self.offsets.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        for offset, start, stop in places:
            yield offset, bytes(data[start:stop])

    @classmethod
    def of_one(cls, offset: int, body: bytes) -> RecordRun:
        """A lone record."""
        numbers = np.array((offset, 0, len(body)), np.int64)
        return cls(memoryview(body), numbers[:1], numbers[1:2], numbers[2:])

    @property
    def bytes(self) -> int:
        """The bytes of all bodies."""
        return int((self.stops - self.starts).sum())

    def above(self, offset: int) -> RecordRun:
        """The records above `offset`."""
        first = int(np.searchsorted(self.offsets, offset, side="right"))
        if not first:
            return self
        return RecordRun(self.data, self.offsets[first:], self.starts[first:], self.stops[first:])


def data_starts(data: memoryview, at: int, base: int) -> list[int]:
    """The places in `data`, from `at` on, at which whole data records seem to stand back to back.

    It follows magics and lengths, and checks nothing else.

    Args:
        base: logical offset of `data[0]`: blocks start at multiples of WAL_UNIT_BYTES of that.
    """
    starts: list[int] = []
    add, step, data_kind = starts.append, _STEP.unpack_from, int(WalKind.DATA)
    last_header = len(data) - WAL_RECORD_HEADER_BYTES
    while at <= last_header:
        magic, kind, flags, length = step(data, at)
        stop = at + WAL_RECORD_HEADER_BYTES + length
        if magic != _MAGIC or kind != data_kind or stop > len(data):
            break
        add(at)
        at = stop
        if flags:
            at += -(base + stop) % WAL_UNIT_BYTES
    return starts


class RunReader:
    """Reads headers of one WAL.

    Args:
        salt: the salt of the WAL, from its header.
    """

    def __init__(self, salt: int) -> None:
        self._of_zeros = np.uint32(crc32c(bytes(_SUMMED_BYTES), salt))

    def headers(self, data: memoryview, starts: Numbers) -> tuple[Headers, int]:
        """The headers at `starts`, and the length of their intact prefix.

        Intact means what `unpack_wal_record` asks of a data record. The caller compares each
        header's offset with its place.
        """
        rows = sliding_window_view(
            np.frombuffer(data, np.uint8), WAL_RECORD_HEADER_BYTES
        )[starts]  # fmt: skip
        found = rows.view(_HEADER)[:, 0]
        length = found["length"].astype(np.uint64)
        is_good = self._sums(rows) == found["crc"]
        is_good &= found["magic"] == _MAGIC
        is_good &= found["kind"] == WalKind.DATA
        is_good &= found["flags"] <= _FLAG_LAST
        is_good &= found["reserved"] == 0
        is_good &= length <= WAL_BODY_BYTES_MAX
        is_good &= found["offset"] <= _OFFSET_MAX - WAL_RECORD_HEADER_BYTES - length
        is_good &= found["durable"] <= found["offset"]
        return found, leading(is_good)

    def _sums(self, rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
        columns = np.ascontiguousarray(rows[:, :_SUMMED_BYTES].T)
        sums = np.full(len(rows), self._of_zeros, np.uint32)
        for column, table in zip(columns, _tables(), strict=True):
            sums ^= table.take(column)
        return sums


@functools.cache
def _tables() -> list[NDArray[np.uint32]]:
    """For each byte of a header, a table of the amounts that its values add to the CRC: 36 KiB in
    all."""
    of_zeros = crc32c(bytes(_SUMMED_BYTES))
    tables = []
    for place in range(_SUMMED_BYTES):
        table = np.zeros(1, np.uint32)
        for bit in range(8):
            single = bytearray(_SUMMED_BYTES)
            single[place] = 1 << bit
            table = np.concatenate((table, table ^ np.uint32(crc32c(single) ^ of_zeros)))
        tables.append(table)
    return tables


def intact_bodies(
    data: memoryview, starts: Numbers, stops: Numbers, expected: NDArray[np.uint32]
) -> int:
    """The length of the prefix of bodies with the expected CRC."""
    places = map(slice, starts.tolist(), stops.tolist())
    sums = np.fromiter(map(crc32c, map(data.__getitem__, places)), np.uint32, len(starts))
    return leading(sums == expected)


def leading(flags: NDArray[np.bool_]) -> int:
    """The number of set flags before the first unset one."""
    return len(flags) if flags.all() else int(flags.argmin())
