"""The buffered writer for callers without a loop.

Records cross to the loop's thread together: one wake-up for all that were put in since the
last one, since a hand-off costs as much as fifty records.

Source: docs/sources/hotpath.md §1 (a hand-off costs 50 µs).
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from cordwood.block import Buffer
from cordwood.client.append.buffered_writer import BufferedWriter, WriterOptions
from cordwood.client.append.record_check import (
    Headers,
    Timestamp,
    as_bytes,
    check_log_name,
    own_headers,
    record_bytes,
    to_us,
)
from cordwood.errors import Closed, CordwoodError, Overloaded
from cordwood.host.byte_gate import ByteGate, ByteShare
from cordwood.host.loop_thread import LoopThread
from cordwood.host.waits import ThreadFuture
from cordwood.lsn import Lsn

TAKE_RECORDS = 1000
"""Records that the loop takes in a tick, in about 10 ms. Threads can submit faster than the loop
takes: a tick that went on until none was left never sent, received or told anything."""

RECORD_BYTES = 1536
"""Memory that a record takes up beside its value, key and headers, with its two futures; measured
with CPython 3.11. Without it, small records would count for nothing at the gate."""


class _Handed:
    """A record on its way to the loop's thread.

    Attributes:
        told: where it was stored, or why not.
        share: its bytes at the gate.
        is_given_up: its caller was broken off, by an error of a signal handler.
    """

    __slots__ = ("headers", "is_given_up", "key", "log", "share", "time_us", "told", "value")

    def __init__(
        self,
        log: str,
        value: bytes,
        key: bytes | None,
        time_us: int | None,
        headers: Headers | None,
    ) -> None:
        self.log = log
        self.value = value
        self.key = key
        self.time_us = time_us
        self.headers = headers
        self.share = ByteShare(RECORD_BYTES + record_bytes(value, key, None, headers))
        self.told: Future[Lsn] = ThreadFuture()
        self.is_given_up = False


class BlockingBufferedWriter:
    """See `buffered_writer.BufferedWriter`; also a context manager. Any thread may use it.

    A writer that was not closed is flushed at the interpreter's exit; a warning tells how many
    records were not stored.

    Attributes:
        failed: number of records that ended with an error.
    """

    def __init__(
        self,
        thread: LoopThread,
        writer: BufferedWriter,
        options: WriterOptions,
        timeout_s: float,
    ) -> None:
        self._thread = thread
        self._writer = writer
        self._timeout_s = timeout_s
        self._memory = ByteGate(options.memory_bytes_max)
        # Put in by any thread, taken by the loop's; bounded by the gate.
        self._handed: deque[_Handed] = deque()
        self._taken = 0
        self._is_woken = self._is_making_room = False
        self.failed = 0
        thread.tell_end(self)

    def submit(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
    ) -> Future[Lsn]:
        """Put a record in; the future tells where it was stored, or why not.

        Waits for room in memory, except in a callback that the client runs. The future can be
        cancelled until the record is gathered.

        Raises:
            Overloaded: there was none within the client's timeout; it was not appended.
            BadSetting: the log's name is no text, the value, the key or a header no bytes, or the
                timestamp none.
            Closed: the client or this writer was closed.
        """
        self._thread.check_process()
        if self._writer.is_closed:
            raise Closed("this writer was closed")
        check_log_name(log)
        # The caller may fill its buffers again while the loop's thread has not come to this. Code
        # of the caller's own, as of a time zone, may fail: it runs here and not there.
        record = _Handed(
            log,
            as_bytes(value),
            None if key is None else as_bytes(key, "key"),
            None if timestamp is None else to_us(timestamp),
            None if headers is None else own_headers(headers),
        )
        try:
            if not (self._memory.take(record.share, 0.0) or self._wait_memory(record.share)):
                text = f"{self._memory.bytes} bytes are gathered or in flight: wait for some"
                raise Overloaded(text)
            # Again: the interpreter's end may have begun while this thread waited for memory.
            self._thread.check_process()
            self._hand_over(record)
        except BaseException:
            # Closed, or an error that a signal handler raised at any moment of this.
            self._break_off(record)
            raise
        return record.told

    def _wait_memory(self, share: ByteShare) -> bool:
        """Wait until memory is free, and take it; False if none was in time."""
        if not self._is_making_room:
            # The gathered records may fill the memory long before they fill their blocks.
            self._is_making_room = True
            self._thread.soon(self._make_room)
        # The client's own thread would wait for itself.
        return not self._thread.is_own_thread and self._memory.take(share, self._timeout_s)

    def _hand_over(self, record: _Handed) -> None:
        """
        Raises:
            Closed: the client was closed, and the loop had not come to the record.
        """
        self._handed.append(record)
        try:
            # The order excludes a lost wake-up: this reads the flag after the record was handed
            # over, and the loop looks for records once more after it has cleared the flag.
            if self._is_woken:
                # A thread that nobody told would submit for as long as the loop has others to take.
                self._thread.check_open()
            else:
                self._is_woken = True
                self._thread.soon(self._take)
        except Closed:
            # Not there: the loop came to it first, and its future tells its outcome.
            with suppress(ValueError):
                self._handed.remove(record)
                raise

    def _break_off(self, record: _Handed) -> None:
        """Take a record back if the loop has not come to it, and have the loop come for those of
        other threads, which may count on the wake-up that was broken off."""
        record.is_given_up = True
        self._is_woken = self._is_making_room = False
        try:
            self._thread.soon(partial(self._drop, record))
        except Closed:
            self._drop_here(record)

    def append(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
    ) -> Lsn:
        """Append one record; return once it is stored.

        Raises:
            Rejected: a callback that the client runs called it; it would wait for itself.
            CordwoodError: as `Store.append`.
        """
        self._thread.check_waits()
        future = self.submit(log, value, key=key, timestamp=timestamp, headers=headers)
        return future.result()

    def flush(self) -> None:
        """Send all gathered records. Returns once each record put so far has its outcome."""
        self._thread.call(self.flush_here())

    @property
    def waiting(self) -> int:
        """Records that were put in and not told yet."""
        return len(self._handed) + self._writer.records

    def close(self) -> None:
        """Flush, for the client's timeout at most, and take nothing more."""
        self._thread.call(self._close())

    def __enter__(self) -> BlockingBufferedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On the loop's thread.

    async def flush_here(self) -> None:
        """As `flush`, on the loop's thread."""
        await self._take_all()
        await self._writer.flush()

    async def _close(self) -> None:
        await self._take_all()
        await self._writer.close()

    def on_loop_end(self) -> None:
        """End every record with its known outcome: the loop will not come to it any more."""
        closed = Closed("this client was closed")
        while self._handed:
            with suppress(IndexError):  # its own thread took it back just now
                self._refuse(self._handed.popleft(), closed)
        if not self._writer.is_closed:
            self._writer.end(closed)

    def _drop(self, record: _Handed) -> None:
        self._drop_here(record)
        self._take()

    def _drop_here(self, record: _Handed) -> None:
        # Not there: it was taken, or never handed over. Changed meanwhile: the loop takes it now,
        # sees that it is given up, and gives its bytes back as well.
        with suppress(ValueError, IndexError):
            self._handed.remove(record)
            self._memory.give_back(record.share)
            return
        if not record.told.running():
            self._memory.give_back(record.share)

    def _take(self) -> None:
        """Take a portion; the next ticks take the rest."""
        self._take_portion()
        if self._memory.waiters:
            # Threads that wait asked once for room. Others took what came free, and gathered
            # records that nobody else would send.
            self._writer._cut_all()
        if not self._handed:
            self._is_woken = False
        if self._handed:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._take)

    async def _take_all(self) -> None:
        """Take what was handed over until now, a portion each tick."""
        last = self._taken + len(self._handed)
        while self._handed and self._taken < last:
            self._take_portion()
            await asyncio.sleep(0)

    def _take_portion(self) -> None:
        for _ in range(TAKE_RECORDS):
            try:
                record = self._handed.popleft()
            except IndexError:
                return
            self._taken += 1
            self._put(record)

    def _make_room(self) -> None:
        self._is_making_room = False
        self._writer._cut_all()

    def _put(self, record: _Handed) -> None:
        # From here on the record's outcome is reported: it is too late to cancel the future.
        if record.is_given_up or not record.told.set_running_or_notify_cancel():
            self._memory.give_back(record.share)
            return
        try:
            future = self._writer.append_nowait(
                record.log,
                record.value,
                key=record.key,
                timestamp=record.time_us,
                headers=record.headers,
            )
        except Exception as error:  # noqa: BLE001  (told: its thread waits for it)
            # Not only ours: memory may run out, and a name may be of a class of the caller's own.
            self._fail(record, error)
            return
        future.add_done_callback(partial(self._on_done, record))

    def _refuse(self, record: _Handed, error: CordwoodError) -> None:
        if record.is_given_up or not record.told.set_running_or_notify_cancel():
            self._memory.give_back(record.share)
        else:
            self._fail(record, error)

    def _fail(self, record: _Handed, error: BaseException) -> None:
        self._memory.give_back(record.share)
        self.failed += 1
        record.told.set_exception(error)

    def _on_done(self, record: _Handed, done: asyncio.Future[Lsn]) -> None:
        error = done.exception()
        if error is not None:
            self._fail(record, error)
        else:
            self._memory.give_back(record.share)
            record.told.set_result(done.result())
