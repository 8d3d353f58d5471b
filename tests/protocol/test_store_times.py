"""How long a wave waits: for the slowest of its nodes, longer each time, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import NodeId
from cordwood.protocol.store_times import StoreTimes

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
FIRST_S, MOST_S = 0.5, 8.0


def after(*answers: float, node: NodeId = ONE) -> StoreTimes:
    times = StoreTimes(FIRST_S, MOST_S)
    for took_s in answers:
        times.on_answer(node, took_s)
    return times


def test_a_node_that_nothing_is_known_of_gets_the_first_wait() -> None:
    assert after().wave_s([ONE, TWO], 1) == FIRST_S


def test_each_wave_waits_twice_as_long_up_to_the_bound() -> None:
    waits = [after().wave_s([ONE], wave) for wave in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_quick_nodes_are_waited_for_no_less_than_at_first() -> None:
    assert after(*[0.001] * 50).wave_s([ONE], 1) == FIRST_S


def test_slow_nodes_are_waited_for_longer() -> None:
    """Answers of a second each: a first wait of half of that would never see one."""
    assert 1.0 < after(*[1.0] * 50).wave_s([ONE], 1) < 1.5


def test_the_slowest_of_a_copyset_decides() -> None:
    times = after(*[1.0] * 20)
    for _ in range(20):
        times.on_answer(TWO, 0.8)
    assert times.wave_s([THREE], 1) < times.wave_s([TWO, THREE], 1) < times.wave_s([ONE, TWO], 1)


def test_an_uneven_node_is_waited_for_longer_than_its_mean() -> None:
    assert after(*[0.1, 0.9] * 30).wave_s([ONE], 1) > 1.2


def test_a_node_that_connects_anew_begins_afresh() -> None:
    times = after(*[2.0] * 20)
    times.forget(ONE)
    assert times.wave_s([ONE], 1) == FIRST_S


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(0, 100))
def test_every_wait_is_within_its_bounds(answers: list[float], wave: int) -> None:
    assert FIRST_S <= after(*answers).wave_s([ONE], wave) <= MOST_S


@pytest.mark.parametrize("took_s", [0.01, 0.7, 3.0])
def test_steady_answers_settle_just_above_themselves(took_s: float) -> None:
    wait_s = after(*[took_s] * 200).node_s(ONE)
    assert wait_s == pytest.approx(max(took_s, FIRST_S), rel=0.01)
