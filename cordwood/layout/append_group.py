"""The blocks of an atomic group inside an APPEND entry. They follow the entry's own bytes.

Little-endian: `u32 blocks, u32 reserved 0`, then per block 24 bytes, then the bodies back to
back::

    offset width field
    0      4     records
    4      4     body bytes as stored
    8      4     body bytes uncompressed
    12     4     CRC32C of the stored body
    16     4     CRC32C of the uncompressed body
    20     1     codec
    21     3     reserved, 0

Source: docs/design.md §2 ("atomic group"), §4.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.block import Buffer, Codec
from cordwood.errors import Malformed
from cordwood.layout.limits import (
    BLOCK_RECORDS_MAX,
    BODY_BYTES_MAX,
    GROUP_BLOCKS_MAX,
    GROUP_BYTES_MAX,
)

_HEAD = struct.Struct("<II")
_PART = struct.Struct("<IIIIIBBH")
_CODECS = frozenset(int(codec) for codec in Codec)


class GroupPart(NamedTuple):
    """One block of a group, as a client sends it."""

    records: int
    stored_bytes: int
    raw_bytes: int
    stored_crc: int
    raw_crc: int
    codec: int
    body: Buffer


def pack_group(parts: Sequence[GroupPart]) -> bytes:
    """The bytes before the bodies of a group: the head, and 24 bytes for each block."""
    heads = (_PART.pack(*part[:6], 0, 0) for part in parts)
    return _HEAD.pack(len(parts), 0) + b"".join(heads)


def read_group(payload: memoryview, at: int) -> tuple[tuple[GroupPart, ...], int]:
    """The blocks of the group that begins at `at`, and its end. The bodies are views into
    `payload`.

    Raises:
        Malformed: cut short, or a field out of its range. A block with an invalid header must not
            be numbered: every storage node would refuse it, again and again.
    """
    end = len(payload)
    if end - at < _HEAD.size:
        raise Malformed("an APPEND frame ends inside a group")
    blocks, reserved = _HEAD.unpack_from(payload, at)
    at += _HEAD.size
    if reserved or not 1 <= blocks <= GROUP_BLOCKS_MAX or blocks * _PART.size > end - at:
        raise Malformed(f"an APPEND frame of {end} bytes claims a group of {blocks} blocks")
    body_at = at + blocks * _PART.size
    parts: list[GroupPart] = []
    for fields in _PART.iter_unpack(payload[at:body_at]):
        count, stored, raw, stored_crc, raw_crc, codec, *kept = fields
        if any(kept) or codec not in _CODECS or not 1 <= count <= BLOCK_RECORDS_MAX:
            raise Malformed("a block of a group has a field out of its range")
        if max(stored, raw) > BODY_BYTES_MAX or stored > end - body_at:
            raise Malformed("a block of a group claims too large a body")
        body = payload[body_at : body_at + stored]
        parts.append(GroupPart(count, stored, raw, stored_crc, raw_crc, codec, body))
        body_at += stored
    if sum(part.stored_bytes for part in parts) > GROUP_BYTES_MAX:
        raise Malformed(f"a group has over {GROUP_BYTES_MAX} bytes")
    return tuple(parts), body_at
