"""Hunts: when a planted bug counts as caught, and how that is told."""

from __future__ import annotations

from collections import Counter

from cordwood.sim.command import _zoo_report
from cordwood.sim.crash_states.planted import CRASH_ZOO
from cordwood.sim.swarm import swarm_options
from cordwood.sim.sweep import SeedReport, SeedTask, options_of
from cordwood.sim.zoo import ZOO
from cordwood.sim.zoo.bug import PlantedBug
from cordwood.sim.zoo.hunt import Hunt, next_hunt, zoo_markdown

BUG = PlantedBug("bug", "does wrong", lambda: ())


def report(seed: int, *promises: str) -> SeedReport:
    broken = tuple((promise, "words") for promise in promises)
    return SeedReport(SeedTask(seed, bug="bug"), broken, (), "", 1.0, 1.0, 1, 1, Counter())


def test_seeds_are_tried_one_by_one_until_a_promise_breaks() -> None:
    hunt = Hunt(BUG, seeds=4)
    assert next_hunt([hunt]) == SeedTask(1, bug="bug")
    assert next_hunt([hunt]) is None, "its first seed still runs"
    hunt.on_report(report(1))
    assert next_hunt([hunt]) == SeedTask(2, bug="bug")
    hunt.on_report(report(2, "code"))
    assert not hunt.is_caught, "a planted function that no longer fits fails as no code may"
    assert next_hunt([hunt]) == SeedTask(3, bug="bug")
    hunt.on_report(report(3, "S2", "code"))
    assert hunt.is_caught
    assert next_hunt([hunt]) is None
    assert hunt.words == "bug: seed 3, by S2, code"


def test_a_bug_that_no_seed_catches_is_missed() -> None:
    hunt = Hunt(BUG, seeds=1)
    next_hunt([hunt])
    hunt.on_report(None)
    assert hunt.is_over
    assert not hunt.is_caught


def test_the_table_names_the_seed_or_the_scene() -> None:
    by_scene = Hunt(PlantedBug("other", "", lambda: (), scene="tests/x.py"), 1, by_scene=True)
    caught, missed = Hunt(BUG, seeds=1), Hunt(BUG, seeds=1)
    next_hunt([caught])
    caught.on_report(report(1, "S1", "S15"))
    next_hunt([missed])
    missed.on_report(report(1))
    assert next_hunt([by_scene]) is None
    assert zoo_markdown(hunt.plain() for hunt in (caught, by_scene, missed)).split("\n")[2:] == [
        "| `bug` | 1 | S1, S15 |",
        "| `other` | scene | `tests/x.py` |",
        "| `bug` | - | not caught in 1 seeds |",
    ]


def test_a_ground_changes_what_a_seed_draws_and_not_the_seed_itself() -> None:
    for bug in ZOO:
        options = options_of(SeedTask(1, bug=bug.name))
        assert options.drawn_plan(1), bug.name
        assert options == options_of(SeedTask(1, bug=bug.name))
    assert options_of(SeedTask(1)) == swarm_options(1)


def test_bugs_of_crash_states_are_hunted_there_and_under_names_of_their_own() -> None:
    assert not {bug.bug.name for bug in CRASH_ZOO} & {bug.name for bug in ZOO}
    report = _zoo_report(SeedTask(1, bug="told-before-durable"))
    assert report.invariants == ("crash states of the wal",)
