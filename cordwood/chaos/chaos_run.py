"""A real cluster under load while a plan of faults is played, and the verdict on it.

The clients are the simulator's (`sim.workload`, `sim.readers`), on this machine's host: ordered
producers, queries that publish, holders of fencing tokens, and readers of every kind. Some readers
read one copy and some all copies; some start over, one never does, and one reads from the oldest
record again and again. Nodes flush within a second and keep no flushed block in memory, so older
records are read from their disks. The events of the clients are a history, which the same checkers
judge as in the simulator and in `cordwood verify`.

Source: docs/sources/reliability.md §1 (Vortex), §5, §6.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cordwood.chaos.capabilities import kinds_without
from cordwood.chaos.chaos_clients import LOAD, ChaosClients, Ending
from cordwood.chaos.current_sequencer import current_sequencer
from cordwood.chaos.disks import Disks, disks
from cordwood.chaos.faults import Faults
from cordwood.chaos.frame_proxy import Told
from cordwood.chaos.members import Members
from cordwood.chaos.namespaces import Namespaces, namespaces
from cordwood.chaos.outcome import Outcome, outcome_of
from cordwood.chaos.plan import KINDS, Aim, Need, PlannedFault, plan_of
from cordwood.errors import CordwoodError, Unreachable
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.nodes import NodeId, Replication
from cordwood.settings import MIB, StorageSettings
from cordwood.sim.history import Event, HistoryRecorder, to_jsonl
from cordwood.sim.workload import WorkloadOptions

SHAPE = ClusterShape(wal_bytes=64 * MIB)

STORAGE = StorageSettings(
    flush_bytes=MIB,
    flush_age_s=1.0,
    cache_bytes=32 * MIB,
    partition_bytes=4 * MIB,
    partition_age_s=20.0,
    recent_bytes=0,
    block_cache_bytes=MIB,
    scrub_every_s=30.0,
)
"""Records that were acknowledged a second ago are read from disk, because memory does not keep
them."""

BACK_S = 30.0
"""Appends must go on within this time of any fault; otherwise that promise is broken."""

AGAIN_S = 1.0
"""Time in which a node that came back tells the other nodes, before the next fault relies on it."""

FAULT_S = 240.0
"""Longest time to begin and to end a fault, beside its length: five nodes that start one after
another on a busy machine take a minute."""

SETTLE_S = 3.0
"""Time between the end of the last fault and the end of the load."""

NODE_MODULE = "cordwood.chaos.clocked_node"

LOGS_DIRECTORY = "logs"
"""Subdirectory for the nodes' output, which is not on the failing disks."""


@dataclass(slots=True)
class Progress:
    """The progress of a run, for the display.

    Attributes:
        running: present faults, in words, by their number in the plan.
        played: number of finished faults, by kind.
        away: nodes struck now.
    """

    seconds: float
    began_s: float = field(default_factory=time.monotonic)
    stage: str = "starting 5 nodes"
    acked: int = 0
    last_ack_s: float = 0.0
    planned: int = 0
    running: dict[int, str] = field(default_factory=dict)
    played: Counter[str] = field(default_factory=Counter)
    away: tuple[int, ...] = ()
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """One chaos run.

    Attributes:
        problems: broken promises, in words; empty if all is well.
        missed: missed bounds, in words: a busy machine may be the reason.
        proxied: the counts of the proxies, by harm.
        members: number of strikes on members of the consumer, by kind.
        left: number of faults of the plan for which there was no time.
    """

    seed: int
    seconds: float
    outcome: Outcome
    problems: tuple[str, ...]
    missed: tuple[str, ...]
    proxied: Mapping[str, Told]
    members: Mapping[str, int]
    left: int
    history: tuple[Event, ...] = field(repr=False)

    def save(self, path: str) -> None:
        """Leave the history for `cordwood verify`."""
        with open(path, "wb") as file:
            file.write(to_jsonl(self.history))


async def play_chaos(
    directory: str,
    *,
    seed: int,
    seconds: float,
    lacks: Mapping[Need, str],
    kinds: Sequence[str] = tuple(KINDS),
    progress: Progress | None = None,
) -> Ran:
    """Start a cluster, play a plan, judge.

    Args:
        directory: for the data of a fresh cluster; the caller removes it.
        seed: decides the plan, and the calls of the clients.
        lacks: missing capabilities of this machine, see `capabilities.lacking`.
        kinds: kinds to draw from, out of the possible ones.
    Raises:
        Unreachable: the cluster did not start.
    """
    able = [kind for kind in kinds_without(lacks) if kind in kinds]
    plan = plan_of(seed, seconds, able, nodes=SHAPE.nodes, away_max=SHAPE.copies - 1)
    shown = progress or Progress(seconds)
    shown.planned = len(plan)
    async with _cluster(directory, lacks) as (cluster, networks, own), real_host(seed) as host:
        play = Play(
            tuple(cluster.nodes),
            tuple(node.address for node in cluster.nodes.values()),
            Replication(SHAPE.copies, SHAPE.copy_racks),
            host, seed, shown,
        )  # fmt: skip
        play.blows = Faults(cluster, networks, own, play.sequencer, play.wait_acked)
        play.members = Members(
            os.path.join(directory, LOGS_DIRECTORY), play.addresses, LOAD.logs, seed,
            cluster.metadata,
        )  # fmt: skip
        return await play.run(plan, seconds)


@asynccontextmanager
async def _cluster(
    directory: str, lacks: Mapping[Need, str]
) -> AsyncIterator[tuple[LocalCluster, Namespaces | None, Disks | None]]:
    """A cluster with all disks and networks that the machine can give it."""
    numbers = [NodeId(number) for number in range(1, SHAPE.nodes + 1)]
    data, logs = os.path.join(directory, "cluster"), os.path.join(directory, LOGS_DIRECTORY)
    os.makedirs(logs, exist_ok=True)
    with ExitStack() as held:
        networks = None
        if Need.NETWORKS not in lacks:
            networks = held.enter_context(namespaces(numbers))
        own = None
        if Need.DISKS not in lacks:
            places = {number: os.path.join(data, f"node-{number}") for number in numbers}
            own = held.enter_context(
                disks(os.path.join(directory, "disks"), places, can_clone=Need.CLONES not in lacks)
            )
        async with local_cluster(
            data, SHAPE, housing=networks, storage=STORAGE, module=NODE_MODULE, logs=logs
        ) as cluster:
            yield cluster, networks, own


class Blows(Protocol):
    """Begins faults and ends them; `faults.Faults` for a cluster of this run."""

    @property
    def proxied(self) -> Mapping[str, Told]:
        """The counts of the proxies, by harm."""

    def processes(self) -> Mapping[NodeId, int]:
        """The nodes' processes, where they run on this machine."""

    async def play(
        self, kind: str, nodes: Sequence[NodeId], length_s: float, chance: random.Random
    ) -> None:
        """Begin a fault, keep it for this long, and end it."""


class Play:
    """One run of one plan over a cluster with this number of nodes and copies.

    Attributes:
        addresses: of the nodes.
        blows: begins and ends the faults; to be set before `run`.
        members: of a consumer, on a cluster of this run; None for no consumer.
        recorder: the history.
    """

    blows: Blows
    members: Members | None = None

    def __init__(
        self,
        nodes: Sequence[NodeId],
        addresses: tuple[str, ...],
        replication: Replication,
        host: Host,
        seed: int,
        progress: Progress,
        load: WorkloadOptions = LOAD,
        *,
        own: bool = True,
    ) -> None:
        self._nodes = tuple(nodes)
        self.addresses = addresses
        self._away_max = replication.copies - 1
        self._host = host
        self._progress = progress
        self._seed = seed
        # The clients take the time of their questions from their loop.
        now_s = asyncio.get_running_loop().time
        self.recorder = HistoryRecorder(
            lambda: round(now_s() * 1e6),
            copies=replication.copies,
            racks=replication.racks,
            seed=seed,
        )
        self._clients = ChaosClients(addresses, self.recorder, seed, host, load, own=own)
        self._struck: set[NodeId] = set()
        self._free = asyncio.Condition()
        self._problems: list[str] = []
        self._is_spoilt = False
        self._asking_s = 0.0

    async def run(self, plan: Sequence[PlannedFault], seconds: float) -> Ran:
        """The plan, the end of the workload, and the verdict."""
        try:
            async with asyncio.TaskGroup() as tasks:
                ending, left = await self._play(tasks, plan, seconds)
        finally:
            if self.members is not None:
                await self.members.kill()
        self._problems += ending.problems
        self._progress.stage = "judging the history"
        events = self.recorder.events
        if self.members is not None:
            # A stable sort: of events in the same microsecond, those of the clients come first.
            events = tuple(sorted([*events, *self.members.events()], key=lambda each: each.time_us))
        outcome = await self._host.run_blocking(lambda: outcome_of(events), timeout_s=JUDGE_S)
        self._progress.is_over = True
        problems = (*self._problems, *outcome.problems())
        missed = (*ending.missed, *outcome.missed(BACK_S))
        return Ran(
            self._seed, seconds, outcome, problems, missed, self.blows.proxied,
            {} if self.members is None else self.members.struck, left, events,
        )  # fmt: skip

    async def _play(
        self, tasks: asyncio.TaskGroup, plan: Sequence[PlannedFault], seconds: float
    ) -> tuple[Ending, int]:
        """Run from the first client's start to the last client's end. Returns the number of faults
        left."""
        self._clients.start(tasks)
        watching = tasks.create_task(self._watch())
        self._progress.stage = "waiting for the first acknowledgement"
        await self.wait_acked()
        if self.members is not None:
            await self.members.start(tasks, self._host)
        self._progress.stage = "striking"
        left = await self._play_plan(plan, seconds)
        self._progress.stage = "letting the clients come to their end"
        if self.members is not None:
            await self.members.heal()
        self.recorder.faults_healed()
        await asyncio.sleep(SETTLE_S)
        ending = await self._clients.finish(self.blows.processes())
        if self.members is not None:
            self._progress.stage = "letting the consumer come to its end"
            if not ending.problems:
                ending.problems += await self.members.wait_all_read(self._clients.tails, self._host)
            ending.problems += await self.members.stop()
        watching.cancel()
        return ending, left

    async def _watch(self) -> None:
        """Keep the figures that are shown up to date."""
        progress, acked = self._progress, -1
        while True:
            if self._clients.acked != acked:
                acked = progress.acked = self._clients.acked
                progress.last_ack_s = time.monotonic()
            await asyncio.sleep(0.1)

    async def _play_plan(self, plan: Sequence[PlannedFault], seconds: float) -> int:
        """Play the plan as far as the time goes. Returns the number of faults left."""
        began_s = time.monotonic()
        self._progress.began_s = began_s
        async with asyncio.TaskGroup() as tasks:
            for number, fault in enumerate(plan):
                due_s = began_s + self._asking_s + fault.at_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                nodes = await self._take(fault)
                if self._is_spoilt:
                    return len(plan) - number
                if time.monotonic() + fault.length_s > began_s + self._asking_s + seconds:
                    await self._give_back(_held(fault, nodes))
                    return len(plan) - number
                tasks.create_task(self._strike(number, fault, nodes))
        return 0

    async def _strike(self, number: int, fault: PlannedFault, nodes: Sequence[NodeId]) -> None:
        """One fault, noted in the history. An error in it is a problem of the run."""
        hit = _held(fault, nodes)
        who = ",".join(map(str, hit))
        self._progress.running[number] = f"{fault.kind} {who}"
        self.recorder.fault_struck(fault.kind, hit, f"{fault.length_s:g} s")
        try:
            async with asyncio.timeout(fault.length_s + FAULT_S):
                await self.blows.play(fault.kind, nodes, fault.length_s, random.Random(fault.seed))
        except* (CordwoodError, TimeoutError, OSError) as group:
            # The cluster is not whole any more: no more faults, and the history so far is judged.
            self._is_spoilt = True
            self._problems += [f"{fault.kind} of {who}: {text}" for text in _told(group)]
        finally:
            self.recorder.fault_eased(fault.kind, hit)
        await asyncio.sleep(AGAIN_S)
        self._progress.running.pop(number)
        self._progress.played[fault.kind] += 1
        await self._give_back(hit)

    async def _take(self, fault: PlannedFault) -> tuple[NodeId, ...]:
        """The nodes that a fault hits. Waits until few enough nodes are away and no other fault
        hits these."""
        async with self._free:
            await self._free.wait_for(lambda: self._has_room(fault))
            asked_s = time.monotonic()
            sequencing = await self.sequencer()
            # This is not counted as time of the plan: on a busy machine the call took all of it,
            # and no node was struck.
            self._asking_s += time.monotonic() - asked_s
            free = [node for node in self._nodes if node not in self._struck]
            others = [node for node in free if node != sequencing]
            if fault.rank == 0 and sequencing in free:
                first = sequencing
            else:
                first = others[fault.rank % len(others)]
            rest = [node for node in free if node != first]
            wanted = len(rest) if KINDS[fault.kind].aim is Aim.ALL else 1
            chosen = random.Random(fault.seed).sample(rest, wanted)
            # The other end of a link is not struck itself, but must be there to be cut off.
            nodes = (first, *chosen)
            self._struck.update(_held(fault, nodes))
            self._progress.away = tuple(sorted(self._struck))
            return nodes

    def _has_room(self, fault: PlannedFault) -> bool:
        if not self._struck:
            return True
        return len(self._struck) + fault.away <= self._away_max

    async def _give_back(self, nodes: Sequence[NodeId]) -> None:
        async with self._free:
            self._struck -= set(nodes)
            self._progress.away = tuple(sorted(self._struck))
            self._free.notify_all()

    async def sequencer(self) -> NodeId | None:
        """The node that sequences the first log in its highest epoch; None if none says so."""
        log = self._clients.first_log
        return None if log is None else await current_sequencer(self.addresses, self._host, log)

    async def wait_acked(self) -> None:
        """Wait for the next acknowledgement.

        Raises:
            Unreachable: none came in BACK_S.
        """
        deadline, before = time.monotonic() + BACK_S, self._clients.acked
        while self._clients.acked == before:
            if time.monotonic() > deadline:
                raise Unreachable(f"nothing was acknowledged for {BACK_S:g} s")
            await asyncio.sleep(0.01)


def _held(fault: PlannedFault, nodes: Sequence[NodeId]) -> Sequence[NodeId]:
    """The nodes that a fault strikes, out of those that it needs; the other end of a link is not
    struck."""
    return nodes[:1] if KINDS[fault.kind].aim is Aim.ANY else nodes


def _told(group: BaseExceptionGroup) -> list[str]:
    """The problems, one a line."""
    told: list[str] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            told += _told(error)
        else:
            told.append(f"{type(error).__name__}: {error}")
    return told


JUDGE_S = 1800.0
"""The checkers look at each event a few times; a long run has a million."""
