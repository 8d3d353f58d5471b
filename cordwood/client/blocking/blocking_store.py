"""The same client for callers without a loop: scripts, notebooks, Spark executors.

The asyncio client runs in a thread; every call here waits for it.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Sequence,
)
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from cordwood.block import Buffer
from cordwood.client import aio
from cordwood.client.admin.log_tree import LogTree
from cordwood.client.admin.position_calls import Position, Start
from cordwood.client.append.buffered_writer import WriterOptions
from cordwood.client.append.producer import Producer
from cordwood.client.append.record_check import (
    Headers,
    Timestamp,
    own_header_lists,
    own_keys,
    own_times,
    own_values,
)
from cordwood.client.blocking.blocking_ledgers import (
    BlockingLedgers,
    BlockingReadableLedger,
    BlockingWritableLedger,
)
from cordwood.client.blocking.blocking_readers import (
    BlockingConsumer,
    BlockingLogsReader,
    BlockingReader,
)
from cordwood.client.blocking.blocking_writer import BlockingBufferedWriter
from cordwood.client.blocking.facade import Facade, blocking
from cordwood.client.find.log_info import AnyLog
from cordwood.client.ledgers.ledgers import Ledgers
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.publish.staging import TTL_DEFAULT_S, StagedRef
from cordwood.client.read.cursors import ByLog, Lag
from cordwood.client.read.reader import OnLogHealth
from cordwood.client.read.replica_scan import NodeCopies, scan_copies
from cordwood.client.store import Store
from cordwood.errors import Closed, CordwoodError, Unreachable
from cordwood.host.at_end import at_end
from cordwood.host.loop_thread import LoopThread
from cordwood.layout.message_consumers import ConsumerReply
from cordwood.lsn import Lsn
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings

logger = logging.getLogger(__name__)

MARGIN_S = 30.0
"""The wait beyond the client's own deadlines before a call gives up on the client's thread."""

FLUSHES = 2
"""Flushes of buffered writers as the interpreter ends. A thread that was within `submit` when the
end began may put its record in after the first."""


class BlockingStore(Facade[Store]):
    """A connected client; see `store.Store` for what each call does and raises."""

    def __init__(self, thread: LoopThread, inner: Store, timeout_s: float) -> None:
        super().__init__(thread, inner, timeout_s)
        self._writers: weakref.WeakSet[BlockingBufferedWriter] = weakref.WeakSet()
        # A client that is not closed lives as long as its thread: this keeps nothing else alive.
        self._stay = at_end(self._leave)

    append = blocking(Store.append, changes=True)
    append_many = blocking(Store.append_many, changes=True, timed=False)

    stage = blocking(Store.stage, changes=True, timed=False)
    publish = blocking(Store.publish, changes=True, timed=False)
    published = blocking(Store.published, timed=False)
    unstage = blocking(Store.unstage, changes=True, timed=False)
    fence = blocking(Store.fence, changes=True, timed=False)
    use_fencing_token = blocking(Store.use_fencing_token, changes=True, timed=False)

    trim = blocking(Store.trim, changes=True)
    find_time = blocking(Store.find_time)
    find_key = blocking(Store.find_key)
    extent = blocking(Store.extent)
    head_attributes = blocking(Store.head_attributes)
    tail_attributes = blocking(Store.tail_attributes)
    is_empty = blocking(Store.is_empty)
    data_size = blocking(Store.data_size)
    tiered = blocking(Store.tiered)

    tail = blocking(Store.tail)
    tails = blocking(Store.tails, timed=False)
    released = blocking(Store.released, timed=False)
    released_by_number = blocking(Store.released_by_number, timed=False)
    epoch_end = blocking(Store.epoch_end)

    create_log = blocking(Store.create_log, changes=True)
    log = blocking(Store.log)
    logs = blocking(Store.logs)

    status = blocking(Store.status)
    streams = blocking(Store.streams)
    authorities = blocking(Store.authorities)
    if_lost = blocking(Store.if_lost)
    check_impact = blocking(Store.check_impact, timed=False)
    apply_maintenance = blocking(Store.apply_maintenance, changes=True, timed=False)
    maintenance = blocking(Store.maintenance, timed=False)
    remove_maintenance = blocking(Store.remove_maintenance, changes=True, timed=False)
    rebuilding = blocking(Store.rebuilding)
    rebalance_plan = blocking(Store.rebalance_plan, timed=False)
    rebalance = blocking(Store.rebalance, changes=True)
    say_rebuild = blocking(Store.say_rebuild, changes=True)
    set_authority = blocking(Store.set_authority, changes=True)
    read_only = blocking(Store.read_only)
    set_storage = blocking(Store.set_storage, changes=True)
    serve = blocking(Store.serve)

    def append_many_soon(
        self,
        log: AnyLog,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        producer: Producer | None = None,
        atomic: bool = False,
    ) -> Future[list[Lsn]]:
        """As `append_many`, without waiting: calls for one log are appended in their order.

        The caller bounds the number of calls in flight; each call has the client's own deadline.
        Its lists and buffers may be filled again at once.

        Raises:
            BadSetting: a value, a key or a header is no bytes.
            Closed: the client was closed.
        """
        return self._thread.start(
            self._inner.append_many(
                log,
                own_values(values),
                keys=own_keys(keys),
                timestamps=own_times(timestamps),
                headers=own_header_lists(headers),
                producer=producer,
                atomic=atomic,
            )
        )

    def stage_soon(
        self,
        log: AnyLog,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        ttl_s: float = TTL_DEFAULT_S,
    ) -> Future[StagedRef]:
        """As `stage`, without waiting; the caller bounds the number of calls in flight.

        Raises:
            BadSetting: a value, a key or a header is no bytes.
            Closed: the client was closed.
        """
        # The loop begins the call later; the caller may refill its list or buffer before that.
        return self._thread.start(
            self._inner.stage(
                log,
                own_values(values),
                keys=own_keys(keys),
                timestamps=own_times(timestamps),
                headers=own_header_lists(headers),
                ttl_s=ttl_s,
            )
        )

    def read(
        self,
        log: AnyLog,
        start: Start = "oldest",
        until: Position | None = "tail",
        *,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        record_keys: bool = True,
        gaps: bool = True,
    ) -> BlockingReader:
        """Read `[start, until]`; see `store.Store.read`."""
        stream = self._inner.read(
            log, start, until, keys=keys, payloads=payloads, record_keys=record_keys, gaps=gaps
        )
        return BlockingReader(self._thread, self._call(stream.opened()))

    def buffered_writer(self, options: WriterOptions | None = None) -> BlockingBufferedWriter:
        """A writer that gathers records into large blocks; see `client.append.buffered_writer`."""
        chosen = options or WriterOptions()

        async def make() -> BlockingBufferedWriter:
            # The thread bounds the records that are put; the loop's writer counts a little more for
            # each record.
            roomy = replace(chosen, memory_bytes_max=2 * chosen.memory_bytes_max)
            writer = self._inner.buffered_writer(roomy)
            return BlockingBufferedWriter(self._thread, writer, chosen, self._timeout_s)

        made = self._call(make())
        self._writers.add(made)
        return made

    def reader(
        self,
        *logs: str,
        start: Start = "oldest",
        until: Position | None = None,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        record_keys: bool = True,
        gaps: bool = True,
        on_health: OnLogHealth | None = None,
    ) -> BlockingLogsReader:
        """A reader of several logs at once; see `store.Store.reader`.

        Args:
            on_health: is called in the client's thread, so it must not call the store.
        """
        made = self._call(
            self._inner.reader(
                *logs,
                start=start,
                until=until,
                keys=keys,
                payloads=payloads,
                record_keys=record_keys,
                gaps=gaps,
                on_health=on_health,
            ).opened()
        )
        return BlockingLogsReader(self._thread, made)

    def scan_copies(self, log: AnyLog, node: NodeId, start: int, stop: int) -> NodeCopies:
        """All that one node holds of a range; see `replica_scan.scan_copies`."""
        return self._thread.call(scan_copies(self._inner, log, node, start, stop))

    @property
    def log_tree(self) -> BlockingLogTree:
        """Attributes, directories, names and epochs of logs; see `log_tree.LogTree`."""
        return BlockingLogTree(self._thread, self._inner.log_tree, self._timeout_s)

    @property
    def ledgers(self) -> BlockingLedgers:
        """Logs that one client writes and closes; see `ledgers.Ledgers`."""
        return BlockingLedgers(self._thread, self._inner.ledgers, self._timeout_s)

    def log_names_soon(self, prefix: str = "/") -> Future[dict[int, str]]:
        """Names by number, without waiting; see `log_tree.LogTree.names`."""
        return self._thread.start(self._inner.log_tree.names(prefix))

    def consumer(
        self,
        name: str,
        *logs: str,
        member: str = "",
        start: Start = "oldest",
        save_every_s: float | None = 5.0,
        on_health: OnLogHealth | None = None,
    ) -> BlockingConsumer:
        """A reader with saved positions; see `store.Store.consumer`, and `reader`."""
        made = self._call(
            self._inner.consumer(
                name,
                *logs,
                member=member,
                start=start,
                save_every_s=save_every_s,
                on_health=on_health,
            ).opened()
        )
        return BlockingConsumer(self._thread, made)

    def consumers(self, name: str = "", *, unread: list[str] | None = None) -> list[ConsumerReply]:
        """The state of one consumer, or of all; see `cursors.Cursors.list`."""
        return self._call(self._inner.cursors.list(name, unread=unread))

    def consumer_by_number(self, name: str) -> ConsumerReply:
        """The same of one consumer, logs by number; see `cursors.Cursors.by_number`."""
        return self._call(self._inner.cursors.by_number(name))

    def lag(self, consumer: str, *logs: str) -> dict[str, Lag | CordwoodError]:
        """How far a consumer is behind, by log; see `cursors.Cursors.lag`."""
        return self._call(self._inner.cursors.lag(consumer, *logs))

    def save_cursors(
        self,
        consumer: str,
        positions: ByLog,
        expected: ByLog | None = None,
        *,
        reset: bool = False,
    ) -> dict[str, Lsn]:
        """Move a consumer's positions; see `cursors.Cursors.save`."""
        return self._call(
            self._inner.cursors.save(consumer, positions, expected, reset=reset), changes=True
        )

    @property
    def cluster_id(self) -> str:
        """The cluster's identity; see `store.Store.cluster_id`."""
        return self._inner.cluster_id

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or ended by a failure of its own."""
        return self._inner.is_closed

    @property
    def members(self) -> dict[NodeId, str]:
        """Addresses of the cluster's nodes."""
        return self._inner.members

    def close(self) -> None:
        """Close everything. Safe to call twice."""
        try:
            self._thread.close(self._inner.close(), timeout_s=self._timeout_s)
        except Exception:
            self._stay()
            raise
        # Not before: a signal handler may raise at any moment of the close. Then the program's end
        # must report the records that are not stored.
        self._stay()

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _leave(self, left_s: Callable[[], float]) -> None:
        """At the interpreter's exit: have submitted records stored, or warn that they were not.

        Args:
            left_s: how long to wait for that, as of now.
        """
        if self._thread.is_of_other_process:
            return
        writers = list(self._writers)
        failed = sum(writer.failed for writer in writers)

        async def flush() -> None:
            await asyncio.gather(*(writer.flush_here() for writer in writers))

        for _ in range(FLUSHES):
            if left_s() and any(writer.waiting for writer in writers):
                with suppress(Unreachable, Closed):
                    self._thread.call(flush(), timeout_s=left_s())
        records = sum(writer.waiting + writer.failed for writer in writers) - failed
        calls = self._thread.finish(left_s())
        if records or calls:
            logger.warning(
                "the program ended with %d records of buffered writers not known to be stored, and "
                "%d calls not answered: close the client, or its writers, before that",
                records, calls,
            )  # fmt: skip


class BlockingLogTree(Facade[LogTree]):
    """See `log_tree.LogTree`."""

    set_attributes = blocking(LogTree.set_attributes, changes=True)
    directory = blocking(LogTree.directory)
    delete = blocking(LogTree.delete, changes=True)
    rename = blocking(LogTree.rename, changes=True)
    epochs = blocking(LogTree.epochs)


def _tell_docs(calls: type, source: type) -> None:
    """Give calls that only name their twin the twin's own words, for `help` and for editors."""
    for name in dir(calls):
        call, twin = getattr(calls, name), getattr(source, name, None)
        if inspect.isfunction(call) and twin is not None and "ee `" in (call.__doc__ or ""):
            call.__doc__ = inspect.getdoc(twin)


_tell_docs(BlockingStore, Store)
_tell_docs(BlockingLogTree, LogTree)
_tell_docs(BlockingLedgers, Ledgers)
_tell_docs(BlockingWritableLedger, WritableLedger)
_tell_docs(BlockingReadableLedger, ReadableLedger)


def connect(url: str, settings: ClientSettings | None = None) -> BlockingStore:
    """Connect to a cluster and return once it answered; see `aio.connect`."""
    chosen = settings or ClientSettings()
    return open_blocking(lambda: aio.connect(url, chosen).opened(), chosen)


def open_blocking(
    make: Callable[[], Coroutine[Any, Any, Store]], settings: ClientSettings
) -> BlockingStore:
    """Run a store in a thread of its own."""
    thread = LoopThread("cordwood-client")
    timeout_s = settings.timeout_s + MARGIN_S
    opened: list[Store] = []

    async def make_it() -> None:
        opened.append(await make())

    try:
        thread.call(make_it(), timeout_s=timeout_s)
        # Inside the `try`: an error of a signal handler must leave no open store without an owner.
        return BlockingStore(thread, opened[0], timeout_s)
    except BaseException:
        thread.close(*(each.close() for each in opened), timeout_s=timeout_s)
        raise
