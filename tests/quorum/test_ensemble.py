"""Ensembles of ledgers: tables as a protocol page would print them, and a twin that tries all."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.ledger import ENTRY_MAX, Striping
from cordwood.quorum.ensemble import (
    Answer,
    covers,
    is_acknowledged,
    is_written_to,
    negatives_needed,
    proves_absence,
    write_set,
)

WIDEST = 6


def members(text: str) -> frozenset[int]:
    return frozenset(int(each) for each in text.split())


@pytest.mark.parametrize(
    ("shape", "entry", "expected"),
    [
        ((3, 3, 2), 0, "0 1 2"),
        ((3, 3, 2), 1, "1 2 0"),
        ((3, 2, 2), 2, "2 0"),
        ((5, 3, 2), 0, "0 1 2"),
        ((5, 3, 2), 3, "3 4 0"),
        ((5, 3, 2), 4, "4 0 1"),
        ((5, 2, 1), 7, "2 3"),
        ((1, 1, 1), 9, "0"),
        # Above 31, 32 and near 63 bits: a cast or a sum in fewer bits would give another set.
        ((5, 2, 2), 2**31 + 1, "4 0"),
        ((5, 2, 2), 2**32 + 1, "2 3"),
        ((5, 2, 2), ENTRY_MAX - 1, "1 2"),
        ((5, 2, 2), ENTRY_MAX, "2 3"),
        ((7, 3, 2), ENTRY_MAX, "0 1 2"),
    ],
)
def test_where_an_entry_lies(shape, entry, expected: str):
    assert write_set(entry, Striping(*shape)) == tuple(map(int, expected.split()))


@pytest.mark.parametrize("entry", [-1, ENTRY_MAX + 1])
def test_an_entry_has_63_bits(entry):
    with pytest.raises(AssertionError):
        write_set(entry, Striping(3, 2, 2))


@pytest.mark.parametrize(
    ("shape", "answered", "covered"),
    [
        # As wide as the write quorum: E - Qa + 1 of E.
        ((3, 3, 2), "0", False),
        ((3, 3, 2), "0 2", True),
        ((3, 3, 3), "1", True),
        ((3, 3, 3), "", False),
        ((3, 3, 1), "0 1", False),
        ((3, 3, 1), "0 1 2", True),
        # Only E windows exist: 0 and 2 of four meet each pair of neighbours.
        ((4, 2, 2), "0 2", True),
        ((4, 2, 2), "0 1", False),
        ((4, 2, 2), "0 1 2", True),
        ((5, 3, 2), "0 1 2", False),
        ((5, 3, 2), "0 1 3", False),
        ((5, 3, 2), "0 1 2 3", True),
        ((6, 3, 2), "0 1 3 4", True),
        ((6, 3, 3), "0 3", True),
        ((6, 3, 3), "0 1", False),
        # Numbers that are no place in the ensemble say nothing.
        ((3, 3, 2), "0 3 4", False),
    ],
)
def test_who_must_be_fenced(shape, answered: str, covered: bool):
    assert covers(members(answered), Striping(*shape)) is covered


@pytest.mark.parametrize(
    ("shape", "entry", "negative", "absent"),
    [
        ((3, 3, 2), 5, "0", False),
        ((3, 3, 2), 5, "0 1", True),
        ((3, 3, 1), 5, "0 1", False),
        ((3, 3, 3), 5, "2", True),
        # Only the entry's own write set counts: entry 1 lies on 1, 2 and 3.
        ((5, 3, 2), 1, "0 4", False),
        ((5, 3, 2), 1, "0 1 4", False),
        ((5, 3, 2), 1, "1 3", True),
    ],
)
def test_who_must_not_have_it(shape, entry: int, negative: str, absent: bool):
    assert proves_absence(members(negative), entry, Striping(*shape)) is absent


@pytest.mark.parametrize(
    ("shape", "entry", "stored", "acknowledged"),
    [
        ((3, 3, 2), 0, "0", False),
        ((3, 3, 2), 0, "0 2", True),
        ((3, 2, 2), 2, "1 2", False),
        ((3, 2, 2), 2, "0 2", True),
        ((5, 3, 1), 4, "2 3", False),
        ((5, 3, 1), 4, "1", True),
    ],
)
def test_when_an_entry_is_acknowledged(shape, entry: int, stored: str, acknowledged: bool):
    assert is_acknowledged(members(stored), entry, Striping(*shape)) is acknowledged


@pytest.mark.parametrize(
    ("answer", "negative", "known"),
    [
        (Answer.FOUND, False, True),
        (Answer.NO_ENTRY, True, True),
        (Answer.NO_LEDGER, True, True),
        (Answer.LOST_DATA, False, False),
        (Answer.DAMAGED, False, False),
        (Answer.FAILED, False, False),
        (Answer.SILENT, False, False),
        (Answer.REFUSED, False, False),
    ],
)
def test_what_an_answer_says(answer, negative: bool, known: bool):
    assert (answer.is_negative, answer.is_known) == (negative, known)


def test_every_answer_is_in_the_table_above():
    assert len(Answer) == 8


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 3, 0), (3, 2, 3), (0, 0, 0), (256, 3, 2)])
def test_a_striping_that_cannot_be_is_refused(shape):
    with pytest.raises(ValueError, match="E >= Qw >= Qa >= 1"):
        Striping(*shape)


# The twin: every ack quorum of every entry, written down.


def every_striping():
    for ensemble in range(1, WIDEST + 1):
        for write in range(1, ensemble + 1):
            for ack in range(1, write + 1):
                yield Striping(ensemble, write, ack)


def ack_quorums(entry: int, striping: Striping):
    """All sets of members that an entry can have been acknowledged by."""
    places = [place % striping.ensemble for place in range(entry, entry + striping.write)]
    return [frozenset(each) for each in itertools.combinations(places, striping.ack)]


def subsets(count: int):
    places = range(count)
    for size in range(count + 1):
        yield from map(frozenset, itertools.combinations(places, size))


@pytest.mark.parametrize("striping", list(every_striping()), ids=str)
def test_covered_means_that_no_ack_quorum_is_left(striping):
    """Every subset of every ensemble up to six: covered where it meets every ack quorum."""
    quorums = [q for entry in range(striping.ensemble) for q in ack_quorums(entry, striping)]
    for answered in subsets(striping.ensemble):
        assert covers(answered, striping) is all(answered & quorum for quorum in quorums)


@pytest.mark.parametrize("striping", list(every_striping()), ids=str)
def test_absent_means_that_every_ack_quorum_is_met(striping):
    for entry in range(striping.ensemble):
        quorums = ack_quorums(entry, striping)
        for some in subsets(striping.ensemble):
            assert proves_absence(some, entry, striping) is all(some & q for q in quorums)
            assert is_acknowledged(some, entry, striping) is any(some >= q for q in quorums)


@st.composite
def situations(draw):
    ensemble = draw(st.integers(1, 20))
    write = draw(st.integers(1, ensemble))
    striping = Striping(ensemble, write, draw(st.integers(1, write)))
    entry = draw(st.integers(0, ENTRY_MAX))
    return striping, entry, draw(st.frozensets(st.integers(0, ensemble - 1)))


@given(situations())
@example((Striping(7, 3, 2), ENTRY_MAX, frozenset({6})))
def test_a_write_set_is_qw_neighbours_that_begin_at_the_entry(situation):
    striping, entry, _ = situation
    found = write_set(entry, striping)
    assert found == tuple((entry + k) % striping.ensemble for k in range(striping.write))
    assert len({*found}) == striping.write
    for member in range(striping.ensemble):
        assert is_written_to(member, entry, striping) is (member in found)


@given(situations())
def test_an_entry_is_never_both_acknowledged_and_absent(situation):
    """Whoever has it and whoever does not are two halves of the ensemble."""
    striping, entry, stored = situation
    others = frozenset(range(striping.ensemble)) - stored
    is_stored = is_acknowledged(stored, entry, striping)
    assert is_stored is not proves_absence(others, entry, striping)


@given(situations(), st.frozensets(st.integers(0, 19)))
def test_hearing_more_never_takes_a_verdict_back(situation, more):
    striping, entry, some = situation
    if covers(some, striping):
        assert covers(some | more, striping)
        assert proves_absence(some, entry, striping)
    if proves_absence(some, entry, striping):
        assert proves_absence(some | more, entry, striping)
    assert 1 <= negatives_needed(striping) <= striping.write
