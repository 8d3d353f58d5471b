"""A plan of faults is a pure function of its seed, and never asks for more than is promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.chaos.capabilities import kinds_without, left_out
from cordwood.chaos.plan import KINDS, Aim, Need, plan_of

EVERY = tuple(KINDS)


def test_a_seed_is_a_plan_and_another_seed_is_another() -> None:
    def plan(seed: int) -> object:
        return plan_of(seed, 300, EVERY, nodes=5, away_max=2)

    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_the_order_in_which_kinds_are_named_is_nothing_to_the_plan() -> None:
    back = tuple(reversed(EVERY))
    assert plan_of(3, 300, EVERY, nodes=5, away_max=2) == plan_of(3, 300, back, nodes=5, away_max=2)


@pytest.mark.parametrize("seed", range(20))
def test_five_minutes_hold_forty_faults_of_every_kind(seed: int) -> None:
    plan = plan_of(seed, 300, EVERY, nodes=5, away_max=2)
    assert len(plan) >= 60, "a machine that is busy gets through two thirds of them"
    assert {fault.kind for fault in plan} == {*EVERY}


@given(st.integers(0, 10_000), st.integers(1, 3), st.sets(st.sampled_from(EVERY), min_size=1))
def test_no_more_are_away_at_once_than_may_be(seed: int, away_max: int, kinds: set[str]) -> None:
    plan = plan_of(seed, 120, tuple(kinds), nodes=5, away_max=away_max)
    for fault in plan:
        beside = [
            each for each in plan
            if each is not fault and each.at_s <= fault.at_s < each.at_s + each.length_s
        ]  # fmt: skip
        away = fault.away + sum(each.away for each in beside)
        assert away <= away_max or not beside
        assert KINDS[fault.kind].aim is not Aim.PAIR or away_max >= 2
        assert fault.at_s + fault.length_s <= 120
        assert 0 <= fault.rank < 5


def test_a_kind_comes_again_only_after_all_others_did() -> None:
    plan = plan_of(1, 300, EVERY, nodes=5, away_max=2)
    assert len({fault.kind for fault in plan[: len(EVERY)]}) == len(EVERY)


def test_no_time_or_no_kinds_is_no_plan() -> None:
    assert plan_of(1, 0, EVERY, nodes=5, away_max=2) == ()
    assert plan_of(1, 300, (), nodes=5, away_max=2) == ()


def test_what_the_machine_lacks_is_left_out_and_said() -> None:
    lacks = {Need.TRACE: "strace is not installed", Need.CLONES: "mkfs.xfs is not installed"}
    kinds = kinds_without(lacks)
    assert "power-cut" not in kinds
    assert "slow-reads" not in kinds
    assert {"kill", "full-disk", "split"} <= {*kinds}
    said = left_out(lacks)
    assert len(said) + len(kinds) == len(KINDS)
    assert "left out: slow-reads, which needs strace: strace is not installed" in said


def test_without_root_or_any_tool_there_is_still_something_to_try() -> None:
    assert {"kill", "stop", "clock-step"} <= {*kinds_without(dict.fromkeys(Need, "no"))}
