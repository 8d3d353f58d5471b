"""A whole cluster in the simulator: production nodes on simulated machines.

Source: docs/design.md §10; docs/sources/reliability.md §4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from crc32c import crc32c

from cordwood.block import BlockKind
from cordwood.errors import CordwoodError, Corrupt
from cordwood.host.seams import Host
from cordwood.layout.body import open_body
from cordwood.layout.waves import StoredBlock
from cordwood.log_attributes import LogAttributes
from cordwood.metadata.log_tree import root_attributes
from cordwood.node import Node, running_node
from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.append_window import AppendWindow
from cordwood.quorum.copyset import can_replicate
from cordwood.settings import (
    MIB,
    NodeSettings,
    SequencerSettings,
    StorageSettings,
    TierSettings,
)
from cordwood.sim.buggify import Buggify
from cordwood.sim.buggy_host import buggy_host
from cordwood.sim.history import DumpedSlots, HistoryRecorder, PayloadMark, SlotKind
from cordwood.sim.holdings import held_blocks, is_set_aside, meets, rotten_ranges, split_trimmed
from cordwood.sim.host import SimClock, SimMachine, Simulation, sim_host
from cordwood.sim.memory_logs import memory_tables
from cordwood.sim.network import SimNetwork
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.sim.process import Process
from cordwood.sim.record_id import mark_record
from cordwood.sim.recorded_metadata import RecordedMetadata
from cordwood.sim.stored_tree import StoredTree
from cordwood.sim.streams import stream
from cordwood.sim.tier_dump import dump_tier
from cordwood.storage.logs_db.tables import MakeTables
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore

logger = logging.getLogger(__name__)

PORT = 4440
RESTART_S = 0.2
"""A node that could not start (the metadata store was out) is started again after this."""

START_LATE_S = 3.0
"""Longest that a slow machine takes before a node on it runs."""

DIE_YOUNG_S = 0.2
"""A node that dies young does so within this: while it replays its WAL, or just after."""

_SLOT_KINDS = {
    BlockKind.DATA: SlotKind.DATA,
    BlockKind.HOLE: SlotKind.HOLE,
    BlockKind.BRIDGE: SlotKind.BRIDGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What a simulated cluster is made of, drawn from a seed or the demo's shape.

    Attributes:
        nodes, racks: how many; nodes are spread over the racks in turn.
        regions: the racks are spread over this many regions in turn; 0 leaves regions out, and a
            location is a rack alone.
        replication: of every log.
        wal_bytes: of each node.
        storage: of each node, except its WAL's size. Flushes come every second here, and nothing is
            scrubbed unless a seed says so.
        refresh_s: how often nodes read the member list.
        gossip_s: a tick of their failure detectors.
        sequencer: settings of every node's sequencer.
        attributes: what all logs inherit.
        weights: of nodes with another weight than 1.
        wals: bytes of the WAL, for nodes with another WAL size than `wal_bytes`.
        storages: settings of nodes that do not use `storage`.
        create_logs: whether an append to a name that does not exist makes a log.
        rebuild_after_s: when a dead node counts as lost; 0 for never.
        replicated_events: whether the statuses of lost nodes are in the event log.
        tier: of every node; without a store nothing is tiered.
        bucket: how the object store misbehaves while faults strike.
    """

    nodes: int = 5
    racks: int = 3
    regions: int = 0
    replication: Replication = field(default_factory=lambda: Replication(3, 2))
    wal_bytes: int = 16 * MIB
    storage: StorageSettings = field(
        default_factory=lambda: StorageSettings(flush_age_s=3.0, disk_look_s=0.5, scrub_bytes_s=0)
    )
    refresh_s: float = 2.0
    gossip_s: float = 0.1
    sequencer: SequencerSettings = field(default_factory=SequencerSettings)
    attributes: LogAttributes = field(default_factory=LogAttributes)
    weights: Mapping[int, float] = field(default_factory=dict)
    wals: Mapping[int, int] = field(default_factory=dict)
    storages: Mapping[int, StorageSettings] = field(default_factory=dict)
    create_logs: bool = True
    rebuild_after_s: float = 0.0
    replicated_events: bool = False
    tier: TierSettings = field(default_factory=TierSettings)
    bucket: BucketFaults = field(default_factory=BucketFaults)

    def location(self, number: NodeId) -> str:
        """The location of a node."""
        rack = (number - 1) % self.racks
        name = f"rack{rack + 1}"
        return f"region{rack % self.regions + 1}.dc1.cluster1.row1.{name}" if self.regions else name


class SimCluster:
    """Nodes, their machines and their metadata store.

    Attributes:
        metadata: shared by all nodes; it outlives them.
        running: the nodes that run now.
        moved: locations of nodes that were started elsewhere than the options say.
        cut_off: nodes that do not reach main storage now.
        exits: starts and lives of nodes that ended with an error that is allowed.
    """

    def __init__(
        self,
        simulation: Simulation,
        options: ClusterOptions,
        recorder: HistoryRecorder,
        buggify: Buggify | None = None,
        make_tables: MakeTables = memory_tables,
    ) -> None:
        self.options = options
        self.numbers = tuple(NodeId(n) for n in range(1, options.nodes + 1))
        self.metadata = RecordedMetadata(stream(simulation.seed, "metadata"), recorder)
        self.running: dict[NodeId, Node] = {}
        self.moved: dict[NodeId, str] = {}
        self.cut_off: set[NodeId] = set()
        self.exits = 0
        self.bucket = Bucket(stream(simulation.seed, "bucket"), replace(options.bucket))
        self._buggify = buggify or Buggify(simulation.seed, is_on=False)
        self._ran_once: set[NodeId] = set()
        # The node ended with an error, and its stores are closed: there is nothing to look into.
        self._broken: set[NodeId] = set()
        self._started = asyncio.Event()
        self._simulation = simulation
        self._recorder = recorder
        self._make_tables = make_tables
        if options.attributes.as_set():
            self.set_attributes(options.attributes)

    @property
    def addresses(self) -> tuple[str, ...]:
        """What clients connect to."""
        return tuple(map(self.address, self.numbers))

    def address(self, number: NodeId) -> str:
        """What a node listens on."""
        return f"{self.machine(number).name}:{PORT}"

    def location(self, number: NodeId) -> str:
        """Set the location that a node has from its next start on."""
        return self.moved.get(number) or self.options.location(number)

    def may_move_to(self, number: NodeId) -> list[str]:
        """Locations of other nodes to which this node may move: the cluster stays spread widely
        enough, even while any one node is away."""
        here = {n: self.location(n) for n in self.numbers}
        return [
            place
            for place in sorted({*here.values()} - {here[number]})
            if len(self._spared({**here, number: place})) == len(here)
        ]

    def spared(self) -> tuple[NodeId, ...]:
        """Nodes without which all others can still hold a copyset: not the only node of a region
        that each record needs."""
        return self._spared({n: self.location(n) for n in self.numbers})

    def _spared(self, places: Mapping[NodeId, str]) -> tuple[NodeId, ...]:
        nodeset, every = Nodeset.recorded([*places], [*places.values()], {}), frozenset(places)
        rule = self.options.replication
        return tuple(n for n in places if can_replicate(every - {n}, nodeset, rule))

    def machine(self, number: NodeId) -> SimMachine:
        """A node's machine."""
        return self._simulation.machine(f"node-{number}")

    @property
    def network(self) -> SimNetwork:
        """What lies between the nodes."""
        return self._simulation.network

    def start(self, number: NodeId) -> None:
        """Start a node's process; it keeps trying until it runs."""
        self._broken.discard(number)
        machine = self.machine(number)
        task = machine.start(lambda host: self._run(number, host))
        task.add_done_callback(lambda done: self._on_ended(number, done))
        if number in self._ran_once and self._buggify("die-young"):
            die_s = DIE_YOUNG_S * self._buggify.chance("die-young").random()
            self._simulation.loop.call_later(die_s, self._die_young, number, machine.process)

    def _die_young(self, number: NodeId, process: Process | None) -> None:
        machine = self.machine(number)
        if self._buggify.is_on and machine.is_up and machine.process is process:
            self.kill(number)
            self._simulation.loop.call_later(RESTART_S, self._start_again, number)

    def _start_again(self, number: NodeId) -> None:
        if not self.machine(number).is_up:
            self.start(number)

    def _on_ended(self, number: NodeId, done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._broken.add(number)
            text = f"node {number} ended as no node may"
            self._simulation.loop.call_exception_handler({"message": text, "exception": error})

    def kill(self, number: NodeId) -> None:
        """SIGKILL a node."""
        self.running.pop(number, None)
        self.machine(number).kill()

    def cut_power(self, number: NodeId) -> None:
        """Cut a node's machine off its power."""
        self.running.pop(number, None)
        self.machine(number).cut_power()

    def set_attributes(self, attributes: LogAttributes) -> None:
        """Set what all logs inherit, in an instant."""
        data = self.metadata.data
        for key, value in root_attributes(attributes, data.values).items():
            known = data.values.get(key)
            data.compare_and_set(key, value, known.version if known else 0)

    def sequencing(self, number: NodeId) -> bool:
        """Whether a node runs and sequences some log."""
        node = self.running.get(number)
        return node is not None and bool(node.sequencing)

    def windows(self, number: NodeId) -> list[AppendWindow[Any]]:
        """The runs in flight of each log that a node sequences."""
        node = self.running.get(number)
        appenders = [] if node is None else node._sequencer.sequencing().values()
        return [appender._window for appender in appenders]

    def give_disk(self, number: NodeId, tree: StoredTree, *, own: bool) -> None:
        """Stop a node and put this disk in place of the one it had."""
        self.kill(number)
        self.machine(number).disk.tree = tree
        self._recorder.disk_given(number, own=own)

    async def wait_running(self, absent: Collection[NodeId] = ()) -> None:
        """Wait until every node runs, but for those that are absent."""
        while not self.running.keys() | set(absent) >= set(self.numbers):
            self._started.clear()
            await self._started.wait()

    def restart_failed(self, numbers: Iterable[NodeId]) -> None:
        """Restart the nodes with a WAL that has failed, as their operator would."""
        for number in numbers:
            node = self.running.get(number)
            if node is not None and node.engine.failed:
                self.kill(number)
                self.start(number)

    async def _run(self, number: NodeId, host: Host) -> None:
        """Run a node again and again, as an init system does."""
        host = buggy_host(host, self._buggify)
        while True:
            if self._buggify("start-late"):
                late_s = START_LATE_S * self._buggify.chance("start-late").random()
                await asyncio.sleep(late_s)
            try:
                await self.live(number, host)
            except (CordwoodError, OSError) as error:
                self.exits += 1
                self.running.pop(number, None)
                logger.info("node %d ended: %s", number, error)
            await asyncio.sleep(RESTART_S)

    async def live(self, number: NodeId, host: Host) -> None:
        """Run a node once, from its start to its end.

        Raises:
            CordwoodError, OSError: the node refused to start, or ended with this error. `start`
                runs the node again after either; a test that starts a node itself sees the error.
        """
        self._recorder.node_starting(number, self.location(number))
        async with running_node(
            self._settings(number), host, self.metadata, self._make_tables,
            partial(self.open_objects, is_cut=lambda: number in self.cut_off),
        ) as node:  # fmt: skip
            self._on_running(number, node)
            await asyncio.Event().wait()

    def _on_running(self, number: NodeId, node: Node) -> None:
        self.running[number] = node
        self._ran_once.add(number)
        weight = self.options.weights.get(number, 1.0)
        self._recorder.node_started(number, rack=self.location(number), weight=weight)
        self._started.set()

    def _settings(self, number: NodeId) -> NodeSettings:
        return NodeSettings(
            node=number,
            directory="/node",
            metadata="",
            listen=self.address(number),
            location=self.location(number),
            weight=self.options.weights.get(number, 1.0),
            default_replication=self.options.replication,
            create_logs=self.options.create_logs,
            refresh_s=self.options.refresh_s,
            gossip_s=self.options.gossip_s,
            rebuild_after_s=self.options.rebuild_after_s,
            replicated_events=self.options.replicated_events,
            sequencer=self.options.sequencer,
            tier=self.options.tier,
            storage=replace(
                self.options.storages.get(number, self.options.storage),
                wal_bytes=self.options.wals.get(number, self.options.wal_bytes),
            ),
        )

    async def open_objects(
        self, host: Host, address: str, is_cut: Callable[[], bool] = lambda: False
    ) -> PatientStore:
        """Main storage, for nodes and clients; see `Bucket.store`."""
        return PatientStore(self.bucket.store(is_cut), host.random)

    async def ends_in_main_storage(self, logs: Collection[int]) -> dict[int, int]:
        """The first LSN of each log that main storage does not have, without faults; 0 for a log
        without a manifest."""
        store, host = self.bucket.store(), self._own_host()
        heads = {log: await LogManifest(store, log, host, "look").load() for log in sorted(logs)}
        return {log: head.end if head is not None else 0 for log, head in heads.items()}

    async def dump(self, only: Collection[int] | None = None) -> None:
        """Record all that every running node holds of every log.

        Args:
            only: the logs with recorded appends, if appends to other logs were not recorded.
        """
        for number, node in sorted(self.running.items()):
            if number in self._broken:
                continue
            for log in sorted(node.engine.cache.logs):
                if only is not None and log not in only:
                    continue
                slots = [_dumped(block) for block in await held_blocks(node.engine, log)]
                held, rack = node.engine.cache.log(log), self.location(number)
                self._recorder.node_dumped(number, rack, log, slots, held.trim, held.tier)
            rotten = await rotten_ranges(node.engine)
            for log in sorted(node.engine.cache.logs):
                trim = node.engine.gone_of(log)
                left, trimmed = split_trimmed(rotten.get(log, ()), trim)
                # A scan that fails does not say where in its part of the log the bad bytes are: all
                # of that part is unknown. It stays unknown when the trim point has passed the bad
                # bytes.
                book = node.engine.logs.damages
                found = [
                    each
                    for each in book.of_log(log)
                    if each.last > trim and (meets(each, left) or not meets(each, trimmed))
                ]
                damaged = [(each.first, each.last) for each in found]
                mended = [(each.first, each.last) for each in found if book.is_mended(each)]
                passes = node.scrub.whole_passes
                self._recorder.node_scrubbed(number, log, passes, left, damaged, mended)
        if self.options.tier.store:
            # After the dumps of the nodes: a node may let go of a block meanwhile, if a manifest
            # names it.
            await dump_tier(self.bucket, self._recorder, self._own_host(), only)

    def heal_bucket(self) -> None:
        """Stop the object store's faults."""
        self.bucket.faults = BucketFaults()

    def _own_host(self) -> Host:
        """A host outside of all machines."""
        simulation, name = self._simulation, "dump"
        return sim_host(
            simulation.loop.director, name, clock=SimClock(simulation.loop),
            network=simulation.network, disk=simulation.machine(name).disk,
            chance=stream(simulation.seed, name),
        )  # fmt: skip


def _dumped(block: StoredBlock) -> DumpedSlots:
    header = block.header
    intact = crc32c(block.body) == header.stored_crc
    marks: tuple[PayloadMark, ...] = ()
    if header.kind == BlockKind.DATA:
        try:
            body = open_body(header, block.body)
            marks = tuple(mark_record(body.value(i), body.headers(i)) for i in range(body.count))
        except Corrupt:
            intact = False
    return DumpedSlots(
        first=header.first,
        last=header.last,
        kind=_SLOT_KINDS[header.kind],
        payloads=marks,
        crc=header.raw_crc,
        intact=intact,
        seal_epoch=block.envelope.seal_epoch,
        wave=block.envelope.wave,
        copyset=tuple(block.envelope.copyset),
        set_aside=is_set_aside(block),
    )
