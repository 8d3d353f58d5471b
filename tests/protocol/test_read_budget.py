"""The budget of all streams: plenty for few, something for many, and never much more than all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.protocol.read_budget import ReadBudget

MIB = 1 << 20


def test_a_few_streams_get_what_they_want() -> None:
    budget = ReadBudget(256 * MIB)
    assert [budget.take(40 * MIB, MIB) for _ in range(3)] == [40 * MIB] * 3


def test_streams_that_were_early_make_room_for_those_that_come() -> None:
    budget = ReadBudget(256 * MIB)
    reserved = [budget.take(40 * MIB, MIB) for _ in range(20)]
    assert reserved[0] == 40 * MIB
    assert reserved[-1] < 2 * MIB
    for _ in range(30):
        for at, old in enumerate(reserved):
            budget.give_back(old)
            reserved[at] = budget.take(40 * MIB, MIB)
    assert max(reserved) < 2 * min(reserved)
    assert 200 * MIB < sum(reserved) <= 256 * MIB
    for old in reserved[2:]:
        budget.give_back(old)
    budget.give_back(reserved[0])
    assert budget.take(40 * MIB, MIB) == 40 * MIB


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100), st.booleans()), max_size=60))
def test_what_is_reserved_is_the_budget_and_floors_at_most(events) -> None:
    budget = ReadBudget(100)
    held: list[tuple[int, int]] = []
    for wanted, floor, gives_back in events:
        if gives_back and held:
            budget.give_back(held.pop(0)[0])
        got = budget.take(wanted, floor)
        held.append((got, floor))
        assert min(floor, wanted) <= got <= wanted
        assert sum(each for each, _ in held) == 100 - budget.free
        assert sum(each for each, _ in held) <= 100 + sum(floor for _, floor in held)
