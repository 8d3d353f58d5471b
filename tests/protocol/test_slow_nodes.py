"""Greylisting: windows completed, the moving average, probations that grow and shrink."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import NodeId
from cordwood.protocol.slow_nodes import (
    BUCKETS,
    PROBATION_MAX_S,
    PROBATION_MIN_S,
    SLOW_MIN_S,
    SlowNodes,
)

NODES = tuple(NodeId(n) for n in range(1, 6))


class Play:
    """Windows one after another; each node takes as long as it is told to."""

    def __init__(self, spare: int = 2) -> None:
        self.rule = SlowNodes(spare)
        self.now_s = 100.0
        self.high = 0

    def window(self, **took_s: float) -> None:
        """`n3=2.0`: node 3 took two seconds, the others 10 ms."""
        self.high += 100
        self.rule.on_window(self.high, self.now_s)
        times = {node: took_s.get(f"n{node}", 0.01) for node in NODES}
        for node, took in sorted(times.items(), key=lambda each: each[1]):
            self.rule.on_marker(node, self.high + 1, self.now_s + took)
        self.now_s += max(times.values())

    def decide(self, down: tuple[int, ...] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
        change = self.rule.decide(NODES, [NodeId(n) for n in down], self.now_s)
        return change.slow, change.back


@pytest.mark.parametrize(
    ("took", "windows", "slow"),
    [
        ({}, 5, ()),
        ({"n3": 1.0}, 1, ()),  # one window may be a pause
        ({"n3": 1.0}, 2, (3,)),
        ({"n3": 0.035}, 5, ()),  # less than four times its peers
        ({"n3": SLOW_MIN_S - 0.01}, 5, ()),  # slow to them, and not slow
        ({"n3": 1.0, "n5": 2.0}, 3, (3, 5)),
        ({"n1": 1.0, "n3": 1.0, "n5": 1.2}, 3, ()),  # most are slow: that is how it is today
        ({"n1": 0.9, "n2": 0.9, "n3": 0.9, "n4": 0.9, "n5": 0.9}, 5, ()),
    ],
)
def test_who_is_slow(took, windows: int, slow) -> None:
    play = Play()
    for _ in range(windows):
        play.window(**took)
    assert play.decide() == (slow, ())
    assert play.decide() == ((), ()), "said once"


def test_a_window_that_is_still_open_counts() -> None:
    """A node that was quick and hardly sends any more is not waited for until it has sent."""
    play = Play()
    play.window()
    play.rule.on_window(1000, play.now_s)
    for node in NODES[1:]:
        play.rule.on_marker(node, 1001, play.now_s + 0.01)
    play.now_s += 0.3
    assert play.decide() == ((), ())
    play.now_s += 1.0
    assert play.decide() == ((1,), ())


@pytest.mark.parametrize(("down", "slow"), [((), (4, 5)), ((1,), (5,)), ((1, 2), ()), ((4,), (5,))])
def test_not_more_are_away_than_the_copies_allow(down, slow) -> None:
    """With three copies two nodes may be away; those that are down count. The slowest go first."""
    play = Play()
    for _ in range(3):
        play.window(n3=0.01, n4=1.0, n5=3.0)
    assert play.decide(down) == (slow, ())


def test_probation_grows_for_the_incorrigible_and_shrinks_for_those_who_behave() -> None:
    play = Play()
    lengths = []
    for behave_s in (0.0, 0.0, 500.0, 0.0):
        while True:
            play.window(n2=1.0)
            if play.decide()[0]:
                break
        since = play.now_s
        while not play.decide()[1]:
            play.now_s += 1.0
        lengths.append(play.now_s - since)
        play.now_s += behave_s
    assert lengths[0] == PROBATION_MIN_S
    assert 1.5 * PROBATION_MIN_S <= lengths[1] <= 2 * PROBATION_MIN_S
    assert lengths[1] < lengths[2] < 2 * lengths[1]
    assert lengths[3] == PROBATION_MIN_S


def test_after_a_probation_a_node_is_measured_anew() -> None:
    play = Play()
    for _ in range(3):
        play.window(n2=1.0)
    assert play.decide() == ((2,), ())
    play.now_s += PROBATION_MIN_S
    assert play.decide() == ((), (2,))
    assert play.rule.latency_s(NodeId(2)) is None
    for _ in range(5):
        play.window()
    assert play.decide() == ((), ())


def test_what_is_long_past_is_forgotten() -> None:
    play = Play()
    play.window(n2=1.0)
    play.now_s += BUCKETS + 1
    play.window()
    assert play.rule.latency_s(NodeId(2)) == pytest.approx(0.01)


def test_windows_that_a_rewind_cut_short_are_nobody_s_fault() -> None:
    play = Play()
    play.rule.on_window(10, play.now_s)
    for node in NODES[1:]:
        play.rule.on_marker(node, 11, play.now_s)
    play.rule.on_rewind(20, play.now_s)
    play.now_s += 100
    assert play.decide() == ((), ())


@given(st.lists(st.lists(st.floats(0.001, 5.0), min_size=5, max_size=5), max_size=12),
       st.integers(0, 3))  # fmt: skip
def test_some_nodes_are_always_left_and_probations_are_bounded(windows, spare) -> None:
    play = Play(spare)
    for took in windows:
        play.window(**{f"n{n}": each for n, each in enumerate(took, 1)})
        play.decide()
        assert len(play.rule.greylisted) <= spare
    for probation in play.rule._probations.values():
        assert PROBATION_MIN_S <= probation.length_s <= PROBATION_MAX_S
