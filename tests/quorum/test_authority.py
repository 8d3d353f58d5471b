"""What silence proves: the tables of the protocol page, and a twin that tries every copyset."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_pictures import nodes, nodeset

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.quorum.authority import HAS_DATA, Authority, may_be_back
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies

FULL, GONE, EMPTY, DOWN = (
    Authority.FULLY_AUTHORITATIVE,
    Authority.UNDER_REPLICATED,
    Authority.AUTHORITATIVE_EMPTY,
    Authority.UNAVAILABLE,
)
FIVE = "1 2 3 4 5"
SEVEN = "1 2 3 4 5 6 7"
FIVE_RACKS = "a:1 a:2 b:3 b:4 c:5 c:6 d:7 d:8 e:9 e:10"


def statuses(text: str) -> dict[NodeId, Authority]:
    """`5e 6u 7d`: empty, under-replicated, down."""
    letters = {"e": EMPTY, "u": GONE, "d": DOWN}
    return {NodeId(int(word[:-1])): letters[word[-1]] for word in text.split()}


@pytest.mark.parametrize(
    ("members", "copies", "racks", "marked", "heard", "verdict"),
    [
        # All have their data: N - R + 1 of N.
        (FIVE, 3, 1, "", "1 2", "NONE"),
        (FIVE, 3, 1, "", "1 3 5", "INCOMPLETE"),
        (FIVE, 3, 1, "", FIVE, "COMPLETE"),
        # Replication 2 over racks, 5 racks: all of 4 racks.
        (FIVE_RACKS, 2, 2, "", "1 2 3 4 5 6", "NONE"),
        (FIVE_RACKS, 2, 2, "", "1 2 3 4 5 6 7", "NONE"),
        (FIVE_RACKS, 2, 2, "", "1 2 3 4 5 6 7 8", "INCOMPLETE"),
        # A node that is down has data: it counts as any other that was not heard.
        (FIVE, 3, 1, "4d 5d", "1 2 3", "INCOMPLETE"),
        (FIVE, 3, 1, "3d 4d 5d", "1 2", "NONE"),
        # Where data is gone nobody can be heard: all the others are enough.
        (FIVE, 3, 1, "3u 4u 5u", "1", "NONE"),
        (FIVE, 3, 1, "3u 4u 5u", "1 2", "NON_AUTHORITATIVE"),
        (FIVE, 3, 1, "4u 5u", "1 2 3", "COMPLETE"),
        (FIVE, 3, 1, "4u 5d", "1 2 3", "INCOMPLETE"),
        (FIVE, 3, 1, "1u 2u 3u 4u 5u", "", "NON_AUTHORITATIVE"),
        # Fewer nodes than copies are left: every one of them is needed.
        (FIVE, 3, 1, "1e 2e 3e", "4", "NONE"),
        (FIVE, 3, 1, "1e 2e 3e", "4 5", "COMPLETE"),
        # Also where one scope has domains enough: two racks are left, and not three nodes.
        ("a:1 b:2 c:3", 3, 2, "3e", "1", "NONE"),
        ("a:1 b:2 c:3", 3, 2, "3e", "1 2", "COMPLETE"),
    ],
)  # fmt: skip
def test_what_the_nodes_heard_amount_to(
    members, copies: int, racks: int, marked: str, heard, verdict: str
) -> None:
    found = weigh_replies(
        nodes(heard), nodeset(members), Replication(copies, racks), statuses(marked)
    )
    assert found is QuorumVerdict[verdict]


def test_the_drained_node_of_seven() -> None:
    """The seed's example: node 5 was rebuilt elsewhere, so that it is as if it had never been
    in the nodeset: 4 of the other 6 are an f-majority, where 5 of 7 would be."""
    seven, three = nodeset(SEVEN), Replication(3)
    drained = {NodeId(5): EMPTY}
    assert weigh_replies(nodes("1 2 3 4"), seven, three, {}) is QuorumVerdict.NONE
    assert weigh_replies(nodes("1 2 3 4"), seven, three, drained) is QuorumVerdict.INCOMPLETE
    assert weigh_replies(nodes("1 2 3 5"), seven, three, drained) is QuorumVerdict.NONE
    assert weigh_replies(nodes("1 2 3 4 6 7"), seven, three, drained) is QuorumVerdict.COMPLETE


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "x.a", "x.b", "r.d.c.x.a"]),
            st.sampled_from(list(Authority)),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(["rack", "row", "region"]), st.integers(1, 3)),
)
def test_against_a_twin_that_tries_every_copyset(made, copies, counts) -> None:
    """COMPLETE and INCOMPLETE mean that no copyset is left among the nodes that are there and
    were not heard; none of them is said where one is."""
    bounded = {scope: min(count, copies) for scope, count in counts.items()}
    replication = Replication.across({**bounded, "node": copies})
    members = [Member(NodeId(n), "", rack) for n, (rack, _, _) in enumerate(made, 1)]
    marked = {NodeId(n): status for n, (_, status, _) in enumerate(made, 1)}
    heard = frozenset(NodeId(n) for n, (_, _, spoke) in enumerate(made, 1) if spoke)
    left = [m for m in members if marked[m.node] is not EMPTY]
    silent = [m for m in left if m.node not in heard or marked[m.node] is GONE]
    complete = all(m.node in heard for m in left if marked[m.node] in HAS_DATA)

    def is_copyset(some: tuple[Member, ...]) -> bool:
        return all(
            len({m.domain(scope) for m in some}) >= count
            for scope, count in replication.by_scope.items()
        )

    hidden = any(map(is_copyset, itertools.combinations(silent, replication.copies)))
    possible = bool(left) and can_replicate(
        {m.node for m in left}, Nodeset(tuple(left)), replication
    )
    found = weigh_replies(heard, Nodeset(tuple(members)), replication, marked)
    assert (found in (QuorumVerdict.COMPLETE, QuorumVerdict.NON_AUTHORITATIVE)) == complete
    if possible and found in (QuorumVerdict.COMPLETE, QuorumVerdict.INCOMPLETE):
        assert not hidden
    if not possible and found in (QuorumVerdict.COMPLETE, QuorumVerdict.INCOMPLETE):
        assert {m.node for m in left} <= heard, "too few for a copyset: each of them is asked"
    if possible and hidden:
        assert found in (QuorumVerdict.NONE, QuorumVerdict.NON_AUTHORITATIVE)


def test_statuses_that_may_be_old_call_no_data_gone() -> None:
    members = [
        Member(NodeId(node), f"n{node}:1", "r", 1, 1.0, authority)
        for node, authority in enumerate((FULL, GONE, EMPTY, DOWN, EMPTY), 1)
    ]
    told = [each.authority for each in may_be_back(members, {NodeId(5)})]
    assert told == [FULL, DOWN, DOWN, DOWN, EMPTY], "node 5 has its status from elsewhere"
