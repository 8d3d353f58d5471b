"""A reader: several logs at once, in turn, so that a busy one does not starve the others.

It pulls: nothing is fetched for a log beyond its stream's own window and one block that
was taken. Each log waits in a task of its own only while it has nothing; what comes
is given out round robin, one block's records or one gap at a time.

Source: LogDevice digest 1 ("Reading", "Checkpoints"); design.md §7.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from cordwood.block import Gap, GapKind, Record
from cordwood.client.position_calls import Position, Start
from cordwood.client.read_stream import ReadStream
from cordwood.client.senders import HeldBlock
from cordwood.errors import BadSetting, Closed, CordwoodError
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ARROW_BYTES = 4 << 20
"""Bodies of one log before the next has its turn: a batch or a few."""

_LAST_GAPS = (GapKind.ACCESS, GapKind.NOT_IN_CONFIG)
"""After these nothing more comes."""

ARROW_ROWS = 8192
"""Rows of a batch of records that `read` had opened already; see `client.batches`."""

REDELIVER_FIRST_S = 1.0
REDELIVER_MAX_S = 30.0
"""Pauses before what a callback refused is given to it again: LogDevice's."""

Open = Callable[[str, Start, Position | None], Awaitable[ReadStream]]
"""Opens a stream; see `Store.read`."""

OnLogHealth = Callable[[str, str], None]
"""Is told, from the loop, that a log stands still: its name and why; "" once it goes on."""

Accept = Callable[[str, Record | Gap], Awaitable[bool | None] | bool | None]
"""Takes a record or gap of a log; False refuses it, and it comes again later."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one call of `read` gives: records of one log, or one gap, or nothing (false).

    Attributes:
        log: the log's name as it was asked for; "" if nothing came.
        records: in order; none where there is a gap.
        gap: a range without records.
    """

    log: str = ""
    records: tuple[Record, ...] = ()
    gap: Gap | None = None

    def __bool__(self) -> bool:
        return bool(self.log)

    def __iter__(self) -> Iterator[Record | Gap]:
        return iter(self.records if self.gap is None else (self.gap,))


@dataclass(slots=True, eq=False)
class _Feed:
    """One log of a reader.

    Attributes:
        raw: blocks and gaps that were taken and are not opened yet.
        items: opened and not given out; they go before what is raw.
        waiting: the task that waits for more.
        error: why the stream ended.
        refused: tries in a row that the callback refused; `retry_at` is when it gets the next.
        barred_at: where it ended because the log is gone, or may not be read: a reader that
            comes back when that has changed goes on there.
    """

    log: str
    stream: ReadStream
    until: Position | None
    raw: deque[Delivery[HeldBlock] | Gap] = field(default_factory=deque)
    items: deque[Record | Gap] = field(default_factory=deque)
    waiting: asyncio.Task[None] | None = None
    is_over: bool = False
    error: CordwoodError | None = None
    refused: int = 0
    retry_at: float = 0.0
    barred_at: Lsn | None = None

    @property
    def next_lsn(self) -> Lsn:
        if self.items:
            first = self.items[0]
            return first.first if isinstance(first, Gap) else first.lsn
        if self.raw:
            return Lsn(self.raw[0].first)
        return Lsn(self.stream.next_lsn) if self.barred_at is None else self.barred_at

    def take(self, taken: Delivery[HeldBlock] | Gap) -> None:
        self.raw.append(taken)
        if isinstance(taken, Gap) and taken.kind in _LAST_GAPS:
            self.barred_at = taken.first


class Reader:
    """See the module. Made by `Store.reader`; close it, or use `async with`.

    Args:
        gaps: give gaps too; without, only lost records are told, and that a log may not be
            read.
        on_health: see `ReadStream.on_health`; called from the loop while the reader waits.
    """

    def __init__(
        self,
        open_stream: Open,
        tasks: asyncio.TaskGroup,
        *,
        gaps: bool = True,
        on_health: OnLogHealth | None = None,
    ) -> None:
        self._open = open_stream
        self._tasks = tasks
        self._gaps = gaps
        self._on_health = on_health
        self._feeds: deque[_Feed] = deque()
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._offered: _Feed | None = None

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # Which logs, and where.

    async def start(self, log: str, start: Start = "oldest", until: Position | None = None) -> None:
        """Read a log from `start` to `until`, None to follow it; anew if it is read already.

        Raises:
            BadSetting, UnknownLog, Retryable: see `Store.read`.
        """
        stream = await self._open(log, start, until)
        if self._closed:
            stream.close()
            raise Closed("this reader was closed")
        self.stop(log)
        if self._on_health is not None:
            stream.on_health = partial(self._tell_health, log, self._on_health)
        self._feeds.append(_Feed(log, stream, until))
        self._news.set()

    def stop(self, log: str) -> None:
        """Read a log no more; one that is not read is fine."""
        for feed in [each for each in self._feeds if each.log == log]:
            self._feeds.remove(feed)
            _end(feed)

    async def seek(self, log: str, position: Start) -> None:
        """Go on at another place of a log that is read: an LSN, `oldest`, `tail`, or a time.

        Raises:
            BadSetting: it is not read, or that is no position.
        """
        until = self._feed(log).until
        await self.start(log, position, until)

    def position(self, log: str) -> Lsn:
        """The first LSN of a log that was not given out yet.

        Raises:
            BadSetting: it is not read.
        """
        return self._feed(log).next_lsn

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that are read, by name."""
        return tuple(sorted(feed.log for feed in self._feeds))

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still although there is more to read, or may be, and why."""
        return {
            feed.log: feed.stream.trouble
            for feed in sorted(self._feeds, key=lambda each: each.log)
            if feed.stream.trouble
        }

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._closed = True
        while self._feeds:
            _end(self._feeds.pop())
        self._news.set()

    # Reading.

    async def read(self, count: int = 1000, timeout_s: float | None = None) -> Portion:
        """The next records of one of the logs, up to `count` of them, or one gap.

        Whatever is there is given at once; records never wait for more of them.

        Args:
            timeout_s: how long to wait for something; None waits until there is.
        Returns:
            Nothing (false) after the timeout, or once every log was read to its `until`.
        Raises:
            CordwoodError: the stream of a log failed; the others can be read on.
        """
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            self._news.clear()
            feed = self._next_ready()
            if feed is not None:
                return _portion(feed, count)
            if self._closed:
                raise Closed("this reader was closed")
            if all(each.is_over for each in self._feeds):
                return Portion()
            if not await self._wait(deadline):
                return Portion()

    async def __aiter__(self) -> AsyncIterator[tuple[str, Record | Gap]]:
        while portion := await self.read():
            for item in portion:
                yield portion.log, item

    async def arrow(
        self, columns: Sequence[str] | None = None
    ) -> AsyncIterator[tuple[str, pa.RecordBatch | Gap]]:
        """Batches of columns of one log each, and gaps, each with its log's name.

        Logs take turns, some megabytes each; within a log it is as `ReadStream.arrow`.

        Args:
            columns: see `layout.arrow`; None takes its default.
        Raises:
            BadSetting: there is no such column.
            CordwoodError: the stream of a log failed; the others can be read on.
        """
        from cordwood.layout.arrow import COLUMNS, batch_schema

        wanted = tuple(columns or COLUMNS)
        batch_schema(wanted)
        while True:
            self._news.clear()
            feed = self._next_ready(raw=True)
            if feed is not None:
                for taken in self._batches(feed, wanted):
                    yield feed.log, taken
                continue
            if self._closed:
                raise Closed("this reader was closed")
            if all(each.is_over for each in self._feeds):
                return
            await self._wait(None)

    def _batches(self, feed: _Feed, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Gap]:
        """What one log has now, up to a turn's worth."""
        from cordwood.layout.arrow import records_to_batch

        info, gatherer = feed.stream.info, feed.stream.gatherer(columns)
        while feed.items:  # what `read` opened and did not give out
            portion = _portion(feed, ARROW_ROWS)
            if portion.gap is not None:
                yield portion.gap
            else:
                yield records_to_batch(info.log_id, info.name, portion.records, columns=columns)
        size = 0
        while feed.raw and size < ARROW_BYTES:
            taken = feed.raw.popleft()
            if isinstance(taken, Delivery):
                size += taken.block.header.stored_bytes
                yield from gatherer.add(info.name, taken)
            elif self._gaps or _is_told(taken):
                yield from gatherer.finish()
                yield taken
            if not feed.raw and not feed.is_over and feed.waiting is None:
                self._take(feed)
        yield from gatherer.finish()

    async def deliver(self, accept: Accept) -> None:
        """Give everything to a callback, until every log was read to its `until`.

        What it refuses it gets again, after 1 s at first and 30 s at most; what
        follows in that log waits, and the other logs go on.

        Raises:
            CordwoodError: the stream of a log failed.
        """
        while (offered := await self.offer()) is not None:
            answer = accept(*offered)
            if isinstance(answer, Awaitable):
                answer = await answer
            self.settle(accepted=answer is not False)

    async def offer(self) -> tuple[str, Record | Gap] | None:
        """One step of `deliver`: what comes next, to be settled before anything else is asked for;
        None once every log was read to its `until`.

        Raises:
            CordwoodError: the stream of a log failed.
        """
        while True:
            self._news.clear()
            feed = self._next_ready()
            if feed is not None:
                self._offered = feed
                return feed.log, feed.items[0]
            waits = [each.retry_at for each in self._feeds if each.items]
            if not waits and all(each.is_over for each in self._feeds):
                return None
            await self._wait(min(waits, default=None))

    def settle(self, *, accepted: bool) -> None:
        """What `offer` gave last was dealt with, or is to come again later."""
        feed, self._offered = self._offered, None
        assert feed is not None, "something was offered"
        if accepted:
            feed.items.popleft()
            feed.refused = 0
            return
        pause_s = min(REDELIVER_MAX_S, REDELIVER_FIRST_S * 2**feed.refused)
        feed.refused += 1
        feed.retry_at = self._loop.time() + pause_s

    # Inside.

    def _tell_health(self, log: str, on_health: OnLogHealth, _: ReadStream, why: str) -> None:
        """Not from within the stream: what the callback does or raises is not the stream's."""
        self._loop.call_soon(on_health, log, why)

    def _feed(self, log: str) -> _Feed:
        for feed in self._feeds:
            if feed.log == log:
                return feed
        raise BadSetting(f"{log} is not read by this reader: `start` it first")

    def _next_ready(self, *, raw: bool = False) -> _Feed | None:
        """The next log in turn that has something; it goes to the end of the queue.

        Args:
            raw: blocks are left as they are; else they are opened.
        """
        now = self._loop.time()
        for _ in range(len(self._feeds)):
            feed = self._feeds[0]
            self._feeds.rotate(-1)
            while not feed.items and not (raw and feed.raw):
                if feed.raw:
                    self._open_block(feed)
                elif feed.is_over or feed.waiting is not None:
                    break
                else:
                    self._take(feed)
            has_some = bool(feed.items or feed.raw)
            if feed.error is not None and not has_some:
                error, feed.error = feed.error, None
                raise error
            if has_some and feed.retry_at <= now:
                return feed
        return None

    def _take(self, feed: _Feed) -> None:
        """Take what is there, or have a task wait for it."""
        try:
            taken = feed.stream.take()
            if taken is not None:
                feed.take(taken)
            elif feed.stream.is_done:
                feed.is_over = True
            else:
                feed.waiting = self._tasks.create_task(self._await(feed))
        except CordwoodError as error:
            feed.error, feed.is_over = error, True

    async def _await(self, feed: _Feed) -> None:
        """Wait for the next block or gap of one log."""
        try:
            taken = await feed.stream.next()
            if taken is None:
                feed.is_over = True
            else:
                feed.take(taken)
        except CordwoodError as error:
            feed.error, feed.is_over = error, True
        finally:
            feed.waiting = None
            self._news.set()

    def _open_block(self, feed: _Feed) -> None:
        """Make records of the next block."""
        try:
            items = feed.stream.items_of(feed.raw.popleft())
        except CordwoodError as error:
            feed.error, feed.is_over = error, True
            return
        if not self._gaps:
            items = [each for each in items if _is_told(each)]
        feed.items.extend(items)

    async def _wait(self, deadline: float | None) -> bool:
        """Wait for something to come; False if nothing did by the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


def _is_told(item: Record | Gap) -> bool:
    """Whether a reader who wants no gaps gets it: records, the loss of some, and that it may
    not see them."""
    return isinstance(item, Record) or item.kind in (GapKind.DATA_LOSS, GapKind.ACCESS)


def _portion(feed: _Feed, count: int) -> Portion:
    """One gap, or the records up to the next; what a feed has came from one block."""
    first = feed.items[0]
    if isinstance(first, Gap):
        feed.items.popleft()
        return Portion(feed.log, gap=first)
    taken: list[Record] = []
    while feed.items and len(taken) < max(1, count):
        item = feed.items[0]
        if isinstance(item, Gap):
            break
        taken.append(item)
        feed.items.popleft()
    return Portion(feed.log, tuple(taken))


def _end(feed: _Feed) -> None:
    if feed.waiting is not None:
        feed.waiting.cancel()
    feed.stream.close()
