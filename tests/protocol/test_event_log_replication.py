"""Which replication the event log has among the nodes that are there."""

from __future__ import annotations

import itertools

import pytest

from cordwood.lsn import EVENT_LOG
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import event_log_nodes, has_place, replication_with_place
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.nodeset_selection import choose_nodeset


def over_racks(*sizes: int) -> Nodeset:
    """Nodes in racks of these sizes."""
    racks = [f"rack{number}" for number, size in enumerate(sizes) for _ in range(size)]
    return Nodeset(tuple(Member(NodeId(n), "", rack) for n, rack in enumerate(racks, 1)))


@pytest.mark.parametrize(
    ("sizes", "asked", "wanted"),
    [
        # What the nodes can keep stays as it is.
        ((2, 2, 1), Replication(3, 2), Replication(3, 2)),
        ((1, 1, 1), Replication(2, 2), Replication(2, 2)),
        # More copies than can be: as many as can be.
        ((1, 1, 1, 1, 1), Replication(5), Replication(3)),
        ((2, 2, 1), Replication(5, 2), Replication(3, 2)),
        # Nodes were removed: a loss of one of the three can be recorded with two copies.
        ((1, 1, 1), Replication(3, 2), Replication(2, 2)),
        # As many copies, over fewer racks.
        ((2, 2, 2), Replication(3, 3), Replication(3, 2)),
        ((3, 1), Replication(2, 2), Replication(2)),
        # One copy would be lost with its node.
        ((1, 1, 1), Replication(1), Replication(2)),
        # Two nodes cannot record that one of them is lost, whatever is asked for.
        ((1, 1), Replication(2, 2), Replication(2, 2)),
        ((1,), Replication(1), Replication(1)),
    ],
)
def test_the_nearest_replication_that_can_record_a_loss(
    sizes: tuple[int, ...], asked: Replication, wanted: Replication
) -> None:
    found = replication_with_place(over_racks(*sizes), asked)
    assert found == wanted
    assert found == asked or has_place(over_racks(*sizes), found)


@pytest.mark.parametrize(("sizes", "wanted"), [((1, 1), Replication(2, 2)), ((2,), Replication(2))])
def test_two_nodes_that_are_left_of_more_can_record_that_a_third_is_back(
    sizes: tuple[int, ...], wanted: Replication
) -> None:
    """Three copies, as the root asks for, could not be stored at all."""
    assert replication_with_place(over_racks(*sizes), Replication(3, 2)) == wanted


@pytest.mark.parametrize("racks", [(1, 1, 1, 1, 1), (2, 2, 1), (3, 3), (2, 2, 2), (3, 2, 2), (7,)])
@pytest.mark.parametrize("asked", [Replication(2), Replication(3), Replication(3, 2)])
def test_as_nodes_are_emptied_for_good_the_next_loss_can_be_recorded(
    racks: tuple[int, ...], asked: Replication
) -> None:
    """Every order in which nodes are emptied, down to three nodes that are left: whichever node is
    lost next, the others of the event log's nodeset can store the event. With two that are left,
    they can store that a third is back."""
    everybody = over_racks(*racks).members
    for empty in itertools.chain.from_iterable(
        itertools.combinations(everybody, count) for count in range(len(everybody) - 1)
    ):
        left = tuple(member for member in everybody if member not in empty)
        found = replication_with_place(Nodeset(left), asked)
        nodes = choose_nodeset(EVENT_LOG, left, found, event_log_nodes(found))
        assert nodes is not None, "the event log has an epoch"
        nodeset = Nodeset(tuple(member for member in left if member.node in nodes))
        losses = nodes if len(left) > 2 else (NodeId(0),)
        for lost in losses:
            assert can_replicate(set(nodes) - {lost}, nodeset, found), (empty, found, lost)
