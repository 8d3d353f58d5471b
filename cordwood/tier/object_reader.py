"""Reads objects by ranges: a footer, then row groups.

If the manifest told the size of the footer, one get fetches it. With an object's name alone, a
first get fetches a guessed number of bytes from the object's end, and a second get follows if the
footer is larger.

Source: docs/objects.md, "Objects".
"""

from __future__ import annotations

from cordwood.errors import ChecksumMismatch
from cordwood.layout.object_file import (
    TRAILER_BYTES,
    Footer,
    footer_bytes,
    read_footer,
)
from cordwood.tier.object_store import ObjectStore
from cordwood.tiered import Entry

FOOTER_GUESS_BYTES = 64 << 10
"""A footer of 32 row groups; one of 16 has 25 KB."""


async def load_footer(
    store: ObjectStore, name: str, size: int, crc: int, *, timeout_s: float
) -> Footer:
    """The footer of an object of which only its name and size are known.

    Raises:
        Corrupt: it is not the footer that was written.
    """
    start = max(0, size - FOOTER_GUESS_BYTES)
    tail = await store.get(name, start, size, timeout_s=timeout_s)
    wanted = footer_bytes(tail[-TRAILER_BYTES:])
    if wanted > size:
        raise ChecksumMismatch(f"{name}: a footer of {wanted} bytes in {size}")
    if wanted > len(tail):
        tail = await store.get(name, size - wanted, size, timeout_s=timeout_s)
    return read_footer(tail[len(tail) - wanted :], crc, size)


async def entry_footer(store: ObjectStore, entry: Entry, *, timeout_s: float) -> Footer:
    """The footer of an entry's object, in one get.

    Raises:
        Corrupt: it is not the footer that was written.
    """
    start = entry.size - entry.footer_bytes
    tail = await store.get(entry.name, start, entry.size, timeout_s=timeout_s)
    return read_footer(tail, entry.footer_crc, entry.size)
