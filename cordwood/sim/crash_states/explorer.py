"""Runs code, crashes it in every way, starts it again on what is left, and crashes that.

A *subject* is the code under test with what it promises. Each of its *lives* starts on
a disk, compares what is there with what was promised before, and goes on for a while.
The first starts on an empty disk; every state of its log is the start of another life,
and of some of those lives' logs the states are gone through in turn: that is the crash
during a recovery, and the crash after one.

Everything follows from the subject and the seed, so a broken promise is found again by
running them again; its text tells the crashes that led to it.

Source: docs/sources/reliability.md §5.4 ("recovery is idempotent: crash during recovery too").
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from cordwood.errors import CordwoodError
from cordwood.host.seams import Disk, Host
from cordwood.sim.crash_states.disk_log import DiskLog
from cordwood.sim.crash_states.enumerate import CrashCount, CrashState, CrashStates
from cordwood.sim.crash_states.fates import Tearing
from cordwood.sim.crash_states.recorder import RecordingDisk
from cordwood.sim.disk import SimDisk
from cordwood.sim.host import SimClock, SimRunBlocking, Simulation
from cordwood.sim.process import Process

LIFE_S_MAX = 600.0
"""Virtual seconds: a life takes milliseconds, so one that takes this long hangs."""

SETTLE_S = 1.0
"""After a life, so that what is in flight has ended: a disk takes milliseconds."""


class Promised(Protocol):
    """What one disk must, may and must not hold; a value."""

    def after(self, facts: Sequence[object]) -> Self:
        """The same once these facts are known too."""


class PromiseBroken(AssertionError):
    """A crash left what no promise allows, or what could not be started from."""


Promises = TypeVar("Promises", bound=Promised)


@dataclass(frozen=True, slots=True)
class Life:
    """Where and how long one life goes on.

    Attributes:
        disk: what it starts on; all that it does there is recorded.
        log: where it marks facts for whoever starts after it.
        chance: its own stream.
        steps: how many things to do after the start.
        simulation: for a subject that needs more of a machine than its disk.
        probes: counts rare things that happened, by name: what never happens is not tested.
        has_rot: bits flipped in what was durable: it may be missed, if that is told.
    """

    disk: Disk
    log: DiskLog
    chance: random.Random
    steps: int
    simulation: Simulation
    probes: Counter[str]
    has_rot: bool = False

    def host(self, process: Process) -> Host:
        """The machine that `process` runs on, with this life's disk and chance."""
        return Host(
            clock=SimClock(self.simulation.loop),
            network=self.simulation.network.host("node-1", process),
            disk=self.disk,
            random=self.chance,
            run_blocking=SimRunBlocking(self.chance),
        )


class Subject(Protocol[Promises]):
    """Code under test."""

    @property
    def name(self) -> str:
        """For reports."""

    def nothing_promised(self) -> Promises:
        """What an empty disk must hold."""

    async def live(self, life: Life, promised: Promises) -> None:
        """Start on the disk, compare with `promised`, go on for `life.steps`.

        Raises:
            PromiseBroken: something is missing, or there and should not be.
        """


@dataclass(frozen=True, slots=True)
class Effort:
    """How far to go, by depth: the first entry is of the first life and its crashes.

    Attributes:
        steps: things that a life does after its start, if it will be crashed.
        per_point: states of one crash point at most.
        share: of the lives that start at a state, those that are crashed in turn. The
            others only start.
        tearing: how writes are torn.
        rot: of the states, those that a subject which knows rot starts from once more, with bits
            flipped in what was durable for sure.
    """

    steps: tuple[int, ...] = (40, 4, 3)
    per_point: tuple[int, ...] = (8, 6, 4)
    share: tuple[float, ...] = (0.03, 0.02, 0.0)
    tearing: Tearing = field(default_factory=Tearing)
    rot: float = 0.25


@dataclass(slots=True)
class Found:
    """What one exploration went through.

    Attributes:
        counts: by depth: of the first life's log, of the logs of lives after a crash, ….
        probes: rare things that happened, by name.
        rotten: states that were started from once more with bits flipped.
    """

    counts: list[CrashCount] = field(default_factory=list)
    probes: Counter[str] = field(default_factory=Counter)
    rotten: int = 0

    @property
    def states(self) -> int:
        """States that were started from, over all depths, those with flipped bits too."""
        return sum(count.states for count in self.counts) + self.rotten

    def add(self, other: Found) -> None:
        """Sum up."""
        for depth, count in enumerate(other.counts):
            self.at(depth).add(count)
        self.probes.update(other.probes)
        self.rotten += other.rotten

    def at(self, depth: int) -> CrashCount:
        """The count of one depth, from 0."""
        while len(self.counts) <= depth:
            self.counts.append(CrashCount())
        return self.counts[depth]


def explore(subject: Subject[Promises], seed: int, effort: Effort | None = None) -> Found:
    """One first life of `subject`, and the states of its crashes.

    Raises:
        PromiseBroken: with the story of the crashes and what came of them.
    """
    explorer = Explorer(subject, seed, effort if effort is not None else Effort())
    Simulation(seed).run(explorer.run)
    return explorer.found


class Explorer(Generic[Promises]):
    """See `explore`."""

    def __init__(self, subject: Subject[Promises], seed: int, effort: Effort) -> None:
        self.found = Found()
        self._subject = subject
        self._effort = effort
        self._seed = seed
        self._chance = random.Random(seed)
        self._rot_chance = random.Random(f"rot {seed}")

    async def run(self, simulation: Simulation) -> None:
        """Live once, then crash it."""
        nothing = self._subject.nothing_promised()
        log = DiskLog()
        start = f"{self._subject.name} seed {self._seed}"
        disk = SimDisk(simulation.loop, self._draw())
        await self._live(simulation, disk, log, nothing, self._effort.steps[0], start)
        await self._crash(simulation, log, nothing, 0, start)

    async def _crash(
        self, simulation: Simulation, log: DiskLog, before: Promises, depth: int, story: str
    ) -> None:
        effort = self._effort
        states = CrashStates(
            log,
            tearing=effort.tearing,
            per_point=effort.per_point[depth],
            chance=self._draw(),
        )
        facts: Sequence[object] | None = None
        promised = before
        for state in states:
            if state.facts is not facts:
                facts = state.facts
                promised = before.after(facts)
            told = f"{story}\n  {state.story()}"
            again = DiskLog(state.content)
            goes_on = self._chance.random() < effort.share[depth]
            steps = effort.steps[depth + 1] if goes_on else 0
            disk = self._disk(simulation, state)
            await self._live(simulation, disk, again, promised, steps, told)
            await self._rot(simulation, state, promised, told)
            if goes_on:
                await self._crash(simulation, again, promised, depth + 1, told)
        self.found.at(depth).add(states.count)

    async def _rot(
        self, simulation: Simulation, state: CrashState, promised: Promises, told: str
    ) -> None:
        """Start from a state once more, now and then, with bits flipped on its disk."""
        rot = getattr(self._subject, "rot", None)
        if rot is None or self._rot_chance.random() >= self._effort.rot:
            return
        chance = random.Random(self._rot_chance.getrandbits(64))
        disk = SimDisk(simulation.loop, chance)
        disk.tree = state.tree()
        if rot(disk, chance):
            self.found.rotten += 1
            story = f"{told}; and bits flipped in what was durable"
            log = DiskLog(state.content)
            await self._live(simulation, disk, log, promised, 0, story, rot_chance=chance)

    async def _live(
        self,
        simulation: Simulation,
        disk: SimDisk,
        log: DiskLog,
        promised: Promises,
        steps: int,
        story: str,
        rot_chance: random.Random | None = None,
    ) -> None:
        recording = RecordingDisk(disk.host(Process("life")), log)
        chance = rot_chance or self._draw()
        has_rot = rot_chance is not None
        life = Life(recording, log, chance, steps, simulation, self.found.probes, has_rot)
        try:
            async with asyncio.timeout(LIFE_S_MAX):
                await self._subject.live(life, promised)
                await asyncio.sleep(SETTLE_S)
        except (CordwoodError, OSError, AssertionError) as error:
            raise PromiseBroken(f"{type(error).__name__}: {error}\n{story}") from error

    def _disk(self, simulation: Simulation, state: CrashState) -> SimDisk:
        disk = SimDisk(simulation.loop, self._draw())
        disk.tree = state.tree()
        return disk

    def _draw(self) -> random.Random:
        return random.Random(self._chance.getrandbits(64))
