"""The asyncio client: one object for a whole cluster.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

from cordwood.block import Buffer, Gap, GapKind, Record
from cordwood.client.address import SCHEME
from cordwood.client.admin.nodes import Nodes
from cordwood.client.admin.position_calls import Position, PositionCalls, Start
from cordwood.client.admin.positions import Positions
from cordwood.client.append.append_calls import AppendCalls
from cordwood.client.append.appends import Appends
from cordwood.client.append.buffered_writer import (
    BufferedWriter,
    OnFailure,
    OnRetry,
    OnSuccess,
    WriterOptions,
)
from cordwood.client.append.open_log import Appending
from cordwood.client.append.producer import Producer
from cordwood.client.append.record_check import Headers, Timestamp
from cordwood.client.cluster import Cluster, LogInfo
from cordwood.client.find.ask_released import ReleasedAsker
from cordwood.client.find.ask_tail import ask_tail
from cordwood.client.find.log_info import AnyLog
from cordwood.client.ledgers.ledgers import Ledgers
from cordwood.client.opening import Opening, OpeningItems
from cordwood.client.publish.publishing import Publisher
from cordwood.client.publish.stages import Stages
from cordwood.client.publish.staging import Stager
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.consumer_logs import ConsumerLogs
from cordwood.client.read.cursors import Cursors
from cordwood.client.read.open_streams import OpenStreams
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.reader import OnLogHealth, Reader
from cordwood.client.read.shared_tail import SharedTails
from cordwood.client.tier_store import OpenObjects, TierStore
from cordwood.errors import AccessDenied, BadSetting, Closed, UnknownLog, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.hello import Hello
from cordwood.layout.message import Call, Reply
from cordwood.lsn import ESN_MAX, LSN_MAX, Lsn, make_lsn
from cordwood.protocol.read_budget import ReadBudget
from cordwood.settings import ClientSettings
from cordwood.tier.addresses import open_object_store

logger = logging.getLogger(__name__)

TRIED_S = 0.1
"""The time that a reader waits for the first dial to each node. A node that was not dialled yet
must not count as dead."""


class Store(Stages, PositionCalls, Nodes):
    """A connected client. Made by `cordwood.aio.connect`; close it, or use `async with`.

    Attributes:
        cursors: the positions of consumers, and which member reads which log.
        ledgers: logs that one client writes and closes; see `client.ledgers.ledgers`.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: Host,
        settings: ClientSettings,
        tasks: asyncio.TaskGroup,
        open_objects: OpenObjects = open_object_store,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._appends = Appends(cluster, host, settings, tasks)
        self._append_calls = AppendCalls(
            self._appends, cluster, self._find_to_append, settings, host.clock.now_us
        )
        self._stage_looks = {}
        self._streams = OpenStreams()
        # Readers belong to the caller: a dropped reader ends by itself.
        self._readers: list[weakref.ref[Reader]] = []
        self._writers: list[BufferedWriter] = []
        self._chance = host.random
        self._tasks = tasks
        self.cursors = Cursors(
            self._ask, self._find, self.log, self._find_several, self._tail_of, self._names,
            cluster.new_mark,
        )  # fmt: skip
        self._stager = Stager(cluster, host, settings)
        self._publisher = Publisher(cluster, self._appends, self._stager, self._ask, settings)
        self._asker = ReleasedAsker(cluster, settings.timeout_s)
        self._budget = ReadBudget(settings.read_memory_bytes)
        self._tier = TierStore(
            host, lambda: cluster.tier_store, open_objects, tasks, settings.tier_cache_bytes
        )
        self.ledgers = Ledgers(cluster, host, settings, tasks, self._tier.objects)
        self._positions = Positions(cluster, self._tail_of, self.read, settings, self._tier)
        self._tails = SharedTails(self._open_leader, self._streams.number_anew, tasks, self._budget)
        self._seed = host.random.getrandbits(63)
        self._stop = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._serve: Callable[[int], Awaitable[str]] | None = None
        self._served = ""
        # Only one server listens at a time: a second call gets the address of the first.
        self._serving = asyncio.Lock()
        cluster.add_listener(self._streams)
        cluster.on_statuses = self._streams.on_statuses

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Appending.

    async def append(
        self,
        log: AnyLog,
        value: Buffer,
        *,
        key: bytes | None = None,
        timestamp: Timestamp | None = None,
        headers: Headers | None = None,
        producer: Producer | None = None,
        expected_tail: int | None = None,
    ) -> Lsn:
        """Append one record; return once it is on stable storage on every copy.

        Calls that name the log in the same way keep their order. A call by number may overtake an
        earlier call by name.

        Args:
            log: its name; or its number, which stays the same log even if the name moves.
            producer, expected_tail: see `client.append.producer`, for their errors too.
        Raises:
            Retryable: nothing was stored within the client's timeout.
            OutcomeUnknown: it may or may not be stored.
            Rejected: the record is too large, or the log does not exist.
        """
        return await self._append_calls.append(
            log, value, key, timestamp, headers, producer, expected_tail
        )

    async def append_many(
        self,
        log: AnyLog,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[Timestamp] | Timestamp | None = None,
        headers: Sequence[Headers] | None = None,
        producer: Producer | None = None,
        atomic: bool = False,
    ) -> list[Lsn]:
        """Append records in order; one Lsn each, once all are on stable storage.

        They are cut into blocks of the client's limits, each stored whole or not at all.

        Args:
            log: its name; or its number, which stays the same log even if the name moves.
            atomic: all blocks of the call are one group. The records get consecutive LSNs, and are
                stored, acknowledged and shown to readers together or not at all. Up to 64 MiB as
                stored, less on nodes with a small WAL.
        Raises:
            RecordTooLarge: a record is too large, or an atomic call is.
            BadSetting: columns of different lengths, or a record that cannot be encoded.
            OutcomeUnknown: not all blocks were acknowledged; some may be stored.
            OutOfSequence: a producer's call of more blocks than the log remembers was sent again.
                Where its kind is STORED, all records below its `expected` are stored. The rest
                may be sent in one call, with `producer.again(log, expected)`.
            CordwoodError: as `append`; no block was stored.
        """
        if atomic:
            columns = self._append_calls.columns(values, keys, timestamps, headers)
            return await self._append_calls.append_group(log, columns, producer)
        return await self._append_calls.append_many(
            log, values, keys, timestamps, headers, producer
        )

    async def open_log(self, log: AnyLog) -> Appending:
        """A log, by name or number, for `append_nowait`, the fastest way to append one by one.

        It stays that log, even if the name moves.

        Raises:
            UnknownLog: it is not there and may not be made.
        """
        info = await self._find_to_append(log)
        return Appending(self._appends, self._cluster, info.log_id)

    def buffered_writer(
        self,
        options: WriterOptions | None = None,
        *,
        on_success: OnSuccess | None = None,
        on_failure: OnFailure | None = None,
        on_retry: OnRetry | None = None,
    ) -> BufferedWriter:
        """A writer that gathers records into large blocks; see `client.append.buffered_writer`.

        Args:
            on_success, on_failure: called from the loop for records put in, once a block.
            on_retry: may refuse that a block that was not appended is sent again.
        """
        made = BufferedWriter(
            self._appends, self._find_to_append, self._settings, self._chance,
            options or WriterOptions(),
            on_success=on_success, on_failure=on_failure, on_retry=on_retry,
        )  # fmt: skip
        self._writers = [each for each in self._writers if not each.is_closed] + [made]
        return made

    # Reading.

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
    ) -> OpeningItems[ReadStream, Record | Gap]:
        """Read `[start, until]`, both ends included: `async for item in store.read(log)`.

        `await` gives the stream itself, and `async with` closes it at the end.

        The stream ends once it gave out `until`. If it is left earlier, `close` closes it, or the
        garbage collector does.

        Args:
            log: a name; or a number, which stays the same log even if the name moves. A name is
                resolved as of some seconds ago (`client.find.known_logs`).
            start: the first LSN, `oldest`, `tail` for records appended after now, or a time,
                resolved by `find_time` (if too few nodes answer, the read begins too early, never
                too late).
            until: the last LSN, `tail` for all records that are readable now, None to follow. A
                missing log is created if the cluster allows it, unless this is `tail`; the stream
                waits for its records.
            keys: give only records with one of these keys, and FILTERED gaps in place of the
                others. Nodes leave out blocks whose headers exclude the keys.
            payloads: False: bodies are neither read nor sent; records come with LSN and append
                time, an empty payload and no key.
            record_keys: False: records come without keys, even if `keys` chose them. They are sent
                all the same, beside the payloads; `arrow` ignores it and gives the columns of its
                own argument.
            gaps: False: items are records, and gaps only where records were lost or may not be
                read; epoch ends, trimmed records and other benign gaps are left out.
        Raises:
            BadSetting: a position that is not valid, a time without a zone, or keys without
                payloads.
            UnknownLog: the log does not exist.
            Retryable: `tail` or a time was asked for, and no sequencer could be found.
        """
        opening = partial(
            self._open_read, log, start, until,
            keys=keys, payloads=payloads, record_keys=record_keys, gaps=gaps,
        )  # fmt: skip
        return OpeningItems(opening)

    async def _open_read(
        self,
        log: AnyLog,
        start: Start,
        until: Position | None,
        *,
        keys: Collection[bytes] | None = None,
        payloads: bool = True,
        record_keys: bool = True,
        gaps: bool = True,
    ) -> ReadStream:
        if keys is not None and not payloads:
            raise BadSetting("records are chosen by keys, which are sent with payloads only")
        info = await self._find(log, create=until != "tail")
        try:
            first, last = await self._bounds(info.log_id, start, until)
        except UnknownLog:
            if isinstance(log, int):
                raise
            # The name led to a log that was deleted since; another log may have it by now.
            info = await self._find(log, create=until != "tail")
            first, last = await self._bounds(info.log_id, start, until)
        await self._cluster.peers.wait_tried(info.all_nodes, timeout_s=TRIED_S)
        self._cluster.check_open()  # it may have been closed meanwhile
        number = self._streams.next_number()
        # By its number: the name may have moved to another log meanwhile.
        nudge = partial(ask_tail, self._cluster, info, timeout_s=self._settings.timeout_s)
        stream = ReadStream(
            number, info, first, last, self._cluster, self._settings, nudge,
            budget=self._budget, seed=self._seed, keys=keys, payloads=payloads,
            record_keys=record_keys, gaps=gaps, tails=self._tails, tier=self._tier,
            on_closed=self._streams.forget,
        )  # fmt: skip
        self._streams.add(stream)
        stream.open()
        return stream

    def _open_leader(self, info: LogInfo, start: int) -> ReadStream:
        """See `shared_tail`."""
        number = self._streams.next_number()
        nudge = partial(ask_tail, self._cluster, info, timeout_s=self._settings.timeout_s)
        lead = ReadStream(
            number, info, start, LSN_MAX, self._cluster, self._settings, nudge,
            budget=self._budget, seed=self._seed, tier=self._tier, on_closed=self._streams.forget,
        )  # fmt: skip
        self._streams.add(lead)
        lead.open()
        return lead

    async def epoch_end(self, log: AnyLog, epoch: int) -> Lsn | None:
        """The end of the records of a closed epoch: the LSN of its bridge.

        Read from the bridge itself, so it is one round trip however long the epoch is.
        For planning only: recovery may have left holes below it.

        Args:
            epoch: an epoch whose end readers have seen, so below the tail's epoch.
        Returns:
            The bridge's first LSN; None if no copy of the bridge is left.
        Raises:
            UnknownLog: the log does not exist.
            AccessDenied: this client may not read it.
            Retryable: the nodes did not say within the client's timeout.
        """
        info = await self._find(log)  # a read up to an LSN would make it
        last = make_lsn(epoch, ESN_MAX)
        stream = await self.read(info.log_id, last, last)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                told = await stream.next()
        except TimeoutError:
            raise Unreachable(f"no node says where epoch {epoch} of {log} ends") from None
        finally:
            stream.close()
        if isinstance(told, Gap) and told.kind is GapKind.ACCESS:
            # An unknown end would be taken for an epoch without records.
            raise AccessDenied(f"{info.name} wants a read token, which this client does not have")
        return stream.bridge or await self._positions.epoch_end(info, last)

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
    ) -> OpeningItems[Reader, tuple[str, Record | Gap]]:
        """A reader of several logs at once. `Reader.start` adds further logs.

        `async with store.reader("a", "b") as reader`, or `await` it and close it.

        Args:
            start, until: for each of these logs, see `read`; None follows them.
            keys, payloads, record_keys: for all logs, see `read`.
            gaps, on_health: see `reader.Reader`.
        Raises:
            BadSetting: two of the names lead to one log; or see `read`.
            UnknownLog, Retryable: see `read`.
        """
        read = partial(self.read, keys=keys, payloads=payloads, record_keys=record_keys)
        # Where the first logs are. A log that is added later is looked up then: a remembered name
        # could lead to a log that is read under another name.
        places: dict[AnyLog, AnyLog] = {}

        async def open_log(log: AnyLog, start: Start, until: Position | None) -> ReadStream:
            if isinstance(log, str):
                create = until != "tail"
                log = places.pop(log, 0) or (await self._find_now(log, create=create)).log_id
            return await read(log, start, until)

        async def opening() -> Reader:
            made = self._new_reader(Reader(open_log, self._tasks, gaps=gaps, on_health=on_health))
            try:
                if len(logs) == 1:
                    places[logs[0]] = logs[0]
                else:
                    create = until != "tail"
                    found = await self._find_several(logs, create=create, may_remember=True)
                    places.update((log, info.log_id) for log, info in found.items())
                for log in logs:
                    await made.start(log, start, until)
            except BaseException:
                made.close()
                raise
            return made

        return OpeningItems(opening)

    def consumer(
        self,
        name: str,
        *logs: str,
        member: str = "",
        start: Start = "oldest",
        save_every_s: float | None = 5.0,
        on_health: OnLogHealth | None = None,
    ) -> Opening[Consumer]:
        """A reader whose positions are saved under `name`; enter it with `async with`.

        Args:
            member: this reader's name among several that share the logs; "" reads all of them.
            start: where to begin in a log that the consumer has no position in.
            save_every_s: how often positions are saved between two portions; None only when
                `Consumer.save` is called, and at the end.
            on_health: see `reader.Reader`.
        Raises:
            BadSetting: two of the names lead to one log.
            UnknownLog: one of the logs is not there and may not be made.
        """

        async def opening() -> Consumer:
            infos = await self._find_several(logs, create=True)
            found = ConsumerLogs(infos.values(), self._ask, self.read)
            reader = self._new_reader(Reader(found.read, self._tasks, on_health=on_health))
            return Consumer(
                name, found.names, reader, found.ask, self._tasks,
                member=member, start=start, save_every_s=save_every_s,
            )  # fmt: skip

        return Opening(opening)

    def _new_reader(self, made: Reader) -> Reader:
        self._readers = [*filter(_is_used, self._readers), weakref.ref(made)]
        return made

    async def _names(self) -> dict[int, str]:
        return await self.log_tree.names(unread=[])  # a log without a name is told by its number

    async def _ask(self, message: Call) -> Reply:
        return await self._cluster.call_any(message, timeout_s=self._settings.timeout_s)

    # Logs and nodes.

    async def serve(self, port: int = 0) -> str:
        """Open an embedded store to other processes of this machine, until it is closed.

        Args:
            port: on 127.0.0.1; 0 takes a free port. A second call returns the first's address.
        Returns:
            Its URL, for `connect` and for Spark's `cordwood.bootstrap.servers`.
        Raises:
            BadSetting: this client is of a cluster, which has addresses of its own, or the
                port cannot be had.
        """
        self._cluster.check_open()
        if self._serve is None:
            known = ", ".join(self.members.values())
            raise BadSetting(
                f"only an embedded store is served; this cluster is reached at {SCHEME}{known}"
            )
        async with self._serving:
            if not self._served:
                self._served = SCHEME + await self._serve(port)
        return self._served

    def serve_with(self, serve: Callable[[int], Awaitable[str]]) -> None:
        """Take what `serve` calls: it listens on a port and returns `host:port`."""
        self._serve = serve

    @property
    def cluster_id(self) -> str:
        """The cluster's identity, 32 hexadecimal digits: offsets of one mean nothing in another."""
        return self._cluster.cluster_id.hex()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or a failure of its own ended this client."""
        return self._cluster.is_closed

    async def close(self) -> None:
        """Close everything; appends still open end as errors. Safe to call twice.

        Raises:
            Rejected: this is another event loop; nothing was closed.
        """
        runner = self._runner
        if not self._stop.is_set():
            self._cluster.check_loop()
            await self._end()
        is_other = runner is not asyncio.current_task()
        if runner is not None and is_other and not runner.done():
            self._cluster.check_loop()
            # Shielded: a call that is given up must not break off the end of an embedded store's
            # node. The next call waits for it again.
            await asyncio.shield(runner)

    async def _end(self) -> None:
        error = Closed("this client was closed")
        for writer in self._writers:
            writer.end(error)
        self._tails.close()
        await self.ledgers.end()
        await self._appends.close(error)
        for known in self._readers:
            if (reader := known()) is not None:
                reader.close()
        self._streams.fail(error)
        await self._cluster.close()
        await self._tier.close()
        self._stop.set()

    async def wait_closed(self) -> None:
        """Wait until `close` has done its work."""
        await self._stop.wait()

    def run_by(self, runner: asyncio.Task[None]) -> None:
        """`close` waits for this task too: the task owns the connections."""
        self._runner = runner


def _is_used(known: weakref.ref[Reader]) -> bool:
    reader = known()
    return reader is not None and not reader.is_closed


@asynccontextmanager
async def connected(
    addresses: Sequence[str],
    host: Host,
    settings: ClientSettings,
    open_objects: OpenObjects = open_object_store,
    *,
    member: Hello | None = None,
) -> AsyncIterator[Store]:
    """A store that lives for the length of the block.

    Args:
        open_objects: opens main storage by its address.
        member: the greeting of the node whose client this is; see `Cluster`.
    Raises:
        Unreachable: no address answered.
        NotOurCluster: a node of another cluster, or another service, answered.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            cluster = Cluster(host, addresses, tasks, settings.write_tokens, member)
            await cluster.start(timeout_s=settings.timeout_s)
            store = Store(cluster, host, settings, tasks, open_objects)
            try:
                yield store
            finally:
                await store.close()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
