"""Which nodes a log's records are spread over."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.nodes import SCOPES, Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.nodeset_selection import choose_nodeset


def cluster(nodes: int, racks: int, weights: dict[int, float] | None = None) -> list[Member]:
    return [
        Member(NodeId(n), "", f"rack{n % racks}", weight=(weights or {}).get(n, 1.0))
        for n in range(1, nodes + 1)
    ]


def test_all_nodes_where_none_is_to_be_left_out():
    members = cluster(5, 3)
    assert choose_nodeset(1, members, Replication(3, 2), 0) == (1, 2, 3, 4, 5)
    assert choose_nodeset(1, members, Replication(3, 2), 9) == (1, 2, 3, 4, 5)


def test_nodes_without_weight_get_no_new_records():
    members = cluster(5, 3, {2: 0})
    assert choose_nodeset(1, members, Replication(3, 2), 0) == (1, 3, 4, 5)


@pytest.mark.parametrize("replication", [Replication(4, 1), Replication(3, 3)])
def test_none_where_they_cannot_keep_what_is_asked(replication):
    assert choose_nodeset(1, cluster(3, 2), replication, 0) is None
    assert choose_nodeset(1, [], Replication(1), 0) is None


@given(
    log=st.integers(1, 1000),
    nodes=st.integers(1, 12),
    racks=st.integers(1, 5),
    copies=st.integers(1, 5),
    spread=st.integers(1, 5),
    size=st.integers(0, 12),
)
def test_a_nodeset_keeps_its_replication_or_there_is_none(log, nodes, racks, copies, spread, size):
    members = cluster(nodes, racks)
    replication = Replication(max(copies, spread), spread)
    nodeset = Nodeset(tuple(members))
    chosen = choose_nodeset(log, members, replication, size)
    possible = can_replicate(frozenset(nodeset.nodes), nodeset, replication)
    assert (chosen is not None) == possible
    if chosen is not None:
        assert can_replicate(frozenset(chosen), nodeset, replication)
        wanted = min(nodes, max(size, replication.copies)) if size else nodes
        assert len(set(chosen)) == len(chosen) == wanted
        # As many racks as so many nodes can span.
        assert len({nodeset[node].domain("rack") for node in chosen}) == min(
            wanted, len({m.domain("rack") for m in members})
        )


@given(
    log=st.integers(1, 50),
    places=st.lists(
        st.sampled_from(["", "a", "x.a", "x.b", "y.a", "r.d.c.x.a", "r.d.c.y.a", "s.d.c.x.a"]),
        min_size=1,
        max_size=10,
    ),
    copies=st.integers(1, 5),
    counts=st.dictionaries(st.sampled_from(SCOPES[1:]), st.integers(1, 5)),
    size=st.integers(0, 10),
)
def test_every_scope_is_kept(log, places, copies, counts, size):
    bounded = {scope: min(copies, count) for scope, count in counts.items()}
    replication = Replication.across({**bounded, "node": copies})
    members = [Member(NodeId(n), "", at) for n, at in enumerate(places, 1)]
    nodeset = Nodeset(tuple(members))
    chosen = choose_nodeset(log, members, replication, size)
    possible = can_replicate(frozenset(nodeset.nodes), nodeset, replication)
    assert (chosen is not None) == possible
    if chosen is not None:
        assert can_replicate(frozenset(chosen), nodeset, replication)
        assert len(set(chosen)) == min(len(places), max(size, copies) if size else len(places))


def test_logs_are_spread_over_all_nodes():
    members = cluster(10, 5)
    counts = Counter(
        node
        for log in range(1, 401)
        for node in choose_nodeset(log, members, Replication(3), 5) or ()
    )
    assert len(counts) == 10
    assert max(counts.values()) < 1.5 * min(counts.values())


def test_a_node_more_changes_few_nodesets():
    before, after = cluster(10, 5), cluster(11, 5)
    changed = sum(
        choose_nodeset(log, before, Replication(3), 5)
        != choose_nodeset(log, after, Replication(3), 5)
        for log in range(1, 401)
    )
    assert changed < 400 * 0.6
