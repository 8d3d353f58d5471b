"""A run of a ledger's entries, one after another, as nodes send it to readers.

Little-endian::

    each entry: u64 entry, i64 LAC, u64 length, u32 bytes of the body; then the bodies

A reader goes through it once, and makes no object for each entry beside its payload.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from cordwood.block import Buffer
from cordwood.ledger import NO_ENTRY

_HEAD = struct.Struct("<QqQI")
_HEADS = np.dtype([("entry", "<u8"), ("lac", "<i8"), ("length", "<u8"), ("size", "<u4")])
_SEARCHED = 8
"""A run of fewer entries is checked one by one: numpy takes some microseconds for any number."""

LENGTH_MAX = 2**63 - 1
"""The greatest length of a ledger in bytes: its metadata holds the length as a signed number."""

Head = tuple[int, int, int, int]
"""An entry, its LAC, its length and the bytes of its body."""

assert _HEADS.itemsize == _HEAD.size, "both say the same"


def pack_run(heads: Iterable[Head], bodies: Sequence[Buffer]) -> bytes:
    """Entries and their bodies, in the same order."""
    return b"".join((pack_heads(heads), *bodies))


def pack_heads(heads: Iterable[Head]) -> bytes:
    """The bytes of a run before its bodies."""
    return b"".join([_HEAD.pack(*head) for head in heads])


def is_run(packed: memoryview, first: int, count: int, step: int = 1) -> bool:
    """Whether this is a run of this many entries: `first`, `first + step` and so on."""
    if len(packed) < count * _HEAD.size:
        return False
    size = len(packed) - count * _HEAD.size
    if count < _SEARCHED:
        heads = [*heads_of(packed, count)]
        follow = all(head[0] == first + at * step for at, head in enumerate(heads))
        in_range = all(head[1] >= NO_ENTRY and head[2] <= LENGTH_MAX for head in heads)
        return follow and in_range and sum(head[3] for head in heads) == size
    found = columns_of(packed, count)
    wanted = np.arange(0, count * step, step, dtype=np.uint64) + np.uint64(first)
    # A faulty node may send any number, and a digest covers only numbers below 2^63.
    in_range = found["lac"].min() >= NO_ENTRY and found["length"].max() <= LENGTH_MAX
    follow = bool((found["entry"] == wanted).all())
    return follow and bool(in_range) and int(found["size"].sum(dtype=np.int64)) == size


def heads_bytes(count: int) -> int:
    """The bytes before the bodies of a run of this many entries."""
    return count * _HEAD.size


def columns_of(packed: memoryview, count: int) -> npt.NDArray[np.void]:
    """The fields of each entry of a run: `entry`, `lac`, `length`, and `size` of the body."""
    return np.frombuffer(packed, _HEADS, count)


def heads_of(packed: memoryview, count: int) -> Iterator[Head]:
    """The fields of each entry of a run."""
    return _HEAD.iter_unpack(packed[: count * _HEAD.size])


def bodies_of(packed: memoryview, count: int) -> memoryview:
    """The bodies of a run, back to back."""
    return packed[count * _HEAD.size :]
