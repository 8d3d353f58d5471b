"""Chooses the nodeset of an epoch, for a log that asks for fewer nodes than the cluster has.

The choice is weighted rendezvous hashing, rack by rack in turn. Each rack gives its best node for
the log, then its second best, until there are enough nodes. So the nodeset spans as many racks as
possible, and logs are spread over all nodes in proportion to weight. A node that comes or goes
changes only the nodesets of the logs for which it scores well. If copies must span regions or
other scopes above the rack, the first nodes come from domains that these scopes still need, the
widest scope first.

Source: docs/sources/logdevice.md 2.5 ("nodeset selector is consistent-hash").
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
        size: nodes wanted; 0 is all. If there are fewer members, the nodeset is all of them.
    Returns:
        Nodes in node order; None if no nodeset of these members can keep `replication`.
    """
    able = {member.node: member for member in members if member.weight > 0}
    if not able or not _can_keep(tuple(able), able, replication):
        return None
    if not size or size >= len(able):
        return tuple(sorted(able))
    ranked = [able[node] for node in sequencer_order(log, able.values())]
    first = _spanning(ranked, replication)
    chosen = tuple(sorted(_by_turns(ranked, first)[: max(size, replication.copies)]))
    # Domains nest, so these nodes can keep a replication that all nodes can: see `quorum.copyset`.
    assert _can_keep(chosen, able, replication), "a nodeset spans the domains that it needs"
    return chosen


def _spanning(ranked: list[Member], replication: Replication) -> list[NodeId]:
    """The best nodes that together span the domains above the rack that `replication` wants."""
    first: list[NodeId] = []
    for scope, count in reversed(replication.wider):
        used = {m.domain(scope) for m in ranked if m.node in first}
        for member in ranked:
            if len(used) < count and member.domain(scope) not in used:
                used.add(member.domain(scope))
                first.append(member.node)
    return first


def _by_turns(ranked: list[Member], first: list[NodeId]) -> list[NodeId]:
    """Every node: `first`, then the best of each rack, the second best of each, and so on."""
    turns: dict[str, int] = {}
    placed: list[tuple[int, int, NodeId]] = []
    for member in (m for m in ranked if m.node in first):
        turns[member.domain("rack")] = turns.get(member.domain("rack"), 0) + 1
    for rank, member in enumerate(ranked):
        if member.node not in first:
            rack = member.domain("rack")
            turns[rack] = turns.get(rack, 0) + 1
            placed.append((turns[rack], rank, member.node))
    return first + [node for _, _, node in sorted(placed)]


def _can_keep(
    nodes: tuple[NodeId, ...], able: dict[NodeId, Member], replication: Replication
) -> bool:
    nodeset = Nodeset(tuple(able[node] for node in nodes))
    return can_replicate(frozenset(nodes), nodeset, replication)
