"""Staged blocks as bytes: in the WAL after the byte of kind, and in LogsDB.

Little-endian, in the WAL::

    STAGE    16 id, u64 log, i64 expires at (µs since 1970 UTC), then the block: u32 records,
             u32 body bytes as stored, u32 uncompressed, u32 CRC32C of the stored body, u32 of
             the uncompressed, u8 codec, u8 nodes of the copyset, u16 times that the copyset was
             changed; u32 for each node; the body
    PIN      u64 attempt, u32 ids, u16 bytes of the query's name, 2 reserved 0; the name in
             UTF-8, then 16 for each id
    UNSTAGE  u32 ids, then 16 for each
    PLACE    16 id, u16 times that the copyset was changed, u8 nodes, 1 reserved 0; u32 for each

A head without nodes comes from a version that noted no copysets: the other copies may be on any
nodes.

LogsDB's table of staged blocks holds::

    "h" 16 id ► all of STAGE but the body, then u64 attempt and the query's name: the attempt that
        pinned it; 0 for none
    "b" 16 id ► the body as stored

Source: docs/design.md §9 ("stage-then-publish").
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cordwood.block import Buffer
from cordwood.errors import Malformed
from cordwood.layout.limits import BLOCK_RECORDS_MAX, BODY_BYTES_MAX
from cordwood.nodes import COPIES_MAX

STAGE_ID_BYTES = 16

_HEAD = struct.Struct("<16sQqIIIIIBBH")
_PLACE = struct.Struct("<16sHBx")
_NODE = struct.Struct("<I")
_PIN = struct.Struct("<QIH2x")
_COUNT = struct.Struct("<I")
_ATTEMPT = struct.Struct("<Q")
STAGE_HEAD_BYTES = _HEAD.size
"""The size of a head without its list of nodes."""

MOVES_MAX = (1 << 16) - 1
"""The most changes of one copyset. Each loss of a node is one change, and losses are far rarer than
one a minute."""

STAGED_TABLE = "staged"
HEADS = (b"h", b"i")
"""The key range [start, stop) of all heads."""


@dataclass(frozen=True, slots=True)
class StagedHead:
    """A staged block's head: all of it beside its body.

    Attributes:
        stage: its id, 16 bytes.
        log: the log of its later publish.
        expires_us: when it may be dropped, by the node's clock, unless it is pinned by then.
        records, stored_bytes, raw_bytes, stored_crc, raw_crc, codec: as in a block's header.
        nodes: the block's copyset, this node included; empty if that is not known.
        moves: how often the copyset was changed since the block was staged.
    """

    stage: bytes
    log: int
    expires_us: int
    records: int
    stored_bytes: int
    raw_bytes: int
    stored_crc: int
    raw_crc: int
    codec: int
    nodes: tuple[int, ...] = ()
    moves: int = 0


class StageRecord(NamedTuple):
    """A block was staged."""

    head: StagedHead
    body: Buffer


class PinRecord(NamedTuple):
    """Staged blocks wait for a publish: they stay until the publish is over."""

    query: str
    attempt: int
    stages: tuple[bytes, ...]


class UnstageRecord(NamedTuple):
    """Staged blocks are gone."""

    stages: tuple[bytes, ...]


class PlaceRecord(NamedTuple):
    """A staged block has another copyset: some of its nodes were lost, or drained."""

    stage: bytes
    nodes: tuple[int, ...]
    moves: int


def pack_stage_head(head: StagedHead) -> bytes:
    """A STAGE record without its body."""
    return _HEAD.pack(
        head.stage, head.log, head.expires_us, head.records, head.stored_bytes, head.raw_bytes,
        head.stored_crc, head.raw_crc, head.codec, len(head.nodes), head.moves,
    ) + b"".join(map(_NODE.pack, head.nodes))  # fmt: skip


def read_stage(data: memoryview) -> StageRecord:
    """A STAGE record; the body points into it and is not summed.

    Raises:
        Malformed: it is none.
    """
    head, size = _read_head(data)
    body = data[size:]
    if len(body) != head.stored_bytes:
        raise Malformed(f"a staged block says {head.stored_bytes} bytes and has {len(body)}")
    return StageRecord(head, body)


def pack_pin(record: PinRecord) -> bytes:
    """A PIN record."""
    name = record.query.encode()
    return _PIN.pack(record.attempt, len(record.stages), len(name)) + name + b"".join(record.stages)


def read_pin(data: memoryview) -> PinRecord:
    """A PIN record.

    Raises:
        Malformed: it is none.
    """
    if len(data) < _PIN.size:
        raise Malformed("a pin is cut short")
    attempt, count, length = _PIN.unpack_from(data)
    at = _PIN.size + length
    return PinRecord(_text(data[_PIN.size : at]), attempt, _ids(data[at:], count))


def pack_unstage(record: UnstageRecord) -> bytes:
    """An UNSTAGE record."""
    return _COUNT.pack(len(record.stages)) + b"".join(record.stages)


def read_unstage(data: memoryview) -> UnstageRecord:
    """An UNSTAGE record.

    Raises:
        Malformed: it is none.
    """
    if len(data) < _COUNT.size:
        raise Malformed("an unstage is cut short")
    return UnstageRecord(_ids(data[_COUNT.size :], _COUNT.unpack_from(data)[0]))


def pack_place(record: PlaceRecord) -> bytes:
    """A PLACE record."""
    head = _PLACE.pack(record.stage, record.moves, len(record.nodes))
    return head + b"".join(map(_NODE.pack, record.nodes))


def read_place(data: memoryview) -> PlaceRecord:
    """A PLACE record.

    Raises:
        Malformed: it is none.
    """
    if len(data) < _PLACE.size:
        raise Malformed("the copyset of a staged block is cut short")
    stage, moves, count = _PLACE.unpack_from(data)
    if not count or len(data) != _PLACE.size + count * _NODE.size:
        raise Malformed("the copyset of a staged block has the wrong length")
    return PlaceRecord(stage, _nodes(data[_PLACE.size :], count), moves)


def head_key(stage: bytes) -> bytes:
    """The key of a staged block's head."""
    return b"h" + stage


def body_key(stage: bytes) -> bytes:
    """The key of its body."""
    return b"b" + stage


def pack_row(head: StagedHead, query: str, attempt: int) -> bytes:
    """The value of a head's key."""
    return pack_stage_head(head) + _ATTEMPT.pack(attempt) + query.encode()


def read_row(value: bytes) -> tuple[StagedHead, str, int]:
    """A head, and the query and attempt that pinned it ("" and 0 for none).

    Raises:
        Malformed: it is none.
    """
    data = memoryview(value)
    if len(data) < STAGE_HEAD_BYTES + _ATTEMPT.size:
        raise Malformed("LogsDB holds a staged block that is cut short")
    head, size = _read_head(data)
    if len(data) < size + _ATTEMPT.size:
        raise Malformed("LogsDB holds a staged block that is cut short")
    (attempt,) = _ATTEMPT.unpack_from(data, size)
    return head, _text(data[size + _ATTEMPT.size :]), attempt


def _read_head(data: memoryview) -> tuple[StagedHead, int]:
    """A head, and its bytes."""
    if len(data) < STAGE_HEAD_BYTES:
        raise Malformed("a staged block is cut short")
    *fields, count, moves = _HEAD.unpack_from(data)
    size = STAGE_HEAD_BYTES + count * _NODE.size
    if len(data) < size:
        raise Malformed("the copyset of a staged block is cut short")
    nodes = _nodes(data[STAGE_HEAD_BYTES:size], count)
    head = replace(StagedHead(*fields), nodes=nodes, moves=moves)
    fault = check_head(head)
    if fault:
        raise Malformed(f"a staged block of log {head.log}: {fault}")
    return head, size


def _nodes(data: memoryview, count: int) -> tuple[int, ...]:
    return tuple(_NODE.unpack_from(data, at * _NODE.size)[0] for at in range(count))


def check_head(head: StagedHead) -> str:
    """The fault of a head in words; empty for none."""
    if len(head.stage) != STAGE_ID_BYTES or not 1 <= head.log < 1 << 62:
        return "its id or its log is out of range"
    if not 1 <= head.records <= BLOCK_RECORDS_MAX or head.codec > 2:
        return "its records or its codec are out of range"
    if max(head.stored_bytes, head.raw_bytes) > BODY_BYTES_MAX:
        return f"its body is over {BODY_BYTES_MAX} bytes"
    if len(head.nodes) > COPIES_MAX or not 0 <= head.moves <= MOVES_MAX:
        return "its copyset is out of range"
    return ""


def _ids(data: memoryview, count: int) -> tuple[bytes, ...]:
    if len(data) != count * STAGE_ID_BYTES:
        raise Malformed("a list of staged blocks has the wrong length")
    return tuple(bytes(data[at : at + STAGE_ID_BYTES]) for at in range(0, len(data), 16))


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise Malformed("a query's name is no UTF-8") from None


def packed_ids(stages: Sequence[bytes]) -> tuple[bytes, ...]:
    """Copies of these ids as bytes, each id once, in their order."""
    return tuple(dict.fromkeys(map(bytes, stages)))
