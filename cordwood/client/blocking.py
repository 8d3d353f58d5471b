"""The same client for callers without a loop: scripts, notebooks, Spark executors.

The asyncio client runs in a thread; every call here waits for it.

Source: design.md §7.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from cordwood.block import Buffer
from cordwood.client import aio
from cordwood.client.blocking_positions import BlockingPositions
from cordwood.client.blocking_readers import BlockingConsumer, BlockingLogsReader, BlockingReader
from cordwood.client.blocking_writer import BlockingBufferedWriter
from cordwood.client.buffered_writer import WriterOptions
from cordwood.client.cluster import LogInfo
from cordwood.client.cursors import Lag
from cordwood.client.log_tree import LogTree
from cordwood.client.position_calls import Position, Start
from cordwood.client.producer import Producer
from cordwood.client.publishing import Published
from cordwood.client.reader import OnLogHealth
from cordwood.client.record_check import Headers, Timestamp
from cordwood.client.replica_scan import NodeCopies, scan_copies
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
from cordwood.nodes import Authority, NodeId
from cordwood.settings import ClientSettings

Result = TypeVar("Result")

MARGIN_S = 30.0
"""Waited beyond the client's own deadlines before its thread is given up on."""


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
        return self._change(
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
            ),
            changes=True,
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
        self,
        query: str,
        batch: int,
        refs: Sequence[StagedRef | Mapping[str, Any]],
        fingerprint: str = "",
        *,
        whole: bool = True,
    ) -> Published:
        """Put what was staged into its logs, once; see `store.Store.publish`."""
        work = self._store.publish(query, batch, refs, fingerprint, whole=whole)
        return self._thread.call(work, changes=True)

    def fence(self, log: str, token: int, *, holder: str = "") -> int:
        """Take a log under a fencing token; see `store.Store.fence`."""
        return self._thread.call(self._store.fence(log, token, holder=holder), changes=True)

    def use_fencing_token(self, log: str, token: int) -> None:
        """Append under a token that was taken; see `store.Store.use_fencing_token`."""
        self._thread.call(self._store.use_fencing_token(log, token))

    def published(self, query: str) -> Published | None:
        """The last batch of a query that is in its logs; see `store.Store.published`."""
        return self._thread.call(self._store.published(query))

    def unstage(self, refs: Sequence[StagedRef | Mapping[str, Any]]) -> None:
        """Let go of what will not be published; see `store.Store.unstage`."""
        self._thread.call(self._store.unstage(refs), changes=True)

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
        start: Start = "oldest",
        until: Position | None = "tail",
        *,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        record_keys: bool = True,
        gaps: bool = True,
    ) -> BlockingReader:
        """Read `[start, until]`; see `store.Store.read`."""
        stream = self._store.read(
            log, start, until, keys=keys, payloads=payloads, record_keys=record_keys, gaps=gaps
        )
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
            self._store.reader(
                *logs,
                start=start,
                until=until,
                keys=keys,
                payloads=payloads,
                record_keys=record_keys,
                gaps=gaps,
                on_health=on_health,
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

    def released_by_number(self, logs: Mapping[int, str]) -> dict[int, Lsn]:
        """The same of many logs; see `store.Store.released_by_number`."""
        return self._thread.call(self._store.released_by_number(logs))

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
        return self._change(
            self._store.create_log(log, copies=copies, racks=racks, attributes=attributes)
        )

    @property
    def log_tree(self) -> BlockingLogTree:
        """Attributes, directories, names and epochs of logs; see `log_tree.LogTree`."""
        return BlockingLogTree(self._store.log_tree, self._call, self._change)

    def log(self, log: str) -> LogInfo:
        """One log; see `store.Store.log`."""
        return self._call(self._store.log(log))

    def logs(self, prefix: str = "/") -> list[LogInfo]:
        """All logs below a path; see `store.Store.logs`."""
        return self._call(self._store.logs(prefix))

    def log_names_soon(self, prefix: str = "/") -> Future[dict[int, str]]:
        """Names by number, without waiting; see `log_tree.LogTree.names`."""
        return self._thread.start(self._store.log_tree.names(prefix))

    def status(self) -> dict[NodeId, StatusReply | CordwoodError]:
        """What each node says of itself; see `store.Store.status`."""
        return self._call(self._store.status())

    def authorities(self) -> dict[NodeId, Authority]:
        """What is said of each node's data; see `nodes.Nodes.authorities`."""
        return self._call(self._store.authorities())

    def set_authority(
        self, node: int, authority: Authority, expected: Authority | None = None
    ) -> None:
        """Say what became of a node's data; see `nodes.Nodes.set_authority`."""
        self._change(self._store.set_authority(node, authority, expected))

    def read_only(self) -> dict[NodeId, bool]:
        """Whether each node stores nothing; see `nodes.Nodes.read_only`."""
        return self._call(self._store.read_only())

    def set_storage(self, node: int, *, read_only: bool) -> None:
        """Have a node store nothing, or again; see `nodes.Nodes.set_storage`."""
        self._change(self._store.set_storage(node, read_only=read_only))

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
        start: Start = "oldest",
        save_every_s: float | None = 5.0,
        on_health: OnLogHealth | None = None,
    ) -> BlockingConsumer:
        """A reader whose positions are kept; see `store.Store.consumer`, and `reader`."""
        made = self._call(
            self._store.consumer(
                name,
                *logs,
                member=member,
                start=start,
                save_every_s=save_every_s,
                on_health=on_health,
            )
        )
        return BlockingConsumer(self._thread, made)

    def consumers(self, name: str = "") -> list[GroupReply]:
        """What is known of a consumer, or of all; see `cursors.Cursors.list`."""
        return self._call(self._store.cursors.list(name))

    def lag(self, consumer: str, *logs: str) -> dict[str, Lag | CordwoodError]:
        """How far a consumer is behind, by log; see `cursors.Cursors.lag`."""
        return self._call(self._store.cursors.lag(consumer, *logs))

    def save_cursors(
        self,
        consumer: str,
        positions: Mapping[str, int],
        expected: Mapping[str, int] | None = None,
        *,
        reset: bool = False,
    ) -> dict[str, Lsn]:
        """Move a consumer's positions; see `cursors.Cursors.save`."""
        return self._change(self._store.cursors.save(consumer, positions, expected, reset=reset))

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

    def _change(self, work: Coroutine[Any, Any, Result]) -> Result:
        """As `_call`, of work that may have changed something when no answer comes."""
        return self._thread.call(work, timeout_s=self._timeout_s, changes=True)


class BlockingLogTree:
    """See `log_tree.LogTree`."""

    def __init__(
        self,
        tree: LogTree,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        change: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._tree = tree
        self._call = call
        self._change = change

    def set_attributes(
        self, path: str, attributes: LogAttributes, unset: Sequence[str] = ()
    ) -> None:
        """See `log_tree.LogTree.set_attributes`."""
        self._change(self._tree.set_attributes(path, attributes, unset))

    def directory(self, path: str) -> DirectoryReply:
        """See `log_tree.LogTree.directory`."""
        reply: DirectoryReply = self._call(self._tree.directory(path))
        return reply

    def delete(self, log: str) -> None:
        """See `log_tree.LogTree.delete`."""
        self._change(self._tree.delete(log))

    def rename(self, log: str, new_name: str) -> LogInfo:
        """See `log_tree.LogTree.rename`."""
        info: LogInfo = self._change(self._tree.rename(log, new_name))
        return info

    def epochs(self, log: str) -> EpochsReply:
        """See `log_tree.LogTree.epochs`."""
        reply: EpochsReply = self._call(self._tree.epochs(log))
        return reply


def _tell_docs(calls: type, source: type) -> None:
    """Give calls that only name their twin the twin's own words, for `help` and for editors."""
    for name in dir(calls):
        call, twin = getattr(calls, name), getattr(source, name, None)
        if inspect.isfunction(call) and twin is not None and "ee `" in (call.__doc__ or ""):
            call.__doc__ = inspect.getdoc(twin)


_tell_docs(BlockingStore, Store)
_tell_docs(BlockingLogTree, LogTree)


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
