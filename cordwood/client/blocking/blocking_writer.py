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
        self.share = ByteShare(record_bytes(value, key, None, headers))
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
        self._is_woken = False
        self.failed = 0

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
            Closed: the client was closed.
        """
        self._thread.check_process()
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
            # The client's own thread would wait for itself.
            timeout_s = 0.0 if self._thread.is_own_thread else self._timeout_s
            if not self._memory.take(record.share, timeout_s):
                text = f"{self._memory.bytes} bytes are gathered or in flight: wait for some"
                raise Overloaded(text)
            self._handed.append(record)
            # The order excludes a lost wake-up: this reads the flag after the record was handed
            # over, and the loop clears it before it takes records.
            if not self._is_woken:
                self._is_woken = True
                self._thread.soon(self._take)
        except BaseException:
            # Closed, or an error that a signal handler raised at any moment of this.
            self._break_off(record)
            raise
        return record.told

    def _break_off(self, record: _Handed) -> None:
        """Take a record back if the loop has not come to it, and have the loop come for those of
        other threads, which may count on the wake-up that was broken off."""
        record.is_given_up = True
        self._is_woken = False
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
        self._take()
        await self._writer.flush()

    async def _close(self) -> None:
        self._take()
        await self._writer.close()

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
        self._is_woken = False
        while self._handed:
            self._put(self._handed.popleft())

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
        except CordwoodError as error:
            self._memory.give_back(record.share)
            self.failed += 1
            record.told.set_exception(error)
            return
        future.add_done_callback(partial(self._on_done, record))

    def _on_done(self, record: _Handed, done: asyncio.Future[Lsn]) -> None:
        self._memory.give_back(record.share)
        error = done.exception()
        if error is not None:
            self.failed += 1
            record.told.set_exception(error)
        else:
            record.told.set_result(done.result())
