"""Runs code, crashes it in every way, restarts it on the crash state, and crashes it again.

A *subject* is the code under test with its promises. Each of its *lives* starts on a disk, compares
the content with the promises made before, and goes on for a while. The first life starts on an
empty disk. Every state of its log is the start of another life. Some of those lives are crashed in
turn: these are crashes during a recovery and after one.

Everything follows from the subject and the seed, so running them again finds a broken promise
again. Its text tells the crashes that led to it.

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
"""Virtual seconds: a life takes milliseconds, so a life that takes this long hangs."""

SETTLE_S = 1.0
"""Wait after a life until operations in flight have ended: a disk takes milliseconds."""


class Promised(Protocol):
    """The records that one disk must, may and must not hold; a value."""

    def after(self, facts: Sequence[object]) -> Self:
        """The promises after these further facts."""


class PromiseBroken(AssertionError):
    """A crash left a state that no promise allows, or from which the code could not start."""


Promises = TypeVar("Promises", bound=Promised)


@dataclass(frozen=True, slots=True)
class Life:
    """The disk and the length of one life.

    Attributes:
        disk: the disk on which it starts; all its operations are recorded.
        log: the log in which it marks facts for later lives.
        chance: its own stream.
        steps: number of steps after the start.
        simulation: for a subject that needs more of a machine than its disk.
        probes: counts of rare events, by name: an event that never happens is not tested.
        has_rot: whether bits flipped in durable data, which may then be missing if this is
            reported.
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
        run_blocking = SimRunBlocking(self.chance)
        return Host(
            clock=SimClock(self.simulation.loop),
            network=self.simulation.network.host("node-1", process),
            disk=self.disk,
            random=self.chance,
            run_blocking=run_blocking,
            run_calculation=run_blocking,
        )


class Subject(Protocol[Promises]):
    """Code under test."""

    @property
    def name(self) -> str:
        """The name in reports."""

    def nothing_promised(self) -> Promises:
        """The promises of an empty disk."""

    async def live(self, life: Life, promised: Promises) -> None:
        """Start on the disk, compare with `promised`, go on for `life.steps`.

        Raises:
            PromiseBroken: a record is missing, or is there and must not be.
        """


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort by depth: the first entry is for the first life and its crashes.

    Attributes:
        steps: steps of a life after its start, if it will be crashed.
        per_point: most states of one crash point.
        share: share of the lives starting at a state that are crashed in turn. The others only
            start.
        tearing: how writes are torn.
        rot: share of the states from which a subject that handles rot starts once more, with bits
            flipped in data that was certainly durable.
    """

    steps: tuple[int, ...] = (40, 4, 3)
    per_point: tuple[int, ...] = (8, 6, 4)
    share: tuple[float, ...] = (0.03, 0.02, 0.0)
    tearing: Tearing = field(default_factory=Tearing)
    rot: float = 0.25


@dataclass(slots=True)
class Found:
    """The counts of one exploration.

    Attributes:
        counts: by depth: of the first life's log, of the logs of lives after a crash, ….
        probes: counts of rare events, by name.
        rotten: number of second starts from a state with flipped bits.
    """

    counts: list[CrashCount] = field(default_factory=list)
    probes: Counter[str] = field(default_factory=Counter)
    rotten: int = 0

    @property
    def states(self) -> int:
        """Number of starts from a state, over all depths, including those with flipped bits."""
        return sum(count.states for count in self.counts) + self.rotten

    def add(self, other: Found) -> None:
        """Add the counts of another exploration."""
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
        PromiseBroken: with the story of the crashes and their effect.
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
