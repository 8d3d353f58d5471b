"""Nodes that fail are held back, and not for ever."""

from __future__ import annotations

import pytest

from cordwood.quorum.node_quarantine import (
    FAILURES,
    FIRST_S,
    LONGEST_S,
    WITHIN_S,
    NodeQuarantine,
)


def failed(*times: float, node: int = 7) -> NodeQuarantine:
    made = NodeQuarantine()
    for at in times:
        made.on_failed(node, at)
    return made


MANY = tuple(float(at) for at in range(FAILURES))
END = MANY[-1] + FIRST_S


@pytest.mark.parametrize(
    ("times", "now", "held"),
    [
        ((), 0.0, set()),
        (MANY[:-1], MANY[-1], set()),
        (MANY, MANY[-1], {7}),
        (MANY, END - 0.1, {7}),
        (MANY, END, set()),  # it lifts itself
        ((*MANY[:-1], WITHIN_S + 1.5), WITHIN_S + 1.5, set()),  # the first ones are forgotten
    ],
)
def test_failures_of_late_count(times, now, held):
    assert failed(*times).held(now) == held


def test_it_lifts_when_the_node_stores_something():
    made = failed(*MANY)
    made.on_stored(7)
    assert made.held(MANY[-1]) == set()
    made.on_failed(7, 9.0)
    assert made.held(9.0) == set(), "and what was before is forgotten"


def test_what_fails_meanwhile_does_not_make_it_longer():
    assert failed(*MANY, *MANY).held(END) == set()


def test_it_is_twice_as_long_each_time_and_has_a_bound():
    made, now, periods = NodeQuarantine(), 0.0, []
    for _ in range(9):
        for _ in range(FAILURES):
            made.on_failed(7, now)
        began = now
        while made.held(now):
            now += FIRST_S
        periods.append(now - began)
    assert periods[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert periods[-1] == LONGEST_S


def test_nodes_have_their_own():
    made = failed(*MANY)
    made.on_failed(8, MANY[-1])
    assert made.held(MANY[-1]) == {7}
