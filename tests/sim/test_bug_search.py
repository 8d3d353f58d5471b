"""Searches: when a planted bug counts as caught, and how that is told."""

from __future__ import annotations

from collections import Counter

from cordwood.sim.command import _bug_report
from cordwood.sim.crash_states.planted import CRASH_BUGS
from cordwood.sim.planted import PLANTED_BUGS
from cordwood.sim.planted.bug import PlantedBug
from cordwood.sim.planted.search import BugSearch, bugs_markdown, next_search
from cordwood.sim.swarm import swarm_options
from cordwood.sim.sweep import SeedReport, SeedTask, options_of

BUG = PlantedBug("bug", "does wrong", lambda: ())


def report(seed: int, *promises: str) -> SeedReport:
    broken = tuple((promise, "words") for promise in promises)
    return SeedReport(SeedTask(seed, bug="bug"), broken, (), "", 1.0, 1.0, 1, 1, Counter())


def test_seeds_are_tried_one_by_one_until_a_promise_breaks() -> None:
    search = BugSearch(BUG, seeds=4)
    assert next_search([search]) == SeedTask(1, bug="bug")
    assert next_search([search]) is None, "its first seed still runs"
    search.on_report(report(1))
    assert next_search([search]) == SeedTask(2, bug="bug")
    search.on_report(report(2, "code"))
    assert not search.is_caught, "a planted function that no longer fits fails as no code may"
    assert next_search([search]) == SeedTask(3, bug="bug")
    search.on_report(report(3, "S2", "code"))
    assert search.is_caught
    assert next_search([search]) is None
    assert search.words == "bug: seed 3, by S2, code"


def test_a_bug_that_no_seed_catches_is_missed() -> None:
    search = BugSearch(BUG, seeds=1)
    next_search([search])
    search.on_report(None)
    assert search.is_over
    assert not search.is_caught


def test_the_table_names_the_seed_or_the_scene() -> None:
    by_scene = BugSearch(PlantedBug("other", "", lambda: (), scene="tests/x.py"), 1, by_scene=True)
    caught, missed = BugSearch(BUG, seeds=1), BugSearch(BUG, seeds=1)
    next_search([caught])
    caught.on_report(report(1, "S1", "S15"))
    next_search([missed])
    missed.on_report(report(1))
    assert next_search([by_scene]) is None
    assert bugs_markdown(search.plain() for search in (caught, by_scene, missed)).split("\n")[
        2:
    ] == [
        "| `bug` | 1 | S1, S15 |",
        "| `other` | scene | `tests/x.py` |",
        "| `bug` | - | not caught in 1 seeds |",
    ]


def test_a_scenario_changes_what_a_seed_draws_and_not_the_seed_itself() -> None:
    for bug in PLANTED_BUGS:
        options = options_of(SeedTask(1, bug=bug.name))
        assert options.drawn_plan(1), bug.name
        assert options == options_of(SeedTask(1, bug=bug.name))
    assert options_of(SeedTask(1)) == swarm_options(1)


def test_bugs_of_crash_states_are_looked_for_there_and_under_names_of_their_own() -> None:
    assert not {bug.bug.name for bug in CRASH_BUGS} & {bug.name for bug in PLANTED_BUGS}
    report = _bug_report(SeedTask(1, bug="told-before-durable"))
    assert report.invariants == ("crash states of the wal",)
