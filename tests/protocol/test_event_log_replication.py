"""Which replication the event log has among the nodes that are there."""

from __future__ import annotations

import pytest

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.event_log import has_place, replication_with_place


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
