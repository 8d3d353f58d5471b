"""Events of the event log and snapshots of the rebuilding set, as bytes.

::

    offset  bytes
    0       1      version of this layout
    1       1      1 for an event, 2 for a set, 3 for a base, 4 for a restated set,
                   5 for a fenced base
    2       2      reserved, 0
    4       4      CRC32C of the first four bytes and of all from offset 8 on
    8       ...    MessagePack of a `rebuilding.RebuildEvent`, `rebuilding.RebuildingSet`,
                   `rebuilding.Restated` or `Base`

A record of the event log is an event, a set (a snapshot) or a restated set. A *base* is a value of
the metadata store: a set that the event log goes on from. Versions of Cordwood from before the
event log refuse it, so none of them goes on with the set that was there when the events moved.
Versions from before restated sets refuse these, and the *fenced* base: they keep their last set and
report no error.

Integers are little-endian. A field that this version does not know is refused: a node that left out
a part of an event would compute another set than the nodes that know this part.

Source: docs/sources/logdevice.md 2.9; docs/sources/reliability.md §7.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec
from crc32c import crc32c

from cordwood.block import Buffer
from cordwood.errors import BadSetting, ChecksumMismatch, Malformed
from cordwood.rebuilding import LostNode, Rebalancing, RebuildEvent, RebuildingSet, Restated

VERSION = 1
EVENT = 1
SET = 2
BASE = 3
RESTATED = 4
FENCED = 5

EVENT_BYTES_MAX = 1 << 16
"""An event names each node of the largest cluster once, in 5 bytes or fewer."""

SET_BYTES_MAX = 1_000_000
"""The most bytes of a set: it must fit into a value of the metadata store, and into one record."""

_HEAD = struct.Struct("<BBH")
_SUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _SUM.size


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value that the metadata store keeps for the event log.

    Attributes:
        set: the log goes on from it.
        fence: number of the last restatement that was begun: no set without it becomes the base.
            0 before the first.
    """

    set: RebuildingSet
    fence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


_encoder = msgspec.msgpack.Encoder()
_event_decoder = msgspec.msgpack.Decoder(RebuildEvent)
_set_decoder = msgspec.msgpack.Decoder(RebuildingSet)
_restated_decoder = msgspec.msgpack.Decoder(Restated)
_base_decoder = msgspec.msgpack.Decoder(Base)

Decoded = TypeVar("Decoded")


def pack_event(event: RebuildEvent) -> bytes:
    """An event as a record's payload.

    Raises:
        BadSetting: it has more bytes than `read_event` takes.
    """
    return _pack(EVENT, _encoder.encode(event))


def pack_set(rebuilding: RebuildingSet) -> bytes:
    """A snapshot.

    Raises:
        BadSetting: it has more bytes than `read_set` takes.
    """
    return _pack(SET, _encoder.encode(rebuilding))


def read_event(data: Buffer) -> RebuildEvent:
    """An event from a record's payload.

    Raises:
        ChecksumMismatch: a byte differs from the written one.
        Malformed: of another version, too long, or no known event.
    """
    body = _body(data, EVENT, EVENT_BYTES_MAX, "an event of the event log")
    found: RebuildEvent = _decode(_event_decoder, body, "an event of the event log")
    return found


def read_set(data: Buffer) -> RebuildingSet:
    """A set from a snapshot.

    Raises:
        ChecksumMismatch: a byte differs from the written one.
        Malformed: of another version, too long, or a set that no events could make.
    """
    return _read_set(data, SET)


def pack_restated(restated: Restated) -> bytes:
    """A restated set."""
    return _pack(RESTATED, _encoder.encode(restated))


def pack_base(base: Base) -> bytes:
    """A set that the event log goes on from, for the metadata store."""
    if base.fence:
        return _pack(FENCED, _encoder.encode(base))
    return _pack(BASE, _encoder.encode(base.set))


def is_base(data: Buffer) -> bool:
    """Whether a value of the metadata store is a base: the events are in the event log."""
    return _kind(data) in (BASE, FENCED)


def read_base(data: Buffer) -> Base:
    """A base.

    Raises:
        ChecksumMismatch, Malformed: as `read_set`.
    """
    if _kind(data) != FENCED:
        return Base(_read_set(data, BASE))
    body = _body(data, FENCED, SET_BYTES_MAX, "a base of the event log")
    found = _decode(_base_decoder, body, "a base of the event log")
    _check_set(found.set)
    return found


def read_record(data: Buffer) -> RebuildEvent | RebuildingSet | Restated:
    """The contents of a record of the event log: an event, a snapshot, or a restated set.

    Raises:
        ChecksumMismatch, Malformed: as `read_event` and `read_set`.
    """
    kind = _kind(data)
    if kind == RESTATED:
        body = _body(data, RESTATED, SET_BYTES_MAX, "a restated set")
        found = _decode(_restated_decoder, body, "a restated set")
        _check_set(found.set)
        return found
    return read_set(data) if kind == SET else read_event(data)


def _kind(data: Buffer) -> int:
    return int(memoryview(data)[1]) if len(data) >= HEAD_BYTES else 0


def _read_set(data: Buffer, kind: int) -> RebuildingSet:
    body = _body(data, kind, SET_BYTES_MAX, "a rebuilding set")
    found = _decode(_set_decoder, body, "a rebuilding set")
    _check_set(found)
    return found


def _check_set(found: RebuildingSet) -> None:
    told = [each.donor for each in found.progress]
    in_order = _rises([each.node for each in found.lost]) and _rises(told)
    if not in_order or found.version > found.through or not all(map(_is_sound, found.lost)):
        raise Malformed("a rebuilding set cannot be what events amount to")
    if found.rebalancing is not None and not _can_be(found.rebalancing, found.through):
        raise Malformed("a rebalance cannot be what events amount to")


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
    # Trap: a value that no node reads would stop all of them at its place in the event log.
    size, most = HEAD_BYTES + len(body), EVENT_BYTES_MAX if kind == EVENT else SET_BYTES_MAX
    if size > most:
        what = "an event" if kind == EVENT else "a set"
        raise BadSetting(f"{what} of the event log may have {most} bytes, and this one has {size}")
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
        raise Malformed(f"{what} was expected, and another value is there")
    return body


def _decode(decoder: msgspec.msgpack.Decoder[Decoded], body: memoryview, what: str) -> Decoded:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{what} cannot be read: {error}") from error
