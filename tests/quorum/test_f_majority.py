"""F-majority: tables as a protocol page would print them, and a twin that tries every copyset."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from node_pictures import nodes

from cordwood.nodes import SCOPES, Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies

FIVE_NODES = "1 2 3 4 5"
THREE_RACKS = "a:1 a:2 b:3 b:4 c:5"
LOPSIDED = "a:1 b:2 c:3 c:4 c:5 c:6"


def nodeset(picture: str) -> Nodeset:
    """`a:1 b:2 3` is node 1 in rack a, node 2 in rack b, node 3 without a location."""
    members = []
    for word in picture.split():
        rack, _, number = word.rpartition(":")
        members.append(Member(NodeId(int(number)), f"host:{number}", rack))
    return Nodeset(tuple(members))


class TestTables:
    @pytest.mark.parametrize(
        ("members", "copies", "racks", "heard", "reached"),
        [
            # One rack wanted: N - R + 1 of N nodes.
            (FIVE_NODES, 3, 1, "1 2", False),
            (FIVE_NODES, 3, 1, "1 2 3", True),
            (FIVE_NODES, 3, 1, "3 4 5", True),
            (FIVE_NODES, 1, 1, "1 2 3 4", False),
            (FIVE_NODES, 1, 1, "1 2 3 4 5", True),
            (FIVE_NODES, 5, 1, "4", True),
            (FIVE_NODES, 5, 1, "", False),
            # Two of three racks wanted: any two full racks, or three nodes.
            (THREE_RACKS, 3, 2, "1 2", False),
            (THREE_RACKS, 3, 2, "3 5", False),
            (THREE_RACKS, 3, 2, "1 2 5", True),
            (THREE_RACKS, 3, 2, "1 3 5", True),
            (THREE_RACKS, 3, 2, "1 2 3", True),
            # Two copies over two racks: one full rack is not enough, two are.
            (THREE_RACKS, 2, 2, "1 2", False),
            (THREE_RACKS, 2, 2, "1 2 3", False),
            (THREE_RACKS, 2, 2, "1 2 5", True),
            (THREE_RACKS, 2, 2, "1 2 3 4", True),
            # All three racks wanted: any one full rack.
            (THREE_RACKS, 3, 3, "5", True),
            (THREE_RACKS, 3, 3, "1", False),
            (THREE_RACKS, 3, 3, "1 2", True),
            # A large rack: its four nodes alone cannot be a copyset over two racks.
            (LOPSIDED, 3, 2, "1 2", True),
            (LOPSIDED, 3, 2, "1", False),
            (LOPSIDED, 3, 2, "3 4 5", False),
            (LOPSIDED, 3, 2, "3 4 5 6", True),
            (LOPSIDED, 3, 1, "1 2", False),
            # Nodes outside the nodeset say nothing.
            (FIVE_NODES, 3, 1, "1 2 8 9", False),
            # A nodeset that allows no copyset: everyone, never nobody.
            ("1 2", 3, 1, "", False),
            ("1 2", 3, 1, "1", False),
            ("1 2", 3, 1, "1 2", True),
            ("a:1 a:2 a:3", 3, 2, "1 2", False),
            ("a:1 a:2 a:3", 3, 2, "1 2 3", True),
        ],
    )
    def test_who_must_be_heard(self, members, copies: int, racks: int, heard: str, reached: bool):
        wanted = Replication(copies, racks)
        assert weigh_replies(nodes(heard), nodeset(members), wanted, {}).is_f_majority is reached

    @pytest.mark.parametrize(
        ("counts", "heard", "reached"),
        [
            # West has racks a and b, east has rack c; four copies, over two regions or not.
            ({"node": 4}, "1 2", False),
            ({"node": 4}, "1 2 3", True),
            ({"node": 4, "region": 2}, "5 6", True),
            ({"node": 4, "region": 2}, "1 2 3", True),
            ({"node": 4, "region": 2}, "1 5", False),
            # Any scope that is met is enough: here all of two of three racks.
            ({"node": 4, "rack": 2}, "1 2 3 4", True),
            ({"node": 4, "rack": 3}, "1 2", True),
            ({"node": 4, "rack": 3}, "1 3", False),
            ({"node": 4, "rack": 3, "region": 2}, "1 2", True),
            ({"node": 4, "rack": 3, "region": 2}, "5 6", True),
            ({"node": 4, "rack": 3, "region": 2}, "1 3 5", True),
        ],
    )
    def test_several_scopes(self, counts, heard: str, reached: bool):
        racks = ("west.d.c.r.a", "west.d.c.r.b", "east.d.c.r.c")
        members = [Member(NodeId(n), "", racks[(n - 1) // 2]) for n in range(1, 7)]
        wanted = Replication.across(counts)
        members_ = Nodeset(tuple(members))
        assert weigh_replies(nodes(heard), members_, wanted, {}).is_f_majority is reached

    @pytest.mark.parametrize(
        ("members", "copies", "racks", "candidates", "can"),
        [
            (FIVE_NODES, 3, 1, "1 2", False),
            (FIVE_NODES, 3, 1, "1 2 3", True),
            (FIVE_NODES, 3, 3, "1 2 3", True),
            (THREE_RACKS, 3, 2, "1 2 3", True),
            (THREE_RACKS, 3, 3, "1 2 3", False),
            (THREE_RACKS, 2, 2, "1 2", False),
            (LOPSIDED, 3, 2, "3 4 5 6", False),
            (LOPSIDED, 3, 2, "2 5 6", True),
            (FIVE_NODES, 3, 1, "1 2 9", False),
        ],
    )
    def test_what_can_hold_a_record(
        self, members, copies: int, racks: int, candidates: str, can: bool
    ):
        found = can_replicate(nodes(candidates), nodeset(members), Replication(copies, racks))
        assert found is can

    def test_a_member_that_takes_no_new_records_still_has_old_ones(self):
        three = Nodeset(tuple(Member(NodeId(n), "", weight=float(n > 1)) for n in (1, 2, 3)))
        assert not weigh_replies(nodes("2 3"), three, Replication(1), {}).is_f_majority

    def test_complete_is_more_than_an_f_majority(self):
        five, three = nodeset(FIVE_NODES), Replication(3)
        assert weigh_replies(nodes("1 2 3"), five, three, {}) is QuorumVerdict.INCOMPLETE
        assert weigh_replies(nodes("1 2 3 4 5"), five, three, {}) is QuorumVerdict.COMPLETE


# The twin: write down every copyset, and look.


def copysets(candidates: frozenset[NodeId], members: Nodeset, wanted: Replication):
    for chosen in itertools.combinations(sorted(candidates), wanted.copies):
        counts = wanted.by_scope.items()
        if all(len({members[n].domain(scope) for n in chosen}) >= k for scope, k in counts):
            yield frozenset(chosen)


@st.composite
def situations(draw):
    count = draw(st.integers(1, 6))
    place = st.sampled_from(["", "a", "b", "c", "x.a", "x.b", "u.v.w.x.a", "u.t.w.x.a"])
    places = draw(st.lists(place, min_size=count, max_size=count))
    members = Nodeset(tuple(Member(NodeId(n), "", at) for n, at in enumerate(places, start=1)))
    copies = draw(st.integers(1, count + 1))
    counts = draw(st.dictionaries(st.sampled_from(SCOPES[1:]), st.integers(1, copies)))
    wanted = Replication.across({**counts, "node": copies})
    some = draw(st.frozensets(st.integers(1, count + 1).map(NodeId)))
    return members, wanted, some


@given(situations())
@example((nodeset(LOPSIDED), Replication(3, 2), nodes("1 2")))
def test_reached_means_that_every_copyset_is_met(situation):
    members, wanted, heard = situation
    every = list(copysets(frozenset(members.nodes), members, wanted))
    expected = all(heard & copyset for copyset in every)
    if not every:
        expected = heard >= set(members.nodes)
    assert weigh_replies(heard, members, wanted, {}).is_f_majority is expected


@given(situations())
def test_can_replicate_means_that_a_copyset_is_among_them(situation):
    members, wanted, candidates = situation
    inside = frozenset(candidates) & frozenset(members.nodes)
    expected = any(True for _ in copysets(inside, members, wanted))
    assert can_replicate(candidates, members, wanted) is expected


@given(situations(), st.frozensets(st.integers(1, 6).map(NodeId)))
def test_hearing_more_never_takes_the_verdict_back(situation, more):
    members, wanted, heard = situation
    if weigh_replies(heard, members, wanted, {}).is_f_majority:
        assert weigh_replies(heard | more, members, wanted, {}).is_f_majority
