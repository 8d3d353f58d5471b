"""Blocks read from main storage, kept for the next reader of the same row group.

Readers of one client share a cache. So a second reader of a history, or a reader that goes back,
does not fetch and decode a cached row group again. Row groups never change, and names of objects
are never used twice, so no cached block becomes outdated. It is bounded by the bytes of the bodies,
and drops the least recently used groups. Readers that want the same row group at the same time
fetch it once: the others wait for the first reader, and one of them takes over if it stops.

Source: docs/objects.md, "Reading"; docs/sources/s3stream.md (b), "Read".
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from cordwood.block import BlockHeader, Buffer
from cordwood.layout.object_rows import RowBlock


class GroupKey(NamedTuple):
    """A row group's blocks of one log.

    Attributes:
        as_rows: whether the blocks are rows, for readers of columns.
    """

    name: str
    group: int
    log: int
    as_rows: bool


Blocks = Sequence[tuple[BlockHeader, Buffer | RowBlock]]
"""Headers, and bodies uncompressed, in order."""


class BlockCache:
    """See the module.

    Args:
        bytes_max: of cached bodies; 0 keeps none.
    Attributes:
        bytes: of the cached bodies.
        hits: row groups found in the cache.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.hits = 0
        self._bytes_max = bytes_max
        self._held: OrderedDict[GroupKey, tuple[Blocks, int]] = OrderedDict()
        # Row groups under way; a future is done once its fetch ended, with success or not.
        self._fetching: dict[GroupKey, asyncio.Future[None]] = {}

    def __contains__(self, key: GroupKey) -> bool:
        """Whether a row group is here, or under way."""
        return key in self._held or key in self._fetching

    async def blocks(self, key: GroupKey, fetch: Callable[[], Awaitable[Blocks]]) -> Blocks:
        """The blocks of a row group, from the cache or fetched.

        Raises:
            CordwoodError: the error of `fetch`; nothing is cached then.
        """
        while True:
            if (held := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                self.hits += 1
                return held[0]
            if (other := self._fetching.get(key)) is None:
                break
            await asyncio.wait([other])
        over = self._fetching[key] = asyncio.get_running_loop().create_future()
        try:
            found = await fetch()
            self._keep(key, found)
            return found
        finally:
            del self._fetching[key]
            over.set_result(None)

    def clear(self) -> None:
        """Drop all cached blocks."""
        self._held.clear()
        self.bytes = 0

    def _keep(self, key: GroupKey, found: Blocks) -> None:
        size = sum(header.raw_bytes for header, _ in found)
        if size > self._bytes_max:
            return
        self._held[key] = found, size
        self.bytes += size
        while self.bytes > self._bytes_max:
            _, (_, gone) = self._held.popitem(last=False)
            self.bytes -= gone
