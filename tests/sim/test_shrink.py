"""Shrinking: the smallest set of faults that still breaks, and a bound on the tries."""

from __future__ import annotations

import pytest

from cordwood.sim.shrink import TRIES_MAX, shrink
from cordwood.sim.sweep import SeedTask


def smallest(faults: tuple[int, ...], culprits: set[int]) -> tuple[tuple[int, ...], int]:
    """What shrinking leaves where all of `culprits` are needed, and how many runs it took."""
    best, tries = faults, 0
    task = SeedTask(1, faults=faults)
    for step in shrink(task, "S2", lambda each: culprits <= set(each.faults or ())):
        tries += 1
        if step.breaks:
            assert set(step.faults) < set(best)
            best = step.faults
    return best, tries


@pytest.mark.parametrize("culprits", [{7}, {1, 30}, {3, 4, 17}, {2, 9, 16, 23}])
def test_only_the_faults_that_matter_are_left(culprits):
    best, tries = smallest(tuple(range(1, 31)), culprits)
    assert set(best) == culprits
    assert tries <= TRIES_MAX


def test_a_seed_that_needs_no_fault_is_left_with_none():
    assert smallest(tuple(range(1, 21)), set())[0] == ()


def test_a_single_fault_stays():
    assert smallest((5,), {5})[0] == (5,)


def test_faults_that_are_all_needed_stay():
    assert smallest((1, 2, 3), {1, 2, 3})[0] == (1, 2, 3)
