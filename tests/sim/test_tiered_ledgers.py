"""Ledgers that go to main storage in simulated runs: something is there, and is whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.sim.ledger_events import LedgerChecked
from cordwood.sim.planted.ledger_tiers import BUGS, TIERED
from cordwood.sim.run import run_seed
from cordwood.sim.swarm import swarm_options


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_goes_to_main_storage_is_whole_there(seed: int) -> None:
    outcome = run_seed(seed, replace(TIERED(swarm_options(seed)), length_s=12.0))
    assert sum(isinstance(event, LedgerChecked) for event in outcome.history) > 1
    assert outcome.violations == ()


def test_runs_without_main_storage_have_no_such_ledgers() -> None:
    assert not swarm_options(1).workload.tiers_ledgers


def test_each_bug_acts_where_there_is_main_storage() -> None:
    for_seeds = [bug for bug in BUGS if not bug.scene]
    assert len(for_seeds) >= 4
    for bug in for_seeds:
        options = bug.scenario(swarm_options(1))
        assert options.workload.tiers_ledgers
        assert options.cluster.tier.store
