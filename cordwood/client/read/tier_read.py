"""Reads the records that nodes let go of from main storage, for one read stream.

Nodes report the tier point of a log, and send only later records. This module reads objects from
the stream's position up to that tier point, and then the stream continues with the nodes' blocks.
The tier point is never above the manifest's end, so no record is left out: a node reports a tier
point only when the store holds all records up to it durably.

Two bounds limit the read-ahead: the history reader's gets, and QUEUE_BYTES here. A store that does
not answer is asked again, with pauses that grow, for as long as the stream is read.

Source: docs/protocol/main-storage.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from cordwood.block import Envelope, Gap
from cordwood.client.blocks import HeldBlock
from cordwood.client.find.log_info import LogInfo
from cordwood.errors import CordwoodError, Malformed, OutcomeUnknown, Retryable
from cordwood.layout.object_rows import RowBlock
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import Lsn, format_lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery
from cordwood.tier.history import HistoryBlock, HistoryItem, HistoryReader

logger = logging.getLogger(__name__)

QUEUE_BYTES = 4 << 20
"""The most bytes of bodies that wait here: a batch. The history reader has its own bound."""

PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 10.0
"""The first and the longest pause before a store that does not answer is asked again."""

FROM_MAIN_STORAGE = NodeId(0)
"""The sender of a block that no node sent."""

_NO_ENVELOPE = Envelope((0,))


class OpenHistory(Protocol):
    """Opens a log's history, from one LSN to another, both included.

    Raises:
        CordwoodError: the store cannot be opened.
    """

    async def __call__(self, start: int, until: int) -> HistoryReader: ...


class ReadTier(Protocol):
    """Begins to read a log from main storage; see `client.tier_store`."""

    def read(
        self, info: LogInfo, start: int, until: int, on_news: Callable[[], object], *,
        payloads: bool, as_rows: bool,
    ) -> TierRead: ...  # fmt: skip


class TierRead:
    """See the module; `start` begins, and `take` gives.

    Args:
        until: the tier point that a node told.
        on_news: called when there is something to take, or a trouble.
        payloads: without, bodies are left out.
    Attributes:
        first, until: the first and the last LSN that it gives.
        looked_at: when the manifest was read that the item taken last comes from.
        trouble: the reason why the store gives nothing, "" if it works.
        error: the final error: main storage differs from what was written, or is another cluster's.
    """

    def __init__(
        self,
        open_history: OpenHistory,
        log: int,
        start: int,
        until: int,
        on_news: Callable[[], object],
        *,
        payloads: bool,
    ) -> None:
        self.first, self.until = start, until
        self.looked_at = 0.0
        self.trouble = ""
        self.error: CordwoodError | None = None
        self._open_history = open_history
        self._log = log
        self._next = start
        self._on_news = on_news
        self._payloads = payloads
        self._items: deque[tuple[HistoryItem, float]] = deque()
        self._bytes = 0
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to fetch."""
        self._task = tasks.create_task(self._run())

    def close(self) -> None:
        """Fetch no more."""
        self._items.clear()
        if self._task is not None:
            self._task.cancel()

    def take(self, lsn: int) -> Delivery[HeldBlock] | Gap | None:
        """The next block or gap from `lsn` on; None if it is not here yet.

        Raises:
            CordwoodError: an object or the manifest differs from what was written, or the store
                holds another cluster's log.
        """
        while self._items:
            item, self.looked_at = self._items.popleft()
            self._bytes -= _size(item)
            self._taken.set()
            if item.last < lsn:
                continue  # a node that still had the block sent it
            first = max(lsn, int(item.first))
            if isinstance(item, Gap):
                return Gap(Lsn(first), item.last, item.kind)
            return Delivery(held_block(item, payloads=self._payloads), first, item.last)
        if self.error is not None:
            raise self.error
        return None

    async def _run(self) -> None:
        pause_s = PAUSE_FIRST_S
        while self._next <= self.until:
            before = self._next
            try:
                async with await self._open_history(self._next, self.until) as history:
                    await self._fetch(history)
                if self._next <= self.until:
                    self.trouble = (
                        f"main storage ends at {format_lsn(self._next)}, and nodes let go of what "
                        f"is up to {format_lsn(self.until)}: is it another store than theirs? If "
                        f"its newest objects are lost: `cordwood tier repair {self._log} --end "
                        f"{format_lsn(self.until)}`"
                    )
            except (Retryable, OutcomeUnknown) as error:
                self.trouble = f"main storage does not answer: {error}"
            except CordwoodError as error:
                self.error = error
                self._on_news()
                return
            if self._next > before:
                pause_s = PAUSE_FIRST_S
            if self._next <= self.until:
                logger.info("log %d: %s", self._log, self.trouble)
                self._on_news()
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    async def _fetch(self, history: HistoryReader) -> None:
        looked_at: float | None = None
        while (item := await history.next()) is not None:
            if item.first != self._next:
                raise Malformed(
                    f"log {self._log}: main storage goes on at {format_lsn(item.first)} behind "
                    f"{format_lsn(self._next)}"
                )
            if looked_at is None:
                looked_at = asyncio.get_running_loop().time()
            self._items.append((item, looked_at))
            self._bytes += _size(item)
            self._next = int(item.last) + 1
            self.trouble = ""
            self._on_news()
            while self._bytes >= QUEUE_BYTES:
                self._taken.clear()
                await self._taken.wait()


def _size(item: HistoryItem) -> int:
    return 0 if isinstance(item, Gap) else item.header.raw_bytes


def held_block(block: HistoryBlock, *, payloads: bool = True) -> HeldBlock:
    """A block as if a node had sent it: its body uncompressed, with the CRC of its append."""
    header = block.header.uncompressed()
    rows = block.body if payloads and isinstance(block.body, RowBlock) else None
    body = b"" if isinstance(block.body, RowBlock) or not payloads else block.body
    return HeldBlock(FROM_MAIN_STORAGE, StoredBlock(header, _NO_ENVELOPE, b"", body), rows)
