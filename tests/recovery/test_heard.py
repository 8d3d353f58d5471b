"""When recovery has heard enough, read like the protocol: nodes, what is said of them, verdict."""

from __future__ import annotations

import pytest

from cordwood.nodes import Authority, Member, NodeId, Nodeset, Replication
from cordwood.quorum.f_majority import QuorumVerdict
from cordwood.recovery.heard import attainable, is_enough, weigh

DOWN, GONE, EMPTY = (
    Authority.UNAVAILABLE,
    Authority.UNDER_REPLICATED,
    Authority.AUTHORITATIVE_EMPTY,
)
FIVE = Nodeset(tuple(Member(NodeId(n), "", f"rack{n % 3 + 1}") for n in range(1, 6)))
"""Racks 2, 3, 1, 2, 3."""


def nodes(text: str) -> set[NodeId]:
    return {NodeId(int(each)) for each in text.split()}


@pytest.mark.parametrize(
    ("heard", "said", "verdict", "enough"),
    [
        ("1 2 3", {}, QuorumVerdict.INCOMPLETE, True),  # 4 and 5 cannot hold three copies
        ("1 2", {}, QuorumVerdict.NONE, False),  # 3, 4 and 5 can
        (
            "1 2",
            {5: EMPTY},
            QuorumVerdict.INCOMPLETE,
            False,
        ),  # 3 and 4 cannot, and two hold no tail
        ("1 2 3 4 5", {}, QuorumVerdict.COMPLETE, True),
        ("1 2 3 4", {5: GONE}, QuorumVerdict.COMPLETE, True),
        ("1 2", {3: GONE, 4: GONE, 5: GONE}, QuorumVerdict.NON_AUTHORITATIVE, True),
        ("1 2", {3: GONE, 4: GONE, 5: DOWN}, QuorumVerdict.NONE, False),  # 5 may come back
        ("1 2", {3: EMPTY, 4: EMPTY, 5: EMPTY}, QuorumVerdict.COMPLETE, True),  # all there is
        ("", dict.fromkeys(range(1, 6), GONE), QuorumVerdict.NON_AUTHORITATIVE, True),
        ("1 2 3", {3: GONE}, QuorumVerdict.INCOMPLETE, True),  # it answers, so it is there
    ],
)
def test_what_is_said_of_the_silent_decides(heard: str, said, verdict, enough: bool) -> None:
    statuses = {NodeId(node): status for node, status in said.items()}
    assert weigh(nodes(heard), FIVE, Replication(3), statuses) is verdict
    assert is_enough(nodes(heard), FIVE, Replication(3), statuses) is enough


@pytest.mark.parametrize(
    ("heard", "said", "enough"),
    [
        ("1 4 5", {1: EMPTY}, False),  # 2 and 3 are only away, and have data
        ("1 3 4 5", {1: EMPTY}, True),
        ("3 4 5", {1: EMPTY}, True),
        ("1 4 5", {1: EMPTY, 2: GONE, 3: GONE}, True),  # no other node can give a copy
        ("1 4 5", {1: EMPTY, 2: GONE, 3: DOWN}, False),
        ("1 4 5", {1: EMPTY, 2: EMPTY, 3: EMPTY}, True),
        ("1 2 3", {1: EMPTY, 2: EMPTY, 3: EMPTY}, False),  # 4 and 5 have data
        ("1 2 3", {1: EMPTY, 2: EMPTY, 3: EMPTY, 4: EMPTY, 5: EMPTY}, True),
    ],
)
def test_an_empty_node_that_answers_stands_for_no_copy(heard: str, said, enough: bool) -> None:
    statuses = {NodeId(node): status for node, status in said.items()}
    empty = {node for node, status in statuses.items() if status is EMPTY}
    answers = nodes(heard)
    told = {node: status for node, status in statuses.items() if node not in answers}
    for known in (statuses, told):
        assert is_enough(answers, FIVE, Replication(3), known, empty) is enough
    assert not enough or not answers - empty or _is_as_wide_as_can_be(answers - empty, statuses)


def _is_as_wide_as_can_be(answers: set[NodeId], statuses: dict[NodeId, Authority]) -> bool:
    """Whether the tail has all its copies, or every other node lost its data or is empty."""
    others = {each.node for each in FIVE.members} - answers
    return attainable(answers, FIVE, Replication(3)) == Replication(3) or all(
        statuses.get(node) in (GONE, EMPTY) for node in others
    )


def test_a_pair_of_one_rack_is_not_enough_to_hold_a_tail_over_two() -> None:
    over_two = Replication(2, 2)
    statuses = {NodeId(2): EMPTY, NodeId(5): EMPTY}
    assert weigh(nodes("1 4"), FIVE, over_two, statuses) is QuorumVerdict.INCOMPLETE
    assert not is_enough(nodes("1 4"), FIVE, over_two, statuses)
    assert is_enough(nodes("1 4"), FIVE, over_two, {**statuses, NodeId(3): EMPTY})


@pytest.mark.parametrize(
    ("left", "copies", "racks"),
    [("1 2 3 4", 3, 2), ("1 2", 2, 2), ("1 4", 2, 1), ("3", 1, 1), ("", 1, 1)],
)
def test_a_tail_is_stored_as_well_as_what_is_left_can(left: str, copies: int, racks: int) -> None:
    assert attainable(nodes(left), FIVE, Replication(3, 2)) == Replication(copies, racks)
