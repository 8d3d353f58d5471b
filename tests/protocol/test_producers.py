"""Producers' blocks: next, repeated, missing, forgotten; against a twin that remembers all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import ProducedBlock
from cordwood.protocol.producers import (
    PLACES_MAX,
    QUERIES,
    QUERY_PRODUCERS,
    USERS,
    ProducerTable,
    ProducerVerdict,
)


def table(*places: tuple[int, int, int], epoch: int = 0) -> ProducerTable:
    """Producer 7's blocks: sequence, count, first."""
    made = ProducerTable()
    for place in places:
        made.note(7, epoch, ProducedBlock(*place))
    return made


@pytest.mark.parametrize(
    ("epoch", "end", "last"),
    [(0, 5, 100), (0, 10, 100), (0, 11, 110), (0, 20, 110), (0, 21, 142), (0, 99, 142), (1, 99, 0)],
)
def test_up_to_where_a_log_is_stored_if_a_producers_blocks_below_a_sequence_are(
    epoch: int, end: int, last: int
):
    """Of what is not remembered it is known that it lies below what is."""
    assert table((10, 10, 101), (20, 3, 140)).last_below(7, epoch, end) == last
    assert ProducerTable().last_below(7, epoch, end) == 0


@pytest.mark.parametrize(
    ("sequence", "count", "verdict", "first"),
    [
        (13, 1, ProducerVerdict.NEXT, 0),
        (13, 9, ProducerVerdict.NEXT, 0),
        (0, 10, ProducerVerdict.REPEAT, 101),
        (10, 3, ProducerVerdict.REPEAT, 140),
        (10, 2, ProducerVerdict.FORGOTTEN, 0),
        (3, 1, ProducerVerdict.FORGOTTEN, 0),
        (14, 1, ProducerVerdict.GAP, 0),
    ],
)
def test_a_block_is_next_or_a_repeat_or_neither(sequence: int, count: int, verdict, first: int):
    assert table((0, 10, 101), (10, 3, 140)).look(7, 0, sequence, count) == (verdict, first)


def test_a_producer_begins_at_0_and_a_forgotten_one_cannot_go_on():
    assert ProducerTable().look(7, 0, 0, 5) == (ProducerVerdict.NEXT, 0)
    assert ProducerTable().look(7, 0, 5, 5) == (ProducerVerdict.UNKNOWN, 0)


def test_a_higher_epoch_begins_anew_and_shuts_the_lower_one_out():
    made = table((0, 10, 101), epoch=3)
    assert made.look(7, 4, 0, 1) == (ProducerVerdict.NEXT, 0)
    assert made.look(7, 4, 10, 1) == (ProducerVerdict.GAP, 0)
    assert made.look(7, 2, 10, 1) == (ProducerVerdict.FENCED, 0)
    made.note(7, 4, ProducedBlock(0, 1, 200))
    assert made.look(7, 3, 10, 1) == (ProducerVerdict.FENCED, 0)
    made.note(7, 3, ProducedBlock(10, 1, 300))
    assert made.look(7, 4, 1, 1) == (ProducerVerdict.NEXT, 0)


def test_only_the_last_few_places_are_remembered():
    made = table(*((n, 1, 100 + n) for n in range(PLACES_MAX + 1)))
    assert made.look(7, 0, 0, 1) == (ProducerVerdict.FORGOTTEN, 0)
    assert made.look(7, 0, 1, 1) == (ProducerVerdict.REPEAT, 101)


KINDS = [(0, *USERS), (QUERY_PRODUCERS, *QUERIES)]


@pytest.mark.parametrize(("base", "most", "idle_us"), KINDS)
def test_a_new_producer_is_refused_while_all_that_are_remembered_may_still_repeat(
    base, most, idle_us
):
    made = ProducerTable()
    for producer in range(1, most + 1):
        assert made.look(base + producer, 0, 0, 1, producer) == (ProducerVerdict.NEXT, 0)
        made.note(base + producer, 0, ProducedBlock(0, 1, producer, time_us=producer))
    newest = base + most + 1
    made.note(base + 1, 0, ProducedBlock(1, 1, newest, time_us=most))
    for now_us in (0, most, idle_us + 1):
        assert made.look(newest, 0, 0, 1, now_us) == (ProducerVerdict.FULL, 0), (
            "producer 2 wrote at 2"
        )
    assert made.look(base + 2, 0, 0, 1, idle_us) == (ProducerVerdict.REPEAT, 2)
    assert made.look(base + 2, 0, 1, 1, idle_us) == (ProducerVerdict.NEXT, 0)
    assert made.look(newest, 0, 0, 1, idle_us + 2) == (ProducerVerdict.NEXT, 0)
    made.note(newest, 0, ProducedBlock(0, 1, newest + 1, time_us=idle_us + 2))
    assert len(made) == most
    assert made.look(base + 2, 0, 1, 1) == (ProducerVerdict.UNKNOWN, 0)
    again = ProducerTable(made.all())
    for each in (made, again):
        assert each.look(newest, 0, 0, 1, 0) == (ProducerVerdict.REPEAT, newest + 1)
        assert each.look(base + 1, 0, 1, 1, 0) == (ProducerVerdict.REPEAT, newest)
        assert each.idle_us(base, 10) == 7, "of producer 3"


@pytest.mark.parametrize(("base", "most", "idle_us"), KINDS)
def test_a_late_first_block_is_taken_only_by_a_log_that_has_forgotten_nobody(base, most, idle_us):
    made = ProducerTable()
    for producer in range(1, most + 1):
        assert made.look(base + producer, 0, 0, 1, is_late=True) == (ProducerVerdict.NEXT, 0)
        assert made.replaced_by(base + producer) is None
        made.note(base + producer, 0, ProducedBlock(0, 1, producer))
        assert made.look(base + producer, 0, 0, 1, is_late=True)[0] is ProducerVerdict.REPEAT
        assert made.replaced_by(base + producer) is None
    newest = base + most + 1
    assert made.look(newest, 0, 0, 1, idle_us - 1, is_late=True)[0] is ProducerVerdict.FULL
    assert made.look(newest, 0, 0, 1, idle_us, is_late=True) == (ProducerVerdict.UNKNOWN, 0)
    assert made.look(newest, 0, 0, 1, idle_us) == (ProducerVerdict.NEXT, 0)
    replaced = made.replaced_by(newest)
    assert replaced is not None
    made.note(newest, 0, ProducedBlock(0, 1, newest, idle_us))
    assert replaced.producer not in [each.producer for each in made.all()]


def test_queries_leave_users_their_memory_and_the_other_way():
    made = ProducerTable()
    for query in range(QUERIES.most):
        made.note(QUERY_PRODUCERS + query, 0, ProducedBlock(0, 1, 1 + query))
    assert made.look(7, 0, 0, 1) == (ProducerVerdict.NEXT, 0)
    made.note(7, 0, ProducedBlock(0, 1, 5_000))
    assert made.look(7, 0, 0, 1) == (ProducerVerdict.REPEAT, 5_000)
    assert made.look(7, 0, 1, 1) == (ProducerVerdict.NEXT, 0)
    assert made.look(QUERY_PRODUCERS, 0, 0, 1) == (ProducerVerdict.REPEAT, 1)


@pytest.mark.parametrize(("base", "most", "idle_us"), KINDS)
def test_whatever_is_noted_last_is_remembered(base, most, idle_us):
    """Over its number, a recovery may find more: it is never the newest that goes."""
    made = ProducerTable()
    for producer in range(1, 2 * most):
        made.note(base + producer, 0, ProducedBlock(0, 1, producer))
        assert made.look(base + producer, 0, 0, 1) == (ProducerVerdict.REPEAT, producer)
    assert len(made) == most


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=40))
def test_against_a_twin_that_remembers_every_record(blocks):
    """The twin keeps where each record stands; no record may ever have two places."""
    made, twin, tail = ProducerTable(), {}, 1
    for sequence, count in blocks:
        verdict, first = made.look(7, 0, sequence, count)
        if verdict is ProducerVerdict.NEXT:
            assert not any(sequence + i in twin for i in range(count))
            assert sequence == len(twin)
            twin |= {sequence + i: tail + i for i in range(count)}
            made.note(7, 0, ProducedBlock(sequence, count, tail))
            tail += count
        elif verdict is ProducerVerdict.REPEAT:
            assert [twin[sequence + i] for i in range(count)] == [first + i for i in range(count)]
        elif verdict is ProducerVerdict.FORGOTTEN:
            assert sequence in twin
        else:
            assert sequence not in twin
    again = ProducerTable(made.all())
    assert again.all() == made.all()
