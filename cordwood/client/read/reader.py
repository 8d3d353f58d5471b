"""A reader: several logs at once, in turn, so that a busy log does not starve the others.

It pulls: nothing is fetched for a log beyond its stream's own window and one block that
was taken. A log has a task of its own only while it waits for items. Items are given out round
robin, one block's records or one gap at a time.

Source: docs/sources/logdevice.md 1 ("Reading", "Checkpoints"); docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING

from cordwood.block import Gap, Record
from cordwood.client.admin.position_calls import Position, Start
from cordwood.client.find.log_info import AnyLog
from cordwood.client.own_loop import check_loop, check_loop_at_end
from cordwood.client.read.feed import Feed, end, end_all, is_of, refuse_second_name, wait_for_more
from cordwood.client.read.hand import Batches, Hand, ReadResult, Taken, is_told, read_result_of
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import BadSetting, Closed, CordwoodError, Retryable
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

ARROW_BYTES = 4 << 20
"""Bytes of bodies of one log before the next log has its turn: one batch or a few."""

REDELIVER_FIRST_S = 1.0
REDELIVER_MAX_S = 30.0
"""The first and the longest pause before a refused item is given to the callback again, as in
LogDevice. A log that could not be begun again rests for the same times, and the other logs are read
meanwhile."""

Open = Callable[[AnyLog, Start, Position | None], Awaitable[ReadStream]]
"""Opens a stream of a log by its name, or by its number once it is read; see `Store.read`."""

OnLogHealth = Callable[[str, str], None]
"""Called from the loop when a log stands still, with its name and the reason; with "" once it goes
on."""

Accept = Callable[[str, Record | Gap], Awaitable[bool | None] | bool | None]
"""Takes a record or gap of a log; False refuses it, and it comes again later."""


class Reader:
    """See the module. Made by `Store.reader`; close it, or use `async with`.

    Iterating gives pairs of a log's name and a record or gap. `fill` brings items into a log's hand
    (`client.read.hand`), and `portion` and `item` give from it. So a cancelled or interrupted call
    loses nothing.

    Args:
        gaps: give gaps too; without, only lost records and logs that may not be read are told.
        on_health: see `ReadStream.on_health`; called from the loop while the reader waits.
    Attributes:
        on_end: called from the loop once it is closed, or nothing refers to it any more.
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
        self._feeds: deque[Feed] = deque()
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._closed = False
        self._offered: Feed | None = None
        # The log that is next in turn, and an error to raise in its place.
        self._up: Feed | None = None
        self._error: CordwoodError | None = None
        self._is_woken = False
        self.on_end: Callable[[], object] = _nothing

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # The logs of the reader, and its places in them.

    async def start(self, log: str, start: Start = "oldest", until: Position | None = None) -> None:
        """Read a log from `start` to `until`, None to follow it; anew if it is read already.

        Raises:
            BadSetting, UnknownLog, Retryable: see `Store.read`; or it is read under another name.
        """
        await self._begin(log, log, start, until)

    async def _begin(
        self,
        log: str,
        at: AnyLog,
        start: Start,
        until: Position | None,
        failed: Feed | None = None,
        *,
        is_seek: bool = False,
    ) -> None:
        """
        Args:
            at: the log's name; or its number if the log is read already, because the name may have
                moved.
            failed: the feed to replace; nothing begins if this feed was stopped.
            is_seek: likewise, if the log was stopped.
        """
        stream = await self._open(at, start, until)
        if self._closed:
            stream.close()
            raise Closed("this reader was closed")
        # Race: meanwhile the log was stopped, sought or begun again by another call.
        if failed is not None and failed not in self._feeds:
            stream.close()
            return
        if is_seek and log not in self.logs:
            stream.close()
            raise BadSetting(f"{log} was stopped meanwhile")
        refuse_second_name(self._feeds, log, stream)
        self.stop(log)
        if self._on_health is not None:
            stream.on_health = partial(_tell_health, self._loop, log, self._on_health)
        begins = 0 if failed is None else failed.begins
        hand = Hand(stream.items_of, gaps=self._gaps)
        self._feeds.append(Feed(log, stream, until, hand, begins=begins))
        self._news.set()

    def stop(self, log: str) -> None:
        """Stop reading a log; a log that is not read is fine."""
        check_loop_at_end(self._loop)
        for feed in [each for each in self._feeds if is_of(each, log)]:
            self._feeds.remove(feed)
            if self._up is feed:
                self._up = None
            end(feed)

    async def seek(self, log: str, position: Start) -> None:
        """Continue at another position of a log: an LSN, `oldest`, `tail`, or a time.

        Raises:
            BadSetting: the log is not read, was stopped meanwhile, or the position is not valid.
        """
        feed = self._feed(log)
        await self._begin(feed.log, feed.stream.info.log_id, position, feed.until, is_seek=True)

    def position(self, log: str) -> Lsn:
        """The first LSN of a log that the application has not dealt with, for it to begin at again.

        A record that a loop works on counts once the loop asks for the next one; what `read`
        returned counts as a whole.

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
        """Names of the logs of this reader."""
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
        check_loop_at_end(self._loop)
        self._closed, self._up = True, None
        self.on_end()
        while self._feeds:
            end(self._feeds.pop())
        self._news.set()

    def _leave(self) -> None:
        """Give out nothing more of what was taken. Positions stay."""
        self._up = None
        for feed in self._feeds:
            feed.hand.leave(feed.stream.taken_lsn)

    def __del__(self) -> None:
        # Its application has dropped it, in any thread.
        if getattr(self, "_closed", True) or self._loop.is_closed():
            return
        ending = partial(end_all, self._feeds, self.on_end)
        with contextlib.suppress(RuntimeError):  # the loop was closed just now
            self._loop.call_soon_threadsafe(ending, context=self._context)

    # Reading.

    async def read(self, count: int = 1000, timeout_s: float | None = None) -> ReadResult:
        """The next records of one of the logs, up to `count` of them, or one gap.

        Records that have arrived are given at once; they never wait for more records.

        Args:
            timeout_s: how long to wait for something; None waits until there is.
        Returns:
            Nothing (false) after the timeout, or once every log was read to its `until`.
        Raises:
            CordwoodError: the stream of a log failed; the others can be read on, and where it was
                Retryable the next call begins that log again.
        """
        await self.fill(timeout_s)
        return self.portion(count)

    async def fill(self, timeout_s: float | None = None) -> bool:
        """Wait until there is an item to give. Returns False after the timeout, when every log was
        read to its `until`, or when `wake` ends the wait.

        An error that a log's stream ended with is there for `portion` or `item` to tell.
        """
        check_loop(self._loop)
        self.ask()
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while self._up is None and self._error is None:
            if not await self._begin_again():
                break
            self._news.clear()
            try:
                self._up = self._next_ready()
            except CordwoodError as error:
                self._error = error
            if self._up is not None or self._error is not None:
                break
            if self._closed:
                self._error = Closed("this reader was closed")
            elif self._is_woken or self.is_over or not await self._wait_or_begin(deadline):
                break
        self._is_woken = False
        return self._up is not None or self._error is not None

    @property
    def is_over(self) -> bool:
        """Whether every log was read to its `until`, as far as the nodes go."""
        return all(each.is_over and not each.is_to_begin for each in self._feeds)

    def ask(self) -> None:
        """The application asks for more: a loop's last item counts as processed."""
        if self._up is not None:
            self._up.hand.ask()
            self._up = None  # also with items left: a cancelled call may let go of this log

    async def rest(self, until: float) -> None:
        """Wait until `until` by the loop's clock, or until it is woken or closed."""
        if not (self._is_woken or self._closed):
            self._news.clear()
            await self._wait(until)
        self._is_woken = False

    def wake(self) -> None:
        """End a waiting `fill` or `rest`, or the next call that would wait."""
        self._is_woken = True
        self._news.set()

    def portion(self, count: int) -> ReadResult:
        """The items that `read` returns; a loop's item in hand counts as processed.

        Raises:
            CordwoodError: as `read`.
        """
        self._raise_error()
        feed = self._up
        if feed is None:
            return ReadResult()
        portion = feed.hand.take_portion(count, partial(read_result_of, feed.log))
        self._up = None
        return portion

    def item(self) -> tuple[str, Record | Gap] | None:
        """The next item in a hand, None if all are empty.

        It counts as processed at the next call.

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
            BadSetting: the column does not exist.
            CordwoodError: the stream of a log failed; the others can be read on.
        """
        return ReaderBatches(self, columns)

    def batches_of(self, feed: Feed, columns: Sequence[str]) -> Batches:
        """The maker of columns from one log's hand."""
        made = partial(feed.stream.gatherer, columns)
        return Batches(feed.hand, feed.name, made, self._wants)

    def _wants(self, gap: Gap) -> bool:
        return self._gaps or is_told(gap)

    async def fill_raw(self) -> Feed | None:
        """The next log in turn that has something, a turn's worth of it; None once every log was
        read to its `until`.

        Raises:
            CordwoodError: as `arrow`.
        """
        if self._up is not None:
            self._up.hand.close_block()
            self._up = None
        while True:
            await self._begin_again()
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
            if self.is_over:
                return None
            await self._wait_or_begin(None)

    async def deliver(self, accept: Accept) -> None:
        """Give everything to a callback, until every log was read to its `until`.

        The callback gets a refused item again, after 1 s at first and 30 s at most. Later items of
        that log wait; other logs continue.

        Raises:
            CordwoodError: the stream of a log failed.
        """
        while (offered := await self.offer()) is not None:
            answer = accept(*offered)
            if isinstance(answer, Awaitable):
                answer = await answer
            self.settle(accepted=answer is not False)

    async def offer(self) -> tuple[str, Record | Gap] | None:
        """One step of `deliver`: the next item, to be settled before the next call; None once every
        log was read to its `until`.

        Raises:
            CordwoodError: the stream of a log failed.
        """
        self._up = None
        while True:
            await self._begin_again()
            self._raise_error()
            self._news.clear()
            feed = self._next_ready()
            if feed is not None:
                self._offered = feed
                return feed.log, feed.hand.peek()
            waits = [each.retry_at for each in self._feeds if length_hint(each.hand.items)]
            if not waits and self.is_over:
                return None
            await self._wait_or_begin(min(waits, default=None))

    def settle(self, *, accepted: bool) -> None:
        """Note whether the last item of `offer` was accepted. A refused item comes again later."""
        feed, self._offered = self._offered, None
        assert feed is not None, "something was offered"
        if accepted:
            if feed in self._feeds:  # otherwise the callback stopped the log, or sought in it
                feed.hand.settle()
            feed.refused = 0
            return
        pause_s = min(REDELIVER_MAX_S, REDELIVER_FIRST_S * 2**feed.refused)
        feed.refused += 1
        feed.retry_at = self._loop.time() + pause_s

    # Inside.

    def _feed(self, log: str) -> Feed:
        for feed in self._feeds:
            if is_of(feed, log):
                return feed
        raise BadSetting(f"{log} is not read by this reader: `start` it first")

    async def _begin_again(self) -> bool:
        """Continue logs that reported a passing error: it would not be reported again.

        A log that cannot be begun reports an error and rests, longer each time. An error that lasts
        ends it.

        Returns:
            Whether there is no error to tell.
        """
        for feed in [each for each in self._feeds if each.is_to_begin]:
            if self._error is not None:
                break
            if feed.begin_at > self._loop.time() or feed not in self._feeds:
                continue
            try:
                number = feed.stream.info.log_id
                # Up to its old end: `tail` would be a later LSN by now.
                old = feed.stream.until
                until = None if old == LSN_MAX else Lsn(old)
                await self._begin(feed.log, number, feed.next_lsn, until, feed)
            except CordwoodError as error:
                if feed not in self._feeds and not self._closed:
                    continue
                self._error = error
                feed.is_to_begin = isinstance(error, Retryable)
                feed.begins = max(1, feed.begins)
                self._rest(feed)
        return self._error is None

    def _rest(self, feed: Feed) -> None:
        """Have a log rest before it begins again, longer each time but not the first time."""
        if feed.begins:
            pause_s = min(REDELIVER_MAX_S, REDELIVER_FIRST_S * 2 ** min(feed.begins - 1, 10))
            feed.begin_at = self._loop.time() + pause_s
        feed.begins += 1

    async def _wait_or_begin(self, deadline: float | None) -> bool:
        """As `_wait`, until a log may be begun again as well, which is no deadline."""
        begins = [each.begin_at for each in self._feeds if each.is_to_begin]
        until = min([*begins, *(() if deadline is None else (deadline,))], default=None)
        return await self._wait(until) or until != deadline

    def _next_ready(self, *, raw: bool = False) -> Feed | None:
        """The next log in turn that has something; it goes to the end of the queue.

        Args:
            raw: leave blocks unopened.
        """
        now = self._loop.time()
        for _ in range(len(self._feeds)):
            feed = self._feeds[0]
            self._feeds.rotate(-1)
            has_some = self._has_some(feed, raw)
            if feed.error is not None and not has_some:
                error, feed.error = feed.error, None
                feed.is_to_begin = isinstance(error, Retryable)
                # Trap: a node refuses a stream after it was begun. At once, again and again, that
                # would be a request for each read.
                self._rest(feed)
                raise error
            if has_some:
                feed.begins = 0
            if has_some and feed.retry_at <= now:
                return feed
        return None

    def _has_some(self, feed: Feed, raw: bool) -> bool:
        """Whether a log has an item to give, opened or not. If not, the reader waits for it."""
        hand = feed.hand
        while not feed.is_broken:
            if raw:
                hand.close_block()
            try:
                if hand.held if raw else length_hint(hand.items) or hand.open_next():
                    return True
            except CordwoodError as error:
                # It stays at this block, so that no saved position passes it.
                feed.error, feed.is_over, feed.is_broken = error, True, True
                return False
            if feed.is_over or feed.waiting is not None:
                return False
            self._take(feed)
        return False

    def _take(self, feed: Feed) -> None:
        """Take available items, or start a task that waits for them."""
        try:
            taken = feed.stream.take()
            if taken is not None:
                feed.take(taken)
            elif feed.stream.is_done:
                feed.is_over = True
            else:
                # The task keeps the log's feed and not this reader, which may be let go of.
                feed.waiting = self._tasks.create_task(wait_for_more(feed, self._news))
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
        """The next batch or gap of the log in turn; None once its turn is over."""
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


def _tell_health(
    loop: asyncio.AbstractEventLoop, log: str, on_health: OnLogHealth, _: ReadStream, why: str
) -> None:
    """Not from within the stream: the callback's actions and errors must not reach the stream."""
    loop.call_soon(on_health, log, why)


def _nothing() -> None:
    """The default of `on_end`: no caller waits for a reader's end."""
