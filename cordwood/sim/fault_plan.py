"""A fault plan: which faults strike at which time.

The plan is drawn from the seed before the run, so that a run can be replayed, and shrunk by leaving
faults out. It consists of single faults at random times, and a few *schedules*: short scenes in
which several faults meet on purpose. The worst bugs of log stores needed two or three faults in the
right order (pause, then kill; a sequencer that only its clients cannot reach while all other nodes
restart).

A plan has only faults that the system promises to survive: any faults, as long as every node is
back before appends must succeed again, and no disk loses synced data. Faults that destroy stored
bytes are drawn for `Damage` runs only, on nodes that the atlas allows.

Source: docs/sources/reliability.md §1 (Jepsen's pause-kill, FoundationDB's swizzle-clog), §5.1;
TigerBeetle's swarm options and its fault atlas.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.f_majority import weigh_replies
from cordwood.sim.fault_kinds import FAULT_KINDS

SEQUENCER = 0
"""As a fault's node: a node that sequences a log when the fault strikes."""

OTHERS = -1
"""As a fault's node: every node except the node that SEQUENCER was in the same scene."""


class Damage(enum.Enum):
    """How much stored data a run's faults may destroy."""

    NONE = "none"
    WITHIN = "within"
    """Data on a few nodes: an intact copy of every record is left, and enough nodes to recover. No
    loss may be reported, and nothing may stand still."""
    BEYOND = "beyond"
    """Data on any node: a loss must be reported exactly, or the log must wait."""


KINDS = tuple(name for name, kind in FAULT_KINDS.items() if not (kind.damages or kind.needs_crew))
"""Kinds of fault that may strike any run."""

TEAR = "torn_sequencer"
"""A kind of fault that is drawn separately, see `_tears`."""

CLIENT_KINDS = tuple(name for name, kind in FAULT_KINDS.items() if kind.needs_crew)
"""Kinds of fault that strike the simulator's own clients."""

DAMAGING_KINDS = tuple(name for name, kind in FAULT_KINDS.items() if kind.damages)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, its nodes, its time and length (simulated seconds).

    Attributes:
        nodes: numbers, or SEQUENCER, or OTHERS; () where the kind hits no node.
        scene: faults of one schedule share a number, so that they agree on the sequencer's node; 0
            for a single fault.
    """

    kind: str
    nodes: tuple[int, ...]
    at_s: float
    for_s: float
    scene: int = 0

    def __str__(self) -> str:
        named = {SEQUENCER: "the sequencer", OTHERS: "all but that sequencer"}
        who = ", ".join(named.get(node, f"node {node}") for node in self.nodes)
        lasts = f" for {self.for_s:.2f} s" if self.for_s else ""
        scene = f" (scene {self.scene})" if self.scene else ""
        return f"{self.at_s:7.2f} s  {self.kind} {who}{lasts}{scene}".replace("  for", " for")


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """The number and the kinds of faults of a plan.

    Attributes:
        kinds: kinds of fault that may strike; a seed uses some of them.
        pause_s: mean time between two faults.
        calm_s: no faults before this time, so that every run begins with a working log.
        scenes: names of schedules that may be played, see `SCENES`.
        alone: the only schedule that is played, without other faults; "" for none.
        scene_chance: chance of each schedule.
        damage: how much data may be destroyed.
        nodeset, replication: for the atlas, where damage is within bounds.
    """

    kinds: tuple[str, ...] = KINDS
    pause_s: float = 4.0
    calm_s: float = 3.0
    scenes: tuple[str, ...] = ()
    scene_chance: float = 0.3
    alone: str = ""
    damage: Damage = Damage.NONE
    nodeset: Nodeset | None = None
    replication: Replication = field(default_factory=Replication)


def draw_plan(
    options: FaultOptions, nodes: tuple[int, ...], length_s: float, chance: random.Random
) -> tuple[Fault, ...]:
    """Draw the faults of a run of `length_s` seconds, in order of time.

    Some kinds are left out, so that the others meet undisturbed. A node that sequences dies at
    least twice, because a run that crosses no epochs does not count.
    """
    if options.alone:
        start_s = chance.uniform(options.calm_s, max(options.calm_s, length_s - SCENE_S))
        alone = SCENES[options.alone](nodes, start_s, chance)
        return tuple(sorted((_cut(f, length_s) for f in alone if f.at_s < length_s), key=_when))
    faults = [*_deaths(length_s, chance), *_singles(options, nodes, length_s, chance)]
    for number, name in enumerate(options.scenes, start=1):
        if chance.random() < options.scene_chance:
            start_s = chance.uniform(options.calm_s, max(options.calm_s, length_s - SCENE_S))
            played = SCENES[name](nodes, start_s, chance)
            faults += [replace(fault, scene=number) for fault in played]
    faults += _damages(options, nodes, length_s, chance)
    faults += _tears(options, length_s, chance)
    kept = [_cut(fault, length_s) for fault in faults if fault.at_s < length_s]
    return tuple(sorted(kept, key=_when))


def _when(fault: Fault) -> float:
    return fault.at_s


def _cut(fault: Fault, length_s: float) -> Fault:
    """The fault, shortened so that it ends with the run."""
    return replace(fault, for_s=min(fault.for_s, length_s - fault.at_s))


def _deaths(length_s: float, chance: random.Random) -> list[Fault]:
    return [
        Fault(
            "crash",
            (SEQUENCER,),
            length_s * chance.uniform(low, low + 0.25),
            chance.uniform(0.1, 3),
        )
        for low in (0.15, 0.55)
    ]


FIRST_KINDS = 3
"""Kinds of fault that certainly strike once; a second crash may be among them."""


def _singles(
    options: FaultOptions, nodes: tuple[int, ...], length_s: float, chance: random.Random
) -> list[Fault]:
    left_out = {TEAR}
    if options.damage is Damage.WITHIN:
        # The atlas uses the locations at the beginning of the run. A spare node that an epoch finds
        # in another rack may hold the other copy of a block that a second spare node loses (seed
        # 77310049).
        left_out.add("moved_rack")
    every = [kind for kind in options.kinds if kind not in left_out]
    least = min(4, len(every))
    kinds = chance.sample(every, chance.randint(least, len(every)))
    faults = []
    # Drawn in every case: with the dead sequencers they make a run count.
    first = kinds[:FIRST_KINDS]
    times = [chance.uniform(options.calm_s, length_s) for _ in first]
    racks = _racks(options)
    now = options.calm_s
    while kinds and (now := now + chance.expovariate(1 / options.pause_s)) < length_s:
        times.append(now)
    for at, now in enumerate(times):
        kind = first[at] if at < len(first) else chance.choice(kinds)
        for_s = _duration(kind, chance)
        faults.append(Fault(kind, _victims(kind, nodes, racks, chance), now, for_s))
    return faults


TEARS_SHARE = 0.8
"""Share of the plans with sequencers torn off, if that kind is among the plan's kinds."""

TEARS_MAX = 4
"""Number of such faults in a plan: most of them find no two runs in flight to different nodes."""


def _tears(options: FaultOptions, length_s: float, chance: random.Random) -> list[Fault]:
    """Draw the faults that tear sequencers off. They are more frequent than other kinds, because
    few of them leave a hole. They are drawn last, so that no other fault depends on the draw."""
    if TEAR not in options.kinds or chance.random() >= TEARS_SHARE:
        return []
    return [
        Fault(TEAR, (SEQUENCER,), chance.uniform(options.calm_s, length_s), _duration(TEAR, chance))
        for _ in range(chance.randint(1, TEARS_MAX))
    ]


def _racks(options: FaultOptions) -> tuple[tuple[int, ...], ...]:
    """The nodes of each rack, if their locations are known."""
    by_rack: dict[str, list[int]] = {}
    for member in options.nodeset.members if options.nodeset else ():
        by_rack.setdefault(member.location, []).append(member.node)
    return tuple(map(tuple, by_rack.values()))


def _duration(kind: str, chance: random.Random) -> float:
    """How long a fault lasts: mostly about as long as a timeout, sometimes longer."""
    bounds = FAULT_KINDS[kind].for_s
    if bounds is not None:
        return chance.uniform(*bounds)
    return chance.uniform(0.05, 1.5) if chance.random() < 0.5 else chance.uniform(1.5, 8.0)


RACK_SHARE = 0.15
"""Share of the faults on nodes that hit a whole rack, as a broken switch or power supply does."""


def _victims(
    kind: str,
    nodes: tuple[int, ...],
    racks: tuple[tuple[int, ...], ...],
    chance: random.Random,
) -> tuple[int, ...]:
    if not FAULT_KINDS[kind].hits_nodes:
        return ()
    if kind in ("crash", "power_cut") and chance.random() < 0.1:
        return nodes
    if chance.random() < 0.35:
        return (SEQUENCER,)
    if racks and chance.random() < RACK_SHARE:
        return chance.choice(racks)
    count = 1 if chance.random() < 0.7 else chance.randint(1, max(1, len(nodes) // 2))
    return tuple(sorted(chance.sample(nodes, count)))


def _damages(
    options: FaultOptions, nodes: tuple[int, ...], length_s: float, chance: random.Random
) -> list[Fault]:
    """Damage on nodes that the atlas allows."""
    if options.damage is Damage.NONE:
        return []
    order = [NodeId(node) for node in chance.sample(nodes, len(nodes))]
    free = order if options.damage is Damage.BEYOND else spare_nodes(order, options)
    victims = sorted(free[: chance.randint(1, len(free))]) if free else []
    # A loss may stop a log for ever, so enough records must be acknowledged before.
    earliest, latest = (0.7, 0.95) if options.damage is Damage.BEYOND else (0.4, 0.9)
    return [
        Fault(
            chance.choice(DAMAGING_KINDS),
            (node,),
            length_s * chance.uniform(earliest, latest),
            chance.uniform(0.1, 2.0),
        )
        for node in victims
        for _ in range(chance.randint(1, 2))
    ]


def spare_nodes(order: Sequence[NodeId], options: FaultOptions) -> list[NodeId]:
    """The atlas: as many nodes, taken in `order`, as recovery can do without.

    The other nodes then still hold a copy of every acknowledged record. They alone can still
    recover a log and store the records that they found.
    """
    assert options.nodeset is not None, "the atlas needs to know where nodes are"
    nodeset, replication = options.nodeset, options.replication
    taken: list[NodeId] = []
    for node in order:
        rest = set(nodeset.nodes) - {*taken, node}
        enough = weigh_replies(rest, nodeset, replication, {}).is_f_majority
        if enough and can_replicate(rest, nodeset, replication):
            taken.append(node)
    return taken


# ---- schedules ----

SCENE_S = 15.0
"""The approximate length of a scene."""

Scene = Callable[[tuple[int, ...], float, random.Random], list[Fault]]


def _pause_kill(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """One node is paused and then killed, so that frames to it die unread, while another node is
    slow. Sequencers must count the stores of each node correctly."""
    victim, slow = chance.sample(nodes, 2) if len(nodes) > 1 else nodes * 2
    pause_s = chance.uniform(1.0, 4.0)
    return [
        Fault("slow_disk", (slow,), start_s, pause_s * 2),
        Fault("pause", (victim,), start_s + chance.uniform(0, 0.3), pause_s),
        Fault("crash", (victim,), start_s + pause_s * chance.uniform(0.4, 1.0), 0.3),
    ]


def _swizzle(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """Half of the nodes stop one by one. They come back one by one in another order."""
    kind = chance.choice(("pause", "slow_links", "partition", "narrow_links"))
    half_s = chance.uniform(1.0, 5.0)
    stopped = chance.sample(nodes, max(1, len(nodes) // 2))
    faults = []
    for node in stopped:
        begins = chance.uniform(0, half_s)
        ends = half_s + chance.uniform(0, half_s)
        faults.append(Fault(kind, (node,), start_s + begins, ends - begins))
    return faults


def _stalls_then_kill(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """Nodes stall one after another, so that runs in flight are retried on different
    copysets and overtake one another; then the sequencer dies."""
    stalled = chance.sample(nodes, max(1, min(len(nodes) - 1, chance.randint(1, 3))))
    faults, at_s = [], start_s
    for node in stalled:
        faults.append(Fault("pause", (node,), at_s, chance.uniform(1.0, 5.0)))
        at_s += chance.uniform(0.1, 0.9)
    kill_s = start_s + chance.uniform(0.5, 2.5)
    return [*faults, Fault("crash", (SEQUENCER,), kill_s, chance.uniform(0.1, 1.0))]


def _half_heard_then_kill(
    nodes: tuple[int, ...], start_s: float, chance: random.Random
) -> list[Fault]:
    """Three times, the sequencer dies soon after some nodes went out of its reach. A run that it
    had in flight may be stored nowhere although later runs are stored, and leaves a hole."""
    faults = []
    for turn in range(3):
        at_s = start_s + 4.0 * turn
        away = tuple(sorted(chance.sample(nodes, max(1, len(nodes) // 2))))
        faults.append(Fault("partition", away, at_s, chance.uniform(1.0, 3.0)))
        faults.append(Fault("crash", (SEQUENCER,), at_s + chance.uniform(0.02, 0.4), 0.3))
    return faults


def _usurp(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """The clients cannot reach the sequencer and start another one. All nodes except the old
    sequencer restart. Then the clients find the old sequencer again, which has not heard of the new
    one."""
    apart_s = chance.uniform(7.0, 14.0)  # a client notices a silent node after 5 to 10 s
    down_s = chance.uniform(0.1, 0.8)
    restart_s = start_s + apart_s - down_s - chance.uniform(0.0, 0.5)
    return [
        Fault("client_partition", (SEQUENCER,), start_s, apart_s),
        Fault("crash", (OTHERS,), restart_s, down_s),
    ]


def _rolling(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """Every node is restarted in turn, as an upgrade does."""
    step_s = chance.uniform(0.3, 2.0)
    kind = chance.choice(("crash", "crash", "power_cut"))
    order = chance.sample(nodes, len(nodes))
    return [
        Fault(kind, (node,), start_s + at * step_s, step_s * chance.uniform(0.3, 1.2))
        for at, node in enumerate(order)
    ]


def _blackout(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """The whole site loses its power, and comes back one node at a time. This happens twice, the
    second time during the recovery from the first."""
    faults = []
    for at_s in (start_s, start_s + chance.uniform(1.0, 5.0)):
        faults += [Fault("power_cut", (node,), at_s, chance.uniform(0.1, 1.5)) for node in nodes]
    return faults


def _slow_then_cut(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """The power fails while disks are slow, so that writes are in flight. It fails once more, so
    that a start must read past the remains of the first failure."""
    slow_s = chance.uniform(4.0, 8.0)
    hit = chance.sample(nodes, chance.randint(1, len(nodes)))
    faults = [Fault("slow_disk", tuple(sorted(hit)), start_s, slow_s)]
    for node in hit:
        first_s = start_s + chance.uniform(0.3, slow_s / 2)
        kind = chance.choice(("crash", "power_cut"))
        faults.append(Fault(kind, (node,), first_s, 0.2))
        faults.append(Fault("power_cut", (node,), first_s + chance.uniform(1.0, 4.0), 0.2))
    return faults


def _behind_readers(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """Some nodes are far from all others while the sequencer changes. Readers hear of the next
    epoch before they have all records of the present epoch."""
    far = tuple(sorted(chance.sample(nodes, max(1, len(nodes) // 2))))
    return [
        Fault("slow_links", far, start_s, 10.0),
        Fault("crash", (SEQUENCER,), start_s + chance.uniform(0.5, 3.0), 0.3),
        Fault("crash", (SEQUENCER,), start_s + chance.uniform(4.0, 8.0), 0.3),
    ]


def _apart(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """The clients cannot reach the sequencer and start another one. The old sequencer does not hear
    of the new one. Then the clients reach the old sequencer again, and ask it."""
    apart_s = chance.uniform(7.0, 12.0)  # a client notices a silent node after 3 to 6 s
    return [
        Fault("client_partition", (SEQUENCER,), start_s, apart_s),
        Fault("peer_partition", (SEQUENCER,), start_s, apart_s + chance.uniform(2.0, 5.0)),
    ]


def _left_behind(nodes: tuple[int, ...], start_s: float, chance: random.Random) -> list[Fault]:
    """A node that only the sequencer reaches misses a recovery. It hears of the recovery while its
    disk stands still. Just then the replaced sequencer wakes up and sends it stores."""
    behind = chance.choice(nodes)
    # Its connections to other nodes are given up after one silent ping, six seconds at most.
    stops_s = start_s + chance.uniform(6.0, 7.5)
    back_s = stops_s + chance.uniform(3.6, 4.2)
    others = tuple(node for node in nodes if node != behind)
    return [
        Fault("sequencers_only", (behind,), start_s, back_s - start_s),
        Fault("pause", (SEQUENCER,), stops_s, back_s - stops_s + chance.uniform(0.5, 1.8)),
        Fault("sequencers_cut", others, stops_s + 2.5, back_s + 4.0 - stops_s),
        Fault("disk_stall", (behind,), back_s - 0.1, 0.0),
        Fault("disk_stall", (behind,), back_s + chance.uniform(0.3, 1.0), 0.0),
    ]


SCENES: dict[str, Scene] = {
    "pause_kill": _pause_kill,
    "swizzle": _swizzle,
    "stalls_then_kill": _stalls_then_kill,
    "half_heard_then_kill": _half_heard_then_kill,
    "usurp": _usurp,
    "rolling": _rolling,
    "blackout": _blackout,
    "slow_then_cut": _slow_then_cut,
    "behind_readers": _behind_readers,
    "apart": _apart,
    "left_behind": _left_behind,
}
"""Every schedule by its name."""
