"""The same client for callers without a loop: scripts, notebooks, Spark executors.

The asyncio client runs in a thread; every call here waits for it. Readers fetch a
block at a time, so that the hop between threads is paid once for many records.

Source: design.md §7; hotpath digest §1 (a hand-off costs 50 µs).
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from cordwood.block import Buffer, Gap, Record
from cordwood.client import aio
from cordwood.client.blocking_positions import BlockingPositions
from cordwood.client.blocking_writer import BlockingBufferedWriter
from cordwood.client.buffered_writer import WriterOptions
from cordwood.client.cluster import LogInfo
from cordwood.client.consumer import Consumer
from cordwood.client.log_tree import LogTree
from cordwood.client.position_calls import Position
from cordwood.client.producer import Producer
from cordwood.client.publishing import Published
from cordwood.client.read_stream import ReadStream
from cordwood.client.reader import Portion, Reader
from cordwood.client.record_check import Headers, Timestamp
from cordwood.client.replica_scan import NodeCopies, scan_copies
from cordwood.client.senders import HeldBlock, SenderView
from cordwood.client.staging import TTL_DEFAULT_S, StagedRef
from cordwood.client.store import Store
from cordwood.errors import Closed, CordwoodError
from cordwood.host.loop_thread import LoopThread
from cordwood.layout.message import (
    DirectoryReply,
    EpochsReply,
    GroupReply,
    StatusReply,
    StreamsReply,
)
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import Lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery
from cordwood.settings import ClientSettings

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")

MARGIN_S = 30.0
"""Waited beyond the client's own deadlines before its thread is given up on."""

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

    def start(self, log: str, start: Position = "oldest", until: Position | None = None) -> None:
        """Read a log too; see `Reader.start`."""
        self._thread.call(self._reader.start(log, start, until))

    def seek(self, log: str, position: Position) -> None:
        """Go on at another place; see `Reader.seek`."""
        self._thread.call(self._reader.seek(log, position))

    def position(self, log: str) -> Lsn:
        """The first LSN that was not given out yet; see `Reader.position`."""
        return self._reader.position(log)

    @property
    def unhealthy(self) -> dict[str, str]:
        """Logs that stand still although there is more to read, and why."""
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


async def _close(reading: ReadStream | Reader) -> None:
    reading.close()


def _each(thread: LoopThread, items: AsyncIterator[Result]) -> Iterator[Result]:
    """What an asynchronous iterator gives, one hop for each."""

    async def following() -> Result | None:
        return await anext(items, None)

    while (item := thread.call(following())) is not None:
        yield item


class BlockingStore(BlockingPositions):
    """A connected client; see `store.Store` for what each call does and raises."""

    def __init__(self, thread: LoopThread, store: Store, timeout_s: float) -> None:
        self._thread = thread
        self._store = store
        self._timeout_s = timeout_s + MARGIN_S

    def append(
        self,
        log: str,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
        producer: Producer | None = None,
        expected_tail: int | None = None,
    ) -> Lsn:
        """Append one record; see `store.Store.append`."""
        return self._call(
            self._store.append(
                log,
                value,
                key=key,
                timestamp=timestamp,
                headers=headers,
                producer=producer,
                expected_tail=expected_tail,
            )
        )

    def append_many(
        self,
        log: str,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        producer: Producer | None = None,
        atomic: bool = False,
    ) -> list[Lsn]:
        """Append records in order; see `store.Store.append_many`."""
        return self._thread.call(
            self._store.append_many(
                log,
                values,
                keys=keys,
                timestamps=timestamps,
                headers=headers,
                producer=producer,
                atomic=atomic,
            )
        )

    def stage(
        self,
        log: str,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        ttl_s: float = TTL_DEFAULT_S,
    ) -> StagedRef:
        """Keep records durably without LSNs; see `store.Store.stage`."""
        return self.stage_soon(
            log, values, keys=keys, timestamps=timestamps, headers=headers, ttl_s=ttl_s
        ).result()

    def stage_soon(
        self,
        log: str,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        ttl_s: float = TTL_DEFAULT_S,
    ) -> Future[StagedRef]:
        """As `stage`, without waiting; the caller keeps count of what is in flight."""
        return self._thread.start(
            self._store.stage(
                log, values, keys=keys, timestamps=timestamps, headers=headers, ttl_s=ttl_s
            )
        )

    def publish(
        self, query: str, batch: int, refs: Sequence[StagedRef | Mapping[str, Any]]
    ) -> Published:
        """Put what was staged into its logs, once; see `store.Store.publish`."""
        return self._thread.call(self._store.publish(query, batch, refs))

    def fence(self, log: str, token: int, *, holder: str = "") -> int:
        """Take a log under a fencing token; see `store.Store.fence`."""
        return self._thread.call(self._store.fence(log, token, holder=holder))

    def use_fencing_token(self, log: str, token: int) -> None:
        """Append under a token that was taken; see `store.Store.use_fencing_token`."""
        self._thread.call(self._store.use_fencing_token(log, token))

    def published(self, query: str) -> Published | None:
        """The last batch of a query that is in its logs; see `store.Store.published`."""
        return self._thread.call(self._store.published(query))

    def unstage(self, refs: Sequence[StagedRef | Mapping[str, Any]]) -> None:
        """Let go of what will not be published; see `store.Store.unstage`."""
        self._thread.call(self._store.unstage(refs))

    def append_many_soon(
        self,
        log: str,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        producer: Producer | None = None,
        atomic: bool = False,
    ) -> Future[list[Lsn]]:
        """As `append_many`, without waiting: calls for one log are appended in their order.

        The caller keeps count of what is in flight; each call has the client's own deadline.
        """
        return self._thread.start(
            self._store.append_many(
                log,
                values,
                keys=keys,
                timestamps=timestamps,
                headers=headers,
                producer=producer,
                atomic=atomic,
            )
        )

    def read(
        self,
        log: str,
        start: Position = "oldest",
        until: Position | None = "tail",
        *,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
    ) -> BlockingReader:
        """Read `[start, until]`; see `store.Store.read`."""
        stream = self._store.read(log, start, until, keys=keys, payloads=payloads)
        return BlockingReader(self._thread, self._call(stream))

    def buffered_writer(self, options: WriterOptions | None = None) -> BlockingBufferedWriter:
        """A writer that gathers records into large blocks; see `client.buffered_writer`."""
        chosen = options or WriterOptions()

        async def make() -> BlockingBufferedWriter:
            # The thread bounds what is put in; the loop's writer counts a little more a record.
            roomy = replace(chosen, memory_bytes_max=2 * chosen.memory_bytes_max)
            writer = self._store.buffered_writer(roomy)
            return BlockingBufferedWriter(self._thread, writer, chosen, self._timeout_s)

        return self._call(make())

    def reader(
        self,
        *logs: str,
        start: Position = "oldest",
        until: Position | None = None,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        gaps: bool = True,
    ) -> BlockingLogsReader:
        """A reader of several logs at once; see `store.Store.reader`."""
        made = self._call(
            self._store.reader(
                *logs, start=start, until=until, keys=keys, payloads=payloads, gaps=gaps
            )
        )
        return BlockingLogsReader(self._thread, made)

    def tail(self, log: str) -> Lsn:
        """The last LSN that readers may see; see `store.Store.tail`."""
        return self._call(self._store.tail(log))

    def tails(self, logs: Sequence[str]) -> list[Lsn]:
        """Tails of several logs; see `store.Store.tails`."""
        return self._thread.call(self._store.tails(logs))

    def released(self, logs: Sequence[str]) -> list[Lsn]:
        """Where logs can be read up to; see `store.Store.released`."""
        return self._thread.call(self._store.released(logs))

    def epoch_end(self, log: str, epoch: int) -> Lsn | None:
        """Where a closed epoch's records end; see `store.Store.epoch_end`."""
        return self._call(self._store.epoch_end(log, epoch))

    def scan_copies(self, log: str, node: NodeId, start: int, stop: int) -> NodeCopies:
        """All that one node holds of a range; see `replica_scan.scan_copies`."""
        return self._thread.call(scan_copies(self._store, log, node, start, stop))

    def create_log(
        self,
        log: str,
        *,
        copies: int = 0,
        racks: int = 0,
        attributes: LogAttributes | None = None,
    ) -> LogInfo:
        """Make a log; see `store.Store.create_log`."""
        return self._call(
            self._store.create_log(log, copies=copies, racks=racks, attributes=attributes)
        )

    @property
    def log_tree(self) -> BlockingLogTree:
        """Attributes, directories, names and epochs of logs; see `log_tree.LogTree`."""
        return BlockingLogTree(self._store.log_tree, self._call)

    def log(self, log: str) -> LogInfo:
        """One log; see `store.Store.log`."""
        return self._call(self._store.log(log))

    def logs(self, prefix: str = "/") -> list[LogInfo]:
        """All logs below a path; see `store.Store.logs`."""
        return self._call(self._store.logs(prefix))

    def status(self) -> dict[NodeId, StatusReply | CordwoodError]:
        """What each node says of itself; see `store.Store.status`."""
        return self._call(self._store.status())

    def serve(self, port: int = 0) -> str:
        """Open an embedded store to this machine; see `store.Store.serve`."""
        return self._call(self._store.serve(port))

    def streams(self) -> dict[NodeId, StreamsReply | CordwoodError]:
        """The read streams at each node; see `store.Store.streams`."""
        return self._call(self._store.streams())

    def consumer(
        self,
        name: str,
        *logs: str,
        member: str = "",
        start: Position = "oldest",
        save_every_s: float | None = 5.0,
    ) -> BlockingConsumer:
        """A reader whose positions are kept; see `store.Store.consumer`."""
        made = self._call(
            self._store.consumer(name, *logs, member=member, start=start, save_every_s=save_every_s)
        )
        return BlockingConsumer(self._thread, made)

    def consumers(self, name: str = "") -> list[GroupReply]:
        """What is known of a consumer, or of all; see `cursors.Cursors.list`."""
        return self._call(self._store.cursors.list(name))

    def save_cursors(
        self,
        consumer: str,
        positions: Mapping[str, int],
        expected: Mapping[str, int] | None = None,
        *,
        reset: bool = False,
    ) -> dict[str, Lsn]:
        """Move a consumer's positions; see `cursors.Cursors.save`."""
        return self._call(self._store.cursors.save(consumer, positions, expected, reset=reset))

    @property
    def cluster_id(self) -> str:
        """The cluster's identity; see `store.Store.cluster_id`."""
        return self._store.cluster_id

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or ended by a failure of its own."""
        return self._store.is_closed

    @property
    def members(self) -> dict[NodeId, str]:
        """Addresses of the cluster's nodes."""
        return self._store.members

    def close(self) -> None:
        """Close everything. Safe to call twice."""
        try:
            self._call(self._store.close())
        except Closed:
            return  # the thread has ended: it was closed before
        finally:
            self._thread.close()

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.call(work, timeout_s=self._timeout_s)


class BlockingLogTree:
    """See `log_tree.LogTree`."""

    def __init__(self, tree: LogTree, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._tree = tree
        self._call = call

    def set_attributes(
        self, path: str, attributes: LogAttributes, unset: Sequence[str] = ()
    ) -> None:
        """See `log_tree.LogTree.set_attributes`."""
        self._call(self._tree.set_attributes(path, attributes, unset))

    def directory(self, path: str) -> DirectoryReply:
        """See `log_tree.LogTree.directory`."""
        reply: DirectoryReply = self._call(self._tree.directory(path))
        return reply

    def delete(self, log: str) -> None:
        """See `log_tree.LogTree.delete`."""
        self._call(self._tree.delete(log))

    def rename(self, log: str, new_name: str) -> LogInfo:
        """See `log_tree.LogTree.rename`."""
        info: LogInfo = self._call(self._tree.rename(log, new_name))
        return info

    def epochs(self, log: str) -> EpochsReply:
        """See `log_tree.LogTree.epochs`."""
        reply: EpochsReply = self._call(self._tree.epochs(log))
        return reply


def connect(url: str, settings: ClientSettings | None = None) -> BlockingStore:
    """Connect to a cluster and return once it answered; see `aio.connect`."""
    chosen = settings or ClientSettings()
    return open_blocking(lambda: aio.connect(url, chosen), chosen)


def open_blocking(
    make: Callable[[], Coroutine[Any, Any, Store]], settings: ClientSettings
) -> BlockingStore:
    """Run a store in a thread of its own."""
    thread = LoopThread("cordwood-client")
    try:
        store = thread.call(make(), timeout_s=settings.timeout_s + MARGIN_S)
    except BaseException:
        thread.close()
        raise
    return BlockingStore(thread, store, settings.timeout_s)
