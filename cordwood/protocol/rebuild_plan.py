"""Which copies a donor makes anew, where they go, and in which order.

Each node that holds a block decides by itself, from the block's copyset and the rebuilding set,
whether it is the block's *donor*: the first member of the copyset that has the block. All members
that know one version of the set and one copyset name the same donor. The donor replaces every lost
member at once. New copies stay inside the nodeset of the block's epoch and keep its replication
rule over the failure domains that were recorded with that epoch: whoever judges silence later goes
by these.

A node that lost only a range of times is in service, so it gets its own copy back, in a move of
its own and under the envelope that there is. Another node that is leaving keeps its copy and its
envelope: nobody counts on them once it is empty, and they go when a copyset without it is whole.

Source: docs/sources/logdevice.md 2.5 (`augment`), 2.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import Chance, can_replicate, draw_member
from cordwood.rebuilding import RebuildingSet, TimeRange

SPARED_WEIGHT = 1e-6
"""Of a node that takes no new records: it takes a copy where no other node can."""


class Held(NamedTuple):
    """A block that a node holds, as its index tells.

    Attributes:
        partition: where it lies; a higher number is younger.
        copyset, wave, seal_epoch: of its envelope.
    """

    log: int
    first: int
    last: int
    append_time_us: int
    stored_bytes: int
    partition: int
    copyset: tuple[int, ...]
    wave: int = 1
    seal_epoch: int = 0

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self.last >> 32


@dataclass(frozen=True, slots=True)
class Losses:
    """Whose copies are lost, as one version of the rebuilding set says.

    Attributes:
        version: of the set.
        gone: nodes without their data.
        leaving: nodes that have their data and are to give it away.
        ranges: of nodes that lost some times only.
        barred: nodes that take no new copies: `gone`, `leaving`, and those that are empty.
    """

    version: int
    gone: frozenset[int]
    leaving: frozenset[int]
    ranges: tuple[tuple[int, tuple[TimeRange, ...]], ...]
    barred: frozenset[int]

    @classmethod
    def of(cls, rebuilding: RebuildingSet) -> Losses:
        """What a set says."""
        whole = [each for each in rebuilding.lost if not each.ranges]
        leaves = [each.node for each in whole if each.relocates and not each.is_empty]
        gone = frozenset(each.node for each in whole) - frozenset(leaves)
        ranges = tuple((each.node, each.ranges) for each in rebuilding.lost if each.ranges)
        return cls(rebuilding.version, gone, frozenset(leaves), ranges, gone | {*leaves})

    def missing(self, block: Held) -> frozenset[int]:
        """Members of its copyset that do not have it, or are to have it no more."""
        partly = {
            node
            for node, ranges in self.ranges
            if any(each.first_us <= block.append_time_us <= each.last_us for each in ranges)
        }
        return (self.barred | partly) & frozenset(block.copyset)

    def donor(self, block: Held) -> int | None:
        """The member that gives, None where no member is left that has it.

        A node that is leaving has its copies, so it gives in its turn as any other does.
        """
        lacks = self.missing(block) - self.leaving
        return next((node for node in block.copyset if node not in lacks), None)


class Move(NamedTuple):
    """What is to be done for one block.

    Attributes:
        copyset: of the new envelope.
        stores: nodes that are sent the whole block, in copyset order; nobody where enough
            copies are left.
        amends: the other nodes of the new copyset, which have the block; without the donor.
        changes: whether there is a new envelope.
    """

    block: Held
    copyset: tuple[NodeId, ...]
    stores: tuple[NodeId, ...]
    amends: tuple[NodeId, ...]
    changes: bool


class Stuck(NamedTuple):
    """A block that cannot get its copies: the nodes that could take some are too few."""

    block: Held
    wanted: int


def plan_move(
    block: Held,
    me: int,
    losses: Losses,
    nodeset: Nodeset,
    replication: Replication,
    available: Set[NodeId],
    random: Chance,
    noted: bool = False,
    has_again: Set[int] = frozenset(),
) -> Move | Stuck | None:
    """What node `me` has to do for a block that it holds.

    Args:
        nodeset: of the block's epoch, with the locations recorded with it.
        available: nodes worth sending to.
        random: draws one number for each new copy, and none for Stuck or None.
        noted: `me` noted a move of this block that has not come to its end, and `block` has the
            copyset of that. Nobody else knows it, so it is for `me` to mend, too.
        has_again: nodes that lost the block with a range of times, and said that they have it
            again.
    Returns:
        None where it is not this node's to give, or nothing is missing.
    """
    missing = losses.missing(block) - (has_again - losses.barred)
    if not missing or not (noted or losses.donor(block) == me):
        return None
    kept = [NodeId(node) for node in block.copyset if node not in missing]
    if me not in block.copyset and me not in losses.barred:
        # It was to leave when it began the move, and is not any more.
        kept.append(NodeId(me))
    # A node in service that lost it gets it back before all else, under the envelope that there
    # is: its copy must not name new nodes before these have the block.
    restored = [
        NodeId(node)
        for node in block.copyset
        if node in missing and node not in losses.barred and node in available
    ]
    if restored:
        return Move(block, tuple(map(NodeId, block.copyset)), tuple(restored), (), changes=False)
    candidates = [
        _taking(member)
        for member in nodeset.members
        if member.node in available
        and member.node not in losses.barred
        and member.node not in kept
        and not member.read_only
    ]
    stores = _augment(kept, candidates, nodeset, replication, random)
    if stores is None:
        return Stuck(block, max(1, replication.copies - len(kept)))
    copyset = _in_place(block.copyset, missing, (*kept, *stores))
    changes = copyset != block.copyset
    amends = tuple(node for node in kept if node != me) if changes else ()
    return Move(block, copyset, tuple(stores), amends, changes)


class Known(NamedTuple):
    """The envelope under which a node has a block."""

    wave: int
    copyset: tuple[int, ...]


def after_asking(move: Move, known: Mapping[int, Known]) -> tuple[Move, int]:
    """A move and the wave of what it writes, once its nodes have said what they have.

    The wave is above all that any of them knows: what an earlier move left on one of them counts
    for less. A copy that goes back to where it was has the wave of the others, unless its node has
    one of such a move; the others take the higher wave when they are asked next, for the copyset
    is their own. A node that has its copy back already is sent nothing.

    Args:
        known: of the move's nodes; nothing of a node that does not have the block.
    """
    block = move.block
    if move.changes:
        waves = [known[node].wave for node in (*move.stores, *move.amends) if node in known]
        return move, max([block.wave, *waves]) + 1
    found = {node: known[node] for node in move.stores if node in known}
    back = [n for n, k in found.items() if k.wave >= block.wave and k.copyset == block.copyset]
    stores = tuple(node for node in move.stores if node not in back)
    left = [found[node].wave + 1 for node in stores if node in found]
    return move._replace(stores=stores), max([block.wave, *left])


def is_certain(rebuilding: RebuildingSet, nodeset: Nodeset, replication: Replication) -> bool:
    """Whether no block of an epoch can have all its copies on nodes that lack data, so that what
    donors have given is all there was. A node that lost a range lacks data; a node that is empty
    does not, for its data lies elsewhere."""
    lacking = {
        NodeId(each.node) for each in rebuilding.lost if not each.relocates and not each.is_empty
    }
    return not can_replicate(lacking, nodeset, replication)


def in_order(blocks: Iterable[Held]) -> list[Held]:
    """New to old by partition; within one as they lie, so that they are read in one go."""
    return sorted(blocks, key=lambda each: (-each.partition, each.log, each.last, each.first))


def _augment(
    seed: Sequence[NodeId],
    candidates: Sequence[Member],
    nodeset: Nodeset,
    replication: Replication,
    random: Chance,
) -> list[NodeId] | None:
    """Nodes that make `seed` a copyset, as few as do; None if there are none such.

    As `quorum.copyset.choose_copyset` draws, with copies that stand already. These may be spread
    badly only where the epoch's rule was broken before; then there are more copies than asked for.
    """
    used = {
        scope: {nodeset[node].domain(scope) for node in seed if node in nodeset}
        for scope, _ in replication.spans
    }
    wants = {scope: count - len(used[scope]) for scope, count in replication.spans}
    draws = max([0, replication.copies - len(seed), *wants.values()])
    fresh = {
        scope: len({member.domain(scope) for member in candidates} - used[scope]) for scope in used
    }
    if len(candidates) < draws or any(fresh[scope] < wants[scope] for scope in wants):
        return None
    left, drawn = list(candidates), []
    for draws_left in range(draws, 0, -1):
        for scope, count in replication.spans:
            if count - len(used[scope]) >= draws_left:
                left = [member for member in left if member.domain(scope) not in used[scope]]
        member = left.pop(draw_member(left, random))
        drawn.append(member.node)
        for scope in used:
            used[scope].add(member.domain(scope))
    return drawn


def _taking(member: Member) -> Member:
    return member if member.weight > 0 else replace(member, weight=SPARED_WEIGHT)


def _in_place(
    copyset: Sequence[int], missing: Set[int], nodes: Sequence[NodeId]
) -> tuple[NodeId, ...]:
    """The nodes in the order of a new copyset: new ones where the lost ones stood, so that no
    node stands first more often than chance would have it; what is left of them at the end."""
    fresh = [node for node in nodes if node not in copyset]
    found: list[NodeId] = []
    for node in copyset:
        if node not in missing or node in nodes:
            found.append(NodeId(node))
        elif fresh:
            found.append(fresh.pop(0))
    return (*found, *fresh)
