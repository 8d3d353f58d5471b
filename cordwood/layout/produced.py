"""The memory of producers as bytes: in seals' answers, in clean marks, in the WAL.

Little-endian: `u32 producers`, then per producer `u64 id, u32 epoch, u32 places`, and per
place `u64 sequence, u32 count, u64 first LSN, i64 append time in us`. No bytes at all stand for
no producers.

Source: docs/design.md §3 ("Producer state is a durable snapshot plus the headers after it").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from cordwood.block import Buffer, Produced, ProducedBlock
from cordwood.errors import Malformed
from cordwood.lsn import LSN_MAX

_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<QII")
_PLACE = struct.Struct("<QIQq")


def pack_produced(produced: Iterable[Produced]) -> bytes:
    """Producers as bytes."""
    parts: list[bytes] = []
    count = 0
    for each in produced:
        count += 1
        parts.append(_PRODUCER.pack(each.producer, each.epoch, len(each.places)))
        parts += (
            _PLACE.pack(place.sequence, place.count, place.first, place.time_us)
            for place in each.places
        )
    return _COUNT.pack(count) + b"".join(parts) if count else b""


def read_produced(data: Buffer) -> tuple[Produced, ...]:
    """Producers from bytes.

    Raises:
        Malformed: cut short, too long, or a value out of its range.
    """
    if not len(data):
        return ()
    try:
        (count,) = _COUNT.unpack_from(data)
        at, found = _COUNT.size, []
        for _ in range(count):
            producer, epoch, places = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            stop = at + places * _PLACE.size
            if stop > len(data) or not producer or not places:
                raise Malformed("a list of producers has a field out of its range")
            kept = tuple(
                ProducedBlock(*each) for each in _PLACE.iter_unpack(memoryview(data)[at:stop])
            )
            if any(not place.count or place.first > LSN_MAX for place in kept):
                raise Malformed("a producer's place is out of its range")
            found.append(Produced(producer, epoch, kept))
            at = stop
    except struct.error:
        raise Malformed("a list of producers is cut short") from None
    if at != len(data):
        raise Malformed("a list of producers is longer than its producers")
    return tuple(found)
