"""One scenario of an application on a simulated cluster, and the verdict on the cluster.

The scenario judges the application; this module judges Cordwood. When the scenario is over, it
heals everything, reads every log to its tail and every disk, and gives the history of the recorded
clients to the checkers.

Source: docs/design.md §10; docs/simulator.md, "Testing your application".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import cordwood
from cordwood.errors import BadSetting, CordwoodError
from cordwood.lsn import Lsn
from cordwood.nodes import Replication
from cordwood.settings import ClientSettings
from cordwood.sim.checkers import Violation, check_all
from cordwood.sim.cluster import ClusterOptions, SimCluster
from cordwood.sim.fault_plan import (
    CLIENT_KINDS,
    KINDS,
    Damage,
    Fault,
    FaultOptions,
    draw_plan,
)
from cordwood.sim.history import Event
from cordwood.sim.host import Simulation
from cordwood.sim.streams import stream
from cordwood.sim.verdict import violation_words
from cordwood.testing.record import Recording
from cordwood.testing.simulated_cluster import SimulatedCluster

Scenario = Callable[[SimulatedCluster], Awaitable[Any]]

LIMIT_S = 600.0
"""Simulated seconds a scenario may take: past ten minutes it most likely waits for
something that cannot come."""

FAULTS_S = 30.0
"""How long a drawn plan goes on: some seven faults, and a second of real time or two."""

ACQUAINTED_S = 0.5
"""Beyond the nodes' own period, for that read and for the connections made after it."""

LAST_LOOK_S = 60.0
"""Simulated seconds for healing and for reading every log once more."""

STORY_LINES_MAX = 40
"""Lines of the story shown for a failed run: the last faults matter most."""

VIOLATIONS_SHOWN_MAX = 5
"""One defect breaks a promise again and again; the history has them all."""


class BrokenPromise(AssertionError):
    """Cordwood broke a promise while the scenario ran.

    Attributes:
        violations: which, and the events that show it.
    """

    def __init__(self, violations: Sequence[Violation]) -> None:
        shown = "\n".join(violation_words(each) for each in violations[:VIOLATIONS_SHOWN_MAX])
        more = len(violations) - VIOLATIONS_SHOWN_MAX
        tail = f"\nand {more} more" if more > 0 else ""
        super().__init__(f"the cluster broke {len(violations)} promises:\n{shown}{tail}")
        self.violations = tuple(violations)


class EndlessScenario(TimeoutError):
    """The scenario took more simulated seconds than it may; the cause shows where it was."""


class ScenarioRun:
    """One run of one scenario with one seed.

    Args:
        seed: of everything: schedule, network, disks, faults, and `random`.
        nodes: how many; by default three copies over two racks, as far as they go.
        options: the whole shape of the cluster, in place of `nodes`.
        faults: True draws a plan of faults from the seed; options limit the drawn faults (add
            `CLIENT_KINDS` to `KINDS` to kill applications too); a plan is played unchanged. Faults
            strike while the scenario runs.
        faults_s: how long a drawn plan goes on.
        limit_s: simulated seconds that the scenario may take.
        settings: of clients that do not bring their own.

    Attributes:
        history: the observations of the recorded clients, once `run` has ended.
        story: the actions on the cluster: simulated seconds, and words.
        violations: broken promises.
        trace_hash: equal for equal seeds and code; "" before the end.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 1,
        nodes: int = 5,
        options: ClusterOptions | None = None,
        faults: bool | FaultOptions | Sequence[Fault] = False,
        faults_s: float = FAULTS_S,
        limit_s: float = LIMIT_S,
        settings: ClientSettings | None = None,
    ) -> None:
        self.seed = seed
        self.history: tuple[Event, ...] = ()
        self.story: list[tuple[float, str]] = []
        self.violations: tuple[Violation, ...] = ()
        self.trace_hash = ""
        self._scenario = scenario
        self._options = options or _shape(nodes)
        self._faults = faults
        self._faults_s = faults_s
        self._limit_s = limit_s
        self._settings = settings or ClientSettings()

    def run(self) -> Any:
        """Run it to its end; returns the scenario's result.

        Raises:
            BrokenPromise: the cluster broke a promise.
            EndlessScenario: it took more than `limit_s` simulated seconds.
            BadSetting: this was called from a running event loop.
            BaseException: an error of the scenario or of its application; the notes have the seed
                and the story.
        """
        __tracebackhide__ = True
        if asyncio._get_running_loop() is not None:
            raise BadSetting("a simulation runs its own event loop: call it from a plain `def`")
        simulation = Simulation(self.seed)
        chance = random.getstate()
        # Chance that an application takes from the module is the seed's too.
        random.seed(stream(self.seed, "application").getrandbits(64))
        try:
            try:
                result = simulation.run(self._direct)
            finally:
                self.violations += _unhandled(simulation)
            if self.violations:
                raise BrokenPromise(self.violations)
            return result
        except BaseException as error:
            error.add_note(self._note(error))
            verdict = isinstance(error, BrokenPromise | EndlessScenario)
            error.__traceback__ = None if verdict else _from_scenario(error.__traceback__)
            raise
        finally:
            random.setstate(chance)
            self.trace_hash = simulation.trace_hash()

    def _plan(self, simulation: Simulation, cluster: SimCluster) -> Sequence[Fault]:
        """The faults of this run, empty for none.

        Raises:
            BadSetting: an unknown kind, or a kind that destroys stored data: a scenario cannot
                declare yet which losses are fair.
        """
        if isinstance(self._faults, Sequence):
            return _checked(self._faults)
        if self._faults is False:
            return ()
        options = FaultOptions() if self._faults is True else self._faults
        if options.damage is not Damage.NONE:
            raise BadSetting("a scenario cannot have faults that destroy stored data")
        drawn = draw_plan(options, cluster.numbers, self._faults_s, simulation.faults)
        # Every plan has deaths of sequencers, so that epochs are crossed; here only if asked.
        return _checked([fault for fault in drawn if fault.kind in options.kinds])

    async def _direct(self, simulation: Simulation) -> Any:
        replication = self._options.replication
        recording = Recording(
            lambda: round(simulation.loop.time() * 1e6),
            copies=replication.copies,
            racks=replication.racks,
            wider=dict(replication.wider),
            seed=self.seed,
        )
        cluster = SimCluster(simulation, self._options, recording.history)
        for number in cluster.numbers:
            cluster.start(number)
        await cluster.wait_running()
        # The first nodes hear of the last ones when they next read the member list.
        await asyncio.sleep(self._options.refresh_s + ACQUAINTED_S)
        result = None
        try:
            result = await self._play(simulation, cluster, recording)
        finally:
            self.history = recording.history.events
            self.violations = tuple(check_all(self.history))
        return result

    async def _play(self, simulation: Simulation, cluster: SimCluster, recording: Recording) -> Any:
        users: SimulatedCluster | None = None
        limit = asyncio.timeout(self._limit_s)
        try:
            async with limit, asyncio.TaskGroup() as tasks:
                users = SimulatedCluster(simulation, cluster, recording, self._settings, tasks)
                plan = self._plan(simulation, cluster)
                if plan:
                    users.play(plan)
                result = await self._scenario(users)
                await users.stop()
            await _last_look(users, cluster, recording)
            return result
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        except TimeoutError as error:
            if not limit.expired():
                raise
            text = f"the scenario had not ended after {self._limit_s:g} simulated seconds"
            cut_short = error.__cause__
            if cut_short is not None:
                cut_short.__traceback__ = _from_scenario(cut_short.__traceback__)
            raise EndlessScenario(text) from cut_short
        finally:
            if users is not None:
                self.story = users.full_story

    def _note(self, error: BaseException) -> str:
        lines = [f"simulated with seed {self.seed}; what happened to the cluster:"]
        lines += [f"{at_s:10.3f} s  {text}" for at_s, text in self.story[-STORY_LINES_MAX:]]
        if not self.story:
            lines.append("    nothing")
        if self.violations and not isinstance(error, BrokenPromise):
            lines.append(str(BrokenPromise(self.violations)))
        return "\n".join(lines)


def simulate(scenario: Scenario, **options: Any) -> ScenarioRun:
    """Run a scenario once, outside of pytest; see `ScenarioRun` for options and errors."""
    run = ScenarioRun(scenario, **options)
    run.run()
    return run


async def _last_look(users: SimulatedCluster, cluster: SimCluster, recording: Recording) -> None:
    """Heal, read every log from its start to its tail, and look at every disk.

    Raises:
        BrokenPromise: that failed, or took more than LAST_LOOK_S.
    """
    where = "healing"
    try:
        async with asyncio.timeout(LAST_LOOK_S):
            await users.heal()
            store = await users.check_reader()
            for log, name in sorted(recording.logs.items()):
                where = f"{name} (log {log})"
                tail = await store.tail(name)
                async for item in await store.read(name, "oldest", tail):
                    where = f"{name} (log {log}), {Lsn(getattr(item, 'lsn', 0))} of {tail}"
            await store.close()
    except TimeoutError:
        text = f"no end within {LAST_LOOK_S:g} s of the healing: {where}"
        raise BrokenPromise([Violation("L2", text, 0)]) from None
    except CordwoodError as error:
        text = f"{where} cannot be read after the healing: {error!r}"
        raise BrokenPromise([Violation("L2", text, 0)]) from error
    await cluster.dump()


def _shape(nodes: int) -> ClusterOptions:
    """Three racks and three copies over two of them, or as many as the nodes allow."""
    racks = min(3, nodes)
    copies = min(3, nodes)
    return ClusterOptions(
        nodes=nodes, racks=racks, replication=Replication(copies, min(2, racks, copies))
    )


def _checked(plan: Sequence[Fault]) -> Sequence[Fault]:
    for fault in plan:
        if fault.kind not in (*KINDS, *CLIENT_KINDS):
            raise BadSetting(f"a scenario cannot have faults of kind {fault.kind!r}")
    return plan


def _unhandled(simulation: Simulation) -> tuple[Violation, ...]:
    """Errors of tasks that no code awaited."""
    return tuple(
        Violation("code", f"unhandled: {context.get('message')}: {context.get('exception')!r}", 0)
        for context in simulation.loop.unhandled
    )


def _from_scenario(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside Cordwood and the event loop.

    The whole traceback if all frames are inside: then the failure is inside Cordwood.
    """
    ours = (str(Path(cordwood.__file__).parent), str(Path(asyncio.__file__).parent))
    found = traceback
    while found is not None and found.tb_frame.f_code.co_filename.startswith(ours):
        found = found.tb_next
    return found or traceback
