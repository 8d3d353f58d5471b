"""How far nodes may send ahead: the numbers of the module, and a twin that counts every byte."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.lsn import LSN_MAX
from cordwood.protocol import read_window
from cordwood.protocol.read_budget import ReadBudget
from cordwood.protocol.read_window import (
    CREDIT_BYTES_FIRST,
    CREDIT_BYTES_MIN,
    LSNS_MAX,
    LSNS_MIN,
    QUICK_S,
    SLOW_S,
    Credit,
    ReadWindow,
)

MIB = 1 << 20


def window(
    *, nodes: int = 5, first: int = 1000, bytes_max: int = 8 * MIB, budget: ReadBudget | None = None
) -> ReadWindow:
    given = budget or ReadBudget(256 * MIB)
    return ReadWindow(first, nodes, given, 0.0, bytes_max=bytes_max, threshold=0.7)


class TestWindow:
    def test_at_first(self) -> None:
        made = window()
        assert (made.low, made.high) == (1000, 1000 + LSNS_MIN)
        assert made.credit == CREDIT_BYTES_FIRST

    def test_it_moves_once_seven_tenths_were_used_up(self) -> None:
        made = window()
        assert made.due == 1000 + 717  # 716.8 of 1,024
        assert not made.move(made.due - 1, 5, 0.1)
        assert made.move(made.due, 5, 0.1)
        assert made.low == 1717

    @pytest.mark.parametrize(
        ("bytes_each", "lsns"),
        [
            (1, LSNS_MAX),  # two credits hold a million of these
            (100, 2 * CREDIT_BYTES_FIRST // 100),
            (64 * 1024, LSNS_MIN),  # and sixteen of these
        ],
    )
    def test_it_is_as_long_as_what_two_credits_hold(self, bytes_each: int, lsns: int) -> None:
        made = window()
        for _ in range(500):
            made.on_block(10 * bytes_each, 10)
        assert made.move(2024, 5, 0.1)
        assert made.high - made.low == pytest.approx(lsns, rel=0.001)

    def test_larger_records_use_up_first_what_was_meant_for_small_ones(self) -> None:
        budget = ReadBudget(256 * MIB)
        made = window(budget=budget)
        for _ in range(500):
            made.on_block(1, 1)
        assert made.move(2024, 5, 0.1)
        high, free = made.high, budget.free
        for _ in range(500):
            made.on_block(64 * 1024, 1)
        assert not made.move(made.due, 5, 0.2)
        assert (made.high, budget.free) == (high, free), "nothing is asked for in vain"
        assert made.move(high - LSNS_MIN + 1, 5, 0.2)

    @pytest.mark.parametrize(
        ("lasted_s", "credit"),
        [
            (QUICK_S / 2, 2 * CREDIT_BYTES_FIRST),
            ((QUICK_S + SLOW_S) / 2, CREDIT_BYTES_FIRST),
            (2 * SLOW_S, CREDIT_BYTES_FIRST),  # it is the least
        ],
    )
    def test_a_quick_reader_gets_more(self, lasted_s: float, credit: int) -> None:
        made = window()
        assert made.move(made.due, 5, lasted_s)
        assert made.credit == credit

    def test_more_up_to_its_bound_and_less_when_it_is_slow(self) -> None:
        made, now, found = window(bytes_max=3 * MIB), 0.0, []
        for lasted_s in (0.01, 0.01, 0.01, 0.01, 1.0, 1.0, 1.0):
            now += lasted_s
            assert made.move(made.high, 5, now)
            found.append(made.credit / CREDIT_BYTES_FIRST)
        assert found == [2, 4, 6, 6, 3, 1.5, 1]

    def test_a_restart_takes_nothing_back(self) -> None:
        made = window()
        made.restart(1100)
        assert (made.low, made.high) == (1100, 1100 + LSNS_MIN * 4)

    def test_it_ends_with_the_last_lsn(self) -> None:
        made = window(first=LSN_MAX - 10)
        assert made.high == LSN_MAX
        assert not made.move(LSN_MAX, 5, 1.0)

    def test_when_all_is_given_away_each_node_may_send_a_little(self) -> None:
        budget = ReadBudget(MIB)
        made = [window(budget=budget) for _ in range(20)]
        assert made[-1].credit == CREDIT_BYTES_MIN
        for each in made:
            each.close()
            each.close()
        assert budget.free == MIB


@dataclass
class Node:
    """A node that sends all it may: what it was told, and how much of its bytes lies where."""

    limit: int
    sent: int = 0
    under_way: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    @property
    def ahead(self) -> int:
        return sum(self.under_way) + sum(self.waiting)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 400)),
            st.tuples(st.just("arrive"), st.booleans()),
            st.tuples(st.just("take"), st.none()),
            st.tuples(st.just("credit"), st.integers(100, 2000)),
        ),
        max_size=120,
    )
)
def test_a_node_is_never_further_ahead_than_a_credit_and_never_stuck(events) -> None:
    """The twin counts what is under way, what waits and what was told. A copy of what is here
    already is received and not kept."""
    size = most = 1000
    credit = Credit(size)
    node = Node(size)
    for what, much in events:
        if what == "send" and node.sent + much <= node.limit:
            node.sent += much
            node.under_way.append(much)
        elif what == "arrive" and node.under_way:
            came = node.under_way.pop(0)
            credit.on_received(came)
            if much:
                credit.on_kept(came)
                node.waiting.append(came)
        elif what == "take" and node.waiting:
            credit.on_consumed(node.waiting.pop(0))
        elif what == "credit":
            size = much
            most = max(most, size)
        told = credit.grant(size)
        if told is not None:
            assert told > node.limit, "a limit is never taken back"
            node.limit = told
        assert node.ahead <= most
        assert node.sent <= node.limit
    for came in node.under_way:
        credit.on_received(came)
    for each in node.waiting:
        credit.on_consumed(each)
    told = credit.grant(size)
    if told is not None:
        node.limit = told
    assert node.limit - node.sent > size * 3 // 4 - 1, "once all is taken it may go on"


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.integers(1, 100_000), st.floats(0, 0.5)), max_size=60
    ),
    st.floats(0.05, 0.95),
)
def test_a_reader_is_never_at_the_end_of_its_window(steps, threshold) -> None:
    """It goes on step by step, with records of any size, and asks each time: there is always
    something left to send. What is reserved is what the budget misses."""
    budget = ReadBudget(16 * MIB)
    made = ReadWindow(0, 3, budget, 0.0, bytes_max=8 * MIB, threshold=threshold)
    upto, now = 0, 0.0
    for step, size, passed_s in steps:
        low, high = made.low, made.high
        upto, now = min(upto + step, high), now + passed_s
        made.on_block(size, 1)
        moved = made.move(upto, 3, now)
        assert made.high > high if moved else made.high == high
        assert made.low == (upto if moved else low)
        assert made.low <= upto < made.high
        least = min(made.high - upto, LSNS_MIN * (1 - threshold) - 1)
        assert made.high - upto >= least
        assert made.credit == (budget.limit - budget.free) // 3
        assert LSNS_MIN * (1 - threshold) - 2 <= made.high - upto <= LSNS_MAX


def test_the_bounds_are_in_order() -> None:
    assert read_window.LSNS_MIN < read_window.LSNS_MAX
    assert CREDIT_BYTES_MIN < CREDIT_BYTES_FIRST
