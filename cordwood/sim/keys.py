"""Keys of simulated records: the key of a payload follows from its bytes."""

from __future__ import annotations

import crc32c

from cordwood.block import Buffer

KEYS = ("amber", "blue", "coral", "dun")
"""Few keys, so that a block has several of them, and not always all."""


def key_of(payload: Buffer) -> str:
    """The key of a payload, "" for none."""
    return (*KEYS, "")[crc32c.crc32c(payload) % (len(KEYS) + 1)]


def as_key(key: str) -> bytes | None:
    """A key as it is appended."""
    return key.encode() or None
