"""Every kind of fault that the simulator has, one function for each.

To add a kind, write a function that takes the stage and the nodes hit, makes things bad, and
returns the undo. Give it a row in `FAULT_KINDS`. Plans draw from that table, so nothing else
changes.

docs/simulator.md lists the kinds that exist and those that wait for a feature. Errors of disks are
in `sim.disk_faults`; uninvited speakers on a port are in `sim.stranger`.

Source: docs/sources/reliability.md §5.1; TigerBeetle's swarm options; FoundationDB's kill
types and its swizzle-clogging.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from cordwood.log_attributes import LogAttributes
from cordwood.metadata.memory import DELAY_S
from cordwood.nodes import NodeId
from cordwood.sim.cluster import SimCluster
from cordwood.sim.crew import Crew
from cordwood.sim.damage import damage_tables, damage_wal, lose_partition
from cordwood.sim.disk import SimDisk
from cordwood.sim.disk_faults import (
    file_error,
    full_disk,
    older_disk,
    read_error,
    truncated_wal,
    zeroed_wal,
)
from cordwood.sim.host import SimMachine, Simulation
from cordwood.sim.links import LinkSettings
from cordwood.sim.network_faults import NetworkFaults, Undo, pairs_between
from cordwood.sim.stored_tree import StoredTree
from cordwood.sim.stranger import Stranger
from cordwood.sim.torn_sequencer import torn_sequencer

SLOW_DISK_FACTOR = 200.0
"""A write takes tens of milliseconds, as on a disk that is about to fail."""

LOSSY = LinkSettings(
    slow_chance=0.1, slow_factor=50.0, loss_chance=0.05, reset_chance=0.001, refuse_chance=0.1
)
"""A network that is being rewired: some of every fault."""

SLOW = LinkSettings(delay_min_s=0.02, delay_jitter_s=0.4, slow_chance=0.05, slow_factor=4.0)
"""Another continent, over a busy line: segments of different connections overtake."""

NARROW = LinkSettings(bytes_per_s=200_000.0, window_bytes=4096, split_chance=0.5)
"""A line that carries less than is sent: the senders' buffers fill."""

CORRUPT_CHANCES = (0.01, 0.1)
"""A bad cable whose errors pass TCP's checksum: now and then, or so often that hardly any
connection lives through its greeting, and calls are open when it breaks."""

CLOCK_STEP_US = 3_600_000_000
"""An hour either way, as a wrong time server makes it."""

CLOCK_DRIFT = 0.05
"""Far worse than any quartz: a clock in a bad virtual machine."""

ANSWER_LOSS = 0.5
"""Share of the metadata store's answers that are lost."""

METADATA_SLOW_S = (0.05, 0.6)
"""Shortest and longest call to an overloaded metadata store."""

SLOW_CPU_EVERY_S = 0.1
SLOW_CPU_SHARES = (0.5, 0.2, 0.05)
"""A quota as a container has it: part of each tenth of a second, and then nothing."""

WRITE_ERRORS_MAX = 3
"""Failing writes in a row. The first poisons the WAL, the others strike while it restarts."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The parts of a run that faults act on.

    Attributes:
        clients: names of the clients' machines, running or not; may grow.
        crew: the clients, if faults may kill them.
        own_disks: the content of each node's own disk, for disks that were ever swapped.
    """

    simulation: Simulation
    cluster: SimCluster
    network: NetworkFaults
    clients: Sequence[str]
    crew: Crew | None = None
    own_disks: dict[NodeId, StoredTree] = field(default_factory=dict)

    def names(self, nodes: Sequence[NodeId]) -> tuple[str, ...]:
        """The machines of these nodes."""
        return tuple(self.cluster.machine(node).name for node in nodes)

    def hosts(self) -> tuple[str, ...]:
        """Every machine."""
        return (*self.names(self.cluster.numbers), *self.clients)

    def rest(self, nodes: Sequence[NodeId]) -> tuple[str, ...]:
        """Every machine but those of these nodes."""
        named = self.names(nodes)
        return tuple(host for host in self.hosts() if host not in named)

    def pick_client(self, chance: random.Random) -> tuple[Crew, str]:
        """The crew, and the client of it that a fault hits: always the stream's first draw."""
        assert self.crew is not None, "a plan without a crew has no faults of clients"
        return self.crew, chance.choice(self.crew.names)

    def machines(self, nodes: Sequence[NodeId]) -> list[SimMachine]:
        """The machines of these nodes."""
        return [self.cluster.machine(node) for node in nodes]

    def own_disks_of(self, nodes: Sequence[NodeId]) -> list[SimDisk]:
        """The disks of the nodes that have their own disk now. Damage on a swapped disk is the loss
        of the node that owns it, and a plan damages no more nodes than the copies survive."""
        disks = [(node, self.cluster.machine(node).disk) for node in nodes]
        return [disk for node, disk in disks if self.own_disks.get(node, disk.tree) is disk.tree]


Strike = Callable[[Stage, Sequence[NodeId], random.Random], Undo]
"""Makes things bad for some nodes. The stream of chance is the fault's own."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        text: description for people.
        strike: see `Strike`.
        hits_nodes: whether it is aimed at nodes; otherwise at everything, or at a client.
        needs_crew: whether it is aimed at a client.
        for_s: shortest and longest time; None draws about as long as timeouts are.
        damages: whether it destroys durable data of a node.
    """

    text: str
    strike: Strike
    hits_nodes: bool = True
    needs_crew: bool = False
    for_s: tuple[float, float] | None = None
    damages: bool = False


def _nothing() -> None:
    """The undo of a fault that leaves nothing behind."""


# ---- processes and machines ----


def _crash(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    for node in nodes:
        stage.cluster.kill(node)
    return lambda: _start_down(stage, nodes)


def _power_cut(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    for node in nodes:
        stage.cluster.cut_power(node)
    return lambda: _start_down(stage, nodes)


def _start_down(stage: Stage, nodes: Sequence[NodeId]) -> None:
    for node in nodes:
        if not stage.cluster.machine(node).is_up:
            stage.cluster.start(node)


def _pause(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    machines = stage.machines(nodes)
    for machine in machines:
        machine.pause()

    def resume() -> None:
        for machine in machines:
            machine.resume()

    return resume


def _slow_cpu(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    machines, loop = stage.machines(nodes), stage.simulation.loop
    runs_s = SLOW_CPU_EVERY_S * chance.choice(SLOW_CPU_SHARES)
    is_over = False

    def stop() -> None:
        if not is_over:
            for machine in machines:
                machine.pause()
            loop.call_later(SLOW_CPU_EVERY_S - runs_s, go_on)

    def go_on() -> None:
        for machine in machines:
            machine.resume()
        if not is_over:
            loop.call_later(runs_s, stop)

    def full_speed() -> None:
        nonlocal is_over
        is_over = True
        for machine in machines:
            machine.resume()

    stop()
    return full_speed


def _client_crash(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    crew, name = stage.pick_client(chance)
    crew.kill(name)
    return lambda: crew.restart(name)


def _client_pause(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    crew, name = stage.pick_client(chance)
    crew.machine(name).pause()
    return crew.machine(name).resume


def _amnesia(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """A node starts on an empty disk, and must not be accepted as itself. It gets its own disk
    back."""
    return _on_other_disks(stage, dict.fromkeys(nodes))


def _swapped_disks(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Two nodes start on each other's disks."""
    one = nodes[0]
    other = chance.choice([node for node in stage.cluster.numbers if node != one] or [one])
    return _on_other_disks(stage, {one: other, other: one})


def _on_other_disks(stage: Stage, disks: Mapping[NodeId, NodeId | None]) -> Undo:
    own = {
        node: stage.own_disks.setdefault(node, stage.cluster.machine(node).disk.tree)
        for node in disks
    }

    def change(trees: Mapping[NodeId, StoredTree]) -> None:
        for node, tree in trees.items():
            stage.cluster.give_disk(node, tree, own=tree is stage.own_disks[node])
        for node in trees:
            stage.cluster.start(node)

    change({node: StoredTree() if of is None else own[of] for node, of in disks.items()})
    return lambda: change(own)


# ---- the network ----


def _partition(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    return stage.network.cut_both(stage.names(nodes), stage.rest(nodes))


def _one_way_partition(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    out = pairs_between(stage.names(nodes), stage.rest(nodes))
    into = pairs_between(stage.rest(nodes), stage.names(nodes))
    return stage.network.cut(chance.choice((out, into)))


def _client_partition(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    return stage.network.cut_both(stage.names(nodes), stage.clients)


def _bridge_partition(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Two halves of the cluster see one host in common, and this host sees every node."""
    rest = list(stage.rest(nodes))
    rest.remove(chance.choice(rest))
    return stage.network.cut_both(stage.names(nodes), rest)


def _peer_partition(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """The nodes hit see clients and one other node only, so that they are not isolated."""
    others = [node for node in stage.cluster.numbers if node not in nodes]
    if others:
        others.remove(chance.choice(others))
    return stage.network.cut_both(stage.names(nodes), stage.names(others))


def _sequencers_only(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Only sequencers reach the nodes hit. A sequencer among these nodes then does not know which
    epochs other nodes seal and recover."""
    cluster = stage.cluster
    heard = stage.names([node for node in cluster.numbers if cluster.sequencing(node)])
    rest = [host for host in stage.rest(nodes) if host not in heard]
    return stage.network.cut_both(stage.names(nodes), rest)


def _sequencers_cut(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """The other way round: sequencers hear nothing of the decisions of the nodes hit."""
    cluster = stage.cluster
    heard = stage.names([node for node in cluster.numbers if cluster.sequencing(node)])
    return stage.network.cut_both(stage.names(nodes), heard)


def _link_cut(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """One cable fails, in one direction or both."""
    pair = (stage.names(nodes)[0], chance.choice(stage.rest(nodes[:1])))
    both = chance.random() < 0.5
    return stage.network.cut((pair, pair[::-1]) if both else (pair,))


def _reset(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    stage.simulation.network.reset(stage.names(nodes), stage.rest(nodes))
    return _nothing


def _lossy_links(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    return stage.network.change(pairs_between(stage.hosts(), stage.hosts()), LOSSY)


def _changed_links(settings: LinkSettings) -> Strike:
    """All links of the nodes hit."""

    def strike(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
        named, rest = stage.names(nodes), stage.rest(nodes)
        pairs = pairs_between(named, rest) + pairs_between(rest, named)
        return stage.network.change(pairs, settings)

    return strike


def _corrupting_links(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    settings = LinkSettings(corrupt_chance=chance.choice(CORRUPT_CHANCES))
    return _changed_links(settings)(stage, nodes, chance)


def _bad_link(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """One link of one node, both ways: lossy or slow."""
    pair = (stage.names(nodes)[0], chance.choice(stage.rest(nodes[:1])))
    return stage.network.change((pair, pair[::-1]), chance.choice((LOSSY, SLOW)))


def _stranger(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """A stranger, which is no client, speaks to the ports of these nodes."""
    machine = stage.simulation.machine("stranger")
    if machine.is_up:
        return _nothing
    addresses = [stage.cluster.address(node) for node in nodes]
    machine.start(Stranger(addresses, chance).run)
    return machine.kill


# ---- disks ----


def _slow_disk(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    machines = stage.machines(nodes)
    for machine in machines:
        machine.disk.latency_factor = SLOW_DISK_FACTOR

    def quick_again() -> None:
        for machine in machines:
            machine.disk.latency_factor = 1.0

    return quick_again


def _disk_stall(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    for machine in stage.machines(nodes):
        machine.disk.stall(chance.uniform(0.5, 6.0))
    return _nothing


def _write_error(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """A WAL that cannot be written any more. Its node is restarted at the end."""
    for machine in stage.machines(nodes):
        code = chance.choice((errno.EIO, errno.ENOSPC))
        machine.disk.fail("write", code, times=chance.randint(1, WRITE_ERRORS_MAX))
    return lambda: stage.cluster.restart_failed(nodes)


def _rot(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Bits flip in durable records of a stopped node's WAL."""
    for node in nodes:
        stage.cluster.kill(node)
    for disk in stage.own_disks_of(nodes):
        damage_wal(disk, chance)
    return lambda: _start_down(stage, nodes)


def _rotten_tables(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Bits flip in the LogsDB of a stopped node."""
    for node in nodes:
        stage.cluster.kill(node)
    for disk in stage.own_disks_of(nodes):
        damage_tables(disk, chance)
    return lambda: _start_down(stage, nodes)


def _lost_partition(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """One partition of a stopped node's LogsDB is gone."""
    for node in nodes:
        stage.cluster.kill(node)
    for disk in stage.own_disks_of(nodes):
        lose_partition(disk, chance)
    return lambda: _start_down(stage, nodes)


def _lost_write(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    for machine in stage.machines(nodes):
        machine.disk.lose_writes()
    return lambda: _crash(stage, nodes, chance)()


def _misdirected_write(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    for machine in stage.machines(nodes):
        machine.disk.misdirect_writes()
    return lambda: _crash(stage, nodes, chance)()


def _moved_rack(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Nodes start in another rack, as after a move or with a wrong line in their settings."""
    cluster = stage.cluster
    for node in nodes:
        places = cluster.may_move_to(node)
        if places:
            cluster.moved[node] = chance.choice(places)
        cluster.kill(node)
    _start_down(stage, nodes)

    def back() -> None:
        for node in nodes:
            cluster.moved.pop(node, None)
            cluster.kill(node)
        _start_down(stage, nodes)

    return back


# ---- the metadata store, the log tree, the clock ----


def _fewer_nodes(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    """Nodes learn of the change through the log tree alone, as with an operator's change."""
    cluster = stage.cluster
    least = cluster.options.replication.copies
    size = chance.randint(least, max(least, len(cluster.numbers) - 1))
    known = cluster.options.attributes
    cluster.set_attributes(LogAttributes(nodeset_size=size).over(known))
    return lambda: cluster.set_attributes(known)


def _metadata_outage(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    metadata = stage.cluster.metadata
    metadata.is_out = True

    def back() -> None:
        metadata.is_out = False

    return back


def _metadata_loss(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    metadata = stage.cluster.metadata
    metadata.answer_loss = ANSWER_LOSS

    def back() -> None:
        metadata.answer_loss = 0.0

    return back


def _metadata_slow(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    metadata = stage.cluster.metadata
    metadata.delay_s = METADATA_SLOW_S

    def back() -> None:
        metadata.delay_s = DELAY_S

    return back


def _clock_step(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    for machine in stage.machines(nodes):
        machine.clock.step(chance.randint(-CLOCK_STEP_US, CLOCK_STEP_US))
    return _nothing


def _clock_drift(stage: Stage, nodes: Sequence[NodeId], chance: random.Random) -> Undo:
    machines = stage.machines(nodes)
    for machine in machines:
        machine.clock.drift = chance.uniform(-CLOCK_DRIFT, CLOCK_DRIFT)

    def steady() -> None:
        for machine in machines:
            machine.clock.drift = 0.0

    return steady


FAULT_KINDS: Mapping[str, FaultKind] = MappingProxyType({
    "crash": FaultKind("SIGKILL, then a start", _crash),
    "power_cut": FaultKind("a power cut: unsynced bytes are gone or torn", _power_cut),
    "pause": FaultKind("SIGSTOP, then SIGCONT", _pause),
    "slow_cpu": FaultKind("nodes have only a share of a core", _slow_cpu),
    "amnesia": FaultKind("a node starts on an empty disk", _amnesia),
    "swapped_disks": FaultKind("two nodes start on each other's disks", _swapped_disks),
    "older_disk": FaultKind("a node starts on an older copy of its disk", older_disk),
    "client_crash": FaultKind(
        "SIGKILL of a client", _client_crash, hits_nodes=False, needs_crew=True
    ),
    "client_pause": FaultKind(
        "SIGSTOP of a client", _client_pause, hits_nodes=False, needs_crew=True
    ),
    "partition": FaultKind("nodes reach no other host", _partition),
    "one_way_partition": FaultKind("nodes only send, or only receive", _one_way_partition),
    "client_partition": FaultKind("nodes do not reach clients", _client_partition),
    "bridge_partition": FaultKind("one host joins two halves of the cluster", _bridge_partition),
    "peer_partition": FaultKind("nodes reach only one other node", _peer_partition),
    "sequencers_only": FaultKind("only sequencers reach the nodes", _sequencers_only),
    "sequencers_cut": FaultKind("sequencers do not reach the nodes", _sequencers_cut),
    "torn_sequencer": FaultKind(
        "some nodes no longer hear a node, and it soon loses its power", torn_sequencer,
        for_s=(2.0, 5.0),
    ),
    "link_cut": FaultKind("one link is cut", _link_cut),
    "reset": FaultKind("connections are reset", _reset, for_s=(0.0, 0.0)),
    "lossy_links": FaultKind(
        "every link loses and delays bytes, and resets connections",
        _lossy_links,
        hits_nodes=False,
    ),
    "bad_link": FaultKind("one link loses or delays bytes", _bad_link),
    "slow_links": FaultKind("long delays to nodes", _changed_links(SLOW)),
    "narrow_links": FaultKind("little bandwidth to nodes", _changed_links(NARROW)),
    "corrupting_links": FaultKind("bits flip on links", _corrupting_links),
    "moved_rack": FaultKind("a node starts with another location, then with its own", _moved_rack),
    "stranger": FaultKind("a port gets noise, half greetings and wrong frames", _stranger),
    "slow_disk": FaultKind("a disk is 200 times slower", _slow_disk),
    "disk_stall": FaultKind("a disk does nothing for seconds", _disk_stall, for_s=(0.0, 0.0)),
    "write_error": FaultKind("writes fail with EIO or ENOSPC", _write_error),
    "read_error": FaultKind("a starting node's WAL reads fail with EIO", read_error),
    "file_error": FaultKind("a starting node's small files fail with EIO or ENOSPC", file_error),
    "full_disk": FaultKind("a disk has almost no free space", full_disk),
    "truncated_wal": FaultKind("a node starts on a WAL without its end", truncated_wal),
    "metadata_outage": FaultKind(
        "the metadata store does not answer", _metadata_outage, hits_nodes=False, for_s=(0.5, 4.0)
    ),
    "metadata_loss": FaultKind(
        "half of the metadata store's answers are lost", _metadata_loss, hits_nodes=False
    ),
    "metadata_slow": FaultKind(
        "the metadata store is overloaded", _metadata_slow, hits_nodes=False
    ),
    "fewer_nodes": FaultKind(
        "every log has fewer nodes, then all again", _fewer_nodes,
        hits_nodes=False,
    ),
    "clock_step": FaultKind("a clock jumps up to an hour", _clock_step, for_s=(0.0, 0.0)),
    "clock_drift": FaultKind("a clock is 5 % fast or slow", _clock_drift),
    "rot": FaultKind("bits flip on a disk at rest", _rot, damages=True),
    "rotten_tables": FaultKind("bits flip in a LogsDB at rest", _rotten_tables, damages=True),
    "lost_partition": FaultKind(
        "a partition of a LogsDB at rest is gone", _lost_partition, damages=True
    ),
    "zeroed": FaultKind("blocks of a WAL at rest turn to zeros", zeroed_wal, damages=True),
    "lost_write": FaultKind(
        "a disk loses a write that it acknowledged; a start finds it", _lost_write, damages=True
    ),
    "misdirected_write": FaultKind(
        "a disk writes to other blocks; a start finds it", _misdirected_write, damages=True
    ),
})  # fmt: skip
"""Every kind by its name."""
