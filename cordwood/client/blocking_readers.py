"""Readers and consumers for callers without a loop; made by `blocking.BlockingStore`.

Readers fetch a block at a time, so that the hop between threads is paid once for many records.

Source: design.md §7; hotpath digest §1 (a hand-off costs 50 µs).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from cordwood.block import Gap, Record
from cordwood.client.cluster import LogInfo
from cordwood.client.consumer import Consumer
from cordwood.client.position_calls import Position, Start
from cordwood.client.read_stream import ReadStream
from cordwood.client.reader import Portion, Reader
from cordwood.client.senders import HeldBlock, SenderView
from cordwood.host.loop_thread import LoopThread
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")

RUN_BYTES = 1 << 20
"""What one hop brings over; at 50 µs a hop a megabyte hides it, more only takes memory."""


class BlockingReader:
    """Iterates `Record` and `Gap`; also a context manager that stops the reading."""

    def __init__(self, thread: LoopThread, stream: ReadStream) -> None:
        self._thread = thread
        self._stream = stream

    @property
    def info(self) -> LogInfo:
        """The log that is read."""
        return self._stream.info

    @property
    def next_lsn(self) -> Lsn:
        """The first LSN that was not given out yet."""
        return Lsn(self._stream.next_lsn)

    def __iter__(self) -> Iterator[Record | Gap]:
        while items := self._thread.call(self._stream.next_items()):
            yield from items

    def blocks(self) -> Iterator[Delivery[HeldBlock] | Gap]:
        """Whole blocks and gaps, bodies not opened, for those who make columns of them."""
        while (taken := self._thread.call(self._stream.next())) is not None:
            yield taken

    def block_runs(
        self, *, bytes_max: int = RUN_BYTES, timeout_s: float | None = None
    ) -> Iterator[list[Delivery[HeldBlock] | Gap]]:
        """As `blocks`, all that is known at a time, so that many small ones cost one hop.

        Args:
            bytes_max: bodies as stored after which a list ends.
            timeout_s: how long the next list may take; None waits for good.
        Raises:
            Unreachable: nothing came within `timeout_s`.
        """
        while many := self._thread.call(self._stream.next_many(bytes_max), timeout_s=timeout_s):
            yield many

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
        yield from _each(self._thread, self._stream.arrow(columns, gaps=gaps))

    def close(self) -> None:
        """Stop reading."""
        self._thread.call(_close(self._stream))

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingLogsReader:
    """A reader of several logs; see `reader.Reader`. Iterates pairs of log and record or gap."""

    def __init__(self, thread: LoopThread, reader: Reader) -> None:
        self._thread = thread
        self._reader = reader

    def read(self, count: int = 1000, timeout_s: float | None = None) -> Portion:
        """The next records of one of the logs, or a gap; see `Reader.read`."""
        return self._thread.call(self._reader.read(count, timeout_s))

    def __iter__(self) -> Iterator[tuple[str, Record | Gap]]:
        while portion := self.read():
            for item in portion:
                yield portion.log, item

    def arrow(
        self, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch | Gap]]:
        """Batches of columns of one log each, and gaps; see `Reader.arrow`."""
        yield from _each(self._thread, self._reader.arrow(columns))

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
        """The logs that are read, by name."""
        return self._reader.logs

    def seek(self, log: str, position: Start) -> None:
        """Go on at another place; see `Reader.seek`."""
        self._thread.call(self._reader.seek(log, position))

    def position(self, log: str) -> Lsn:
        """The first LSN that was not given out yet; see `Reader.position`."""
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
    """A consumer; see `consumer.Consumer`. Enter it to join, leave it to save and go."""

    def __init__(self, thread: LoopThread, consumer: Consumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __enter__(self) -> BlockingConsumer:
        self._thread.call(self._consumer.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.call(self._consumer.close(save=kind is None))

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that are read here now."""
        return self._consumer.logs

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still; see `Reader.unhealthy`."""
        return self._consumer.unhealthy

    def read(self, count: int = 1000, timeout_s: float | None = None) -> Portion:
        """The next records of one of the logs, or a gap; see `Consumer.read`."""
        return self._thread.call(self._consumer.read(count, timeout_s))

    def save(self) -> dict[str, Lsn]:
        """Save how far every log was given out; see `Consumer.save`."""
        return self._thread.call(self._consumer.save())

    def __iter__(self) -> Iterator[tuple[str, Record | Gap]]:
        while True:
            portion = self.read()
            for item in portion:
                yield portion.log, item


async def _settle(reader: Reader, *, accepted: bool) -> None:
    reader.settle(accepted=accepted)


async def _stop(reader: Reader, log: str) -> None:
    reader.stop(log)


async def _close(reading: ReadStream | Reader) -> None:
    reading.close()


def _each(thread: LoopThread, items: AsyncIterator[Result]) -> Iterator[Result]:
    """What an asynchronous iterator gives, one hop for each."""

    async def following() -> Result | None:
        return await anext(items, None)

    while (item := thread.call(following())) is not None:
        yield item
