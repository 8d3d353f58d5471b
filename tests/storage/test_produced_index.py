"""What a node tells of producers when an epoch is sealed: enough, and little more."""

from __future__ import annotations

from cordwood.block import BlockHeader, Place
from cordwood.lsn import make_lsn
from cordwood.protocol.producers import PLACES_MAX
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
    assert index.of(1)[0].places == (Place(100, 6, make_lsn(1, 5)),)


def test_producers_and_their_epochs_are_told_apart_and_dropped_with_the_epoch():
    index = ProducedIndex()
    index.note(block(1, 0, producer=7), 0)
    index.note(block(2, 0, producer=8), 0)
    index.note(block(3, 0, producer=7, producer_epoch=1), 0)
    assert [(each.producer, each.epoch) for each in index.of(1)] == [(7, 0), (7, 1), (8, 0)]
    index.drop(1)
    assert index.of(1) == ()
