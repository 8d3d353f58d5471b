"""A sweep over seeds: the task of each seed, its report, and the sum of the reports.

Source: docs/design.md §10; FoundationDB's unseed (docs/sources/reliability.md §4: 2 % run twice).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import shlex
from collections import Counter
from dataclasses import dataclass, field

from cordwood.errors import BadSetting
from cordwood.sim.fault_plan import Damage
from cordwood.sim.options import RunOptions, demo_options
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.probes import never_hit
from cordwood.sim.run import Outcome, run_seed
from cordwood.sim.streams import stream
from cordwood.sim.swarm import swarm_options
from cordwood.sim.task_pool import Lost
from cordwood.sim.tier_options import tiered
from cordwood.sim.verdict import violation_words

TWICE_SHARE = 0.02
"""Share of the seeds that run twice, to check that a seed always gives the same run."""

INVALID_SHARE_MAX = 0.1
"""If a larger share of the runs does not count, the sweep proves too little."""

INVALID_JUDGED_MIN = 20
"""In a sweep of fewer seeds, a run that does not count says nothing about the sweep."""

FULL_SEEDS = 1000
"""A sweep of the swarm over this many seeds is a full sweep. The rarest probe is hit by about one
seed of a hundred, so a probe that is never hit is a branch that nothing reaches."""


class Shape(enum.Enum):
    """The pattern from which a seed's options are drawn."""

    SWARM = "swarm"
    DEMO = "demo"
    """The demo's cluster, every time."""
    BEYOND = "beyond"
    """A swarm with faults that may destroy all copies of some records."""
    TIER = "tier"
    """A swarm with logs that are tiered into a misbehaving object store."""


@dataclass(frozen=True, slots=True)
class SeedTask:
    """One seed to run, as plain values for another process.

    Attributes:
        bug: a planted bug, "" for none.
        faults: numbers of the plan's faults to keep, from 1; None keeps all.
        twice: whether the seed runs twice although it was not drawn for that.
    """

    seed: int
    shape: Shape = Shape.SWARM
    bug: str = ""
    faults: tuple[int, ...] | None = None
    twice: bool = False

    @property
    def arguments(self) -> str:
        """The seed and options of `cordwood sim replay` and `shrink` for this task."""
        words = [str(self.seed)]
        if self.shape is not Shape.SWARM:
            words.append(f"--{self.shape.value}")
        if self.bug:
            words += ["--bug", self.bug]
        if self.faults is not None:
            words += ["--faults", ",".join(map(str, self.faults)) or "none"]
        return shlex.join(words)


def options_of(task: SeedTask) -> RunOptions:
    """The options of a task's run. The plan is drawn here if only some of its faults are kept.

    Raises:
        BadSetting: a fault to keep does not exist in the plan.
    """
    if task.shape is Shape.DEMO:
        options = demo_options(task.seed)
    else:
        damage = Damage.BEYOND if task.shape is Shape.BEYOND else None
        options = swarm_options(task.seed, damage)
        if task.shape is Shape.TIER:
            options = tiered(options, stream(task.seed, "tier"))
        if task.bug:
            options = find_bug(task.bug).scenario(options)
    if task.faults is None:
        return options
    plan = options.drawn_plan(task.seed)
    if any(not 1 <= number <= len(plan) for number in task.faults):
        raise BadSetting(f"the plan of seed {task.seed} has faults 1 to {len(plan)}")
    kept = tuple(plan[number - 1] for number in sorted(set(task.faults)))
    return dataclasses.replace(options, plan=kept)


def run_task(task: SeedTask) -> Outcome:
    """Run one task here, its bug planted."""
    options = options_of(task)
    if not task.bug:
        return run_seed(task.seed, options)
    with planted(find_bug(task.bug)):
        return run_seed(task.seed, options)


@dataclass(frozen=True, slots=True)
class SeedReport:
    """The report on a seed's run: plain values, which travel between processes.

    Attributes:
        broken: by promise, its violations in words with their evidence.
        twice: whether the seed ran a second time.
        diverged: whether the second run of the seed differed.
        cpu_s: of the simulation, 0 of a run that was lost.
    """

    task: SeedTask
    broken: tuple[tuple[str, str], ...]
    invalid: tuple[str, ...]
    trace_hash: str
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    acked: int = 0
    epochs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    twice: bool = False
    diverged: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether a promise was broken, or two runs of the seed differed."""
        return bool(self.broken) or self.diverged

    @property
    def invariants(self) -> tuple[str, ...]:
        """The broken promises, each once, in the order found."""
        return tuple(dict.fromkeys(invariant for invariant, _ in self.broken))


def runs_twice(task: SeedTask) -> bool:
    """Whether a task runs twice, to check that its seed always gives the same run."""
    return task.twice or stream(task.seed, "twice").random() < TWICE_SHARE


def report_task(task: SeedTask) -> SeedReport:
    """Run a task, twice if its seed was drawn for that, and report."""
    outcome = run_task(task)
    twice = runs_twice(task)
    diverged = twice and run_task(task).trace_hash != outcome.trace_hash
    return report_of(task, outcome, twice=twice, diverged=diverged)


def report_of(
    task: SeedTask, outcome: Outcome, *, twice: bool = False, diverged: bool = False
) -> SeedReport:
    """The report on an outcome."""
    return SeedReport(
        task=task,
        broken=tuple((v.invariant, violation_words(v)) for v in outcome.violations),
        invalid=outcome.invalid,
        trace_hash=outcome.trace_hash,
        simulated_s=outcome.simulated_s,
        cpu_s=outcome.cpu_s,
        acked=outcome.acked,
        epochs=outcome.epochs,
        faults=Counter(outcome.faults),
        probes=outcome.probes,
        twice=twice,
        diverged=diverged,
    )


def lost_report(task: SeedTask, lost: Lost) -> SeedReport:
    """The report on a run that gave no outcome."""
    return SeedReport(task, (("code", f"the run was lost: {lost}"),), (), "")


@dataclass(slots=True)
class SweepTotals:
    """The sum of reports.

    Attributes:
        failed: reports of seeds that failed, in the order they came.
        invalid: by reason, the number of runs that did not count.
    """

    seeds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    records: int = 0
    epochs: int = 0
    twice: int = 0
    diverged: int = 0
    invalid_seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    invalid: Counter[str] = field(default_factory=Counter)
    failed: list[SeedReport] = field(default_factory=list)

    def add(self, report: SeedReport) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.simulated_s += report.simulated_s
        self.cpu_s += report.cpu_s
        self.records += report.acked
        self.epochs += report.epochs
        self.faults += report.faults
        self.probes += report.probes
        self.twice += report.twice
        self.diverged += report.diverged
        if report.invalid and not report.has_failed:
            self.invalid_seeds += 1
            self.invalid.update(_without_numbers(reason) for reason in report.invalid)
        if report.has_failed:
            self.failed.append(report)

    @property
    def ratio(self) -> float:
        """Simulated seconds for each second of one core."""
        return self.simulated_s / self.cpu_s if self.cpu_s else 0.0

    @property
    def proves_too_little(self) -> bool:
        """Whether too many of the runs did not count."""
        enough = self.seeds >= INVALID_JUDGED_MIN
        return enough and self.invalid_seeds > INVALID_SHARE_MAX * self.seeds

    def is_full(self, pattern: SeedTask) -> bool:
        """Whether a sweep of `pattern` should have hit every probe by now."""
        is_swarm = pattern.shape is Shape.SWARM and not pattern.bug and pattern.faults is None
        return is_swarm and self.seeds >= FULL_SEEDS

    @property
    def never_hit(self) -> list[str]:
        """Probes that no seed reached."""
        return never_hit(self.probes)


def _without_numbers(reason: str) -> str:
    """The general form of a reason: runs differ only in how far they missed."""
    words = (("N" if word[:1].isdigit() else word) for word in reason.split())
    return " ".join(word for word, _ in itertools.groupby(words))
