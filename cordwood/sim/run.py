"""One seed: a cluster, clients, faults, healing, and the verdict of the checkers.

Source: docs/design.md §10 (what makes a run count); TigerBeetle's two phases (safety,
then liveness).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from cordwood.errors import Malformed
from cordwood.lsn import Lsn
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import Authority, NodeId
from cordwood.sim.acceptance import accept_losses
from cordwood.sim.aftermath import lose_nodes, measure_pace
from cordwood.sim.auditors import audit
from cordwood.sim.buggify import Buggify
from cordwood.sim.checkers import Evidence, Violation, check_all, run_is_valid
from cordwood.sim.checkers.validity import ACKED_MIN
from cordwood.sim.cluster import SimCluster
from cordwood.sim.crew import Crew
from cordwood.sim.disk_losses import DiskLosses
from cordwood.sim.end_events import NodesBack, WordsLeft
from cordwood.sim.fault_plan import Damage, Fault
from cordwood.sim.gauges import Gauges
from cordwood.sim.history import (
    AppendInvoked,
    EpochTaken,
    Event,
    FaultEased,
    FaultStruck,
    HistoryRecorder,
)
from cordwood.sim.host import Simulation
from cordwood.sim.injector import Injector
from cordwood.sim.knobs import turned
from cordwood.sim.mending import wait_mended
from cordwood.sim.name_crossing import seek_logs
from cordwood.sim.options import RunOptions, demo_options
from cordwood.sim.probes import probes_of, watched
from cordwood.sim.run_clients import (
    ASKER,
    LOOKER,
    TRIMMER,
    member_names,
    reader_names,
    start_clients,
    writer_names,
)
from cordwood.sim.streams import stream
from cordwood.sim.swarm import swarm_options
from cordwood.sim.uploads_left import wait_uploaded
from cordwood.sim.workload import Clients, final_tails, records_a_second
from cordwood.tier.patient_store import TRY_S

__all__ = ["Outcome", "RunOptions", "demo_options", "run_seed", "swarm_options"]

SETTLES_MAX = 5
"""Most rounds of settling: if faults stopped most appends, the run goes on until it counts."""

SETTLE_STEP_S = 2.0
"""Pause between two checks whether the run counts."""

SPARE_SHARE = 0.1
SLOWNESS = (0.3, 3.0)
"""While a run settles, producers hurry or slow down, so that the acknowledged records come to this
much more than a run needs to count. The other two numbers bound the change of pace."""

DRAIN_S = 60.0
"""The longest that readers may take to the final tail before the run is called stuck."""

BEYOND_DRAIN_S = 20.0
"""Where records may be lost, readers need not reach the tail; they read on for this long."""

QUIET_S = 2.0
"""Wait after the last client's end: releases are repeated for a second."""

IDLE_S = 6.0
"""How long idle nodes are watched: the time of two rounds of pings."""

BOOT_S = 60.0
"""The longest time until a cluster runs at first, and until it runs again after healing."""

CODE = "code"
"""The id of a promise about the code: no assertion fails, and no error stays unhandled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed.

    Attributes:
        violations: broken promises, none if all is well.
        invalid: why the run does not count, empty if it counts.
        trace_hash: equal for equal seeds and code.
        simulated_s, real_s, cpu_s: length of the run in virtual time, in real time, and in time of
            a core; without the checkers.
        acked: records acknowledged.
        epochs: epochs handed out.
        faults: how many of each kind struck.
        probes: how often each probe was hit, without probes that were never hit.
    """

    seed: int
    violations: tuple[Violation, ...]
    invalid: tuple[str, ...]
    trace_hash: str
    simulated_s: float
    real_s: float
    cpu_s: float
    acked: int
    epochs: int
    faults: dict[str, int]
    probes: Counter[str]
    options: RunOptions
    history: tuple[Event, ...] = field(repr=False)
    plan: tuple[Fault, ...] = field(repr=False)

    @property
    def is_good(self) -> bool:
        """Whether no promise was broken and the run counts."""
        return not self.violations and not self.invalid


def run_seed(seed: int, options: RunOptions | None = None) -> Outcome:
    """Run one seed to its end and check every promise that can be checked.

    Args:
        options: None draws them from the seed, see `sim.swarm`.
    """
    chosen = options or swarm_options(seed)
    simulation = Simulation(seed, link=chosen.link)
    probes: Counter[str] = Counter()
    started, cpu_started_s = time.perf_counter(), time.process_time()
    with ExitStack() as stack:
        stack.enter_context(turned(chosen.turns))
        run = _Run(simulation, chosen)
        stack.enter_context(watched(probes, run.recorder))
        broken = run.play()
    real_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started_s
    history = run.recorder.events
    probes.update(run.buggify.fired)
    probes.update(probes_of(history))
    violations, invalid = _judge(history, chosen)
    return Outcome(
        seed=seed,
        violations=(*broken, *violations),
        invalid=invalid,
        trace_hash=simulation.trace_hash(),
        simulated_s=run.simulated_s,
        real_s=real_s,
        cpu_s=cpu_s,
        acked=run.clients.acked,
        epochs=sum(isinstance(event, EpochTaken) for event in history),
        faults=dict(sorted(Counter(e.kind for e in history if isinstance(e, FaultStruck)).items())),
        probes=probes,
        options=chosen,
        history=history,
        plan=run.plan,
    )


def _judge(
    history: Sequence[Event], options: RunOptions
) -> tuple[list[Violation], tuple[str, ...]]:
    """The promises of a run that a history breaks, and why the run does not count, if so."""
    try:
        with _collecting_nothing():
            evidence = Evidence(history)
            found = check_all(evidence)
            reasons = run_is_valid(evidence).reasons
    except Malformed as error:
        return [Violation(CODE, f"the history contradicts itself: {error}", 0)], ()
    damage = options.faults.damage
    if damage is Damage.BEYOND:
        reasons = tuple(each for each in reasons if "tail" not in each and "crossed" not in each)
    waived = waived_promises(options)
    pauses = _pauses(history)
    owed = [
        each for each in found if each.invariant not in waived and not _is_of_paused(each, pauses)
    ]
    return owed, () if options.fills else reasons


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Switch the cycle collector off: checkers make many small objects and no cycles, and the
    collector would take a good part of their time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def waived_promises(options: RunOptions) -> frozenset[str]:
    """Promises that a run with these options need not keep."""
    waived: set[str] = set()
    if options.faults.damage is Damage.BEYOND:
        waived |= {"S15"}  # all copies of some blocks are gone
    if options.faults.damage is not Damage.NONE:
        waived |= {"S27"}  # the next sequencer tells the nodesets again that a WAL lost
        waived |= {"S31"}  # records that may be acknowledged are kept, however young
    if any(name.startswith("protocol.producers.") for name, _ in options.turns):
        waived |= {"L1"}  # a log that remembers few producers refuses more of them for a while
    if options.faults.damage is Damage.BEYOND or options.fills:
        waived |= {"L1", "L2", "L3"}  # recovery may not guess; a full WAL takes nothing
    return frozenset(waived)


def _pauses(history: Sequence[Event]) -> dict[str, list[tuple[int, int]]]:
    """When each client was stopped, µs: a stopped client can keep no deadline."""
    open_at: dict[str, int] = {}
    pauses: dict[str, list[tuple[int, int]]] = {}
    for event in history:
        if isinstance(event, FaultStruck | FaultEased) and event.kind == "client_pause":
            if isinstance(event, FaultStruck):
                open_at[event.text] = event.time_us
            else:
                since = open_at.pop(event.text, event.time_us)
                pauses.setdefault(event.text, []).append((since, event.time_us))
    return pauses


def _is_of_paused(violation: Violation, pauses: Mapping[str, list[tuple[int, int]]]) -> bool:
    """Whether a deadline was missed by a client that was stopped meanwhile."""
    call = next((e for e in violation.evidence if isinstance(e, AppendInvoked)), None)
    if violation.invariant != "L5" or call is None:
        return False
    ended_us = max(event.time_us for event in violation.evidence)
    return any(
        start <= ended_us and stop >= call.time_us for start, stop in pauses.get(call.client, ())
    )


def _first(error: BaseException) -> BaseException:
    """The first error, if the clean-up after one error raised another, or a group holds it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    while error.__context__ is not None:
        error = error.__context__
    return error


class _Run:
    """The scenario of one seed."""

    def __init__(self, simulation: Simulation, options: RunOptions) -> None:
        self._simulation = simulation
        self._options = options
        replication = options.cluster.replication
        self.recorder = HistoryRecorder(
            lambda: round(simulation.loop.time() * 1e6),
            copies=replication.copies,
            racks=replication.racks,
            wider=dict(replication.wider),
            beyond_tolerance=options.faults.damage is Damage.BEYOND,
            seed=simulation.seed,
        )
        self.buggify = Buggify(simulation.seed, is_on=options.buggify)
        self._cluster = SimCluster(simulation, options.cluster, self.recorder, self.buggify)
        self._crew = Crew(simulation, self.recorder)
        self._gauges = Gauges(self._cluster, self.recorder)
        chance = stream(simulation.seed, "disk-losses")
        self._losses = DiskLosses(
            self._cluster, self.recorder, chance, options.length_s,
            loses_metadata=options.loses_metadata, has_long_ledgers=options.workload.long_ledgers,
        )  # fmt: skip
        workload = options.workload
        self.clients = Clients(
            self._cluster.addresses,
            workload,
            self.recorder,
            simulation.seed,
            self._crew.calls,
            self.buggify,
            self._cluster.open_objects,
        )
        self._producers = writer_names(workload)
        self._readers = reader_names(workload)
        self._members = member_names(workload)
        self.plan = options.drawn_plan(simulation.seed)
        self.simulated_s = 0.0

    def play(self) -> list[Violation]:
        """Run it. Returns promises that break during the run: errors of the code, and stuck
        clients."""
        broken: list[Violation] = []
        try:
            stuck = self._simulation.run(lambda _: self._direct())
            if stuck and "L2" not in waived_promises(self._options):
                broken.append(Violation("L2", stuck, 0))
        except Exception as error:  # noqa: BLE001  (of any kind: it is the verdict on the code)
            broken.append(Violation(CODE, f"the run ended with {_first(error)!r}", 0))
        self.simulated_s = self._simulation.loop.time()
        for context in self._simulation.loop.unhandled:
            text = f"unhandled: {context.get('message')}: {context.get('exception')!r}"
            broken.append(Violation(CODE, text, 0))
        return broken

    async def _direct(self) -> str:
        """Play the run, and look at the nodes meanwhile. Returns a text on the part that is stuck,
        "" for none."""
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(self._gauges.run())]
            if self._options.loses_disks:
                others.append(tasks.create_task(self._losses.run()))
            stuck = await self._go_on()
            for other in others:
                other.cancel()
        return stuck

    async def _go_on(self) -> str:
        """Faults, then healing. Returns a text on the part that is stuck, "" for none."""
        hosts = (*self._producers, *self._readers, *self._members, LOOKER, TRIMMER, ASKER)
        injector = Injector(self._simulation, self._cluster, hosts, self.recorder, self._crew)
        for number in self._cluster.numbers:
            self._cluster.start(number)
        # A node that restarts asks main storage first, and the answers may be lost.
        lost_s = 2 * TRY_S if self._options.cluster.tier.store else 0.0
        async with asyncio.timeout(BOOT_S + lost_s):
            await self._cluster.wait_running()
        self._cluster.cut_off.update(self._options.cut_off)
        start_clients(self._crew, self.clients)
        start_s = self._simulation.loop.time()
        await injector.run(self.plan)
        left_s = start_s + self._options.length_s - self._simulation.loop.time()
        await asyncio.sleep(max(0.0, left_s))
        self.buggify.is_on = False
        self._cluster.heal_bucket()
        absent = self._options.absent
        if not await self._is_healed(injector, absent):
            return f"{BOOT_S:g} s after the healing not every node runs"
        self.recorder.faults_healed()
        self._gauges.all_well([n for n in self._cluster.numbers if n not in absent])
        await self._settle()
        self._gauges.all_well(())
        if absent:
            self.recorder.add(NodesBack(self.recorder.now_us, absent))
        if absent and not await self._is_healed(injector, ()):
            return f"{BOOT_S:g} s after their return not all of nodes {absent} run"
        if self._options.paced:
            chance = stream(self._simulation.seed, "pace")
            await measure_pace(self._cluster, self._crew, self.clients, chance)
        if self._options.loses_disks:
            await self._losses.wait_older()
        stuck = await self._drain()
        if self._options.cut_off and not stuck:
            await wait_uploaded(self._cluster, self.recorder, self._quiet_metadata("uploaded"))
        if not stuck:
            await self._losses.wait_given()
            await self._idle()
            self._note_words()
            stuck = await self._lose()
        if self._options.loses_disks:
            await self._losses.wait_healed()
        if self._options.faults.damage is Damage.WITHIN and self._options.heals:
            await wait_mended(self._cluster, self.recorder, self._quiet_metadata("mended"))
        if self._options.audited and not (stuck or self._options.heals):
            # Losses of nodes are scanned while the nodes still report them.
            await audit(self._crew, self.clients, "auditor-before")
        if self._options.accepts and not stuck:
            stuck = await accept_losses(self._cluster, self._crew, self.clients)
        if self._options.audited and not stuck:
            await audit(self._crew, self.clients)
        clients = self.clients
        await seek_logs(self._quiet_metadata("sought"), clients.recorder)
        # Appends to logs whose name changes are not recorded, see `name_clients`.
        noted = {*clients.log_ids.values()} if clients.options.callers else None
        await self._cluster.dump(noted)
        return stuck

    def _quiet_metadata(self, reader: str) -> MemoryMetadata:
        """The metadata store without its faults, for a look at the end."""
        return MemoryMetadata(stream(self._simulation.seed, reader), self._cluster.metadata.data)

    def _note_words(self) -> None:
        """Record the status that is still reported of nodes that run."""
        lost = {each.node for each in self._losses.rebuilding.lost}
        words = {n: node._members[n].authority for n, node in self._cluster.running.items()}
        left = [n for n in sorted(words) if n not in lost]
        said = tuple(n for n in left if words[n] is not Authority.FULLY_AUTHORITATIVE)
        if said:
            self.recorder.add(WordsLeft(self.recorder.now_us, said))

    async def _lose(self) -> str:
        """Lose nodes for ever, and have all remaining records read. Returns a text on the part
        that is stuck, "" for none."""
        kind, clients = self._options.loses, self.clients
        if not kind:
            return ""
        chance = stream(self._simulation.seed, "losses")
        readers = await lose_nodes(
            self._cluster, self._crew, clients, kind, chance,
            loses_events=self._options.loses_events,
        )  # fmt: skip
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._crew.wait(*readers)
        except TimeoutError:
            clients.giving_up = True
            return f"{DRAIN_S:g} s after nodes were lost not all that is left is read"
        return ""

    async def _is_healed(self, injector: Injector, absent: Sequence[NodeId]) -> bool:
        """Heal all except these nodes. Returns whether the others run in time."""
        try:
            async with asyncio.timeout(BOOT_S):
                await injector.heal(absent)
        except TimeoutError:
            return False
        return True

    async def _settle(self) -> None:
        """Let the workload go on, so that the promises that hold after the faults are checked."""
        settle_s = self._options.settle_s
        if self._options.must_count:
            # As many records as the run still needs: more show nothing new.
            burst = self.clients.burst = self._options.settle_burst
            enough = records_a_second(self._options.workload, burst) * settle_s
            wanted = (1 + SPARE_SHARE) * ACKED_MIN - self.clients.acked
            low, high = SLOWNESS
            self.clients.slowness = min(high, max(low, enough / max(1.0, wanted)))
        await asyncio.sleep(settle_s)
        most_s = SETTLES_MAX * settle_s if self._options.must_count else settle_s
        while settle_s < most_s and self.clients.acked < ACKED_MIN:
            await asyncio.sleep(SETTLE_STEP_S)
            settle_s += SETTLE_STEP_S
        self.clients.slowness, self.clients.burst = 1.0, self._options.workload.burst

    async def _idle(self) -> None:
        """Watch the work of idle nodes.

        Nodes are not idle if they look at their logs several times a second, and not once in some
        seconds or minutes as in production.
        """
        await asyncio.sleep(QUIET_S)
        cluster = self._options.cluster
        if cluster.tier.store and min(cluster.tier.look_s, cluster.storage.retention_every_s) < 1:
            return
        loop = self._simulation.loop
        before, since_s = loop.callbacks_run, loop.time()
        await asyncio.sleep(IDLE_S)
        nodes, callbacks = len(self._cluster.running), loop.callbacks_run - before
        self.recorder.idled(nodes, loop.time() - since_s, callbacks)

    async def _drain(self) -> str:
        """Let the workload end and the readers reach the tail. Returns a text on the part that is
        stuck, "" for none."""
        self.clients.stop()
        beyond = self._options.faults.damage is Damage.BEYOND
        drain_s = BEYOND_DRAIN_S if beyond else DRAIN_S
        stuck = ""
        try:
            async with asyncio.timeout(drain_s):
                await self._crew.wait(*self._producers, *self._members)
                self._crew.start(ASKER, partial(final_tails, ASKER, self.clients))
                await self._crew.wait(ASKER, *self._readers)
        except TimeoutError:
            stuck = f"not at the tail {drain_s:g} s after the workload ended: {self._where()}"
        if stuck:
            self.clients.giving_up = True
            await asyncio.sleep(BEYOND_DRAIN_S / 4)
        return stuck

    def _where(self) -> str:
        tails = ", ".join(f"log {log}: {Lsn(tail)}" for log, tail in self.clients.tails.items())
        return f"tails {tails or 'not known'}"
