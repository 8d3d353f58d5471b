"""What `cordwood sim run`, `replay`, `shrink` and `bugs` do and print.

Loaded by the command line on first use. Seeds run in worker processes. The machine cannot influence
a simulation, so a seed gives the same run everywhere.

Source: docs/design.md §10, §11.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cordwood.errors import BadSetting
from cordwood.sim.crash_states.planted import CRASH_BUGS, story_of
from cordwood.sim.fault_plan import Fault
from cordwood.sim.history import to_jsonl
from cordwood.sim.knobs import value_text
from cordwood.sim.planted import PLANTED_BUGS, find_bug
from cordwood.sim.planted.search import (
    BugSearch,
    bugs_markdown,
    bugs_table,
    known_seeds,
    next_search,
)
from cordwood.sim.probes import PROBES
from cordwood.sim.replay import listened, quiet_run, telling
from cordwood.sim.run import Outcome
from cordwood.sim.shrink import shrink as smaller_plans
from cordwood.sim.story import parse_trace, tell, timeline
from cordwood.sim.sweep import (
    INVALID_SHARE_MAX,
    SeedReport,
    SeedTask,
    SweepTotals,
    lost_report,
    options_of,
    report_task,
    run_task,
)
from cordwood.sim.task_pool import Lost, TaskPool
from cordwood.sim.verdict import violation_words

MINUTES = 1.0
"""Real time of a sweep for which neither seeds nor minutes were given."""

SEED_TIMEOUT_S = 180.0
"""Real seconds of one seed: most take one or two, so a seed that takes longer hangs."""

SEED_MAX = 1 << 31
"""Drawn seeds are lower than this, so that a person can type them."""

FAILURES_MAX = 20
"""A sweep ends after this many failed seeds: more of the same bug tells nothing new."""

VIOLATIONS_SHOWN = 3
"""Violations shown of one seed in a sweep; its replay shows all."""

PROBES_TOLD_SEEDS = 20
"""In a sweep of fewer seeds, a probe that was not hit usually means nothing."""

NEWS_EVERY_S = 60.0
"""Between two lines of progress, where no terminal shows it live."""

PIPE_COLUMNS = 160
"""Width of output that goes to a program or a file and not to a terminal."""


def run(
    seeds: int | None,
    seed: int | None,
    minutes: float | None,
    jobs: int,
    as_json: bool,
    *,
    task: SeedTask | None = None,
    require_probes: bool = False,
) -> int:
    """Sweep seeds; 1 if a promise broke, a run was not repeatable, or too few runs counted.

    Args:
        seeds: stop after this number of seeds.
        seed: the first seed; None draws it, and prints it.
        minutes: stop after this much real time; one minute if neither is given.
        jobs: seeds at a time.
        as_json: print one JSON object and nothing else.
        task: what to run for every seed; its own seed is not used.
        require_probes: fail if a probe was never hit; a full sweep always does.
    """
    pattern = task or SeedTask(0)
    first = secrets.randbelow(SEED_MAX) if seed is None else seed
    if seeds is None and minutes is None:
        minutes = MINUTES
    say = _Say(as_json)
    say(f"seeds from {first}, {jobs} at a time" + (f", {minutes:g} min" if minutes else ""))
    started = time.monotonic()
    totals = SweepTotals()
    news_at = started + NEWS_EVERY_S
    with say.live(lambda: _progress(totals, started)):
        for report in _sweep(pattern, first, seeds, minutes, jobs):
            totals.add(report)
            if report.has_failed:
                say.failure(report)
            if not say.is_live and time.monotonic() >= news_at:
                say.plain(_progress(totals, started).plain)
                news_at += NEWS_EVERY_S
            if len(totals.failed) >= FAILURES_MAX:
                break
    real_s = time.monotonic() - started
    return _verdict(totals, first, real_s, require_probes or totals.is_full(pattern), say)


def replay(
    task: SeedTask,
    *,
    until_s: float | None = None,
    trace: str = "",
    log: int | None = None,
    logs: bool = False,
    history: str = "",
    as_json: bool = False,
) -> int:
    """Run one seed again and tell its story; 1 if it breaks a promise.

    Args:
        until_s: simulated seconds after which the story stops.
        trace: `e7` or `e7n123`, to tell the story of this epoch or record and not the cluster's.
        log: the number of the only log to look at.
        logs: also show what nodes and clients log.
        history: where to write the history, for `cordwood verify`; "" for nowhere.
        as_json: the story on standard error, and one JSON object on standard output.
    Raises:
        BadSetting: the bug or fault does not exist, or `trace` cannot be read.
    """
    wanted = parse_trace(trace) if trace else None
    say = _Say(as_json)
    _show_options(task, say)
    with telling(say.plain, until_s) if logs else quiet_run(), listened() as decided:
        outcome = run_task(task)
    until_us = None if until_s is None else round(until_s * 1e6)
    lines = (
        timeline(outcome.history, until_us)
        if wanted is None
        else tell(outcome.history, wanted, log, until_us, decided)
    )
    say.plain("")
    for line in lines:
        say.plain(line)
    say.plain("")
    if history:
        Path(history).write_bytes(to_jsonl(outcome.history))
        say(f"its history is in {history}: cordwood verify {shlex.quote(history)}")
    if as_json:
        say.json(_plain_outcome(outcome, task))
    return _show_outcome(outcome, say)


def shrink(task: SeedTask, invariant: str = "", *, as_json: bool = False) -> int:
    """Find fewer faults that break the same promise; 1 if the seed breaks no promise.

    Args:
        invariant: which promise, where the seed breaks several; the first by default.
        as_json: the steps on standard error, and one JSON object on standard output.
    Raises:
        BadSetting: no such bug or fault.
    """
    say = _Say(as_json)
    with quiet_run():
        whole = report_task(task)
        if not whole.broken:
            say(f"seed {task.seed} breaks nothing: there is nothing to shrink")
            return 1
        promise = invariant or whole.invariants[0]
        if promise not in whole.invariants:
            say(f"seed {task.seed} does not break {promise}, but {', '.join(whole.invariants)}")
            return 1
        plan = options_of(dataclasses.replace(task, faults=None)).drawn_plan(task.seed)
        best = task.faults if task.faults is not None else tuple(range(1, len(plan) + 1))
        say(f"seed {task.seed} breaks {promise} with {len(best)} faults")
        for step in smaller_plans(task, promise):
            if step.breaks:
                best = step.faults
            kept = "still broken" if step.breaks else "kept"
            say(f"  {len(step.faults):3} faults: {promise} {kept}")
    smallest = dataclasses.replace(task, faults=best)
    _show_faults(plan, best, say)
    with quiet_run():
        report = report_task(smallest)
    for _, words in [each for each in report.broken if each[0] == promise][:1]:
        say.plain(words)
    say(f"again: cordwood sim replay {smallest.arguments}")
    if as_json:
        say.json({
            "seed": task.seed,
            "promise": promise,
            "faults": list(best),
            "plan": [str(plan[number - 1]) for number in best],
            "replay": f"cordwood sim replay {smallest.arguments}",
        })  # fmt: skip
    return 0


def bugs(
    bug: str,
    seeds: int,
    jobs: int,
    as_json: bool,
    as_markdown: bool = False,
    known: Path | None = None,
) -> int:
    """Plant all bugs, or one, and check that each is caught; 1 if a bug is not caught.

    A bug that needs a scene of its own is only looked for by its name. Bugs about the state that a
    power failure leaves are looked for in crash states, all others in whole clusters.

    Args:
        bug: a name, "" for all.
        seeds: seeds within which it must be caught, from 1.
        as_markdown: print the table of docs/simulator.md.
        known: a file with such a table; its seeds are tried before all others.
    Raises:
        BadSetting: the bug does not exist, or the file has no such table.
    """
    first = _known_seeds(known) if known is not None else {}
    of_states = {each.bug.name: each.bug for each in CRASH_BUGS}
    if not bug:
        wanted = (*PLANTED_BUGS, *of_states.values())
    else:
        wanted = (of_states[bug] if bug in of_states else find_bug(bug),)
    say = _Say(as_json)
    searches = {
        each.name: BugSearch(
            each, seeds, by_scene=bool(each.scene and not bug), known=first.get(each.name, 0)
        )
        for each in wanted
    }
    started = time.monotonic()
    with (
        TaskPool(_bug_report, jobs=jobs, timeout_s=SEED_TIMEOUT_S) as pool,
        say.live(lambda: bugs_table(searches.values())),
    ):
        for ended in pool.run(lambda: next_search(searches.values())):
            if ended is not None:
                task, result = ended
                search = searches[task.bug]
                search.on_report(None if isinstance(result, Lost) else result)
                if search.is_over and not say.is_live:
                    say.plain(search.words)
    missed = [search for search in searches.values() if not search.is_caught]
    if as_json:
        say.json([search.plain() for search in searches.values()])
    elif as_markdown:
        say.plain(bugs_markdown(search.plain() for search in searches.values()))
    else:
        say.console.print(bugs_table(searches.values()))
    say(
        f"{len(searches) - len(missed)} of {len(searches)} bugs caught within {seeds} seeds, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if missed else 0


def _known_seeds(file: Path) -> dict[str, int]:
    """
    Raises:
        BadSetting: it cannot be read, or has no table of bugs.
    """
    try:
        found = known_seeds(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{file} cannot be read: {error}") from None
    if not found:
        raise BadSetting(f"{file} has no table as `cordwood sim bugs --markdown` prints it")
    return found


def _bug_report(task: SeedTask) -> SeedReport:
    """Look for a bug with one seed, in crash states or in a cluster."""
    for bug in CRASH_BUGS:
        if bug.bug.name == task.bug:
            story = story_of(bug, task.seed)
            broken = ((f"crash states of the {bug.subject.name}", story),) if story else ()
            return SeedReport(task, broken, (), "")
    return report_task(task)


# ---- sweeping ----


def _sweep(
    pattern: SeedTask, first: int, seeds: int | None, minutes: float | None, jobs: int
) -> Iterator[SeedReport]:
    """Yield reports as seeds end. The first seeds always run, however short the time."""
    ends_s = None if minutes is None else time.monotonic() + 60 * minutes
    given = 0

    def next_task() -> SeedTask | None:
        nonlocal given
        if seeds is not None and given >= seeds:
            return None
        if given >= jobs and ends_s is not None and time.monotonic() >= ends_s:
            return None
        given += 1
        # The first seed runs twice, so that every sweep checks that a seed gives the same run.
        return dataclasses.replace(pattern, seed=first + given - 1, twice=given == 1)

    workers = jobs if seeds is None else min(jobs, seeds)
    with TaskPool(report_task, jobs=workers, timeout_s=SEED_TIMEOUT_S) as pool:
        for ended in pool.run(next_task):
            if ended is not None:
                yield _reported(*ended)


def _reported(task: SeedTask, result: SeedReport | Lost) -> SeedReport:
    return lost_report(task, result) if isinstance(result, Lost) else result


def _verdict(
    totals: SweepTotals, first: int, real_s: float, require_probes: bool, say: _Say
) -> int:
    problems = []
    if totals.failed:
        problems.append(f"{len(totals.failed)} of {totals.seeds} seeds broke a promise")
    if totals.proves_too_little:
        problems.append(
            f"{totals.invalid_seeds} of {totals.seeds} runs did not count, more than "
            f"{INVALID_SHARE_MAX:.0%}"
        )
    if require_probes and totals.never_hit:
        problems.append(f"probes that no seed hit: {', '.join(totals.never_hit)}")
    if say.as_json:
        say.json(_plain_totals(totals, first, real_s, problems))
    else:
        _show_totals(totals, real_s, require_probes, say)
        for problem in problems:
            say.bad(problem)
    return 1 if problems else 0


def _plain_totals(
    totals: SweepTotals, first: int, real_s: float, problems: list[str]
) -> dict[str, Any]:
    return {
        "first_seed": first,
        "seeds": totals.seeds,
        "failed": [
            {
                "seed": report.task.seed,
                "invariants": list(report.invariants),
                "violations": [words for _, words in report.broken],
                "diverged": report.diverged,
                "replay": f"cordwood sim replay {report.task.arguments}",
            }
            for report in totals.failed
        ],
        "problems": problems,
        "simulated_s": round(totals.simulated_s, 1),
        "real_s": round(real_s, 1),
        "simulated_per_core_s": round(totals.ratio, 1),
        "records": totals.records,
        "epochs": totals.epochs,
        "run_twice": totals.twice,
        "diverged": totals.diverged,
        "invalid_seeds": totals.invalid_seeds,
        "invalid": dict(totals.invalid.most_common()),
        "faults": dict(sorted(totals.faults.items())),
        "probes": {name: totals.probes.get(name, 0) for name in PROBES},
    }


def _progress(totals: SweepTotals, started: float) -> Text:
    elapsed_s = time.monotonic() - started
    parts = [
        f"{totals.seeds} seeds",
        f"{totals.simulated_s / 3600:.2f} simulated hours",
        f"{totals.records:,} records",
        f"{elapsed_s:.0f} s",
    ]
    text = Text("  ".join(parts))
    if totals.failed:
        text.append(f"  {len(totals.failed)} failed", style="bold red")
    return text


def _show_totals(totals: SweepTotals, real_s: float, with_probes: bool, say: _Say) -> None:
    say(
        f"{totals.seeds} seeds, {len(totals.failed)} failed; {totals.simulated_s:,.0f} simulated s "
        f"in {real_s:,.0f} s, {totals.ratio:.0f} for each second of a core; "
        f"{totals.records:,} records, {totals.epochs:,} epochs; {totals.twice} seeds run twice, "
        f"{totals.diverged} of them not the same"
    )
    faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(totals.faults.items()))
    say(f"faults: {faults or 'none'}")
    if totals.invalid_seeds:
        say(f"{totals.invalid_seeds} runs did not count:")
        for reason, count in totals.invalid.most_common():
            say(f"  {count:4}  {reason}")
    if with_probes:
        rows = [(name, totals.probes.get(name, 0), text) for name, text in PROBES.items()]
        say.table("probe", "hits>", "what it means", rows=rows)
    elif totals.never_hit and totals.seeds >= PROBES_TOLD_SEEDS:
        missed = totals.never_hit
        say(f"{len(missed)} of {len(PROBES)} probes never hit: {', '.join(missed)}")


# ---- one seed ----


def _show_options(task: SeedTask, say: _Say) -> None:
    options = options_of(task)
    cluster, workload = options.cluster, options.workload
    say(
        f"seed {task.seed}: {cluster.nodes} nodes in {cluster.racks} racks, "
        f"{cluster.replication}, {workload.producers} producers with {workload.lanes} calls "
        f"open, {workload.readers} readers, logs {', '.join(workload.logs)}; "
        f"damage: {options.faults.damage.value}"
    )
    if options.turns:
        say(f"knobs: {', '.join(map(value_text, options.turns))}")
    whole = options_of(dataclasses.replace(task, faults=None)).drawn_plan(task.seed)
    _show_faults(whole, task.faults or tuple(range(1, len(whole) + 1)), say)


def _show_faults(plan: tuple[Fault, ...], kept: tuple[int, ...], say: _Say) -> None:
    say(f"{len(kept)} faults:")
    for number in kept:
        say.plain(f"  {number:3} {plan[number - 1]}")


def _show_outcome(outcome: Outcome, say: _Say) -> int:
    for violation in outcome.violations:
        say.plain(violation_words(violation))
    for reason in outcome.invalid:
        say(f"this run does not count: {reason}")
    say(
        f"{outcome.simulated_s:.1f} simulated s in {outcome.real_s:.1f} s, "
        f"{outcome.acked} records, {outcome.epochs} epochs, trace {outcome.trace_hash}"
    )
    if outcome.violations:
        say.bad(f"{len(outcome.violations)} promises broken")
    return 1 if outcome.violations else 0


def _plain_outcome(outcome: Outcome, task: SeedTask) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "replay": f"cordwood sim replay {task.arguments}",
        "violations": [violation_words(each) for each in outcome.violations],
        "invariants": list(dict.fromkeys(each.invariant for each in outcome.violations)),
        "invalid": list(outcome.invalid),
        "simulated_s": round(outcome.simulated_s, 1),
        "records": outcome.acked,
        "epochs": outcome.epochs,
        "faults": outcome.faults,
        "plan": [str(fault) for fault in outcome.plan],
        "trace": outcome.trace_hash,
    }


# ---- saying it ----


class _Say:
    """A console for people, on standard output; on standard error if JSON is wanted."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        stream = sys.stderr if as_json else sys.stdout
        width = None if stream.isatty() else PIPE_COLUMNS
        self.console = Console(file=stream, width=width, highlight=False)

    @property
    def is_live(self) -> bool:
        """Whether `live` shows anything: only to a person at a terminal."""
        return self.console.is_terminal

    def __call__(self, text: str) -> None:
        self.console.print(Text(text))

    def plain(self, text: str) -> None:
        """Print a line as it is, never wrapped."""
        self.console.print(Text(text), soft_wrap=True)

    def bad(self, text: str) -> None:
        """Print a line in bold red."""
        self.console.print(Text(text, style="bold red"))

    def failure(self, report: SeedReport) -> None:
        """Tell of a seed that failed: the broken promise, the evidence, and what to do next."""
        promises = ", ".join(report.invariants)
        self.bad(f"seed {report.task.seed} failed: {promises or 'two runs of it differ'}")
        for _, words in report.broken[:VIOLATIONS_SHOWN]:
            self.plain(words)
        more = len(report.broken) - VIOLATIONS_SHOWN
        if more > 0:
            self(f"  and {more} more")
        self(f"  again:  cordwood sim replay {report.task.arguments}")
        self(f"  fewer faults:  cordwood sim shrink {report.task.arguments}")

    def json(self, value: object) -> None:
        """Print the one JSON object that programs read on standard output."""
        print(json.dumps(value, indent=2), flush=True)

    def table(self, *columns: str, rows: Iterable[tuple[object, ...]]) -> None:
        """A table; a column with a name that ends in `>` is aligned to the right."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            right = column.endswith(">")
            table.add_column(column.removesuffix(">"), justify="right" if right else "left")
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        self.console.print(table)

    @contextmanager
    def live(self, render: Callable[[], Any]) -> Iterator[None]:
        """Show what `render` makes while the block runs, on a terminal only."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=render, console=self.console, transient=True):
            yield
