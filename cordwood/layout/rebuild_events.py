"""Events of the event log and snapshots of the rebuilding set, as bytes.

::

    offset  bytes
    0       1      version of this layout
    1       1      1 for an event, 2 for a set, 3 for a base
    2       2      reserved, 0
    4       4      CRC32C of the first four bytes and of all from offset 8 on
    8       ...    MessagePack of a `rebuilding.RebuildEvent` or `rebuilding.RebuildingSet`

A record of the event log is an event or a set (a snapshot). A *base* is a value of the metadata
store: a set that the event log goes on from. Versions of Cordwood from before the event log refuse
it, so none of them goes on with the set that was there when the events moved.

Integers are little-endian. A field that this version does not know is refused: a node that left
a part of an event out would come to another set than the nodes that know it.

Source: docs/sources/logdevice.md 2.9; docs/sources/reliability.md §7.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TypeVar

import msgspec
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import ChecksumMismatch, Malformed
from cordwood.rebuilding import LostNode, Rebalancing, RebuildEvent, RebuildingSet

VERSION = 1
EVENT = 1
SET = 2
BASE = 3

EVENT_BYTES_MAX = 1 << 16
"""An event names each node of the largest cluster once, in 5 bytes or fewer."""

SET_BYTES_MAX = 1_000_000
"""A value of the metadata store, and one record."""

_HEAD = struct.Struct("<BBH")
_SUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _SUM.size

_encoder = msgspec.msgpack.Encoder()
_event_decoder = msgspec.msgpack.Decoder(RebuildEvent)
_set_decoder = msgspec.msgpack.Decoder(RebuildingSet)

Decoded = TypeVar("Decoded")


def pack_event(event: RebuildEvent) -> bytes:
    """An event as a record's payload."""
    return _pack(EVENT, _encoder.encode(event))


def pack_set(rebuilding: RebuildingSet) -> bytes:
    """A snapshot."""
    return _pack(SET, _encoder.encode(rebuilding))


def read_event(data: Buffer) -> RebuildEvent:
    """An event from a record's payload.

    Raises:
        ChecksumMismatch: a byte differs from the written one. Malformed: of another version, too
            long, or no known event.
    """
    body = _body(data, EVENT, EVENT_BYTES_MAX, "an event of the event log")
    found: RebuildEvent = _decode(_event_decoder, body, "an event of the event log")
    return found


def read_set(data: Buffer) -> RebuildingSet:
    """A set from a snapshot.

    Raises:
        ChecksumMismatch: a byte differs from the written one. Malformed: of another version, too
            long, or a set that no events could make.
    """
    return _read_set(data, SET)


def pack_base(rebuilding: RebuildingSet) -> bytes:
    """A set that the event log goes on from, for the metadata store."""
    return _pack(BASE, _encoder.encode(rebuilding))


def is_base(data: Buffer) -> bool:
    """Whether a value of the metadata store is a base: the events are in the event log."""
    return len(data) >= HEAD_BYTES and memoryview(data)[1] == BASE


def read_base(data: Buffer) -> RebuildingSet:
    """A base.

    Raises:
        ChecksumMismatch, Malformed: as `read_set`.
    """
    return _read_set(data, BASE)


def read_record(data: Buffer) -> RebuildEvent | RebuildingSet:
    """What a record of the event log has: an event, or a snapshot.

    Raises:
        ChecksumMismatch, Malformed: as `read_event` and `read_set`.
    """
    is_snapshot = len(data) >= HEAD_BYTES and memoryview(data)[1] == SET
    return read_set(data) if is_snapshot else read_event(data)


def _read_set(data: Buffer, kind: int) -> RebuildingSet:
    body = _body(data, kind, SET_BYTES_MAX, "a rebuilding set")
    found = _decode(_set_decoder, body, "a rebuilding set")
    told = [each.donor for each in found.progress]
    in_order = _rises([each.node for each in found.lost]) and _rises(told)
    if not in_order or found.version > found.through or not all(map(_is_sound, found.lost)):
        raise Malformed("a rebuilding set cannot be what events amount to")
    if found.rebalancing is not None and not _can_be(found.rebalancing, found.through):
        raise Malformed("a rebalance cannot be what events amount to")
    return found


def _is_sound(each: LostNode) -> bool:
    ranges = each.ranges
    apart = all(a.last_us + 1 < b.first_us for a, b in pairwise(ranges))
    return _rises(each.donors) and _rises(each.done) and set(each.done) <= {*each.donors} and apart


def _can_be(known: Rebalancing, through: int) -> bool:
    told = [each.donor for each in known.gave]
    is_of_it = all(each.version == known.version for each in known.gave)
    return known.version <= through and _rises(known.donors) and _rises(told) and is_of_it


def _rises(nodes: list[int] | tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(nodes))


def _pack(kind: int, body: bytes) -> bytes:
    head = _HEAD.pack(VERSION, kind, 0)
    return head + _SUM.pack(crc32c(body, crc32c(head))) + body


def _body(data: Buffer, kind: int, bytes_max: int, what: str) -> memoryview:
    view = memoryview(data)
    if not HEAD_BYTES <= len(view) <= bytes_max:
        raise Malformed(f"{what} has {len(view)} bytes: {HEAD_BYTES} to {bytes_max} can be")
    head, body = view[: _HEAD.size], view[HEAD_BYTES:]
    (wanted,) = _SUM.unpack_from(view, _HEAD.size)
    if crc32c(body, crc32c(head)) != wanted:
        raise ChecksumMismatch(f"{what} is not what was written")
    version, found, reserved = _HEAD.unpack(head)
    if version != VERSION:
        raise Malformed(f"{what} has layout {version}, and this version reads {VERSION}")
    if found != kind or reserved:
        raise Malformed(f"{what} was expected, and something else stands there")
    return body


def _decode(decoder: msgspec.msgpack.Decoder[Decoded], body: memoryview, what: str) -> Decoded:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{what} cannot be read: {error}") from error
