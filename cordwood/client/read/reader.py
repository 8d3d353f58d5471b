"""A reader: reads several logs in turn, so that a busy log does not starve the others.

It pulls: for each log it takes at most the stream's window and one more block. A log has a task of
its own only while it waits for data. Logs are given out round robin, one block's records or one gap
at a time.

Source: docs/sources/logdevice.md 1 ("Reading", "Checkpoints"); docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING

from cordwood.block import Gap, GapKind, Record
from cordwood.client.admin.position_calls import Position, Start
from cordwood.client.read.hand import Batches, Hand, Portion, Taken, is_told, portion_of
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import BadSetting, Closed, CordwoodError, Retryable
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ARROW_BYTES = 4 << 20
"""Bodies of one log before the next has its turn: a batch or a few."""

_LAST_GAPS = (GapKind.ACCESS, GapKind.NOT_IN_CONFIG)
"""The log's stream ends after these gaps."""

REDELIVER_FIRST_S = 1.0
REDELIVER_MAX_S = 30.0
"""Pauses before a callback gets an item again that it refused: LogDevice's."""

Open = Callable[[str, Start, Position | None], Awaitable[ReadStream]]
"""Opens a stream; see `Store.read`."""

OnLogHealth = Callable[[str, str], None]
"""Called from the loop when a log stands still: its name and the reason; "" when it goes on."""

Accept = Callable[[str, Record | Gap], Awaitable[bool | None] | bool | None]
"""Takes a record or gap of a log; False refuses it, and it comes again later."""


@dataclass(slots=True, eq=False)
class _Feed:
    """One log of a reader.

    Attributes:
        log: the log's name as the caller gave it; two spellings are one log, see `name`.
        hand: the items that were taken and not given out.
        waiting: the task that waits for more.
        error: why the stream ended.
        refused: tries in a row that the callback refused; `retry_at` is the time of the next try.
        is_broken: whether its next block cannot be opened; the position stays before that block.
        is_to_begin: whether it ended with a passing error, which the application was told.
        barred_at: the LSN at which it ended because the log is gone or may not be read; a reader
            goes on there when that has changed.
    """

    log: str
    stream: ReadStream
    until: Position | None
    hand: Hand
    waiting: asyncio.Task[None] | None = None
    is_over: bool = False
    error: CordwoodError | None = None
    refused: int = 0
    retry_at: float = 0.0
    barred_at: Lsn | None = None
    is_broken: bool = False
    is_to_begin: bool = False

    @property
    def name(self) -> str:
        """Its name in the log tree."""
        return self.stream.info.name

    @property
    def next_lsn(self) -> Lsn:
        after = self.stream.taken_lsn if self.barred_at is None else self.barred_at
        return Lsn(self.hand.next_lsn(after))

    def take(self, taken: Taken) -> None:
        self.hand.held.append(taken)
        if isinstance(taken, Gap) and taken.kind in _LAST_GAPS:
            self.barred_at = taken.first


class Reader:
    """See the module. Made by `Store.reader`; close it, or use `async with`.

    Iterating gives pairs of a log's name and a record or gap. `fill` takes items into the hand of
    a log (`client.read.hand`); `portion` and `item` give items from it. So a call that is
    cancelled, or interrupted in another thread, loses no item.

    Args:
        gaps: give gaps too; without it the reader gives only gaps for lost records and for logs
            that it may not read.
        on_health: see `ReadStream.on_health`; called from the loop while the reader waits.
    Attributes:
        on_end: called from the loop when the reader is closed or no longer referenced.
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
        self._context = contextvars.copy_context()
        self._closed = False
        self._offered: _Feed | None = None
        # The log whose turn it is, and an error to raise instead of giving its items.
        self._up: _Feed | None = None
        self._error: CordwoodError | None = None
        self._is_woken = False
        self.on_end: Callable[[], object] = _nothing

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # Which logs, and where.

    async def start(self, log: str, start: Start = "oldest", until: Position | None = None) -> None:
        """Read a log from `start` to `until`, None to follow it; start again if it is read already.

        Raises:
            BadSetting, UnknownLog, Retryable: see `Store.read`.
        """
        stream = await self._open(log, start, until)
        if self._closed:
            stream.close()
            raise Closed("this reader was closed")
        # Trap: stop by number too, because the name may have led to another log before.
        self.stop(log, stream.info.log_id)
        if self._on_health is not None:
            stream.on_health = partial(_tell_health, self._loop, log, self._on_health)
        self._feeds.append(_Feed(log, stream, until, Hand(stream.items_of, gaps=self._gaps)))
        self._news.set()

    def stop(self, log: str, number: int = 0) -> None:
        """Stop reading a log, and the log of this number; a log that is not read has no effect."""
        for feed in [each for each in self._feeds if _is_of(each, log, number)]:
            self._feeds.remove(feed)
            if self._up is feed:
                self._up = None
            _end(feed)

    async def seek(self, log: str, position: Start) -> None:
        """Go on at another position of a log that is read: an LSN, `oldest`, `tail`, or a time.

        Raises:
            BadSetting: the log is not read, or `position` is no position.
        """
        until = self._feed(log).until
        await self.start(log, position, until)

    def position(self, log: str) -> Lsn:
        """The first LSN of a log that the application has not dealt with, to start from again.

        A record in a loop counts as dealt with when the loop asks for the next one. The result of
        `read` counts as a whole.

        Raises:
            BadSetting: the log is not read.
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
        self._up = None
        self.on_end()
        while self._feeds:
            _end(self._feeds.pop())
        self._news.set()

    def __del__(self) -> None:
        # Its application has let go of it, in whatever thread.
        if getattr(self, "_closed", True) or self._loop.is_closed():
            return
        end = partial(_end_all, self._feeds, self.on_end)
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            self._loop.call_soon_threadsafe(end, context=self._context)

    # Reading.

    async def read(self, count: int = 1000, timeout_s: float | None = None) -> Portion:
        """The next records of one of the logs, up to `count` of them, or one gap.

        Records that are here are given at once; the call does not wait for more of them.

        Args:
            timeout_s: how long to wait for a record or gap; None waits without a limit.
        Returns:
            An empty (false) portion after the timeout, or when every log was read to its `until`.
        Raises:
            CordwoodError: the stream of a log failed; the other logs can be read on. After a
                Retryable error the next call starts that log again.
        """
        await self.fill(timeout_s)
        return self.portion(count)

    async def fill(self, timeout_s: float | None = None) -> bool:
        """See that there is something to give; False after the timeout, once every log was read
        to its `until`, or when it is woken by `wake`.

        An error that a log's stream ended with is there for `portion` or `item` to tell.
        """
        self.ask()
        await self._begin_again()
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while self._up is None and self._error is None:
            self._news.clear()
            try:
                self._up = self._next_ready()
            except CordwoodError as error:
                self._error = error
            if self._up is not None or self._error is not None:
                break
            if self._closed:
                self._error = Closed("this reader was closed")
            elif self._is_woken or self.is_over or not await self._wait(deadline):
                break
        self._is_woken = False
        return self._up is not None or self._error is not None

    @property
    def is_over(self) -> bool:
        """Whether every log was read to its `until`, as far as the nodes go."""
        return all(each.is_over for each in self._feeds)

    def ask(self) -> None:
        """The application asks for more: what a loop was given last is dealt with."""
        if self._up is not None and not length_hint(self._up.hand.items):
            self._up.hand.ask()
            self._up = None

    async def rest(self, until: float) -> None:
        """Wait until `until` by the loop's clock, or until it is woken or closed."""
        if not (self._is_woken or self._closed):
            self._news.clear()
            await self._wait(until)
        self._is_woken = False

    def wake(self) -> None:
        """End a `fill` or `rest` that waits, or the next one that would have to."""
        self._is_woken = True
        self._news.set()

    def portion(self, count: int) -> Portion:
        """What `read` returns, of what is there; what a loop has in hand is dealt with.

        Raises:
            CordwoodError: as `read`.
        """
        self._raise_error()
        feed = self._up
        if feed is None:
            return Portion()
        portion = feed.hand.take_portion(count, partial(portion_of, feed.log))
        self._up = None
        return portion

    def item(self) -> tuple[str, Record | Gap] | None:
        """The next item of what is there, None if nothing is.

        It counts as dealt with once the next one is asked for.

        Raises:
            CordwoodError: as `read`.
        """
        if (feed := self._up) is not None:
            log = feed.log
            for item in feed.hand.items:
                return log, item
        self._raise_error()
        return None

    def _raise_error(self) -> None:
        if (error := self._error) is not None:
            if not self._closed:
                self._error = None
            raise error

    def __aiter__(self) -> AsyncIterator[tuple[str, Record | Gap]]:
        return self

    async def __anext__(self) -> tuple[str, Record | Gap]:
        while (given := self.item()) is None:
            if not await self.fill() and self.is_over:
                raise StopAsyncIteration
        return given

    def arrow(
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
        return ReaderBatches(self, columns)

    def batches_of(self, feed: _Feed, columns: Sequence[str]) -> Batches:
        """What makes columns of one log's hand."""
        made = partial(feed.stream.gatherer, columns)
        return Batches(feed.hand, feed.name, made, self._wants)

    def _wants(self, gap: Gap) -> bool:
        return self._gaps or is_told(gap)

    async def fill_raw(self) -> _Feed | None:
        """The next log in turn that has something, a turn's worth of it; None once every log was
        read to its `until`.

        Raises:
            CordwoodError: as `arrow`.
        """
        if self._up is not None:
            self._up.hand.close_block()
            self._up = None
        await self._begin_again()
        while True:
            self._raise_error()
            self._news.clear()
            feed = self._next_ready(raw=True)
            if feed is not None:
                size = sum(map(_size, feed.hand.held))
                while size < ARROW_BYTES and not feed.is_over and feed.waiting is None:
                    before = len(feed.hand.held)
                    self._take(feed)
                    if len(feed.hand.held) > before:
                        size += _size(feed.hand.held[-1])
                return feed
            if self._closed:
                raise Closed("this reader was closed")
            if all(each.is_over for each in self._feeds):
                return None
            await self._wait(None)

    async def deliver(self, accept: Accept) -> None:
        """Give everything to a callback, until every log was read to its `until`.

        The callback gets a refused item again, after 1 s at first and 30 s at most. Later items of
        that log wait, and the other logs go on.

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
        self._up = None
        while True:
            self._raise_error()
            self._news.clear()
            feed = self._next_ready()
            if feed is not None:
                self._offered = feed
                return feed.log, feed.hand.peek()
            waits = [each.retry_at for each in self._feeds if length_hint(each.hand.items)]
            if not waits and all(each.is_over for each in self._feeds):
                return None
            await self._wait(min(waits, default=None))

    def settle(self, *, accepted: bool) -> None:
        """What `offer` gave last was dealt with, or is to come again later."""
        feed, self._offered = self._offered, None
        assert feed is not None, "something was offered"
        if accepted:
            feed.hand.settle()
            feed.refused = 0
            return
        pause_s = min(REDELIVER_MAX_S, REDELIVER_FIRST_S * 2**feed.refused)
        feed.refused += 1
        feed.retry_at = self._loop.time() + pause_s

    # Inside.

    def _feed(self, log: str) -> _Feed:
        for feed in self._feeds:
            if _is_of(feed, log):
                return feed
        raise BadSetting(f"{log} is not read by this reader: `start` it first")

    async def _begin_again(self) -> None:
        """Start logs again whose passing error was raised: it would not be raised again."""
        for feed in [each for each in self._feeds if each.is_to_begin]:
            try:
                await self.start(feed.log, feed.next_lsn, feed.until)
            except CordwoodError as error:
                self._error = error

    def _next_ready(self, *, raw: bool = False) -> _Feed | None:
        """The next log in turn that has something; it goes to the end of the queue.

        Args:
            raw: blocks are left as they are; else they are opened.
        """
        now = self._loop.time()
        for _ in range(len(self._feeds)):
            feed = self._feeds[0]
            self._feeds.rotate(-1)
            has_some = self._has_some(feed, raw)
            if feed.error is not None and not has_some:
                error, feed.error = feed.error, None
                feed.is_to_begin = isinstance(error, Retryable)
                raise error
            if has_some and feed.retry_at <= now:
                return feed
        return None

    def _has_some(self, feed: _Feed, raw: bool) -> bool:
        """Whether a log has something to give, opened or not; else it is waited for."""
        hand = feed.hand
        while not feed.is_broken:
            if raw:
                hand.close_block()
            try:
                if hand.held if raw else length_hint(hand.items) or hand.open_next():
                    return True
            except CordwoodError as error:
                # Trap: the position stays at this block, so that a saved position does not pass it.
                feed.error, feed.is_over, feed.is_broken = error, True, True
                return False
            if feed.is_over or feed.waiting is not None:
                return False
            self._take(feed)
        return False

    def _take(self, feed: _Feed) -> None:
        """Take what is there, or have a task wait for it."""
        try:
            taken = feed.stream.take()
            if taken is not None:
                feed.take(taken)
            elif feed.stream.is_done:
                feed.is_over = True
            else:
                # Trap: the task must not refer to this reader, which the application may drop.
                feed.waiting = self._tasks.create_task(_await(feed, self._news))
        except CordwoodError as error:
            feed.error, feed.is_over = error, True

    async def _wait(self, deadline: float | None) -> bool:
        """Wait for something to come; False if nothing did by the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class ReaderBatches:
    """See `Reader.arrow`."""

    def __init__(self, reader: Reader, columns: Sequence[str] | None) -> None:
        from cordwood.layout.arrow import COLUMNS, batch_schema

        self._columns = tuple(columns or COLUMNS)
        batch_schema(self._columns)
        self._reader = reader
        self._turn: tuple[str, Batches] | None = None

    def next(self) -> tuple[str, pa.RecordBatch | Gap] | None:
        """The next batch or gap of the log whose turn it is; None once its turn is over."""
        if (turn := self._turn) is None:
            return None
        batch = turn[1].next()
        return None if batch is None else (turn[0], batch)

    async def fill(self) -> bool:
        """Have the next log's turn begin; False once every log was read to its `until`.

        Raises:
            CordwoodError: see `Reader.arrow`.
        """
        self._turn = None
        feed = await self._reader.fill_raw()
        if feed is not None:
            self._turn = feed.log, self._reader.batches_of(feed, self._columns)
        return feed is not None

    def __aiter__(self) -> AsyncIterator[tuple[str, pa.RecordBatch | Gap]]:
        return self

    async def __anext__(self) -> tuple[str, pa.RecordBatch | Gap]:
        while (given := self.next()) is None:
            if not await self.fill():
                raise StopAsyncIteration
        return given


def _size(taken: Taken) -> int:
    return taken.block.header.stored_bytes if isinstance(taken, Delivery) else 0


def _is_of(feed: _Feed, log: str, number: int = 0) -> bool:
    is_named = log == feed.log or normalise_name(log) == normalise_name(feed.log)
    return is_named or feed.stream.info.log_id == number


def _tell_health(
    loop: asyncio.AbstractEventLoop, log: str, on_health: OnLogHealth, _: ReadStream, why: str
) -> None:
    """Call back outside the stream, so that the callback's errors do not reach the stream."""
    loop.call_soon(on_health, log, why)


async def _await(feed: _Feed, news: asyncio.Event) -> None:
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
        news.set()


def _end(feed: _Feed) -> None:
    if feed.waiting is not None:
        feed.waiting.cancel()
    feed.stream.close()


def _end_all(feeds: deque[_Feed], on_end: Callable[[], object]) -> None:
    for feed in feeds:
        _end(feed)
    on_end()


def _nothing() -> None:
    """The default `on_end`: does nothing."""
