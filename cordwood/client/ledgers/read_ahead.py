"""Reads a ledger in its order, ahead of its consumer.

While one part is consumed, the next parts are in flight, each from another node if every node has
every entry. Parts have about PART_BYTES, judged by the last entries, and PARTS of them are in
flight. This bounds the memory of a reader, even of a slow one.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING

from cordwood.errors import Unreachable
from cordwood.layout.message_ledgers import RUN_ENTRIES_MAX

if TYPE_CHECKING:
    from cordwood.client.ledgers.readable_ledger import LedgerEntry

PART_BYTES = 1 << 20
"""Approximate bytes of payloads in one part: one answer of a node, far below the limit of a
frame."""

PARTS = 3
"""Number of parts in flight: one from each of three nodes."""

FEW = 16
"""Number of entries of the first part, when sizes are not known yet."""

ReadPart = Callable[[int, int, int], Awaitable[list["LedgerEntry"]]]
"""Reads entries from the first to the second number, with a limit of bytes: all of them, or the
first ones, but at least one."""


class ReadAhead:
    """See the module. A context manager, which ends the reading."""

    def __init__(self, read: ReadPart, start: int) -> None:
        self._read = read
        self._next = start
        self._count = FEW
        self._is_measured = False
        # The last entry of each part in flight.
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
        """The next entries, at least one, none above `last`.

        Args:
            last: not below that of an earlier call, nor below the next entry.

        Raises:
            CordwoodError: an error of the read, at its place in the order.
        """
        self._begin(last)
        until, task = self._parts[0]
        found = await task
        if not found:
            # A faulty store may give entries of which none passes its check.
            raise Unreachable(f"no node has a whole copy of the entries up to {until}")
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
