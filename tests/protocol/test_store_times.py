"""How long a wave waits: for the slowest of its nodes, longer each time, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import NodeId
from cordwood.protocol.store_times import LAG_ANSWERS, LATE_FLOOR_S, StoreTimes

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
FIRST_S, MOST_S = 0.5, 8.0


def after(*answers: float, node: NodeId = ONE) -> StoreTimes:
    times = StoreTimes(FIRST_S, MOST_S)
    for at, took_s in enumerate(answers):
        times.on_answer(node, took_s, float(at))
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
        times.on_answer(TWO, 0.8, 0.0)
    assert times.wave_s([THREE], 1) < times.wave_s([TWO, THREE], 1) < times.wave_s([ONE, TWO], 1)


def test_an_uneven_node_is_waited_for_longer_than_its_mean() -> None:
    assert after(*[0.1, 0.9] * 30).wave_s([ONE], 1) > 1.2


def test_a_node_that_connects_anew_begins_afresh() -> None:
    times = after(*[2.0] * 20)
    times.forget(ONE)
    assert times.wave_s([ONE], 1) == FIRST_S


def lags(answers: list[float], every_s: float, *, others_s: float = 0.001, first: float = 0.001) \
        -> list[bool]:  # fmt: skip
    """What is said at each answer of ONE, beside two nodes that always take as long."""
    times = StoreTimes(FIRST_S, MOST_S)
    times.on_answer(ONE, first, 0.0)
    said = []
    for at, took_s in enumerate(answers):
        for other in (TWO, THREE):
            assert not times.on_answer(other, others_s, at * every_s)
        said.append(times.on_answer(ONE, took_s, at * every_s))
    return said


class TestLag:
    """Swarm seeds 12224 and 12269: a disk a hundred times slower answered within 30 ms, and
    each time it stood still for longer somebody waited for it."""

    def test_a_node_that_is_late_each_time_lags(self) -> None:
        said = lags([0.02] * 60, 0.1)
        assert not any(said[:10]), "not before a second"
        assert said.index(True) == 10
        assert sum(said) == 5, "and once a second"

    def test_late_answers_that_come_seldom_have_to_be_some(self) -> None:
        assert lags([0.02] * 10, 1.0).index(True) == LAG_ANSWERS - 1

    @pytest.mark.parametrize(
        ("answers", "named"),
        [
            ([LATE_FLOOR_S] * 60, {}),
            ([*[0.5] * 9, 0.001] * 6, {}),
            ([0.02] * 60, {"others_s": 0.0026}),
            ([0.02] * 60, {"first": 0.0025}),
        ],
        ids=["within the floor", "one quick answer", "so do the others", "always far away"],
    )
    def test_others_do_not(self, answers: list[float], named: dict[str, float]) -> None:
        assert not any(lags(answers, 0.1, **named))

    def test_many_answers_that_one_flush_held_up_are_no_lag(self) -> None:
        assert not any(lags([0.9] * 64, 0.0))

    def test_where_no_other_node_is_known_nothing_is_late(self) -> None:
        times = after(*[0.001, *[5.0] * 50])
        assert times.late_s(ONE) == float("inf")
        assert not times.on_answer(ONE, 5.0, 100.0)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(0, 100))
def test_every_wait_is_within_its_bounds(answers: list[float], wave: int) -> None:
    assert FIRST_S <= after(*answers).wave_s([ONE], wave) <= MOST_S


@pytest.mark.parametrize("took_s", [0.01, 0.7, 3.0])
def test_steady_answers_settle_just_above_themselves(took_s: float) -> None:
    wait_s = after(*[took_s] * 200).node_s(ONE)
    assert wait_s == pytest.approx(max(took_s, FIRST_S), rel=0.01)
