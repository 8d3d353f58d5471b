"""Callers that do not wait for the end of an append: what liveness owes them."""

from __future__ import annotations

import pytest
from history_script import play

from cordwood.sim.checkers import check
from cordwood.sim.history import GIVEN_UP, AppendUnknown, Event


def given_up_after(wait_s: int, within: str = "") -> list[Event]:
    """A healthy run, long after whose start an append ends without an answer."""
    history = play(
        f"w1 put a @ e1n1\nwait 10\nw1 send b {within}\nwait {wait_s}\nw1 lose b\nstart n1"
    )
    return [
        AppendUnknown(e.time_us, e.op, GIVEN_UP) if isinstance(e, AppendUnknown) else e
        for e in history
    ]


class TestCallersThatDoNotWait:
    def test_an_append_given_up_is_no_sign_of_a_cluster_at_fault(self):
        assert check("L1", given_up_after(4)) == []

    def test_one_given_up_after_the_bound_is(self):
        assert [v.invariant for v in check("L1", given_up_after(6))] == ["L1"]

    @pytest.mark.parametrize(("deadline_s", "broken"), [(4, []), (5, ["L1"])])
    def test_a_deadline_below_the_bound_owes_nothing(self, deadline_s: int, broken):
        history = play(
            f"w1 put a @ e1n1\nwait 10\nw1 send b within {deadline_s}\nw1 lose b\nstart n1"
        )
        assert [v.invariant for v in check("L1", history)] == broken

    def test_one_that_hangs_past_its_own_deadline_is_judged_all_the_same(self):
        history = play("w1 put a @ e1n1\nwait 10\nw1 send b within 1\nwait 6\nstart n1")
        assert [v.invariant for v in check("L1", history)] == ["L1"]
