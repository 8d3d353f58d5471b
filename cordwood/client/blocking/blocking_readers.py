"""Readers and consumers for callers without a loop; made by `blocking.BlockingStore`.

Readers fetch a block at a time, so that the hop between threads is paid once for many records.

Source: docs/design.md §7; docs/sources/hotpath.md §1 (a hand-off costs 50 µs).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cordwood.block import Gap, Record
from cordwood.client.admin.position_calls import Position, Start
from cordwood.client.blocking.facade import Until
from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import LogInfo
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.hand import ReadResult
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.reader import Reader, ReaderBatches
from cordwood.client.read.senders import SenderView
from cordwood.client.read.stream_items import ARROW_BYTES
from cordwood.errors import Rejected
from cordwood.host.forked_child import leave_in_child
from cordwood.host.loop_thread import LoopThread
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")

RUN_BYTES = 1 << 20
"""Bytes that one hop between threads hands over. A hop takes 50 µs, which is little beside the time
of a megabyte. More bytes would only take memory."""


_PASSED = "another thread reads here now: this call was given up, as one thread may read at a time"


class _Filling:
    """Runs one call that fills a hand at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._passed: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the call once an interrupted call before it has ended.

        Raises:
            Rejected: the next call came while this one waited, from another thread.
        """
        if self._task is not None:
            self._passed = self._task
            self._task.cancel()
        try:
            async with self._lock:
                mine = self._task = asyncio.current_task()
                try:
                    return await work
                except asyncio.CancelledError:
                    # No caller hears this error of an interrupted call; `close` cancels as well.
                    if self._passed is mine:
                        raise Rejected(_PASSED) from None
                    raise
                finally:
                    self._task = self._passed = None
        finally:
            work.close()  # nothing, where it ran


class BlockingReader:
    """Iterates `Record` and `Gap`; also a context manager that stops the reading.

    The loop fills the stream's hand, and this thread takes from it, see `client.read.hand`: an
    exception in a call that waits, from a signal handler too, loses nothing, and the next call
    goes on. A new loop after an abandoned loop does the same. For one thread at a time. A forked
    child gets `Closed`.
    """

    def __init__(self, thread: LoopThread, stream: ReadStream) -> None:
        self._thread = thread
        self._stream = stream
        self._hand = stream.hand
        self._filling = _Filling()
        leave_in_child(self)

    def _leave_in_child(self) -> None:
        """See `forked_child.Leaver`."""
        self._hand.leave(self._stream.taken_lsn)

    @property
    def info(self) -> LogInfo:
        """The log of this reader."""
        return self._stream.info

    @property
    def next_lsn(self) -> Lsn:
        """The first LSN that was not dealt with; see `StreamItems.next_lsn`."""
        return Lsn(self._stream.next_lsn)

    def __iter__(self) -> Iterator[Record | Gap]:
        return self

    def __next__(self) -> Record | Gap:
        while True:
            for item in self._hand.items:
                return item
            if not self._hand.open_next() and not self._fill(1, 1):
                raise StopIteration

    def blocks(self) -> Iterator[Delivery[HeldBlock] | Gap]:
        """Whole blocks and gaps with unopened bodies, for callers that make columns of them."""
        return Until(self._next_block)

    def _next_block(self) -> Delivery[HeldBlock] | Gap | None:
        while (taken := self._hand.block(in_hand=True)) is None:
            if not self._fill(1, 1):
                return None
        return taken

    def block_runs(
        self, *, bytes_max: int = RUN_BYTES, timeout_s: float | None = None
    ) -> Iterator[list[Delivery[HeldBlock] | Gap]]:
        """As `blocks`, but all known blocks at a time, so that many small blocks cost one hop.

        Args:
            bytes_max: bodies as stored after which a list ends.
            timeout_s: how long the next list may take; None waits for good.
        Raises:
            Unreachable: nothing came within `timeout_s`.
        """

        def next_run() -> list[Delivery[HeldBlock] | Gap] | None:
            while not (run := self._hand.run()):
                if not self._fill(bytes_max, sys.maxsize, timeout_s):
                    return None
            return run

        return Until(next_run)

    def senders(self) -> list[SenderView]:
        """The nodes that send, as this reader sees them."""
        return self._stream.senders.views()

    @property
    def is_connected(self) -> bool:
        """Whether enough nodes are connected; see `ReadStream.is_connected`."""
        return self._stream.is_connected

    @property
    def trouble(self) -> str:
        """Why nothing comes although there is more; "" if all is well."""
        return self._stream.trouble

    @property
    def rewinds(self) -> int:
        """How often the nodes had to be asked anew."""
        return self._stream.senders.choice.rewinds

    def arrow(
        self, columns: Sequence[str] | None = None, *, gaps: bool = False
    ) -> Iterator[pa.RecordBatch | Gap]:
        """Batches of columns, and gaps, in order; see `ReadStream.arrow`."""
        batches = self._stream.batches(columns, gaps=gaps)

        def next_batch() -> pa.RecordBatch | Gap | None:
            while (batch := batches.next()) is None:
                if not self._fill(ARROW_BYTES, sys.maxsize):
                    return None
            return batch

        return Until(next_batch)

    def close(self) -> None:
        """Stop reading."""
        self._thread.call(_close(self._stream))

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, bytes_max: int, items_max: int, timeout_s: float | None = None) -> bool:
        return self._thread.call(self._filled(bytes_max, items_max), timeout_s=timeout_s)

    async def _filled(self, bytes_max: int, items_max: int) -> bool:
        return await self._filling.run(self._stream.fill(bytes_max, items_max))


class BlockingLogsReader:
    """A reader of several logs; see `reader.Reader`. Iterates pairs of log and record or gap.

    As with `BlockingReader`, an interrupted call loses nothing. Use it from one thread at a time.
    """

    def __init__(self, thread: LoopThread, reader: Reader) -> None:
        self._thread = thread
        self._reader = reader
        self._filling = _Filling()
        leave_in_child(self)

    def _leave_in_child(self) -> None:
        """See `forked_child.Leaver`."""
        self._reader._leave()

    def read(self, count: int = 1000, timeout_s: float | None = None) -> ReadResult:
        """The next records of one of the logs, or a gap; see `Reader.read`."""
        self._thread.call(self._filled(timeout_s))
        return self._reader.portion(count)

    async def _filled(self, timeout_s: float | None) -> bool:
        return await self._filling.run(self._reader.fill(timeout_s))

    def __iter__(self) -> Iterator[tuple[str, Record | Gap]]:
        return self

    def __next__(self) -> tuple[str, Record | Gap]:
        while (given := self._reader.item()) is None:
            if not self._thread.call(self._filled(None)):
                raise StopIteration
        return given

    def arrow(
        self, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch | Gap]]:
        """Batches of columns of one log each, and gaps; see `Reader.arrow`."""
        batches = ReaderBatches(self._reader, columns)

        async def filled() -> bool:
            return await self._filling.run(batches.fill())

        def next_batch() -> tuple[str, pa.RecordBatch | Gap] | None:
            while (given := batches.next()) is None:
                if not self._thread.call(filled()):
                    return None
            return given

        return Until(next_batch)

    def deliver(self, accept: Callable[[str, Record | Gap], bool | None]) -> None:
        """Give everything to a callback until every log was read to its end; see `Reader.deliver`.

        It is called in the caller's thread, so that it may do as it likes; a hop between threads
        is paid for each record, and `read` is far quicker where nothing is refused.
        """
        while (offered := self._thread.call(self._reader.offer())) is not None:
            accepted = accept(*offered) is not False
            self._thread.call(_settle(self._reader, accepted=accepted))

    def start(self, log: str, start: Start = "oldest", until: Position | None = None) -> None:
        """Read a log too; see `Reader.start`."""
        self._thread.call(self._reader.start(log, start, until))

    def stop(self, log: str) -> None:
        """Read a log no more; see `Reader.stop`."""
        self._thread.call(_stop(self._reader, log))

    @property
    def logs(self) -> tuple[str, ...]:
        """Names of the logs of this reader."""
        return self._reader.logs

    def seek(self, log: str, position: Start) -> None:
        """Go on at another place; see `Reader.seek`."""
        self._thread.call(self._reader.seek(log, position))

    def position(self, log: str) -> Lsn:
        """The first LSN that was not dealt with; see `Reader.position`."""
        return self._reader.position(log)

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still; see `Reader.unhealthy`."""
        return self._reader.unhealthy

    def close(self) -> None:
        """Stop reading."""
        self._thread.call(_close(self._reader))

    def __enter__(self) -> BlockingLogsReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingConsumer:
    """A consumer; see `consumer.Consumer`. Enter it to join, leave it to save and go.

    As with `BlockingReader`, an interrupted call loses nothing. Use it from one thread at a time;
    only `save` may come from any thread.
    """

    def __init__(self, thread: LoopThread, consumer: Consumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._filling = _Filling()
        leave_in_child(self)

    def _leave_in_child(self) -> None:
        """See `forked_child.Leaver`."""
        self._consumer._leave_hands()

    def __enter__(self) -> BlockingConsumer:
        self._thread.call(self._consumer.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.call(self._consumer.close(save=kind is None))

    @property
    def logs(self) -> tuple[str, ...]:
        """Names of the logs that this member reads now."""
        return self._consumer.logs

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still; see `Reader.unhealthy`."""
        return self._consumer.unhealthy

    def read(self, count: int = 1000, timeout_s: float | None = None) -> ReadResult:
        """The next records of one of the logs, or a gap; see `Consumer.read`."""
        self._thread.call(self._filled(timeout_s))
        return self._consumer.portion(count)

    async def _filled(self, timeout_s: float | None) -> bool:
        return await self._filling.run(self._consumer.fill(timeout_s))

    def save(self) -> dict[str, Lsn]:
        """Save positions after the processed records; see `Consumer.save`."""
        return self._thread.call(self._consumer.save(), changes=True)

    def __iter__(self) -> Iterator[tuple[str, Record | Gap]]:
        return self

    def __next__(self) -> tuple[str, Record | Gap]:
        while (given := self._consumer.item()) is None:
            self._thread.call(self._filled(None))
        return given


async def _settle(reader: Reader, *, accepted: bool) -> None:
    reader.settle(accepted=accepted)


async def _stop(reader: Reader, log: str) -> None:
    reader.stop(log)


async def _close(reading: ReadStream | Reader) -> None:
    reading.close()
