"""Crash states by the thousand, within a given time.

Seeds go round the subjects. Every few seeds the effort changes: long lives with some states of each
crash point, or short lives with many states.

Source: docs/sources/reliability.md §5.4 (at least 100,000 states a run) and §6.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from cordwood.sim.crash_states.engine_subject import EngineSubject
from cordwood.sim.crash_states.explorer import Effort, Found, PromiseBroken, Subject, explore
from cordwood.sim.crash_states.node_subject import NodeSubject
from cordwood.sim.crash_states.staging_subject import StagingSubject
from cordwood.sim.crash_states.wal_subject import WalSubject

SUBJECTS: tuple[Subject[Any], ...] = (
    WalSubject(), EngineSubject(), NodeSubject(), StagingSubject(),
)  # fmt: skip

WIDE = Effort()
DEEP = Effort(steps=(6, 3, 2), per_point=(400, 8, 4), share=(0.02, 0.02, 0.0))
"""Short lives, in which all fates of one or two open writes are combined."""

EFFORTS = (WIDE, WIDE, WIDE, DEEP)

PROBES = (
    "a first start",
    "a WAL without an identity",
    "a start wrote its claim and made none",
    "a start had claimed the node",
    "how far the WAL had come was noted",
    "records across the ring's end",
    "the window grew",
    "the ring was full",
    "holes were passed",
    "holes were told",
    "closed well",
    "a record not acknowledged came back",
    "one not acknowledged did not",
    "a trim not answered was kept",
    "a trim not answered was lost",
    "a store not settled came back",
    "a store not settled did not",
    "a store was refused: sealed",
    "a store was refused: full",
    "a seal was answered after stores in flight",
    "a seal not answered held",
    "an amend was stored",
    "an amend came back",
    "a store was refused: not_held",
    "an end was answered",
    "an end was told below the node's own LNG",
    "an end not answered held",
    "a flush was done",
    "LogsDB held blocks",
    "LogsDB had several partitions",
    "the WAL held what LogsDB had",
    "a trim was answered",
    "a partition was dropped",
    "a partition was cut",
    "rot was told",
    "rot in LogsDB was told",
    "rot in metadata was told",
    "a staged block came back",
    "a pin came back",
    "LogsDB held staged blocks",
    "an operation on a staged block was in doubt",
)
"""Events that a sweep of some length must have met; otherwise it proves less than it claims."""

FULL_STATES = 100_000
"""A sweep of this many states is a full sweep: a probe that it never hit counts as a failure."""


@dataclass(slots=True)
class Swept:
    """The result of a sweep.

    Attributes:
        found: counts and probes, by subject.
        seconds: of real time.
        problem: the first broken promise and its story; "" for none.
        failed: the seed that broke it.
    """

    found: dict[str, Found] = field(default_factory=dict)
    seconds: float = 0.0
    problem: str = ""
    failed: int | None = None

    @property
    def states(self) -> int:
        """Number of starts from a state."""
        return sum(found.states for found in self.found.values())

    @property
    def hit(self) -> set[str]:
        """Probes that were hit."""
        return {
            name for found in self.found.values() for name, times in found.probes.items() if times
        }

    def missed(self) -> list[str]:
        """Probes that were not hit."""
        hit = self.hit
        return [name for name in PROBES if name not in hit]

    def report(self) -> str:
        """A few lines for a person."""
        lines = [f"{self.states:,} crash states in {self.seconds:.0f} s"]
        for name, found in sorted(self.found.items()):
            depths = ", ".join(f"{count.states:,}" for count in found.counts)
            points = sum(count.points for count in found.counts)
            whole = sum(count.whole_points for count in found.counts)
            rotten = f", {found.rotten:,} with flipped bits" if found.rotten else ""
            lines.append(
                f"  {name}: {depths} states by depth{rotten}; {points:,} crash points, "
                f"{whole:,} with every combination"
            )
        lines += [f"  never happened: {name}" for name in self.missed()]
        return "\n".join(lines + ([self.problem] if self.problem else []))


def effort_of(seed: int) -> Effort:
    """The effort of a seed, the same when it runs again."""
    return EFFORTS[seed // len(SUBJECTS) % len(EFFORTS)]


def subject_of(seed: int) -> Subject[Any]:
    """What a seed tries."""
    return SUBJECTS[seed % len(SUBJECTS)]


def run_seed(seed: int) -> Found:
    """One seed of a sweep, again.

    Raises:
        PromiseBroken: as in the sweep.
    """
    return explore(subject_of(seed), seed, effort_of(seed))


def sweep(seconds: float, seed: int, *, states_max: int | None = None) -> Swept:
    """Explore seeds from `seed` on until `seconds` are over, or a promise is broken.

    Args:
        seconds: of real time; the last seed is finished, which takes a second or two.
        states_max: stop after this many starts from a state.
    """
    swept = Swept()
    start = time.perf_counter()
    while not swept.problem:
        subject = subject_of(seed)
        try:
            swept.found.setdefault(subject.name, Found()).add(run_seed(seed))
        except PromiseBroken as error:
            swept.problem, swept.failed = f"seed {seed}: {error}", seed
        seed += 1
        swept.seconds = time.perf_counter() - start
        if swept.seconds >= seconds or (states_max is not None and swept.states >= states_max):
            break
    return swept
