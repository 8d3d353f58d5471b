"""What a node tells of producers when an epoch is sealed: enough, and little more."""

from __future__ import annotations

import pytest
from swaps import swap_value

from cordwood.block import BlockHeader, Produced, ProducedBlock
from cordwood.lsn import make_lsn
from cordwood.protocol import producers
from cordwood.protocol.producers import PLACES_MAX, QUERY_PRODUCERS, Budget
from cordwood.storage.produced_index import ProducedIndex


def block(esn: int, sequence: int, count: int = 1, producer: int = 7, **more) -> BlockHeader:
    first = make_lsn(1, esn)
    return BlockHeader(1, first, count, 0, producer=producer, producer_sequence=sequence, **more)


def test_all_above_the_lng_stay_and_of_those_below_the_last_few():
    index = ProducedIndex()
    for n in range(1, 41):
        index.note(block(n, n - 1), make_lsn(1, 20))
    (told,) = index.of(1)
    esns = [place.first & 0xFFFFFFFF for place in told.places]
    assert esns[-20:] == list(range(21, 41))
    assert esns[:-20][-PLACES_MAX:] == list(range(21 - PLACES_MAX, 21))
    assert len(esns) <= 20 + 2 * PLACES_MAX + 1


def test_blocks_of_a_group_are_one_place():
    index = ProducedIndex()
    group = {"group_first": make_lsn(1, 5), "group_last": make_lsn(1, 10)}
    index.note(block(5, 100, 4, **group), 0)
    index.note(block(9, 104, 2, **group), 0)
    assert index.of(1)[0].places == (ProducedBlock(100, 6, make_lsn(1, 5)),)


def test_producers_and_their_epochs_are_told_apart_and_dropped_with_the_epoch():
    index = ProducedIndex()
    index.note(block(1, 0, producer=7), 0)
    index.note(block(2, 0, producer=8), 0)
    index.note(block(3, 0, producer=7, producer_epoch=1), 0)
    assert [(each.producer, each.epoch) for each in index.of(1)] == [(7, 0), (7, 1), (8, 0)]
    index.drop(1)
    assert index.of(1) == ()


def test_a_query_that_commits_often_puts_no_other_producer_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    """Each commit is an epoch of the query: they counted as so many producers."""
    swap_value(monkeypatch, lambda: producers.USERS, Budget(4, 1))
    swap_value(monkeypatch, lambda: producers.QUERIES, Budget(4, 1))
    index = ProducedIndex()
    index.note(block(1, 0, producer=7), 0)
    index.note(block(2, 0, producer=QUERY_PRODUCERS), 0)
    for n in range(3, 200):
        who = QUERY_PRODUCERS + 1 if n % 2 else 8
        index.note(block(n, 0, producer=who, producer_epoch=n), make_lsn(1, n - 1))
    told = index.of(1)
    assert {each.producer for each in told} == {7, 8, QUERY_PRODUCERS, QUERY_PRODUCERS + 1}
    assert len(told) < 50
    assert (8, 198) in {(each.producer, each.epoch) for each in told}
    assert ProducedIndex({1: told}).of(1) == told


def test_the_newest_of_each_kind_are_remembered(monkeypatch: pytest.MonkeyPatch):
    swap_value(monkeypatch, lambda: producers.USERS, Budget(3, 1))
    swap_value(monkeypatch, lambda: producers.QUERIES, Budget(2, 1))
    index = ProducedIndex()
    for n in range(1, 60):
        index.note(block(n, 0, producer=QUERY_PRODUCERS + n), make_lsn(1, n))
        index.note(block(n + 100, 0, producer=n), make_lsn(1, n + 100))
        known = {each.producer for each in index.of(1)}
        newest = range(max(1, n - 2), n + 1)
        assert known >= set(newest) | {QUERY_PRODUCERS + each for each in newest[-2:]}
        assert len(known) <= 2 * (3 + 2)


def test_blocks_in_flight_put_no_producer_out_of_memory(monkeypatch: pytest.MonkeyPatch):
    """They may become holes. The memory was empty then, and a late repeat was stored again."""
    swap_value(monkeypatch, lambda: producers.USERS, Budget(3, 1))
    index = ProducedIndex()
    for n in range(1, 4):
        index.note(block(n, 0, producer=n), make_lsn(1, n - 1))
    for n in range(4, 20):
        index.note(block(n, 0, producer=n), make_lsn(1, 3))
    assert [each.producer for each in index.settled(1, make_lsn(1, 3))] == [1, 2, 3]
    assert [each.producer for each in index.of(1)] == list(range(1, 20)), "all in flight"
    index.note(block(20, 0, producer=20), make_lsn(1, 19))
    assert [each.producer for each in index.of(1)] == [17, 18, 19, 20]


def test_blocks_in_flight_stay_where_another_node_tells_of_producers(
    monkeypatch: pytest.MonkeyPatch,
):
    swap_value(monkeypatch, lambda: producers.USERS, Budget(3, 1))
    index = ProducedIndex()
    for n in range(11, 15):
        index.note(block(n, 0, producer=n), 0)
    index.take(1, [produced((n, 0), producer=n) for n in range(1, 9)])
    assert [each.producer for each in index.of(1)] == [6, 7, 8, 11, 12, 13, 14]


def test_of_an_epoch_below_a_settled_one_nothing_stays_and_of_others_all_above_the_lng():
    index = ProducedIndex()
    for n in range(1, 31):
        index.note(block(n, n - 1, producer_epoch=0), 0)
    for n in range(31, 61):
        index.note(block(n, n - 31, producer_epoch=1), make_lsn(1, 20))
    assert {each.epoch: len(each.places) for each in index.of(1)}[1] == 30
    assert [p.first & 0xFFFFFFFF for p in index.of(1)[0].places][-10:] == list(range(21, 31))
    index.note(block(61, 30, producer_epoch=1), make_lsn(1, 40))
    (told,) = index.of(1)
    assert [p.first & 0xFFFFFFFF for p in told.places] == list(range(36, 62))


def produced(*at: tuple[int, int], producer: int = 7, epoch: int = 0) -> Produced:
    return Produced(producer, epoch, tuple(ProducedBlock(s, 1, make_lsn(1, n)) for n, s in at))


def test_what_another_node_knows_is_joined_with_what_is_held():
    index = ProducedIndex()
    index.note(block(3, 2), 0)
    told = [produced((1, 0), (2, 1)), produced((9, 0), producer=8)]
    assert not index.has(1, told)
    index.take(1, told)
    assert index.has(1, told)
    assert index.of(1) == (produced((1, 0), (2, 1), (3, 2)), produced((9, 0), producer=8))


def test_no_told_block_is_kept_that_nobody_asks_for_any_more():
    index = ProducedIndex()
    for n in range(20, 20 + 2 * PLACES_MAX):
        index.note(block(n, n), 0)
    before = index.of(1)
    index.take(1, [produced((1, 0), (2, 1))])
    assert index.of(1) == before
    assert index.has(1, [produced((1, 0), (2, 1))])


def test_a_producers_higher_epoch_stays_its_last():
    index = ProducedIndex()
    index.note(block(9, 0, producer_epoch=1), 0)
    index.take(1, [produced((1, 0))])
    assert [(each.epoch, each.last_first) for each in index.of(1)] == [
        (0, make_lsn(1, 1)), (1, make_lsn(1, 9)),
    ]  # fmt: skip
    assert [each.epoch for each in index.settled(1, make_lsn(1, 9))] == [1]


def test_what_is_above_the_lng_is_not_told():
    """It may become a hole."""
    index = ProducedIndex()
    for n in range(1, 9):
        index.note(block(n, n - 1), 0)
    (told,) = index.settled(1, make_lsn(1, 7))
    assert [place.first for place in told.places] == [make_lsn(1, n) for n in range(3, 8)]
    assert index.settled(1, 0) == ()
