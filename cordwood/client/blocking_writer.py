"""The buffered writer for callers without a loop.

Records cross to the loop's thread together: one wake-up for all that were put in since the
last one, since a hand-off costs as much as fifty records.

Source: hotpath digest §1 (a hand-off costs 50 µs).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from cordwood.block import Buffer
from cordwood.client.buffered_writer import BufferedWriter, WriterOptions
from cordwood.client.record_check import Headers, Timestamp, as_bytes
from cordwood.errors import Closed, CordwoodError, Overloaded
from cordwood.host.byte_gate import ByteGate
from cordwood.host.loop_thread import LoopThread
from cordwood.host.waits import ThreadFuture
from cordwood.lsn import Lsn


class BlockingBufferedWriter:
    """See `buffered_writer.BufferedWriter`; also a context manager. Any thread may use it."""

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
        self._handed: deque[Callable[[], None]] = deque()
        self._is_woken = False

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

        Waits for room in memory.

        Raises:
            Overloaded: there was none within the client's timeout; it was not appended.
            Closed: the client was closed.
        """
        size = len(value) + len(key or b"")
        told: Future[Lsn] = ThreadFuture()
        if not self._memory.take(size, self._timeout_s):
            text = f"{self._memory.bytes} bytes are gathered or in flight: wait for some"
            raise Overloaded(text)
        put = partial(
            self._put, told, size, log, as_bytes(value),
            key=key, timestamp=timestamp, headers=headers,
        )  # fmt: skip
        self._handed.append(put)
        # Looked at after the record was handed over, and taken back before records are taken:
        # so one that finds itself expected is.
        if not self._is_woken:
            self._is_woken = True
            try:
                self._thread.soon(self._take)
            except Closed:
                self._refuse(put, size)
                raise
        return told

    def _refuse(self, put: Callable[[], None], size: int) -> None:
        """Take a record back that nobody will come for, or every later call would wait for it."""
        self._is_woken = False
        if put in self._handed:
            self._handed.remove(put)
            self._memory.give_back(size)

    def append(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
    ) -> Lsn:
        """Append one record; return once it is stored. Raises as `Store.append`."""
        future = self.submit(log, value, key=key, timestamp=timestamp, headers=headers)
        return future.result()

    def flush(self) -> None:
        """Send all that is gathered, and return once each record put in so far was told."""
        self._thread.call(self._flush())

    def close(self) -> None:
        """Flush, for the client's timeout at most, and take nothing more."""
        self._thread.call(self._close())

    def __enter__(self) -> BlockingBufferedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On the loop's thread.

    async def _flush(self) -> None:
        self._take()
        await self._writer.flush()

    async def _close(self) -> None:
        self._take()
        await self._writer.close()

    def _take(self) -> None:
        self._is_woken = False
        while self._handed:
            self._handed.popleft()()

    def _put(self, told: Future[Lsn], size: int, log: str, value: Buffer, **columns: Any) -> None:
        try:
            future = self._writer.append_nowait(log, value, **columns)
        except CordwoodError as error:
            self._memory.give_back(size)
            told.set_exception(error)
            return
        future.add_done_callback(partial(self._on_done, told, size))

    def _on_done(self, told: Future[Lsn], size: int, done: asyncio.Future[Lsn]) -> None:
        self._memory.give_back(size)
        error = done.exception()
        if error is not None:
            told.set_exception(error)
        else:
            told.set_result(done.result())
