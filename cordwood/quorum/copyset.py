"""Copysets: the nodes that hold a block, drawn at random by weight, within the replication rule.

Nodes are drawn one by one. Each candidate's chance is in proportion to its weight. A copyset that
is short of copies or domains is never returned; LogDevice also fails instead.

Drawing without replacement flattens large differences of weight. A rack that is smaller than the
others gets more than its share when a log asks for racks. Both are the price of the rule.

The same random stream gives the same sequence of copysets: members are walked in node order, and
nothing is drawn when no copyset exists.

Source: docs/sources/logdevice.md 2.5, 2.6; docs/design.md §3 ("spread").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Protocol

from cordwood.nodes import Member, NodeId, Nodeset, Replication


class Chance(Protocol):
    """The source of draws; `random.Random` fits it."""

    def random(self) -> float:
        """The next draw, uniform in [0, 1)."""


def can_replicate(nodes: Set[NodeId], nodeset: Nodeset, replication: Replication) -> bool:
    """Say whether some of `nodes` could be a copyset, in every scope.

    Weight and reachability play no part, so the answer holds for old records too.

    Args:
        nodes: candidates; nodes outside the nodeset do not count.
    Source: docs/sources/logdevice.md 2.6, "canReplicate".
    """
    members = [member for member in nodeset.members if member.node in nodes]
    return len(members) >= replication.copies and all(
        len({member.domain(scope) for member in members}) >= count
        for scope, count in replication.spans
    )


def can_lose(lost: int, nodeset: Nodeset, replication: Replication) -> bool:
    """Say whether the others could be a copyset whichever `lost` nodes of a nodeset are away."""

    def left(scope: str) -> int:
        """The fewest domains that are left: the nodes that are away fill the smallest domains
        first."""
        sizes = Counter(member.domain(scope) for member in nodeset.members)
        away, gone = lost, 0
        for size in sorted(sizes.values()):
            away -= size
            gone += away >= 0
        return len(sizes) - gone

    return len(nodeset.members) - lost >= replication.copies and all(
        left(scope) >= count for scope, count in replication.spans
    )


def choose_copyset(
    nodeset: Nodeset, replication: Replication, available: Set[NodeId], random: Chance
) -> tuple[NodeId, ...] | None:
    """Draw a copyset for new blocks.

    Args:
        available: nodes worth sending to; nodes outside the nodeset do not count.
        random: draws exactly `replication.copies` numbers; no number if the result is None.
    Returns:
        Exactly `replication.copies` distinct members of positive weight, in the order drawn.
        They span as many domains of each scope as `replication` asks for. None if the nodes in
        `available` cannot form a copyset.
    """
    left = [m for m in nodeset.members if m.node in available and m.weight > 0]
    # Number: one count a scope decides, before the first draw, whether a copyset exists. The draws
    # below cannot fail half way: domains nest, so a node in a new region is in a new rack too, and
    # one draw lowers the want of every narrower scope.
    if not can_replicate({member.node for member in left}, nodeset, replication):
        return None
    drawn: list[NodeId] = []
    used: dict[str, set[str]] = {scope: set() for scope, _ in replication.spans}
    for draws_left in range(replication.copies, 0, -1):
        for scope, count in replication.spans:
            # As many draws are left as domains are still wanted: only new domains count from here.
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
