"""Runs that lose disks for good, to their end; `planted.rebuilding` has bugs that they catch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.sim.end_events import DisksReplaced, LedgersLacking, OlderFragmentsLacking
from cordwood.sim.ledger_events import LedgerAudited
from cordwood.sim.planted import planted
from cordwood.sim.planted.bug import PlantedBug
from cordwood.sim.planted.rebuilding import BUGS
from cordwood.sim.planted.rebuilding_scenarios import (
    DISKS_LOST,
    LEDGERS_LOST,
    LEDGERS_STAY_OPEN,
    TWO_COPIES_LOST,
)
from cordwood.sim.run import Outcome, run_seed
from cordwood.sim.swarm import swarm_options

SCENARIOS = {"three": DISKS_LOST, "two": TWO_COPIES_LOST}


def run(copies: str, seed: int, length_s: float = 30.0) -> Outcome:
    options = replace(SCENARIOS[copies](swarm_options(seed)), length_s=length_s)
    return run_seed(seed, options)


def lost(outcome: Outcome) -> list[int]:
    return [event.disks for event in outcome.history if isinstance(event, DisksReplaced)]


@pytest.mark.slow
def test_a_short_run_loses_a_disk_and_is_whole_in_the_end() -> None:
    outcome = run("three", 101, 8.0)
    assert lost(outcome) != [0]
    assert outcome.violations == ()


@pytest.mark.slow
def test_a_short_run_makes_the_copies_of_ledgers_anew() -> None:
    options = replace(LEDGERS_LOST(swarm_options(1)), length_s=8.0)
    outcome = run_seed(1, options)
    assert lost(outcome) != [0]
    assert any(isinstance(event, LedgerAudited) for event in outcome.history)
    (end,) = [event for event in outcome.history if isinstance(event, LedgersLacking)]
    assert (end.marked, end.ledgers) == (False, ())
    assert outcome.violations == ()


@pytest.mark.slow
def test_a_run_repairs_older_fragments_while_writers_change_their_ensembles() -> None:
    """Seed 1 repairs two ledgers that stay open, and their writers begin further fragments."""
    outcome = run_seed(1, LEDGERS_STAY_OPEN(swarm_options(1)))
    (end,) = [each for each in outcome.history if isinstance(each, OlderFragmentsLacking)]
    assert end.ledgers == ()
    assert end.repaired
    assert end.gone_on
    assert outcome.violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("copies", list(SCENARIOS))
@pytest.mark.parametrize("seed", [105, 107, 110, 115])
def test_a_long_run_is_whole_in_the_end(copies: str, seed: int) -> None:
    outcome = run(copies, seed)
    assert lost(outcome) != [0]
    assert outcome.violations == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [b for b in BUGS if b.name == "donor-skips-epoch"], ids=lambda bug: bug.name
)
def test_a_bug_is_caught(bug: PlantedBug) -> None:
    with planted(bug):
        outcome = run("three", 1, 12.0)
    assert {each.invariant for each in outcome.violations} & {"S15", "L4"}
