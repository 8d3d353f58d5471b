"""Searches: when a planted bug counts as caught, and how that is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cordwood.errors import BadSetting
from cordwood.sim.command import _bug_report, bugs
from cordwood.sim.crash_states.planted import CRASH_BUGS
from cordwood.sim.planted import PLANTED_BUGS
from cordwood.sim.planted.bug import PlantedBug
from cordwood.sim.planted.search import BugSearch, bugs_markdown, known_seeds, next_search
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


def test_the_seed_that_caught_a_bug_last_is_tried_first_and_once() -> None:
    search = BugSearch(BUG, seeds=3, known=2)
    for seed in (2, 1, 3):
        assert next_search([search]) == SeedTask(seed, bug="bug")
        search.on_report(report(seed))
    assert next_search([search]) is None
    assert search.words == "bug: NOT CAUGHT in 3 seeds"
    search = BugSearch(BUG, seeds=3, known=2)
    next_search([search])
    search.on_report(report(2, "S1"))
    assert search.words == "bug: seed 2, by S1"
    assert search.plain()["tried"] == 1


def test_a_known_seed_beyond_the_bound_is_not_tried() -> None:
    assert next_search([BugSearch(BUG, seeds=3, known=4)]) == SeedTask(1, bug="bug")


def test_known_seeds_come_from_the_table_alone() -> None:
    table = ("before", "| bug | seed | by |", "|---|---|---|", "| `one` | 19 | S14, S15 |",
             "| `two` | scene | `tests/x.py` |", "| `three` | - | not caught in 1 seeds |",
             "| S14 | 3 | other |")  # fmt: skip
    assert known_seeds("\n".join(table)) == {"one": 19}
    caught = BugSearch(BUG, seeds=9, known=7)
    assert next_search([caught]) == SeedTask(7, bug="bug")
    caught.on_report(report(7, "S1"))
    assert known_seeds(bugs_markdown([caught.plain()])) == {"bug": 7}


def test_a_file_without_the_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        bugs("", 1, 1, as_json=False, known=tmp_path / "none")
    (tmp_path / "empty").write_text("nothing")
    with pytest.raises(BadSetting, match="has no table"):
        bugs("", 1, 1, as_json=False, known=tmp_path / "empty")


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
