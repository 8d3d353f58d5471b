"""Chooses the nodes of an ensemble, in an order in which neighbours are in different racks.

Entries go to Qw neighbours on the ring, so neighbours in different racks put each entry in two
racks or more. Nodes are drawn by weight, and a node of a rack other than the last one's is
preferred; where there is none, any node is taken: the rule is soft.

Source: docs/sources/bookkeeper.md (e).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.nodes import Member, NodeId
from cordwood.quorum.copyset import Chance


def choose_ensemble(
    able: Mapping[NodeId, Member], beside: Sequence[Member], count: int, chance: Chance
) -> tuple[NodeId, ...] | None:
    """Draw `count` nodes; None if there are too few.

    Args:
        able: who may be chosen.
        beside: nodes that stay in the ensemble; other racks than theirs come first.
    """
    left = [able[node] for node in sorted(able)]
    if len(left) < count:
        return None
    chosen: list[Member] = []
    while len(chosen) < count:
        near = [*beside, *chosen[-1:], *(chosen[:1] if len(chosen) == count - 1 else [])]
        racks = {member.domain("rack") for member in near}
        apart = [member for member in left if member.domain("rack") not in racks]
        drawn = _draw(apart or left, chance)
        left.remove(drawn)
        chosen.append(drawn)
    return tuple(member.node for member in chosen)


def _draw(members: Sequence[Member], chance: Chance) -> Member:
    at = chance.random() * sum(member.weight for member in members)
    for member in members:
        at -= member.weight
        if at < 0:
            return member
    return members[-1]
