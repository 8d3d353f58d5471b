"""Copysets: which nodes hold a block, chosen at random by weight, never against the rule.

Nodes are drawn one by one, each with a chance in proportion to its weight among those
that may still be drawn. All members may, until as many draws are left as racks (or
domains of another scope) are still wanted: from then on only members of racks not used
yet. That can never fail half way: domains nest, so a node in a new region is in a new
rack too, and one draw lessens what every narrower scope wants. So whether a copyset
exists is one count for each scope, made before the first draw, and a copyset short of
copies or domains is never the answer (LogDevice, too, fails instead).

Drawing without replacement flattens large differences of weight, and a rack smaller than
the others gets more than its share when racks are asked for; both are the price of the rule.

One stream of chance gives one sequence of copysets: members are walked in node order,
and nothing is drawn when there is no choice to give.

Source: docs/sources/logdevice.md 2.5, 2.6; docs/design.md §3 ("spread").
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Protocol

from cordwood.nodes import Member, NodeId, Nodeset, Replication


class Chance(Protocol):
    """Where draws come from; `random.Random` fits it."""

    def random(self) -> float:
        """The next draw, uniform in [0, 1)."""


def can_replicate(nodes: Set[NodeId], nodeset: Nodeset, replication: Replication) -> bool:
    """Say whether some of `nodes` could be a copyset, in every scope.

    Weight and reachability are not asked: what this says holds for old records too.

    Args:
        nodes: candidates; those outside the nodeset do not count.
    Source: docs/sources/logdevice.md 2.6, "canReplicate".
    """
    members = [member for member in nodeset.members if member.node in nodes]
    return len(members) >= replication.copies and all(
        len({member.domain(scope) for member in members}) >= count
        for scope, count in replication.spans
    )


def choose_copyset(
    nodeset: Nodeset, replication: Replication, available: Set[NodeId], random: Chance
) -> tuple[NodeId, ...] | None:
    """Draw a copyset for new blocks.

    Args:
        available: nodes worth sending to; those outside the nodeset do not count.
        random: draws exactly `replication.copies` numbers, or none for None.
    Returns:
        Exactly `replication.copies` distinct members of positive weight, over as many
        domains of each scope as it asks for, in the order drawn; None if `available`
        allows none.
    """
    left = [m for m in nodeset.members if m.node in available and m.weight > 0]
    if not can_replicate({member.node for member in left}, nodeset, replication):
        return None
    drawn: list[NodeId] = []
    used: dict[str, set[str]] = {scope: set() for scope, _ in replication.spans}
    for draws_left in range(replication.copies, 0, -1):
        for scope, count in replication.spans:
            if count - len(used[scope]) >= draws_left:
                left = [member for member in left if member.domain(scope) not in used[scope]]
        member = left.pop(draw_member(left, random))
        drawn.append(member.node)
        for scope in used:
            used[scope].add(member.domain(scope))
    return tuple(drawn)


def draw_member(members: Sequence[Member], random: Chance) -> int:
    """Index of one member, by weight."""
    point = random.random() * sum(member.weight for member in members)
    for index, member in enumerate(members):
        point -= member.weight
        if point < 0:
            return index
    # Rounding can leave a point just past the last weight.
    return len(members) - 1
