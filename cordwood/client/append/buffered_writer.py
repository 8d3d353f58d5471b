"""A writer that gathers records into large blocks, by size and by time.

Appends of one tick share a block anyway. This writer is for programs that append single records to
many logs or from many places, and prefer a short wait to small blocks. The writer gathers a log's
records into one block, which is compressed, stored and acknowledged as a whole. Each record keeps
its own LSN, and readers see no difference. (LogDevice's writer makes one record of a batch.)

The mode decides what a failed block does to the blocks after it in the same log:

- INDEPENDENT: blocks are sent as they fill. A block that is retried may land after later blocks.
- ONE_AT_A_TIME: a block is sent when the block before it has ended.
- STREAM: blocks are sent as they fill and stored in that order, each once, tried for as long
  as the writer lives. The log recognises repeats by the writer's producer. LogDevice's stream keeps
  the order of first occurrences and allows repeats.

The writer resends a block that may be stored only in a stream, where a repeat is safe. An error
tells whether a block may be stored: see `CordwoodError.is_outcome_unknown`.

Source: docs/sources/logdevice.md 1 ("BufferedWriter"); docs/design.md §3 ("Producers").
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from cordwood.block import Buffer, Codec
from cordwood.client.append.appends import Appends
from cordwood.client.append.line import LetIn, Line
from cordwood.client.append.producer import PRODUCER_MAX, Producer
from cordwood.client.append.record_check import (
    Headers,
    Timestamp,
    as_bytes,
    check_log_name,
    own_headers,
    to_us,
)
from cordwood.client.append.writer_lanes import Gathered, Lane
from cordwood.client.cluster import LogInfo
from cordwood.client.find.log_info import AnyLog
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    Retryable,
    UnknownLog,
    UnknownProducer,
)
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import Lsn
from cordwood.settings import MIB, ClientSettings

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1
"""The first pause before a block is sent again. The client has already tried for its whole timeout.
The pause doubles up to the writer's bound."""

STREAM_BLOCKS = 4
"""Blocks of a stream in flight, one less than a log remembers of a producer: enough to hide
the round trip behind blocks this large."""

WAITS_A_TICK = 256
"""Waits for room that return within a tick, in half a millisecond; the next waits for a tick."""

INDEPENDENT_BLOCKS = 64
"""Blocks of one log in flight in INDEPENDENT mode."""


GOES_ON = (Retryable, OutOfSequence, UnknownProducer, ProducerFenced)
"""Errors after which a stream resends a block: it was not stored, and another epoch may take it."""


class WriteMode(enum.Enum):
    """See the module."""

    INDEPENDENT = "independent"
    ONE_AT_A_TIME = "one-at-a-time"
    STREAM = "stream"


OnSuccess = Callable[[str, Sequence[Any], Sequence[Lsn]], None]
"""Called with the log, each record's context, and each record's LSN."""

OnFailure = Callable[[str, Sequence[Any], CordwoodError], None]
"""Called with the log, each record's context, and the error that ended the block."""

OnRetry = Callable[[str, Sequence[Any], CordwoodError], bool]
"""Called before records are sent again; False lets them fail instead. It must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """The settings of a buffered writer.

    Attributes:
        time_trigger_s: a record waits no longer than this; None waits for size or `flush`. The
            default is a tenth of a second, which no user notices. In LogDevice it is off, and a
            program that forgets to flush never stores its last records.
        size_trigger_bytes: a block is sent at this size; the client's `block_bytes` bounds it. The
            default is 256 KiB: larger blocks cost hardly less for each byte.
        mode: see the module.
        retry_count: how often a block that was *not appended* is sent again after the client gave
            up on it. None is without an end. A stream always sends without an end.
        retry_max_s: longest pause before that, which doubles from RETRY_FIRST_S on.
        compression: `zstd`, `lz4` or `none`; None for the client's. The default is LZ4, as in
            LogDevice: with blocks this large it saves most of the bytes that compression can save.
        memory_bytes_max: bytes of gathered records and records in flight. At this bound `append`
            waits and `append_nowait` refuses. The default is that of the client's window. A
            blocking writer counts 1.5 KiB for each record as well, which its futures take up.
    """

    time_trigger_s: float | None = 0.1
    size_trigger_bytes: int = 256 << 10
    mode: WriteMode = WriteMode.INDEPENDENT
    retry_count: int | None = 0
    retry_max_s: float = 60.0
    compression: str | None = "lz4"
    memory_bytes_max: int = 32 * MIB

    def __post_init__(self) -> None:
        if self.time_trigger_s is not None and not 0 < self.time_trigger_s <= 3600:
            raise BadSetting(f"time_trigger_s is {self.time_trigger_s}; it goes up to 3600")
        if self.retry_count is not None and self.retry_count < 0:
            raise BadSetting(f"retry_count is {self.retry_count}; it is 0 and up, or None")
        if not RETRY_FIRST_S <= self.retry_max_s <= 3600:
            raise BadSetting(f"retry_max_s is {self.retry_max_s}; it goes from 0.1 to 3600")
        if self.compression not in (None, "none", "lz4", "zstd"):
            raise BadSetting(f"compression is {self.compression!r}: give none, lz4 or zstd")
        if not 1 <= self.size_trigger_bytes <= self.memory_bytes_max:
            raise BadSetting("size_trigger_bytes goes from 1 to memory_bytes_max")


class BufferedWriter:
    """See the module. Made by `Store.buffered_writer`; close it, or use `async with`.

    Attributes:
        bytes: of records that are gathered or in flight.
        failed: number of records that ended with an error.
    """

    def __init__(
        self,
        appends: Appends,
        find: Callable[[AnyLog], Awaitable[LogInfo]],
        settings: ClientSettings,
        chance: Random,
        options: WriterOptions,
        *,
        on_success: OnSuccess | None = None,
        on_failure: OnFailure | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self.bytes = self.failed = 0
        self._appends = appends
        self._find = find
        self._settings = settings
        self._chance, self._options = chance, options
        self._on_success, self._on_failure, self._on_retry = on_success, on_failure, on_retry
        self._codec = None if options.compression is None else Codec[options.compression.upper()]
        self._bytes_max = min(options.size_trigger_bytes, settings.block_bytes)
        self._lanes: dict[str, Lane] = {}
        self._unended: dict[Gathered, Lane] = {}
        self._freed = asyncio.Event()
        # Calls that wait for room, in their order.
        self._line, self._let_in = Line(appends.loop), LetIn(appends.loop)
        self._waits = 0
        self._closed: CordwoodError | None = None

    async def __aenter__(self) -> BufferedWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                await self.close()
        finally:
            if not self.is_closed:
                # Cancelled, perhaps during the close: there is no time to wait.
                self.end(Closed("this writer was left"))

    # Putting records in.

    async def append(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
    ) -> Lsn:
        """Append one record; return once it is stored. Waits for room in memory first.

        Raises:
            Overloaded: there was no room within the client's timeout; it was not appended.
            CordwoodError: as `Store.append`.
        """
        # Order matters: no tick for other tasks in between, or later calls would come first. The
        # wait for the outcome gives them one.
        await self._wait_room()
        return await self.append_nowait(log, value, key=key, timestamp=timestamp, headers=headers)

    def append_nowait(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
        context: Any = None,
    ) -> asyncio.Future[Lsn]:
        """Put a record in; the future tells where it was stored, or why not.

        Raises:
            Overloaded: no room in memory, or others wait for it: wait for `wait_space` first.
            RecordTooLarge: over the client's block limit.
            BadSetting: it cannot be encoded.
            Closed: the writer was closed.
        """
        future: asyncio.Future[Lsn] = self._appends.loop.create_future()
        self._put(log, value, key, timestamp, headers, context, future)
        return future

    def put(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
        context: Any = None,
    ) -> None:
        """Put a record in, for the writer's callbacks; raises as `append_nowait`.

        Without `on_failure` only a warning and `failed` tell that a record was not stored.
        """
        self._put(log, value, key, timestamp, headers, context, None)

    async def wait_space(self) -> None:
        """Wait for free memory for one record. The caller must put that record in before it awaits
        anything else. The call sends the gathered records, so that the wait ends. Every few hundred
        calls let other tasks go on.

        Raises:
            Overloaded: it did not within the client's timeout.
            Closed: the writer was closed.
        """
        self._waits += 1
        if self._waits >= WAITS_A_TICK:
            # A program that puts without a pause would have nothing sent or answered meanwhile.
            self._waits = 0
            await asyncio.sleep(0)
        await self._wait_room()

    async def _wait_room(self) -> None:
        if self._line.is_empty and not self._is_full:
            self._check_open()
            return
        # A call that finds free space must not overtake calls that wait to be woken for it.
        place = self._line.join()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._line.turn(place)
                while self._closed is None and self._is_full:
                    self._cut_all()
                    freed = self._freed
                    await freed.wait()
        except TimeoutError:
            raise self._overloaded() from None
        finally:
            self._line.leave(place)
        self._check_open()
        self._let_in.note()

    @property
    def _is_full(self) -> bool:
        return self.bytes >= self._options.memory_bytes_max

    def _put(
        self,
        log: str,
        value: Buffer,
        key: bytes | None,
        timestamp: Timestamp | None,
        headers: Headers | None,
        context: Any,
        future: asyncio.Future[Lsn] | None,
    ) -> None:
        self._check_open()
        check_log_name(log)
        time_us = None if timestamp is None else to_us(timestamp)
        size = self._appends.check_record(value, key, time_us, headers)
        # Calls that came before may wait for this room.
        if self._is_full or not (self._line.is_empty or self._let_in.take()):
            self._cut_all()
            raise self._overloaded()
        # All that may fail, for want of memory too, comes before the block's columns grow.
        value, key, headers = (
            as_bytes(value),
            None if key is None else as_bytes(key),
            own_headers(headers),
        )
        lane = self._lanes.get(log)
        if lane is None:
            # Two spellings of a name mean the same log, with one order. Callbacks get the first
            # spelling.
            name = normalise_name(log)
            lane = self._lanes.setdefault(name, Lane(log))
            self._lanes[log] = lane
        if lane.open is not None and lane.open.bytes + size > self._bytes_max:
            self._cut(lane)
        gathered = lane.open or self._begin(lane)
        gathered.values.append(value)
        gathered.keys.append(key)
        gathered.times.append(self._appends.now_us() if time_us is None else time_us)
        gathered.headers.append(headers)
        gathered.contexts.append(context)
        gathered.futures.append(future)
        gathered.bytes += size
        self.bytes += size
        is_full = len(gathered.values) >= self._settings.block_records
        if is_full or gathered.bytes >= self._bytes_max:
            self._cut(lane)

    def _begin(self, lane: Lane) -> Gathered:
        lane.open = gathered = Gathered()
        self._unended[gathered] = lane
        if self._options.time_trigger_s is not None:
            after_s = self._options.time_trigger_s
            lane.timer = self._appends.loop.call_later(after_s, self._cut, lane)
        return gathered

    def _cut(self, lane: Lane) -> None:
        """Close the gathered block, so that it is sent."""
        gathered, lane.open = lane.open, None
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        if gathered is None:
            return
        lane.queue.append(gathered)
        self._go(lane)

    def _cut_all(self) -> None:
        for lane in dict.fromkeys(self._lanes.values()):
            self._cut(lane)

    # Ending.

    async def flush(self) -> None:
        """Send all gathered records. Returns once each record put so far has its outcome, in its
        future and in the callback (see `failed`)."""
        self._appends.check_loop()
        self._cut_all()
        for gathered in list(self._unended):
            await gathered.ended.wait()
        # Order matters: a block's end is known before the loop comes to its callback.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Flush, for the client's timeout at most, and take nothing more. Safe to call twice."""
        self._appends.check_loop()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self.flush()
        except TimeoutError:
            logger.warning("a buffered writer was closed before all its records were stored")
        self.end(Closed("this writer was closed"))

    def end(self, error: CordwoodError) -> None:
        """Take no more records, and end every record with its known outcome."""
        if self._closed is None:
            self._closed = error
        if self._unended:
            logger.warning(
                "%d records of a writer are not known to be stored: %s", self.records, error
            )
        for lane in dict.fromkeys(self._lanes.values()):
            if lane.timer is not None:
                lane.timer.cancel()
            for task in lane.tasks:
                task.cancel()
            sent = [each for each, own in self._unended.items() if own is lane]
            waiting = {*lane.queue, *([lane.open] if lane.open is not None else [])}
            for gathered in sent:
                why: CordwoodError = error
                if gathered not in waiting:
                    why = OutcomeUnknown(f"{error}; this append was in flight")
                self._fail(lane, gathered, why)
            if lane.stream is not None:
                # Its blocks have no deadline: they would take up the client's window until their
                # log takes appends.
                lane.stream.close(error)
            lane.queue.clear()
            lane.open = None
        self._lanes.clear()
        self._freed.set()

    @property
    def records(self) -> int:
        """The number of records that were put in and have no outcome yet."""
        return sum(len(gathered.values) for gathered in list(self._unended))

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._closed is not None

    def _check_open(self) -> None:
        if self._closed is not None:
            raise Closed(str(self._closed))
        self._appends.check_loop()

    def _overloaded(self) -> Overloaded:
        return Overloaded(f"{self.bytes} bytes are gathered or in flight: wait for some")

    # Sending.

    def _go(self, lane: Lane) -> None:
        """Send a log's queued blocks, as far as the mode allows."""
        if self._options.mode is WriteMode.INDEPENDENT:
            while lane.queue and len(lane.tasks) < INDEPENDENT_BLOCKS:
                self._start(lane, self._send(lane, lane.queue.popleft()))
        elif lane.queue and not lane.tasks:
            self._start(lane, self._work(lane))

    def _start(self, lane: Lane, work: Coroutine[None, None, None]) -> None:
        task = self._appends.spawn(work)
        lane.tasks[task] = None
        task.add_done_callback(lambda done: self._on_done(lane, done))

    def _on_done(self, lane: Lane, done: asyncio.Task[None]) -> None:
        lane.tasks.pop(done, None)
        if self._closed is None:
            self._go(lane)

    async def _work(self, lane: Lane) -> None:
        """Send a log's queued blocks, one after the other or as a stream."""
        while lane.queue:
            if self._options.mode is WriteMode.STREAM:
                await self._send_stream(lane)
            else:
                await self._send(lane, lane.queue.popleft())

    async def _send(self, lane: Lane, gathered: Gathered) -> None:
        """Send a block until it is stored, may be stored, or was tried often enough."""
        while True:
            try:
                first = await (await self._submit(lane, gathered, None))
            except CordwoodError as error:
                if not self._may_retry(lane, gathered, error):
                    self._fail(lane, gathered, error)
                    return
                await self._pause(gathered)
            else:
                self._succeed(lane, gathered, first)
                return

    def _may_retry(self, lane: Lane, gathered: Gathered, error: CordwoodError) -> bool:
        """Whether a block that ended so should be sent again: never if it may be stored."""
        count = self._options.retry_count
        if not isinstance(error, Retryable) or (count is not None and gathered.tries >= count):
            return False
        return self._on_retry is None or self._on_retry(lane.log, gathered.contexts, error) is True

    async def _pause(self, gathered: Gathered) -> None:
        pause_s = min(self._options.retry_max_s, RETRY_FIRST_S * 2.0 ** min(gathered.tries, 20))
        gathered.tries += 1
        await asyncio.sleep(pause_s * self._chance.uniform(0.5, 1.0))

    async def _send_stream(self, lane: Lane) -> None:
        """Send queued blocks in order, a few at a time, until a block fails or all are stored.

        The producer's own line resends a block for as long as it takes. A block that ends with an
        error will not be stored under this identity. Its epoch ends there: those after it that
        failed with it are sent anew in the next one, which keeps the order.
        """
        if lane.producer is None:
            lane.producer = Producer(self._chance.randint(1, PRODUCER_MAX))
        producer = lane.producer
        sent: deque[tuple[Gathered, asyncio.Future[Lsn]]] = deque()
        again: list[Gathered] = []
        is_over = False
        while sent or (lane.queue and not is_over):
            while lane.queue and not is_over and len(sent) < STREAM_BLOCKS:
                gathered = lane.queue.popleft()
                try:
                    answer = await self._submit(lane, gathered, producer)
                except CordwoodError as error:
                    # Handle its end in its turn: blocks ahead of it may come back as well, and must
                    # go first.
                    is_over = True
                    answer = self._appends.loop.create_future()
                    answer.set_exception(error)
                    answer.exception()  # it is cancelled unseen where the writer ends first
                sent.append((gathered, answer))
            gathered, answer = sent.popleft()
            try:
                self._succeed(lane, gathered, await answer)
            except CordwoodError as error:
                is_over = True
                self._end_stream(lane, producer, gathered, error, again)
        if again:
            lane.queue.extendleft(reversed(again))
            await self._pause(again[0])

    def _end_stream(
        self,
        lane: Lane,
        producer: Producer,
        gathered: Gathered,
        error: CordwoodError,
        again: list[Gathered],
    ) -> None:
        """End this producer's epoch, because one of its blocks ended with an error."""
        lane.producer = Producer(producer.producer, producer.epoch + 1)
        if isinstance(error, GOES_ON) and not error.is_outcome_unknown:
            again.append(gathered)
        else:
            self._fail(lane, gathered, error)

    async def _submit(
        self, lane: Lane, gathered: Gathered, producer: Producer | None
    ) -> asyncio.Future[Lsn]:
        """Send a block once; the future tells where its first record is."""
        info = await self._find(lane.log if lane.number is None else lane.number)
        lane.number = info.log_id
        deadline = self._appends.loop.time() + self._settings.timeout_s
        await self._appends.window.wait_space(deadline)
        appends = self._appends.log(info.log_id, producer)
        if producer is not None:
            lane.stream = appends
        return appends.add_block(
            gathered.values,
            gathered.keys if any(key is not None for key in gathered.keys) else None,
            gathered.times,
            gathered.headers if any(gathered.headers) else None,
            gathered.bytes,
            self._codec,
            math.inf if producer is not None else None,
        )

    # Telling.

    def _succeed(self, lane: Lane, gathered: Gathered, first: Lsn) -> None:
        if not self._finish(gathered):
            return
        lsns = [Lsn(first + at) for at in range(len(gathered.values))]
        for future, lsn in zip(gathered.futures, lsns, strict=True):
            if future is not None and not future.done():
                future.set_result(lsn)
        if self._on_success is not None:
            self._appends.loop.call_soon(self._on_success, lane.log, gathered.contexts, lsns)

    def _fail(self, lane: Lane, gathered: Gathered, error: CordwoodError) -> None:
        if isinstance(error, UnknownLog):
            lane.number = None  # later records go to the log that has the name then
        if not self._finish(gathered):
            return
        self.failed += len(gathered.values)
        for future in gathered.futures:
            if future is not None and not future.done():
                future.set_exception(error)
                # A caller that went away must not leave a warning about this.
                future.exception()
        if self._on_failure is not None:
            self._appends.loop.call_soon(self._on_failure, lane.log, gathered.contexts, error)
        elif untold := gathered.futures.count(None):
            logger.warning("%d records for %s were not acknowledged: %s", untold, lane.log, error)

    def _finish(self, gathered: Gathered) -> bool:
        """Note the end of a block. Returns False if it had ended before."""
        if self._unended.pop(gathered, None) is None:
            return False
        self.bytes -= gathered.bytes
        gathered.ended.set()
        self._freed.set()
        self._freed = asyncio.Event()
        return True
