"""What nodes' answers about places say together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.lsn import OLDEST
from cordwood.protocol.log_position import Part, TimeAnswer, bytes_between, find_time, size_of

TAIL = OLDEST + 99


def answer(before: int = 0, at: int = 0, trim: int = 0) -> TimeAnswer:
    return TimeAnswer(trim, OLDEST + before if before else trim, OLDEST + at if at else 0)


@pytest.mark.parametrize(
    ("answers", "heard_all", "lsn", "is_complete"),
    [
        ([answer(4, 9), answer(6, 8)], True, 7, True),  # nothing is in between
        ([answer(4, 9), answer(6, 8)], False, 7, False),
        ([answer(7, 9), answer(4, 8)], False, 8, True),  # neighbours: nobody can know better
        ([answer(20, 0), answer(30, 0)], True, 100, True),  # after everything: the next one
        ([answer(20, 0), answer(30, 0)], False, 31, False),
        ([answer(0, 5)], False, 0, False),  # before all that was heard of
        ([answer(0, 5, trim=OLDEST + 2)], True, 3, True),  # the one after the trim point
    ],
)
def test_where_a_time_lies(answers, heard_all: bool, lsn: int, is_complete: bool) -> None:
    assert find_time(answers, TAIL, heard_all=heard_all) == (OLDEST + lsn, is_complete)


def test_a_log_that_never_held_anything_begins_at_the_oldest() -> None:
    assert find_time([answer(), answer()], (7 << 32), heard_all=True) == (OLDEST, True)


@given(
    times=st.lists(st.integers(0, 30), min_size=1, max_size=12).map(sorted),
    wanted=st.integers(-1, 31),
    data=st.data(),
)
def test_against_a_plain_list(times: list[int], wanted: int, data: st.DataObject) -> None:
    """Blocks on two of three nodes each: any two of them are enough; one errs early at most."""
    places = [data.draw(st.sets(st.integers(0, 2), min_size=2, max_size=2)) for _ in times]
    heard = data.draw(st.sets(st.integers(0, 2), min_size=1))
    answers = []
    for node in heard:
        mine = [at for at, place in enumerate(places) if node in place]
        older = [at for at in mine if times[at] < wanted]
        later = [at for at in mine if times[at] >= wanted]
        answers.append(
            TimeAnswer(0, OLDEST + older[-1] if older else 0, OLDEST + later[0] if later else 0)
        )
    tail = OLDEST + len(times) - 1
    found = find_time(answers, tail, heard_all=len(heard) >= 2)
    right = OLDEST + sum(time < wanted for time in times)
    if found.is_complete:
        first = next((at for at, time in enumerate(times) if time >= wanted), len(times))
        assert OLDEST + first == right
        assert found.lsn == right
    else:
        assert found.lsn <= right


def test_sizes_are_told_once_and_what_is_missing_counts_like_the_rest() -> None:
    assert size_of([300, 300, 300], 3, 3) == 300
    assert size_of([300, 300], 3, 3) == 300
    assert size_of([], 3, 3) == 0


def test_a_part_that_is_cut_counts_by_its_length() -> None:
    parts = [Part(100, 0, 99), Part(100, 100, 199), Part(7, 200, 200)]
    assert bytes_between(parts, 0, 1000) == 207
    assert bytes_between(parts, 50, 150) == 100
    assert bytes_between(parts, 200, 201) == 7
    assert bytes_between(parts, 300, 100) == 0
