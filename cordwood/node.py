"""A node: it assembles its roles around one host, from settings, and runs until it is told to stop.

A node is a storage node, may sequence any log, and answers questions about the
cluster. Everything it needs of the machine comes through its `Host`, so the same
assembly runs as a process, inside an application, and in the simulator.

Source: CONTRIBUTING.md, "The idea"; docs/design.md §1, §11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from cordwood.admin.authority_calls import end_return, read_members, set_authority
from cordwood.admin.consumer_calls import ConsumerCalls
from cordwood.admin.fitness_calls import ask_fitness, fitness_reply
from cordwood.admin.ledger_autorecovery import LedgerAutorecovery
from cordwood.admin.ledger_calls import LedgerCalls
from cordwood.admin.log_calls import LogCalls
from cordwood.admin.log_replies import member_infos
from cordwood.admin.maintenance_calls import MaintenanceCalls
from cordwood.admin.node_status import status_reply
from cordwood.admin.replicated_events import ClusterEvents, ReplicatedEventLog
from cordwood.admin.restated_events import EventLogRestating
from cordwood.errors import CordwoodError, Malformed, NotOurCluster, Unreachable
from cordwood.host.seams import Host
from cordwood.impact.check import Fitness
from cordwood.layout.frame import Frame, Kind
from cordwood.layout.hello import Hello
from cordwood.layout.log_questions import (
    AskCopies,
    AskExtent,
    AskIfLost,
    AskKept,
    AskSize,
    AskTime,
    Trim,
)
from cordwood.layout.message import (
    AskEpoch,
    AskNodesets,
    AskReleased,
    AskStatus,
    AskStreams,
    AskTail,
    Call,
    Clean,
    DoneReply,
    NodesetsReply,
    Ping,
    Reply,
    Seal,
    StreamsReply,
    TellNodesets,
    Yield,
)
from cordwood.layout.message_consumers import ConsumerCall
from cordwood.layout.message_impact import AskFitness, AskImpact
from cordwood.layout.message_ledgers import LedgerCall
from cordwood.layout.message_maintenance import MaintenanceCall
from cordwood.layout.message_nodes import (
    AskMembers,
    MembersReply,
    SetAuthority,
    SetStorage,
)
from cordwood.layout.message_rebuilding import (
    AskEvents,
    AskHeld,
    AskRebuilding,
    SayRebalance,
    SayRebuild,
    TellProducers,
)
from cordwood.layout.message_staging import PublishCall, StagingCall
from cordwood.log_attributes import DEFAULTS, LogAttributes, replicate_across
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.consumers import Consumers
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.event_log import StoredEventLog
from cordwood.metadata.joins import Joins
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.maintenance import MaintenanceStore
from cordwood.metadata.membership import Membership
from cordwood.metadata.publications import Publications
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Authority, Member, NodeId, Nodeset
from cordwood.protocol.event_log import drains, has_place
from cordwood.protocol.node_states import NodeStates
from cordwood.protocol.store_times import StoreTimes
from cordwood.quorum.authority import REBUILT, may_be_back
from cordwood.recovery.collect_digest import DigestReads
from cordwood.recovery.heard import Statuses, statuses_of
from cordwood.recovery.purge import Purges
from cordwood.recovery.recover_log import RecoveryTools
from cordwood.sequencer.activation import Activation
from cordwood.sequencer.appender import AppenderTools
from cordwood.sequencer.log_watch import LogWatch
from cordwood.sequencer.role import SequencerRole
from cordwood.settings import NodeSettings
from cordwood.storage.claims import Claims, renew_seals
from cordwood.storage.copy_survey import CopySurvey
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.engine import StorageEngine
from cordwood.storage.identity import ACCEPTED
from cordwood.storage.ledgers.ledger_store import LedgerStore
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.tables import MakeTables, Tables
from cordwood.storage.push.read_rights import ReadRights
from cordwood.storage.push.read_streams import ReadStreams
from cordwood.storage.rebuild.admission import Admission
from cordwood.storage.rebuild.kept_ledgers import keep_only_ledgers
from cordwood.storage.rebuild.role import RebuildRole
from cordwood.storage.repair.copy_fetch import CopyFetches
from cordwood.storage.repair.repairs import Repairs
from cordwood.storage.repair.sequencer_question import ask_sequencer
from cordwood.storage.repair.wal_healing import WalHealing
from cordwood.storage.role import StorageRole
from cordwood.storage.scrub.scrub import Scrub
from cordwood.storage.space.free_space import most_room
from cordwood.storage.space.kept_bytes import KeptBytes
from cordwood.storage.space.retention import Retention
from cordwood.storage.space.space_watch import SpaceWatch
from cordwood.storage.staging.staging import Staging
from cordwood.storage.staging.staging_sweep import StagingSweep
from cordwood.storage.unheard import Unheard
from cordwood.tier.addresses import open_object_store
from cordwood.uploading.objects_at_hand import OpenObjects
from cordwood.uploading.tiering import Tiering
from cordwood.wire.connection import Connection
from cordwood.wire.for_nodes import check_call, check_frame, is_node
from cordwood.wire.gossip import Gossip
from cordwood.wire.peers import Peers, wait_at_most
from cordwood.wire.server import Server
from cordwood.wire.store_channel import StoreChannel

logger = logging.getLogger(__name__)

READ_ONLY = (
    "this node is read-only by an operator's word (`cordwood nodes storage`): it stores nothing"
)

NOTE_AT_END_S = 1.0
"""The longest wait for the last note to the metadata store, which may be away when a node stops.
The next start makes up for the note."""

OLD_S = 10.0
"""The age from which this node's member list does not say any more that a node's data is gone: two
calls of the metadata store that were not answered."""

SURE_S = 0.5
"""The pause between two tries to read the event log, of a node that started unsure."""

NEWCOMER_S = 0.2
"""The shortest time between two readings of the member list, however many callers claim to be
nodes."""

_READ_KINDS = frozenset({Kind.READING, Kind.BLOCKS, Kind.HEADS, Kind.GAPS})
_STORAGE_KINDS = frozenset({Kind.STORE, Kind.RELEASE, Kind.READ, Kind.WINDOW, Kind.STOP})


class Node:
    """One running node; made by `running_node`."""

    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        metadata: MetadataStore,
        make_tables: MakeTables,
        tasks: asyncio.TaskGroup,
        open_objects: OpenObjects = open_object_store,
    ) -> None:
        self.settings = settings
        self.host = host
        self._make_tables = make_tables
        self._open_objects = open_objects
        self._tasks = tasks
        self._membership = Membership(metadata)
        self._metadata = metadata
        base = replicate_across(settings.default_replication)
        self._stored_events = StoredEventLog(metadata)
        self._logs = LogTree(metadata, LogAttributes(replicate_across=base).over(DEFAULTS))
        self._epochs = EpochStore(metadata)
        self._consumers = ConsumerCalls(Consumers(metadata), self._logs, host.clock.now_us)
        self._publications = Publications(
            metadata, host.random.getrandbits, lambda: self._tools.settings.group_bytes_max
        )
        self._log_calls = LogCalls(
            self._logs,
            self._epochs,
            host.clock,
            lambda: self._members,
            self._refresh_members,
            create_logs=settings.create_logs,
        )
        self._members: dict[NodeId, Member] = {}
        self._said: tuple[Member, ...] = ()  # the member list, without what the event log adds
        self._said_s = 0.0  # when it was asked for
        self._readings = self._taken = 0  # of the member list: begun last, and `_said`'s
        self._newcomer = asyncio.Event()  # a node called that is no member yet
        self._started = asyncio.get_running_loop().time()
        self._cluster = b""
        self._incarnation = 0
        self._exit = AsyncExitStack()
        # What `start` makes, in the order in which it does.
        self._directory: DataDirectory
        self._engine: StorageEngine
        self._flusher: Flusher
        self._retention: Retention
        self._space: SpaceWatch
        self._scrub: Scrub
        self._streams: ReadStreams
        self._rights: ReadRights
        self._claims: Claims
        self._storage: StorageRole
        self._staging: Staging
        self._ledgers: LedgerCalls
        self._sequencer: SequencerRole
        self._log_watch: LogWatch
        self._peers: Peers
        self._channel: StoreChannel
        self._states: NodeStates
        self._gossip: Gossip
        self._purges: Purges
        self._events: ClusterEvents
        self._rebuild: RebuildRole
        self._repairs: Repairs
        self._healing: WalHealing
        self._maintenance: MaintenanceCalls
        self._fetches: CopyFetches
        self._digests: DigestReads
        self._tiering: Tiering
        self.server: Server

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.server.address

    @property
    def engine(self) -> StorageEngine:
        """The store, for dumps and status pages; set once `start` replayed the WAL."""
        return self._engine

    @property
    def scrub(self) -> Scrub:
        """The scrubbing of its store."""
        return self._scrub

    @property
    def sequencing(self) -> tuple[int, ...]:
        """Logs that this node sequences now, by number."""
        return tuple(self._sequencer.sequencing())

    async def start(self) -> None:
        """Open the store, join the cluster, listen; `close` undoes as much as was done.

        Raises:
            StoreInUse: another process owns the data directory.
            NotOurCluster: the directory belongs to another cluster or node, or is an older
                copy of this one's.
            CordwoodError: the WAL or the metadata store cannot be used.
        """
        settings, host = self.settings, self.host
        await host.disk.make_dir(settings.directory)
        self._lock = host.disk.lock_dir(settings.directory, f"node {settings.node}")
        self._exit.callback(self._lock.release)
        self._cluster = await self._membership.ensure_cluster(host.random)
        stored = self._stored_events
        replicated = ReplicatedEventLog(host, stored, self._event_addresses, self._greeting)
        events = self._events = ClusterEvents(
            stored, replicated, moves=self.settings.replicated_events,
            may_move=self._may_move_events,
        )  # fmt: skip
        self._exit.callback(self._tasks.create_task(events.run()).cancel)
        joins = Joins(self._metadata)
        admission = Admission(settings, host, self._membership, events, joins)
        await admission.ask()
        if admission.drops_logs:
            await self._drop_logs(admission)
        await self._open_engine(admission.is_blank)
        self._repairs = Repairs(
            self._engine, settings.node, lambda: self._members, self._epochs.read,
            settings.storage.rebuild_bytes_s, self._read_repair_statuses,
        )  # fmt: skip
        self._healing = WalHealing(
            self._engine, settings.node, self._repairs, self._epochs.newest, self.flush
        )
        known = (
            self._epochs.read, lambda: self._members, self._renew_seals, self._membership,
            joins, self._healing.state,
        )  # fmt: skip
        self._rebuild = RebuildRole(settings, host, self._engine, events, *known)
        self._engine.unsure = admission.is_unsure
        self._streams = ReadStreams(self._engine.reader, settings.node, self._nodes_in)
        self._rights = ReadRights(self._logs, admission.is_unsure)
        self._claims = Claims(
            self._engine, self._epochs.newest_of, lambda ask: self._sequencer.released(ask),
            lambda: self._peers)  # fmt: skip
        survey = CopySurvey(self._engine, settings.node, lambda: self._members, self._epochs.read)
        self._storage = StorageRole(self._engine, self._streams, self._rights, self._claims, survey)
        self._staging = Staging(self._engine, host.clock.now_us, settings.node)
        self._rebuild.staging = self._staging
        ledger_store = LedgerStore(self._engine, lambda: self._incarnation)
        self._ledgers = LedgerCalls(
            ledger_store, LedgerMetadataStore(self._metadata), settings.node,
            LedgerAutorecovery(
                settings.node, host, self._metadata, self._read_members,
                lambda: self.server.address, self._open_objects, lambda: drains(self._rebuild.set),
            ),
            lambda: self._tiering.open(),
        )  # fmt: skip
        if admission.is_unsure:
            await self._renew_seals()  # epochs may have ended without it
        has_lost = self._engine.has_lost or self._engine.logs.owes_note or admission.is_blank
        if has_lost or admission.is_anew:
            await self._renew_seals()
        if has_lost:
            await self._ledgers.note_loss(is_anew=admission.is_blank)
            await self._engine.logs.keep_noted()
        if self._directory.word == ACCEPTED:
            # Do this only now: otherwise a start that was cut short above would be followed by a
            # start that finds no loss.
            await self._engine.accept_loss()
        self._room = most_room(self._engine.wal.record_bytes_max, settings.storage.cache_bytes)
        member = await self._directory.claim(self._engine.reached, self._room)
        self._incarnation = member.incarnation
        replicated.on_joined()
        self.note_storage(member)  # before the first store: it stays so over its restarts
        if member.authority is not Authority.FULLY_AUTHORITATIVE:
            await self._renew_seals()  # before the first store: epochs may have ended without it
        self._assemble_sequencer()
        self._exit.push_async_callback(self._peers.close)
        self._exit.push_async_callback(self._sequencer.close)
        self._tiering = Tiering(
            settings, host, self._metadata, self._logs, self._engine, ledger_store,
            self._open_objects,
            members=lambda: self._members, dead=lambda: self._gossip.dead,
            address=lambda: self.server.address, greeting=lambda: self._hello(NodeId(0)),
            sequencing=lambda: {*self._sequencer.sequencing()},
        )  # fmt: skip
        self._exit.push_async_callback(self._tiering.close)
        if admission.is_anew:
            await self._tiering.learn()
        await admission.complete(self._renew_seals)
        self._rebuild.owes_drain = admission.owes_drain
        await self._refresh_members()  # before the first caller, which may claim to be a member
        ours = self._hello(NodeId(0))
        self.server = Server(host.network, ours, self, self._tasks, self.check_node)
        self._exit.push_async_callback(self.server.close)
        await self.server.listen(settings.listen)
        await self._refresh_members()
        replicated.on_change = self._rebuild.take
        replicated.restating = EventLogRestating(settings, self._membership, self._peers)
        self._rebuild.on_change = self._take_members
        works = (
            self._refresh(),
            self._sequencer.run(),
            self._gossip.run(),
            self._streams.run(),
            self._rights.run(),
            self._claims.run(),
            self._log_watch.run(),
            self._tools.queries.run(),
            StagingSweep(self._staging, self._publications, host.clock.now_us).run(),
            self._retention.run(),
            self._space.run(),
            self._engine.amends.run(),
            self._rebuild.run(),
            self._rebuild.watch(),
            self._rebuild.tell_news(),
            events.run_move(settings.node, member.incarnation),
            self._become_sure(),
            self._repairs.run(),
            self._healing.run(),
            self._maintenance.run(),
            self._directory.run(lambda: self._engine.reached),
            self._ledgers.run(),
            *self._tiering.works(),
        )
        for work in works:
            self._exit.callback(self._tasks.create_task(work).cancel)
        self._tasks.create_task(self._scrub.run())
        self._exit.push_async_callback(self._scrub.close)
        self._exit.callback(self._purges.close)
        for log in sorted(self._engine.cache.logs):
            self._on_change(log)
        logger.info("node %d listens on %s", settings.node, self.server.address)

    def _own_directory(self, *, is_blank: bool) -> tuple[DataDirectory, Tables]:
        """The node's directory, and LogsDB in it."""
        identity = (self.settings, self.host, self._membership, self._cluster)
        path = f"{self.settings.directory}/logsdb"
        tables = self._make_tables(path, self.settings.storage, self.host)
        return DataDirectory(*identity, is_blank), tables

    async def _drop_logs(self, admission: Admission) -> None:
        """See `storage.rebuild.kept_ledgers`."""
        directory, tables = self._own_directory(is_blank=False)
        await keep_only_ledgers(
            directory, tables, self.settings, self.host.clock.now_us(), admission.note_dropping
        )
        await admission.note_dropped()

    async def _open_engine(self, is_blank: bool) -> None:
        """Open WAL and LogsDB, replay, and begin to flush."""
        settings = self.settings.storage
        self._directory, tables = self._own_directory(is_blank=is_blank)
        wal = await self._directory.open_wal()
        self._exit.push_async_callback(wal.close)
        self._exit.push_async_callback(tables.close)
        logs, states = await LogsStore.open(tables, settings, self.settings.node)
        self._engine = await StorageEngine.open(
            wal, logs, states, settings, self._on_change,
            promised=self._directory.reached, is_older=self._directory.is_older, unheard=Unheard(),
        )  # fmt: skip
        self._purges = Purges(
            self._engine, lambda log: self._engine.cache.log(log).is_behind,
            lambda: sorted(set(self._members) - {self.settings.node}), lambda: self._peers,
            self._tasks,
        )  # fmt: skip
        self._flusher = Flusher(self._engine, settings, self.host.clock, self._on_space, self._lock)
        kept = KeptBytes(self._engine, self.settings.node, lambda: self._peers)
        self._retention = Retention(
            self._engine, self._logs, self.host.clock, settings, lambda: len(self._members), kept
        )
        self._space = SpaceWatch(
            self._engine, self.host.disk, self.settings.directory, settings, self._on_space,
            self._flusher.give_space,
            lambda fill: self._membership.set_fill(self.settings.node, fill),
        )  # fmt: skip
        self._scrub = Scrub(
            self._engine, self.host.clock, settings,
            lambda: self._engine.stored_blocks + self._streams.sent_blocks,
        )  # fmt: skip
        self._tasks.create_task(self._flusher.run())
        self._exit.push_async_callback(self._flusher.close)

    async def _renew_seals(self) -> None:
        """See `storage.claims.renew_seals`."""
        await renew_seals(self._engine, await self._epochs.newest())

    async def flush(self) -> None:
        """See `Flusher.flush`."""
        await self._flusher.flush()

    async def _ask_fitness(self, nodes: Collection[NodeId]) -> Fitness:
        """See `fitness_calls.ask_fitness`."""
        return await ask_fitness(self.settings.node, self._engine, self._peers, nodes)

    def _on_space(self) -> None:
        """Handle free space that a flush made."""
        self._storage.tell_space()

    def _assemble_sequencer(self) -> None:
        self._peers = Peers(self.host, self._hello, self._tasks, self)
        self._channel = StoreChannel(self._peers)
        self._digests = DigestReads(self._peers)
        self._fetches = CopyFetches(self._peers)

        def dead() -> frozenset[NodeId]:
            return self._gossip.dead

        ask = partial(ask_sequencer, self._peers, self.settings.node, dead)
        self._repairs.connect(self._fetches, ask, lambda: self._tiering.drops, dead)
        self._healing.connect(self._peers, dead)
        self._states = NodeStates()
        self._gossip = Gossip(
            self.settings.node,
            self._incarnation,
            self.settings.gossip_s,
            self._peers,
            self.host.random,
            self._on_gossip_tick,
        )
        settings = self.settings.sequencer.fitted_to(self._room)
        self._channel.together_bytes = min(self._channel.together_bytes, settings.run_bytes)
        self._maintenance = MaintenanceCalls(
            self.settings.node, MaintenanceStore(self._metadata), self._epochs, self._logs,
            lambda: self._members, lambda: self._gossip.dead, lambda: self._rebuild.set,
            lambda: self._rebuild.refresh(strictly=True), self._rebuild.obey,
            self.host.clock.now_us, self._ask_fitness, lambda: self._said,
        )  # fmt: skip
        self._rebuild.connect(
            self._peers, self._channel, lambda: self._gossip.dead, lambda: self._gossip.silent,
            self._gossip.dies, lambda: self._tools.settings.run_bytes,
            self._maintenance.check_places, lambda: self._tiering.drops,
        )  # fmt: skip
        times = StoreTimes(settings.store_timeout_s, settings.store_timeout_max_s)
        self._tools = tools = AppenderTools(
            self._peers, self._channel, self._states, times, settings,
            asyncio.get_running_loop().time, self.host.random, self._publications.settled,
        )  # fmt: skip
        recovery = RecoveryTools(
            self.host,
            self._peers,
            self._channel,
            self._digests,
            self._epochs,
            lambda: tools.settings.run_bytes,
            lambda: self._gossip.silent,
            lambda log: statuses_of(self._judged(log)),
            self._read_statuses,
        )
        activation = Activation(
            self.settings.node, recovery, tools, lambda: self._members, lambda: self._said,
            self._refresh_members, self._gossip, self._logs,
        )  # fmt: skip
        self._sequencer = SequencerRole(
            self.settings.node,
            self.host,
            activation,
            tools,
            lambda: self._members,
            self._gossip,
            self._tasks,
        )
        self._channel.on_space = self._sequencer.on_space
        self._log_watch = LogWatch(
            self._metadata, self._logs, activation, self._sequencer, self._rights.on_change
        )

    def _on_gossip_tick(self) -> None:
        self._states.set_silent(self._gossip.silent)
        self._sequencer.on_isolated(self._gossip.is_isolated)

    async def leave(self) -> None:
        """Tell the others that this node goes, and let its sequencers finish.

        Clients that append are then redirected to the next node at once.
        """
        self._gossip.leave()
        await self._sequencer.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTE_AT_END_S):
                await self._directory.note(self._engine.reached)

    async def move(self, address: str) -> None:
        """Tell the cluster that this node listens at `address` from now on."""
        await self._membership.move(self.settings.node, address)
        await self._refresh_members()

    async def close(self) -> None:
        """Stop taking work, settle the WAL, and release the directory."""
        await self._exit.aclose()

    def _hello(self, wanted: NodeId) -> Hello:
        return Hello(self.settings.node, self._cluster, self._incarnation, wanted)

    # Members.

    def _nodes_in(self, region: str) -> frozenset[int]:
        """The nodes whose outermost failure domain is `region`."""
        return frozenset(node for node, member in self._members.items() if member.region == region)

    async def _read_members(self) -> Mapping[NodeId, Member]:
        await self._refresh_members()
        return self._members

    async def _refresh_members(self) -> None:
        await self._read_anew(strictly=False)

    async def _read_anew(self, *, strictly: bool) -> None:
        began_s = asyncio.get_running_loop().time()
        self._readings += 1
        reading = self._readings
        said = await read_members(self._membership, self.settings.node, self._renew_seals)
        self._take_said(reading, said)
        is_newest = self._taken == reading
        await self._rebuild.refresh(strictly=strictly)
        self._take_members()
        if is_newest:
            self._said_s = max(self._said_s, began_s)

    def _take_said(self, reading: int, said: tuple[Member, ...]) -> None:
        """Take a member list, unless a later reading came first.

        Race: the answer of an earlier reading is late. A recovery that asked after it would count
        nodes as empty that came back in between.
        """
        if reading > self._taken:
            self._taken, self._said = reading, said

    def _take_members(self) -> None:
        """Apply the member list and the rebuilding set as they are known now."""
        members = self._rebuild.overlaid(self._said)
        self._members = {member.node: member for member in members}
        self._engine.rebuilding = rebuilding = self._rebuild.refused(members)
        self._states.set_rebuilding(rebuilding)
        self._tools.fit(members)
        self._staging.block_bytes_max = self._tools.settings.block_bytes_max
        mine = self._members.get(self.settings.node)
        self._engine.is_given_away = mine is not None and mine.authority in REBUILT
        if mine is not None and self.note_storage(mine):
            self._on_space()
        self._peers.want({member.node: member.address for member in members})
        self._gossip.want({member.node: member.incarnation for member in members}, rebuilding)

    def _told(self) -> Mapping[NodeId, Member]:
        """The members as clients get them."""
        return self._told_at(self._said_age_ms())

    def _told_at(self, age_ms: int) -> Mapping[NodeId, Member]:
        if age_ms:
            return self._members
        # The statuses of the set come from the event log, which does not need the metadata store.
        told = self._rebuild.told_statuses() if self._events.has_moved else frozenset[NodeId]()
        return {each.node: each for each in may_be_back(self._members.values(), told)}

    def _said_age_ms(self) -> int:
        """The age of the list that clients get, rounded up; 0 if it is so old that it counts nobody
        out (`_told`)."""
        age_s = asyncio.get_running_loop().time() - self._said_s
        is_old = age_s > OLD_S + self.settings.refresh_s
        return 0 if is_old else int(age_s * 1000) + 1

    def note_storage(self, mine: Member) -> bool:
        """Apply the storage setting of this node in the member list. Returns whether it changed."""
        if mine.read_only is bool(self._engine.read_only):
            return False
        self._engine.read_only = READ_ONLY if mine.read_only else ""
        logger.warning("%s", self._engine.read_only or "this node stores records again")
        return True

    def check_node(self, theirs: Hello) -> None:
        """See `Server`. A node that has just joined calls again, and the list is read anew."""
        if NodeId(theirs.node) not in self._members:
            self._newcomer.set()
            raise Unreachable(f"node {theirs.node} is no member that this node knows of")

    def _judged(self, log: int) -> Iterable[Member]:
        """The members with the statuses that recoveries of a log go by: the event log's own cannot
        go by what it says."""
        return self._said if log == EVENT_LOG else self._members.values()

    async def _read_statuses(self, log: int) -> Statuses:
        await self._read_anew(strictly=log != EVENT_LOG)
        return statuses_of(self._judged(log))

    async def _read_repair_statuses(self, log: int) -> Statuses:
        """The statuses by which repairs of a log do without nodes: those of the set too.

        Trap: a repair of the event log does not wait for the event log, whose recovery may wait for
        this very node. It goes by the set as known.
        """
        await self._read_anew(strictly=log != EVENT_LOG)
        return statuses_of(self._members.values())

    # The event log.

    def _greeting(self) -> Hello | None:
        """This node's greeting as a client of the others; None before it is a member."""
        return self._hello(NodeId(0)) if self._incarnation else None

    async def _event_addresses(self) -> list[str]:
        """The addresses of the nodes that may have the event log. This node's address is among them
        once it listens."""
        me = self.settings.node
        try:
            members = await self._membership.members()
        except CordwoodError as error:
            if not self._said:
                raise
            logger.info("the event log is looked for where nodes were: %s", error)
            members = self._said
        return [m.address for m in members if m.node != me or hasattr(self, "server")]

    async def _may_move_events(self) -> bool:
        """Whether the event log would have a place for all its copies with any R - 1 nodes lost,
        and every member follows it.

        An epoch keeps the nodeset that it begins with, and until the log has said that a node is
        lost its recovery counts on that node.
        """
        info = await self._logs.event_log()
        members = await self._membership.members()
        able = tuple(each for each in members if each.weight > 0)
        if not able or not has_place(Nodeset(able), info.replication):
            return False
        # Race: a node that starts with an older version behind this look follows nothing, as any
        # older version does that starts after the move.
        behind = await self._stored_events.not_following(members)
        if behind:
            logger.info("events stay in the metadata store: nodes %s may not follow the log",
                        ", ".join(map(str, behind)))  # fmt: skip
        return not behind

    async def _become_sure(self) -> None:
        """Read the status of this node's data, if its start could not.

        Raises:
            NotOurCluster: it lies on other nodes.
        """
        while self._engine.unsure:
            try:
                await self._read_anew(strictly=True)
                await self._rebuild.look_at_self()
                await self._events.keep()
            except NotOurCluster:
                raise
            except CordwoodError as error:
                logger.info("what became of this node's data is not known yet: %s", error)
                await asyncio.sleep(SURE_S)
            else:
                self._engine.unsure = self._rights.unsure = False
                self._rebuild.on_sure()
                logger.info("this node's data is what the cluster has")
                self._on_space()

    async def _end_return(self) -> None:
        """Clear the note that this node owes seals, if there is one and its return is over."""
        me, fully = self.settings.node, Authority.FULLY_AUTHORITATIVE
        if all(each.authority is fully for each in self._said if each.node == me):
            return
        is_counted_on = self._rebuild.is_counted_on
        if await end_return(self._membership, me, is_counted_on, self._renew_seals):
            await self._refresh_members()

    async def _refresh(self) -> None:
        while True:
            try:
                # Not where a recovery reads the list: that of the event log must not wait for it.
                await self._end_return()
            except CordwoodError as error:
                logger.warning("the return of this node is not over yet: %s", error)
            await asyncio.sleep(NEWCOMER_S)
            await wait_at_most(self._newcomer, self.settings.refresh_s)
            self._newcomer.clear()
            try:
                await self._refresh_members()
            except CordwoodError as error:
                logger.warning("the member list could not be read: %s", error)

    def on_peer_up(self, node: NodeId, connection: Connection) -> None:
        """See `wire.peers.PeerListener`."""
        self._sequencer.on_peer_up(node)

    def on_peer_down(self, node: NodeId, connection: Connection) -> None:
        """See `wire.peers.PeerListener`."""
        self._digests.on_down(node, connection)
        self._fetches.on_down(node, connection)
        self._channel.on_down(node, connection)

    def on_peer_frame(self, node: NodeId, connection: Connection, frame: Frame) -> None:
        """See `wire.peers.PeerListener`."""
        if frame.kind == Kind.STORED:
            self._channel.on_stored(node, connection, frame)
        elif frame.kind in _READ_KINDS and self._fetches.takes(frame):
            self._fetches.on_frame(connection, frame)
        elif frame.kind in (Kind.READING, Kind.BLOCKS):
            self._digests.on_frame(node, connection, frame)
        else:
            raise Malformed(f"a node does not answer with frames of kind {frame.kind}")

    # Connections.

    def _on_change(self, log: int) -> None:
        """A log's blocks or its release moved."""
        self._streams.on_change(log)
        held = self._engine.cache.log(log)
        self._sequencer.on_released(log, held.released >> 32)
        if held.is_behind:
            self._purges.begin(log)

    def on_data(self, connection: Connection, frame: Frame) -> None:
        """See `wire.server.Service`."""
        check_frame(connection, frame.kind)
        if frame.kind == Kind.APPEND:
            self._sequencer.on_append(connection, frame)
        elif frame.kind == Kind.GOSSIP:
            self._gossip.on_frame(frame)
        elif frame.kind in _STORAGE_KINDS:
            self._storage.on_frame(connection, frame)
        else:
            raise Malformed(f"a node takes no frame of kind {frame.kind}")

    def on_lost(self, connection: Connection, error: CordwoodError) -> None:
        """See `wire.server.Service`."""
        self._storage.on_lost(connection)
        self._sequencer.on_lost(connection)

    async def on_call(self, connection: Connection, call: Call) -> Reply:
        """See `wire.server.Service`."""
        check_call(connection, call)
        if isinstance(call, ConsumerCall):
            return await self._consumers.answer(call)
        if isinstance(call, StagingCall):
            return await self._staging.answer(call)
        if isinstance(call, PublishCall):
            return await self._publications.answer(call)
        if isinstance(call, MaintenanceCall):
            return await self._maintenance.answer(call)
        if isinstance(call, LedgerCall):
            return await self._ledgers.answer(call)
        match call:
            case Ping():
                raise AssertionError("a ping is the server's to answer")
            case Seal() | Clean() | Trim() | TellNodesets() | TellProducers():
                return await self._storage.mark(connection, call)
            case AskMembers():
                dead, changes = sorted(map(int, self._gossip.dead)), self._log_watch.changes
                asked, store = NodeId(call.version_of), self.settings.tier.store
                version = await self._membership.version(asked) if asked else 0
                # Race: read once, so that an old list is not told with the age of a new one.
                age_ms = self._said_age_ms()
                infos = member_infos(self._told_at(age_ms))
                return MembersReply(self._cluster, infos, dead, changes, store, version, age_ms)
            case SetAuthority():
                await set_authority(self._membership, call, self._gossip.dead)
                await self._refresh_members()
                return DoneReply()
            case SetStorage():
                await self._membership.set_storage(
                    NodeId(call.node), read_only=call.read_only, if_version=call.if_version
                )
                await self._refresh_members()
                return DoneReply()
            case Yield():
                await self._sequencer.give_up(LogId(call.log), call.epoch, NodeId(call.node))
                return DoneReply()
            case AskNodesets():
                return NodesetsReply(*self._engine.nodesets(call.log), member_infos(self._told()))
            case AskTime() | AskExtent() | AskSize() | AskKept() | AskEpoch() | AskIfLost():
                return await self._storage.look(call, by_node=is_node(connection))
            case AskTail():
                return await self._sequencer.tail(call)
            case SayRebuild():
                await self._maintenance.obey_operator(call)
                return self._rebuild.reply()
            case AskCopies() | AskRebuilding() | SayRebalance() | AskHeld():
                return await self._rebuild.answer(call)
            case AskEvents():
                return self._events.heard()
            case AskReleased():
                return self._sequencer.released(call)
            case AskStatus():
                return status_reply(
                    self.settings.node, self._cluster, self._started, self._engine,
                    self._sequencer, self._streams, self.server.connections, self._members,
                    self._repairs.state_of(self._scrub.state()),
                )  # fmt: skip
            case AskImpact():
                return await self._maintenance.answer_impact(call)
            case AskFitness():
                return fitness_reply(self._engine)
            case AskStreams():
                return StreamsReply(self._streams.describe())
            case _:
                return await self._log_calls.answer(call)


@asynccontextmanager
async def running_node(
    settings: NodeSettings,
    host: Host,
    metadata: MetadataStore,
    make_tables: MakeTables,
    open_objects: OpenObjects = open_object_store,
) -> AsyncIterator[Node]:
    """A node that runs for the length of the block.

    Args:
        make_tables: makes the tables of LogsDB: `rocks_tables`, or the simulator's implementation.
        open_objects: opens main storage by its address.
    Raises:
        CordwoodError: see `Node.start`.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            node = Node(settings, host, metadata, make_tables, tasks, open_objects)
            try:
                await node.start()
                yield node
                await node.leave()
            finally:
                await node.close()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
