"""What makes a sweep a full one, and what makes it prove too little."""

from __future__ import annotations

from collections import Counter

import pytest
from swaps import swap, swap_value

from cordwood.sim import command
from cordwood.sim.probes import PROBES
from cordwood.sim.sweep import (
    FULL_SEEDS,
    INVALID_JUDGED_MIN,
    SeedReport,
    SeedTask,
    Shape,
    SweepTotals,
    runs_twice,
)


def report(seed: int, **fields: object) -> SeedReport:
    return SeedReport(SeedTask(seed), (), fields.pop("invalid", ()), "hash", **fields)


def totals_of(*reports: SeedReport) -> SweepTotals:
    totals = SweepTotals()
    for each in reports:
        totals.add(each)
    return totals


def test_a_full_sweep_is_one_of_the_swarm_over_many_seeds():
    totals = SweepTotals(seeds=FULL_SEEDS)
    assert totals.is_full(SeedTask(1))
    assert not SweepTotals(seeds=FULL_SEEDS - 1).is_full(SeedTask(1))
    assert not totals.is_full(SeedTask(1, bug="ack-at-one-less"))
    assert not any(totals.is_full(SeedTask(1, shape)) for shape in (Shape.DEMO, Shape.BEYOND))


def test_probes_that_no_seed_hit_are_named_in_order():
    name, *others = PROBES
    totals = totals_of(report(1, probes=Counter({name: 2})), report(2))
    assert totals.never_hit == others


@pytest.mark.parametrize(("invalid", "too_little"), [(2, False), (3, True)])
def test_a_sweep_of_which_more_than_a_tenth_does_not_count_proves_too_little(
    invalid: int, too_little: bool
):
    dull = [report(seed, invalid=("900 records",)) for seed in range(invalid)]
    good = [report(seed) for seed in range(INVALID_JUDGED_MIN - invalid)]
    totals = totals_of(*dull, *good)
    assert totals.invalid_seeds == invalid
    assert totals.proves_too_little is too_little


def test_where_nobody_watches_a_line_tells_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    seeds = (report(seed) for seed in range(1, 6))
    swap(monkeypatch, command._sweep, lambda *_: seeds)
    swap_value(monkeypatch, lambda: command.NEWS_EVERY_S, 0.0)
    command.run(5, 1, None, 1, as_json=False)
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told if "simulated hours" in line] == list("12345")


def test_a_run_that_was_two_has_failed():
    totals = totals_of(report(1, diverged=True), report(2))
    assert [each.task.seed for each in totals.failed] == [1]


def test_about_one_seed_of_fifty_is_run_twice():
    assert 20 < sum(runs_twice(SeedTask(seed)) for seed in range(2000)) < 60
    assert runs_twice(SeedTask(seed=0, twice=True))
