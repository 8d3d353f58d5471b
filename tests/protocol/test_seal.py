"""Seals: what a node refuses afterwards, and what a recovery learns from them."""

from __future__ import annotations

import pytest

from cordwood.block import Produced, ProducedBlock
from cordwood.errors import Fenced
from cordwood.lsn import make_lsn
from cordwood.nodes import Member, NodeId, Nodeset
from cordwood.protocol.producers import ProducerTable, ProducerVerdict
from cordwood.protocol.seal import SealTable, SealTally

NODESET = Nodeset(tuple(Member(NodeId(n), f"n{n}:1") for n in (1, 2, 3)))


@pytest.mark.parametrize(
    ("sealed", "epoch", "by_recovery_of", "admitted"),
    [
        (0, 1, 0, True),
        (5, 5, 0, True),  # the epoch that sealed is the one that writes now
        (5, 6, 0, True),
        (5, 4, 0, False),
        (5, 4, 5, True),  # recovery mends below its own seal
        (5, 4, 4, False),  # an older recovery was overtaken
        (5, 4, 6, False),  # a recovery that has not sealed here may not store here
    ],
)
def test_what_a_sealed_node_admits(
    sealed: int, epoch: int, by_recovery_of: int, admitted: bool
) -> None:
    table = SealTable()
    assert table.seal(1, sealed)
    assert table.admits(1, epoch, by_recovery_of) is admitted


def test_a_seal_never_goes_back_and_is_per_log() -> None:
    table = SealTable()
    assert table.seal(1, 5)
    assert not table.seal(1, 4)
    assert table.seal(1, 5), "sealing again with the same epoch is fine"
    assert (table.of(1), table.of(2)) == (5, 0)


def tally() -> SealTally:
    return SealTally(NODESET)


def test_the_lng_is_the_highest_that_any_member_heard_knows() -> None:
    heard = tally()
    heard.on_sealed(NodeId(2), {4: make_lsn(4, 7)}, 30)
    heard.on_sealed(NodeId(1), {4: make_lsn(4, 0)}, 10)
    assert heard.sealed == (1, 2)
    assert heard.lng(4) == make_lsn(4, 7)
    assert heard.lng(3) == make_lsn(3, 0)
    assert heard.append_time_us == 30


def test_what_was_released_since_the_seal_is_remembered_of_its_producer() -> None:
    """Swarm seed 7011. Members heard of a release between their seal and the digest, which so
    began above what the seal's answers knew as the LNG. What a producer had written in between
    was in neither of the two, its next block was refused as out of sequence, with nothing wrong,
    and a repeat would have been stored a second time."""
    heard = tally()
    heard.on_sealed(NodeId(1), {4: make_lsn(4, 2)}, 10)
    places = tuple(ProducedBlock(at - 1, 1, make_lsn(4, at)) for at in (1, 2, 3, 4, 5))
    heard.on_produced(4, [Produced(7, 0, places)])
    producers = ProducerTable()
    heard.note_produced(4, make_lsn(4, 4), producers)
    assert producers.look(7, 0, 3, 1) == (ProducerVerdict.REPEAT, make_lsn(4, 4))
    assert producers.look(7, 0, 4, 1) == (ProducerVerdict.NEXT, 0), (
        "what is above the LNG may be a hole yet"
    )


def test_who_lost_records_seals_and_says_nothing_of_what_is_young() -> None:
    """Seed 15000672: of an acknowledged record's two holders one had lost it, and sealed; the other
    one was not asked. The record was taken for younger than all that could be acknowledged."""
    found = tally()
    found.on_sealed(NodeId(1), {1: make_lsn(1, 5)}, 10)
    found.on_sealed(NodeId(2), {1: make_lsn(1, 6)}, 20, is_sure=False)
    assert found.sealed == (1, 2), "no older store is taken by either"
    assert found.sure == {1}
    assert found.append_time_us == 20


@pytest.mark.parametrize(
    ("begun", "ruling"),
    [
        ((), 0),
        ((0, 0), 0),  # a node of an older version does not tell it
        ((3, 4), 0),  # epochs below the own one
        ((5,), 5),
        ((4, 5, 0), 5),
        ((5, 9), 9),  # the next epoch has to be above all that are known
    ],
)
def test_an_epoch_that_any_member_knows_of_does_not_begin_again(
    begun: tuple[int, ...], ruling: int
) -> None:
    heard = tally()
    for node, epoch in enumerate(begun, 1):
        heard.on_sealed(NodeId(node), {}, 0, begun=epoch)
    if ruling:
        with pytest.raises(Fenced, match=f"epoch {ruling} began before") as fenced:
            heard.check_unbegun(1, 5)
        assert fenced.value.epoch == ruling
    else:
        heard.check_unbegun(1, 5)
