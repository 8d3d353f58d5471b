"""Strike nodes of a real cluster, the sequencer's or another, again and again, under load.

The clients are the simulator's (`sim.workload`), on this machine's host: producers append, readers
follow, and their events become a history that the same checkers judge. Between two rounds the
cluster is whole again. Each round's figure is the longest time without any acknowledgement from the
fault on. The faults are in `chaos.node_faults`.

Source: issue texts of the write path and of the read path ("kill -9 and SIGSTOP under load, the
same checkers"); docs/sources/logdevice.md 2.12.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from cordwood.chaos.current_sequencer import current_sequencer, wait_sequencer
from cordwood.chaos.namespaces import Namespaces, namespaces, why_not
from cordwood.chaos.node_faults import (
    CUT,
    CUT_STORAGE,
    KILL,
    KILL_STORAGE,
    OF_SEQUENCERS,
    SLOW_DISK,
    STOP,
    STOP_STORAGE,
    NodeFaults,
)
from cordwood.chaos.syscalls import why_no_strace
from cordwood.errors import Unreachable
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.nodes import NodeId
from cordwood.settings import MIB, ClientSettings
from cordwood.sim.buggify import Buggify
from cordwood.sim.crew import OpenCalls
from cordwood.sim.history import AppendOk, Event, HistoryRecorder, to_jsonl
from cordwood.sim.readers import follow
from cordwood.sim.run_clients import ASKER, producer_names, reader_names
from cordwood.sim.verdict import judge, violation_words
from cordwood.sim.workload import Clients, WorkloadOptions, final_tails, produce

DRAWN = (KILL, KILL, STOP, KILL_STORAGE, KILL_STORAGE, STOP_STORAGE)
"""A stop takes many times as long as a kill, so there are half as many."""

BOUNDS_S = {
    KILL: (1.0, 2.0),
    STOP: (10.0, 10.0),
    KILL_STORAGE: (1.0, 2.0),
    STOP_STORAGE: (2.0, 10.0),
    CUT: (10.0, 10.0),
    CUT_STORAGE: (2.0, 10.0),
    SLOW_DISK: (2.0, 10.0),
}
"""The allowed outage of a round: the median, and the 99th percentile (the promise of the write
path). A killed storage node costs one more wave. A stopped storage node costs the wait for a wave.
A node that is cut off is as silent as a stopped node."""

STOPPED_S = (0.5, 5.0)
"""How long a storage node is stopped: appends go on without it, and it has to catch up."""

BACK_S = 30.0
"""A round waits this long for appends to be acknowledged again; longer is a failure."""

LATE_ACKS_S = 0.3
"""By this time the acknowledgements that were in flight when the fault struck have come."""

CALM_S = (0.8, 2.0)
"""Pause between two rounds: the node is back, and has told the other nodes."""

DRAIN_S = 30.0
"""Longest time until readers reach the tail at the end."""

LOG = "/chaos"

WORKLOAD = WorkloadOptions(
    producers=2, readers=2, logs=(LOG,), pause_s=0.03, burst=10, lanes=3, append_timeout_s=20.0,
    restart_s=20.0, client=ClientSettings(),
)  # fmt: skip
"""Some 150 calls a second, so that an outage is known to within ten milliseconds."""

WAL_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class Round:
    """One fault.

    Attributes:
        kind: one of KINDS.
        node: the node that it struck.
        outage_s: the longest time without an acknowledgement.
    """

    kind: str
    node: int
    outage_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """The result of all rounds.

    Attributes:
        problems: promises broken; empty if all is well.
        missed: bounds that were missed, in words: a busy machine may be the reason.
        acked: records acknowledged.
    """

    seed: int
    rounds: tuple[Round, ...]
    acked: int
    problems: tuple[str, ...]
    missed: tuple[str, ...]
    history: tuple[Event, ...] = field(repr=False)

    def outages_s(self, kind: str) -> list[float]:
        """The outages of the rounds of one kind, shortest first."""
        return sorted(each.outage_s for each in self.rounds if each.kind == kind)

    def save(self, path: str) -> None:
        """Leave the history for `cordwood verify`."""
        with open(path, "wb") as file:
            file.write(to_jsonl(self.history))


async def run_failover(
    directory: str,
    *,
    seed: int,
    rounds: int = 50,
    budget_s: float = float("inf"),
    kinds: Sequence[str] = DRAWN,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Play rounds until there are enough, or the time is over (at least one is played).

    Args:
        directory: for the data of a fresh cluster; the caller removes it.
        seed: decides the nodes, kinds and times of faults, and the calls of the clients.
        kinds: to draw from.
    Raises:
        Unreachable: the cluster did not start, or a node did not come back.
    """
    shape = ClusterShape(wal_bytes=WAL_BYTES)
    numbers = [NodeId(number) for number in range(1, shape.nodes + 1)]
    networks: AbstractContextManager[Namespaces | None] = nullcontext()
    if {CUT, CUT_STORAGE} & {*kinds}:
        networks = namespaces(numbers)
    with networks as housing:
        async with (
            local_cluster(directory, shape, housing=housing) as cluster,
            real_host(seed) as host,
        ):
            faults = NodeFaults(cluster, housing)
            try:
                run = _Run(cluster, faults, host, seed, say)
                return await run.play(rounds, time.monotonic() + budget_s, kinds)
            finally:
                await faults.close()


def drawn_here(say: Callable[[str], None]) -> tuple[str, ...]:
    """The kinds to draw from on this machine; impossible kinds are reported and left out."""
    drawn: tuple[str, ...] = DRAWN
    if reason := why_not():
        say(f"no node is cut off: {reason}")
    else:
        drawn = (*drawn, CUT, CUT_STORAGE)
    if reason := why_no_strace():
        say(f"no disk is slowed down: {reason}")
    else:
        drawn = (*drawn, SLOW_DISK)
    return drawn


class _Run:
    """The clients of one run, and the faults of their cluster."""

    def __init__(
        self,
        cluster: LocalCluster,
        faults: NodeFaults,
        host: Host,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._faults = faults
        self._host = host
        self._seed = seed
        self._say = say
        self._chance = random.Random(f"chaos {seed}")
        started_ns = time.monotonic_ns()
        shape = cluster.shape
        self._recorder = HistoryRecorder(
            lambda: (time.monotonic_ns() - started_ns) // 1000,
            copies=shape.copies,
            racks=shape.copy_racks,
            seed=seed,
        )
        addresses = tuple(node.address for node in cluster.nodes.values())
        self._clients = Clients(
            addresses, WORKLOAD, self._recorder, seed, OpenCalls(self._recorder),
            Buggify(seed, is_on=False),
        )  # fmt: skip

    async def play(self, rounds: int, deadline: float, kinds: Sequence[str]) -> Report:
        """All rounds, the end of the workload, and the verdict."""
        played: list[Round] = []
        problems: list[str] = []
        async with asyncio.TaskGroup() as tasks:
            producers = [
                tasks.create_task(produce(name, self._clients, self._host))
                for name in producer_names(WORKLOAD)
            ]
            readers = [
                tasks.create_task(follow(name, LOG, self._clients, self._host))
                for name in reader_names(WORKLOAD)
            ]
            await self._wait_acked(BACK_S)
            while len(played) < rounds and (not played or time.monotonic() < deadline):
                await asyncio.sleep(self._chance.uniform(*CALM_S))
                played.append(await self._round(self._chance.choice(list(kinds))))
                self._say(_words(len(played), played[-1]))
            self._recorder.faults_healed()
            await asyncio.sleep(max(CALM_S))
            self._clients.stop()
            await asyncio.gather(*producers)
            problems += await self._drain(readers)
        problems += [violation_words(each) for each in judge(self._recorder.events).violations]
        return Report(
            self._seed, tuple(played), self._clients.acked, tuple(problems),
            tuple(_missed_bounds(played)), self._recorder.events,
        )  # fmt: skip

    async def _drain(self, readers: Sequence[asyncio.Task[None]]) -> list[str]:
        """Let the readers come to the tail."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await final_tails(ASKER, self._clients, self._host)
                await asyncio.gather(*map(asyncio.shield, readers))
        except TimeoutError:
            self._clients.giving_up = True
            return [f"L2: readers are not at the tail {DRAIN_S:g} s after the workload ended"]
        return []

    async def _round(self, kind: str) -> Round:
        """Strike the node that sequences now, or another node. Returns when the cluster is whole
        again."""
        node = await self._sequencer()
        is_sequencer = kind in OF_SEQUENCERS
        if not is_sequencer:
            node = self._chance.choice([n for n in self._cluster.nodes if n != node])
        recorder = self._recorder
        struck_at = len(recorder.events)
        recorder.fault_struck(kind, [node])
        struck_us = recorder.events[-1].time_us
        await self._faults.strike(kind, node)
        # The last acknowledgements may be in flight, so the outage is the longest gap.
        await asyncio.sleep(LATE_ACKS_S)
        await self._wait_acked(BACK_S)
        if not is_sequencer:
            await asyncio.sleep(self._chance.uniform(*STOPPED_S))
            await self._wait_acked(BACK_S)
        outage_s = _longest_gap_s(recorder.events[struck_at:], struck_us)
        await self._faults.ease(kind, node)
        if kind in (KILL, KILL_STORAGE):
            recorder.node_started(node)
        recorder.fault_eased(kind, [node])
        return Round(kind, node, outage_s)

    async def _sequencer(self) -> NodeId:
        """The node that sequences the log in its highest epoch."""
        return await wait_sequencer(
            lambda: current_sequencer(self._clients.addresses, self._host, None)
        )

    async def _wait_acked(self, timeout_s: float) -> None:
        """Wait for the next acknowledgement."""
        deadline, before = time.monotonic() + timeout_s, self._clients.acked
        while self._clients.acked == before:
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"nothing was acknowledged for {timeout_s:g} s (seed {self._seed})"
                )
            await asyncio.sleep(0.01)


def _longest_gap_s(events: Sequence[Event], since_us: int) -> float:
    """The longest time without an acknowledgement, from `since_us` to the last one."""
    longest, before = 0, since_us
    for event in events:
        if isinstance(event, AppendOk):
            longest = max(longest, event.time_us - before)
            before = event.time_us
    return longest / 1e6


def median_and_p99(values: Sequence[float]) -> tuple[float, float]:
    """Of sorted values, by nearest rank."""
    last = len(values) - 1
    return values[last // 2], values[min(last, round(0.99 * last))]


def _missed_bounds(rounds: Sequence[Round]) -> list[str]:
    missed: list[str] = []
    for kind, (median_max_s, p99_max_s) in BOUNDS_S.items():
        outages = sorted(each.outage_s for each in rounds if each.kind == kind)
        if not outages:
            continue
        median_s, p99_s = median_and_p99(outages)
        if median_s > median_max_s or p99_s > p99_max_s:
            missed.append(
                f"{kind}: appends stood still for {median_s:.2f} s at the median and "
                f"{p99_s:.2f} s at p99; {median_max_s:g} and {p99_max_s:g} s are allowed"
            )
    return missed


def _words(number: int, done: Round) -> str:
    return f"round {number}: {done.kind} node {done.node}, no acks for {done.outage_s:.2f} s"
