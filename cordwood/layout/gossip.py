"""The payload of a GOSSIP frame: one node's view of every node.

Little-endian: `u32 words, u32 reserved 0`, then per word 20 bytes::

    offset width field
    0      4     node, 1 or more
    4      4     age in ticks
    8      8     incarnation
    16     1     flags: 1 leaving
    17     3     reserved, 0

Source: docs/sources/logdevice.md 2.12.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cordwood.errors import Malformed

_HEAD = struct.Struct("<II")
_WORD = struct.Struct("<IIQB3s")

WORDS_MAX = 4096
"""The most nodes in one payload. A cluster of so many nodes would send far too many gossip
frames."""

Told = tuple[int, int, int, bool]
"""Node, age, incarnation, leaving."""


def pack_gossip(words: Sequence[Told]) -> bytes:
    """A GOSSIP payload."""
    pack = _WORD.pack
    packed = [
        pack(node, age, incarnation, leaving, b"\0\0\0")
        for node, age, incarnation, leaving in words
    ]
    return b"".join((_HEAD.pack(len(words), 0), *packed))


def read_gossip(payload: memoryview) -> list[Told]:
    """The words of a GOSSIP payload.

    Raises:
        Malformed: a wrong length, too many words, or a field out of its range.
    """
    if len(payload) < _HEAD.size:
        raise Malformed("a GOSSIP frame is too short for its count")
    count, reserved = _HEAD.unpack_from(payload)
    if reserved or count > WORDS_MAX or len(payload) != _HEAD.size + count * _WORD.size:
        raise Malformed(f"a GOSSIP frame of {len(payload)} bytes claims {count} words")
    words: list[Told] = []
    for node, age, incarnation, flags, rest in _WORD.iter_unpack(payload[_HEAD.size :]):
        if not node or flags > 1 or rest != b"\0\0\0":
            raise Malformed("a GOSSIP word has a field out of its range")
        words.append((node, age, incarnation, bool(flags)))
    return words
