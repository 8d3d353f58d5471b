"""Which nodes an epoch's records are spread over, for a log that does not take them all.

Weighted rendezvous hashing, rack by rack in turn: each rack gives its best node for the
log, then its second best, until there are enough. So the nodeset spans as many racks as it
can, logs are spread over all nodes in proportion to weight, and a node that comes or goes
changes the nodesets only of the logs that it scores well for.

Source: LogDevice digest 2.5 ("nodeset selector is consistent-hash").
"""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import can_replicate
from cordwood.quorum.sequencer_placement import sequencer_order


def choose_nodeset(
    log: int, members: Iterable[Member], replication: Replication, size: int
) -> tuple[NodeId, ...] | None:
    """Choose a nodeset among the members of positive weight.

    Args:
        size: nodes wanted; 0 is all. Where there are fewer, all of them.
    Returns:
        Nodes in node order; None if no nodeset of theirs could keep `replication`.
    """
    able = {member.node: member for member in members if member.weight > 0}
    if not able or not _can_keep(tuple(able), able, replication):
        return None
    if not size or size >= len(able):
        return tuple(sorted(able))
    chosen = tuple(sorted(_by_turns(log, able)[: max(size, replication.copies)]))
    # Racks in turn give as many racks as there are, so what all could keep these can.
    assert _can_keep(chosen, able, replication), "a nodeset spans the racks that it needs"
    return chosen


def _by_turns(log: int, able: dict[NodeId, Member]) -> list[NodeId]:
    """Every node: the best of each rack, then the second best of each, and so on."""
    turns: dict[str, int] = {}
    ranked: list[tuple[int, int, NodeId]] = []
    for rank, node in enumerate(sequencer_order(log, able.values())):
        rack = able[node].domain("rack")
        turns[rack] = turns.get(rack, 0) + 1
        ranked.append((turns[rack], rank, node))
    return [node for _, _, node in sorted(ranked)]


def _can_keep(
    nodes: tuple[NodeId, ...], able: dict[NodeId, Member], replication: Replication
) -> bool:
    nodeset = Nodeset(tuple(able[node] for node in nodes))
    return can_replicate(frozenset(nodes), nodeset, replication)
