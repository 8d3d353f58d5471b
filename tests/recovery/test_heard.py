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
