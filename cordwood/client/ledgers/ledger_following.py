"""Iterates a ledger in its order: in batches, entry by entry, or in Arrow batches; and lists of
ledgers, page by page.

The loop fills a hand, and only while it is empty; the caller takes from it. So an error of a read,
or a cancelled step (of `asyncio.wait_for`, or a signal handler's error in a waiting thread), loses
nothing: the next step goes on after the entries that were taken. A generator would be over then,
and its next step would say that the ledger ends there.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from cordwood.client.ledgers.read_ahead import ReadAhead
from cordwood.errors import BadSetting
from cordwood.layout.batch_columns import COLUMNS
from cordwood.layout.entry_arrow import entries_to_batch
from cordwood.ledger import ENTRY_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.client.ledgers.readable_ledger import LedgerEntry, ReadableLedger

ARROW_ROWS = 8192
"""Approximate number of entries in an Arrow batch; Spark's own number (docs/sources/spark.md
§3)."""

ARROW_BYTES = 4 << 20
"""Approximate bytes of payloads in an Arrow batch."""

Item = TypeVar("Item")


class Following(Generic[Item]):
    """An iterator whose steps may fail or be cancelled, and go on. See the module."""

    def __init__(self) -> None:
        self._hand: Iterator[Item] = iter(())
        # Of concurrent steps each gets its own item.
        self._filling = asyncio.Lock()

    def take(self) -> Item | None:
        """The item in hand; None if there is none: `fill` first."""
        # A signal handler cannot come between: the item is in hand, or the caller has it.
        for item in self._hand:
            return item
        return None

    async def fill(self) -> bool:
        """Have an item in hand. Returns False at the end.

        Raises:
            CordwoodError: see `ReadableLedger.batches`, `Ledgers.list`. The next call goes on.
        """
        async with self._filling:
            if not length_hint(self._hand):
                self._hand = iter(await self._next_items())
            return bool(length_hint(self._hand))

    async def _next_items(self) -> Sequence[Item]:
        """The next items; none at the end. An error or a cancellation leaves all in its place."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Stop the reading and wait until no call is under way any more."""
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while (item := self.take()) is None:
            if not await self.fill():
                raise StopAsyncIteration
        return item


class Paged(Following[Item]):
    """Items of a list that comes in pages, in the order of their numbers."""

    def __init__(
        self,
        read_page: Callable[[int], Awaitable[Sequence[Item]]],
        number_of: Callable[[Item], int],
        after: int,
    ) -> None:
        """
        Args:
            read_page: reads the items after a number; an empty page is the end.
        """
        super().__init__()
        self._read_page = read_page
        self._number_of = number_of
        self._after = after
        self._is_over = False

    async def _next_items(self) -> Sequence[Item]:
        page = () if self._is_over else await self._read_page(self._after)
        if page:
            self._after = self._number_of(page[-1])
        self._is_over = not page
        return page

    async def aclose(self) -> None:
        self._hand, self._is_over = iter(()), True


class LedgerBatches(Following["list[LedgerEntry]"]):
    """Entries in batches of about two megabytes, while the next ones are read."""

    def __init__(self, ledger: ReadableLedger, start: int, until: int | None) -> None:
        """
        Args:
            until: the last wanted entry, which the caller knows to be confirmed.
        Raises:
            BadSetting: `start` is below 0.
        """
        super().__init__()
        if start < 0:
            raise BadSetting(f"a ledger has no entry {start}")
        self._ledger = ledger
        self._next = start
        self._wanted = ENTRY_MAX if until is None else until
        self._ahead = ReadAhead(ledger._read_part, start)
        self._waiting: asyncio.Task[None] | None = None

    async def _next_items(self) -> list[list[LedgerEntry]]:
        ledger = self._ledger
        ledger._cluster.check_open()
        while self._next <= self._wanted:
            if self._next <= ledger.last_add_confirmed:
                some = await self._ahead.take(min(ledger.last_add_confirmed, self._wanted))
                if not some:
                    break
                self._next = some[-1].entry + 1
                return [some]
            if ledger.is_closed:
                break
            await self._wait_more()
        return []

    async def _wait_more(self) -> None:
        """Wait for an entry, or for the end, for a while. The wait stays under way when its caller
        is cancelled: it reads the metadata last, and a program with shorter steps would never hear
        of the end, nor of other nodes."""
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._ledger._wait_more())
            self._waiting.add_done_callback(_retrieved)
        waiting = self._waiting
        await asyncio.wait([waiting])
        if self._waiting is waiting:
            self._waiting = None
            waiting.result()

    async def aclose(self) -> None:
        self._hand, self._next = iter(()), self._wanted + 1
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await self._ahead.stop()


class LedgerEntries(Following["LedgerEntry"]):
    """Entries one by one."""

    def __init__(self, batches: LedgerBatches) -> None:
        super().__init__()
        self._batches = batches

    async def _next_items(self) -> list[LedgerEntry]:
        return await anext(self._batches, [])

    async def aclose(self) -> None:
        self._hand = iter(())
        await self._batches.aclose()


class LedgerTables(Following["pa.RecordBatch"]):
    """Arrow batches of thousands of small entries."""

    def __init__(
        self,
        ledger: ReadableLedger,
        columns: Sequence[str] | None,
        batches: LedgerBatches,
        until: int | None,
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._columns = columns or COLUMNS
        self._batches = batches
        self._until = until
        self._held: list[LedgerEntry] = []
        self._size = 0

    async def _next_items(self) -> list[pa.RecordBatch]:
        ledger = self._ledger
        while some := await anext(self._batches, None):
            self._held += some
            self._size += sum(len(each.payload) for each in some)
            is_full = len(self._held) >= ARROW_ROWS or self._size >= ARROW_BYTES
            # It does not wait for more entries.
            if is_full or some[-1].entry in (ledger.last_add_confirmed, self._until):
                break
        if not self._held:
            return []
        payloads = [each.payload for each in self._held]
        first = self._held[0].entry
        batch = entries_to_batch(ledger.ledger_id, first, payloads, self._columns)
        self._held, self._size = [], 0
        return [batch]

    async def aclose(self) -> None:
        self._hand, self._held = iter(()), []
        await self._batches.aclose()


def _retrieved(task: asyncio.Task[None]) -> None:
    """Mark its error as read: its reader may not come back."""
    if not task.cancelled():
        task.exception()
