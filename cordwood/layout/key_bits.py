"""A filter of 32 bits in a block's header, which tells the keys that the block may hold.

Only clients open bodies, so a storage node can leave out blocks for a reader of some keys only if
the headers tell enough. They carry a small Bloom filter: bit 31 says that it is one, and each key
sets one of bits 0 to 30. A filter may claim an absent key, so the reader filters records again; it
never denies a present key.

If a reader wants one key, a node sends it without need one in 31 of the blocks with one other key,
a quarter of the blocks with eight keys, and nearly every block with a hundred keys. So the filter
pays where blocks have few keys.

Source: docs/sources/logdevice.md 1 (FILTERABLE keys), 2.10 (FILTERED_OUT); Bloom, CACM 13 (1970).
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

KNOWN = 1 << 31
"""This flag says that the bits tell the keys. Without it (0) the keys are not known."""

_KEY_BITS = 31


def key_bits(keys: Iterable[bytes | bytearray | memoryview | None] | None) -> int:
    """The bits of a block with these keys. None among the keys is a record without a key. None in
    place of the keys means that no record has a key."""
    bits = KNOWN
    if keys is not None:
        for key in {None if key is None else bytes(key) for key in keys}:
            if key is not None:
                bits |= 1 << crc32c(key) % _KEY_BITS
    return bits


def may_hold(bits: int, wanted: int) -> bool:
    """Whether a block may hold one of the wanted keys.

    Args:
        bits: the block header's bits.
        wanted: `key_bits` of the wanted keys.
    """
    return not bits & KNOWN or bool(bits & wanted & (KNOWN - 1))
