"""Reads a ledger in its order, ahead of whoever takes its entries.

While one part is taken the next ones are on their way, each from another node where every node has
every entry. Parts have about PART_BYTES, by the entries that came last, and PARTS of them are under
way: so much memory a reader takes, and no more, however slow it is.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING

from cordwood.layout.message_ledgers import RUN_ENTRIES_MAX

if TYPE_CHECKING:
    from cordwood.client.ledgers.readable_ledger import LedgerEntry

PART_BYTES = 1 << 20
"""Payloads of one part, about: a node's answer, far below what a frame may have."""

PARTS = 3
"""Parts under way: one from each of three nodes."""

FEW = 16
"""Entries of the first part: nothing is known of their sizes."""

ReadPart = Callable[[int, int, int], Awaitable[list["LedgerEntry"]]]
"""Reads entries from the first to the second number, and so many bytes at most: all of them, or the
first ones, one at least."""


class ReadAhead:
    """See the module. A context manager, which ends the reading."""

    def __init__(self, read: ReadPart, start: int) -> None:
        self._read = read
        self._next = start
        self._count = FEW
        self._is_measured = False
        # The last entry of each part under way.
        self._parts: deque[tuple[int, asyncio.Task[list[LedgerEntry]]]] = deque()

    async def __aenter__(self) -> ReadAhead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [task for _, task in self._parts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, last: int) -> list[LedgerEntry]:
        """The next entries, one at least, of which none is above `last`.

        Args:
            last: no lower than that of an earlier call, nor than the next entry.
        Raises:
            CordwoodError: what the reading raises, at its place.
        """
        self._begin(last)
        until, task = self._parts[0]
        found = await task
        self._parts.popleft()
        if found[-1].entry < until:
            # The entries are larger than those before them.
            self._parts.appendleft((until, self._start(found[-1].entry + 1, until)))
        size = sum([len(each.payload) for each in found])
        self._count = max(1, min(RUN_ENTRIES_MAX, PART_BYTES * len(found) // max(1, size)))
        self._is_measured = True
        self._begin(last)
        return found

    def _begin(self, last: int) -> None:
        at_once = PARTS if self._is_measured else 1
        while len(self._parts) < at_once and self._next <= last:
            until = min(last, self._next + self._count - 1)
            self._parts.append((until, self._start(self._next, until)))
            self._next = until + 1

    def _start(self, first: int, until: int) -> asyncio.Task[list[LedgerEntry]]:
        return asyncio.ensure_future(self._read(first, until, PART_BYTES))
