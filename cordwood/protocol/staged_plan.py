"""Plans what a donor does about one staged block: new copies, a newer copyset to take, or nothing.

A staged block has no LSN and no epoch. Its copyset is in the head of each copy, with the number of
times that it was changed; the highest number is the newest. The donor is the first member of the
copyset that has its data and holds the block, even if that node is leaving. No rule counts on
the silence of a node about a staged block, so a copy that a move left behind does no harm: it
expires.

Source: docs/protocol/staging-and-publishing.md, rules 10 to 12.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from typing import NamedTuple

from cordwood.nodes import NodeId, Nodeset, Replication
from cordwood.protocol.rebuild_plan import augment, candidates
from cordwood.quorum.copyset import Chance


class StagedAt(NamedTuple):
    """The copyset of a staged block, as one node knows it, and how often it was changed."""

    moves: int
    nodes: tuple[int, ...]


class StagedMove(NamedTuple):
    """A donor's work for one staged block.

    Attributes:
        to: the copyset from then on.
        stores: nodes that get the block, before other holders are told.
        tells: other holders, told next; those that `to` does not name drop the block.
    """

    to: StagedAt
    stores: tuple[NodeId, ...]
    tells: tuple[NodeId, ...]


class StagedStuck(enum.Enum):
    """A block of which copies are missing, and why this node makes none."""

    NOT_MINE = "another holder is the donor"
    NO_PLACE = "too few nodes can take one"


def lacks_copies(at: StagedAt, barred: Set[int]) -> bool:
    """Whether a copyset names a node that lost its data, or is to give it away."""
    return not barred.isdisjoint(at.nodes)


def plan_staged(
    here: StagedAt,
    me: int,
    gone: Set[int],
    barred: Set[int],
    told: Mapping[int, StagedAt | None],
    nodeset: Nodeset,
    replication: Replication,
    available: Set[NodeId],
    random: Chance,
) -> StagedMove | StagedAt | StagedStuck:
    """The work of node `me` for a staged block that it holds and that lacks copies.

    Args:
        gone: nodes without their data.
        barred: these, nodes that are leaving, and empty ones.
        told: what the other members that have data say; None where they do not hold the block.
        nodeset, replication: the newest of the log.
        available: nodes worth sending to.
    Returns:
        If another node knows a newer copyset, it is taken as it is.
    """
    newest = max([here, *(at for at in told.values() if at is not None)])
    if newest.moves > here.moves:
        return newest
    holders = [
        node
        for node in here.nodes
        if node not in gone and (node == me or told.get(node) is not None)
    ]
    if holders[0] != me:
        return StagedStuck.NOT_MINE
    kept = [NodeId(node) for node in holders if node not in barred]
    takers = candidates(nodeset, available, {*barred, *kept})
    stores = augment(kept, takers, nodeset, replication, random)
    if stores is None:
        return StagedStuck.NO_PLACE
    to = StagedAt(here.moves + 1, (*kept, *stores))
    return StagedMove(to, tuple(stores), tuple(NodeId(n) for n in holders if n != me))
