"""The turns of the nodes that upload a log: another node stands in for the first now and then."""

from __future__ import annotations

from itertools import groupby

from cordwood.nodes import NodeId
from cordwood.protocol.upload_turns import STAND_IN_EVERY, TURN_S, tender_of, uploader_of

ORDER = (NodeId(4), NodeId(2), NodeId(7))


def turns(seconds: int, look_s: float = 10.0) -> list[tuple[int | None, int]]:
    """Uploaders in turn, with the length of each turn in seconds."""
    who = [uploader_of(ORDER, second * 1_000_000, look_s) for second in range(seconds)]
    return [(node, len(list(found))) for node, found in groupby(who)]


def test_each_other_node_stands_in_for_the_first_one_in_turn() -> None:
    first = (4, round(TURN_S) * (STAND_IN_EVERY - 1))
    assert turns(1200) == [first, (2, 60), first, (7, 60)] * 2


def test_a_turn_is_long_enough_for_rare_looks() -> None:
    assert turns(9000, look_s=600.0) == [(4, 7200), (2, 1800)]


def test_a_node_alone_has_each_turn() -> None:
    assert {uploader_of(ORDER[:1], s * 1_000_000, 10.0) for s in range(1000)} == {4}
    assert uploader_of((), 0, 10.0) is None


def test_the_living_nodes_tend_the_rest_one_after_another() -> None:
    tenders = [tender_of((NodeId(1), NodeId(3)), s * 1_000_000, 60.0) for s in range(30, 240, 60)]
    assert tenders == [1, 3, 1, 3]
    assert tender_of((), 0, 60.0) is None
