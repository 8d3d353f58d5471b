"""Reads a ledger in its order, ahead of its consumer.

While one part is consumed, the next parts are in flight, each from another node if every node has
every entry. Parts have about AIM_BYTES, judged by the last entries, and PARTS of them are in
flight. This bounds the memory of a reader, even of a slow one.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from cordwood.errors import Unreachable
from cordwood.layout.message_ledgers import RUN_ENTRIES_MAX

if TYPE_CHECKING:
    from cordwood.client.ledgers.readable_ledger import LedgerEntry

PART_BYTES = 5 << 19
"""The most bytes of bodies in one part, but for a larger entry: one answer of a node, below the
limit of a frame. With 1 MiB, calls and wake-ups took a quarter of the time of large entries."""

AIM_BYTES = PART_BYTES * 4 // 5
"""Bytes of payloads that are asked for. The rest of an answer is for digests, and for entries a
little larger than those before: a second call for the last entry of each part took as long as the
first."""

PARTS = 6
"""Number of parts in flight: two from each of three nodes, one of which is made while the other is
sent. They have 15 MiB at most. A reader of a log may be sent 24 MiB by three nodes
(`client.read_bytes`)."""

FEW = 16
"""Number of entries of the first part, when sizes are not known yet."""

ReadPart = Callable[[int, int, int], Awaitable[list["LedgerEntry"]]]
"""Reads entries from the first to the second number, with a limit of bytes: all of them, or the
first few, but at least one."""


class _Part(NamedTuple):
    """Entries under way, from the first to the last number."""

    first: int
    until: int
    task: asyncio.Task[list[LedgerEntry]]


class ReadAhead:
    """See the module. A context manager, which ends the reading."""

    def __init__(self, read: ReadPart, start: int) -> None:
        self._read = read
        self._next = start
        self._count = FEW
        self._is_measured = False
        self._parts: deque[_Part] = deque()

    async def __aenter__(self) -> ReadAhead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Cancel all parts in flight. The next call begins after the entries that were taken."""
        if self._parts:
            self._next = self._parts[0].first
        tasks = [part.task for part in self._parts]
        self._parts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, last: int) -> list[LedgerEntry]:
        """The next entries, at least one, none above `last`; none if `stop` came meanwhile. A call
        that is cancelled, or failed, takes nothing: the next one goes on there.

        Args:
            last: not below that of an earlier call, nor below the next entry.

        Raises:
            CordwoodError: an error of the read, at its place in the order.
        """
        self._begin(last)
        part = self._parts[0]
        if not part.task.done():
            # A part stays under way when its caller is cancelled.
            await asyncio.wait([part.task])
        if not self._parts or self._parts[0] is not part:
            return []  # Race: `stop` came between.
        found = [] if part.task.cancelled() or part.task.exception() else part.task.result()
        if not found:
            await self.stop()
            # A faulty store may give entries of which none passes its check.
            part.task.result()
            raise Unreachable(f"no node has a whole copy of the entries up to {part.until}")
        self._parts.popleft()
        if found[-1].entry < part.until:
            # The entries are larger than those before them.
            self._parts.appendleft(self._start(found[-1].entry + 1, part.until))
        size = sum([len(each.payload) for each in found])
        self._count = max(1, min(RUN_ENTRIES_MAX, AIM_BYTES * len(found) // max(1, size)))
        self._is_measured = True
        self._begin(last)
        return found

    def _begin(self, last: int) -> None:
        at_once = PARTS if self._is_measured else 1
        while len(self._parts) < at_once and self._next <= last:
            until = min(last, self._next + self._count - 1)
            self._parts.append(self._start(self._next, until))
            self._next = until + 1

    def _start(self, first: int, until: int) -> _Part:
        task = asyncio.ensure_future(self._read(first, until, PART_BYTES))
        task.add_done_callback(_retrieved)
        return _Part(first, until, task)


def _retrieved(task: asyncio.Task[list[LedgerEntry]]) -> None:
    """Mark its error as read: its reader may not come back."""
    if not task.cancelled():
        task.exception()
