"""Releases in epochs that a node was not shown to be handed out.

They come as RELEASE frames and as LNGs of stored blocks, also of blocks that a replay of the WAL
brings again. `storage.claims` asks the epoch store about them; until then they show readers
nothing.
"""

from __future__ import annotations

import asyncio

WAITING_MAX = 16_384
"""Logs whose release waits for the epoch store. One more is dropped: sequencers say releases
again, with each block and whenever this node connects."""


class Doubted:
    """By log, the highest such release."""

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        self._stirred = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, log: int, lsn: int) -> None:
        """A caller says that readers may see up to `lsn`."""
        if log in self._waiting or len(self._waiting) < WAITING_MAX:
            self._waiting[log] = max(lsn, self._waiting.get(log, 0))
            self._stirred.set()

    def take(self, most: int) -> list[tuple[int, int]]:
        """Up to `most` pairs of a log and an LSN, which wait no more."""
        return [self._waiting.popitem() for _ in range(min(most, len(self._waiting)))]

    async def wait(self) -> None:
        """Return once something was added since the last call."""
        await self._stirred.wait()
        self._stirred.clear()
