"""Plans a donor's moves: which copies it makes again, on which nodes, and in which order.

Each node that holds a block decides by itself, from the block's copyset and the rebuilding set,
whether it is the block's *donor*: the first member of the copyset that has the block. All members
that know the same version of the set and the same copyset name the same donor. The donor replaces
all lost members at once. New copies stay inside the nodeset of the block's epoch. They keep its
replication rule over the failure domains that were recorded with that epoch, because readers and
recoveries judge silence by these domains.

A node that lost only a range of times is in service, so it gets its own copy back, in a move of
its own and under the present envelope. Another node that is leaving keeps its copy and its
envelope. No node counts on them when it is empty. They are dropped when a copyset without this node
is whole.

Source: docs/sources/logdevice.md 2.5 (`augment`), 2.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.quorum.copyset import Chance, can_replicate, draw_member
from cordwood.rebuilding import RebuildingSet, TimeRange, Transfer

SPARED_WEIGHT = 1e-6
"""The weight of a node that takes no new records: it gets a copy only if no other node can."""


class Held(NamedTuple):
    """A block that a node holds, from the node's index.

    Attributes:
        partition: the partition that holds it; a higher number is younger.
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
        """The block's epoch."""
        return self.last >> 32


@dataclass(frozen=True, slots=True)
class Losses:
    """The nodes that lost copies, by one version of the rebuilding set.

    Attributes:
        version: of the set.
        gone: nodes without their data.
        leaving: nodes that have their data and are to give it away.
        ranges: of nodes that lost only some ranges of time.
        barred: nodes that take no new copies: `gone`, `leaving`, and empty nodes.
        awaited: of `gone`, nodes that are let in again, empty, once the donors have given all.
        giving: nodes that have blocks to give, for a lost node or a rebalance. No other node looks
            at its blocks.
        past: logs in which another member has let go of blocks that this node holds, or trimmed
            them.
        unsure: nodes that lost records and go on: they may lack what envelopes say they have.
        lacking: of these, the nodes that lack the block at hand, as they say themselves.
        absent: of these, nodes that have no copy although they know all their copies. They may lack
            it because the donor's copy is left over.
        shares: what nodes give to emptier ones, see `protocol.rebalance_plan`.
    """

    version: int
    gone: frozenset[int]
    leaving: frozenset[int]
    ranges: tuple[tuple[int, tuple[TimeRange, ...]], ...]
    barred: frozenset[int]
    unsure: frozenset[int] = frozenset()
    lacking: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()
    shares: tuple[Transfer, ...] = ()
    awaited: frozenset[int] = frozenset()
    giving: frozenset[int] = frozenset()
    past: Set[int] = frozenset()

    @classmethod
    def of(cls, rebuilding: RebuildingSet) -> Losses:
        """The losses in a rebuilding set."""
        whole = [each for each in rebuilding.lost if not each.ranges]
        leaves = [each.node for each in whole if each.relocates and not each.is_empty]
        gone = frozenset(each.node for each in whole) - frozenset(leaves)
        waits = [each for each in whole if each.node in gone and not each.is_empty]
        awaited = frozenset(each.node for each in waits)
        works = [{*each.donors} - {*each.done} for each in rebuilding.lost if not each.is_empty]
        ranges = tuple((each.node, each.ranges) for each in rebuilding.lost if each.ranges)
        known = rebuilding.rebalancing
        left = known.left if known is not None else ()
        shares = known.shares if known is not None and left else ()
        return cls(
            rebuilding.version,
            gone,
            frozenset(leaves),
            ranges,
            gone | {*leaves},
            shares=shares,
            awaited=awaited,
            giving=frozenset(left).union(*works),
        )

    def missing(self, block: Held) -> frozenset[int]:
        """Members of the block's copyset that do not have it, or are to give it away."""
        partly = {
            node
            for node, ranges in self.ranges
            if any(each.first_us <= block.append_time_us <= each.last_us for each in ranges)
        }
        return (self.barred | partly | self.lacking) & frozenset(block.copyset)

    def lacks(self, block: Held) -> frozenset[int]:
        """Members that do not have it. A node that is leaving still has its copies."""
        return self.missing(block) - (self.leaving - self.lacking)

    def donor(self, block: Held) -> int | None:
        """The member that gives the block; None if no member has it."""
        lacks = self.lacks(block)
        return next((node for node in block.copyset if node not in lacks), None)

    def gives_awaited(self, block: Held, me: int) -> bool:
        """Whether a node gives a block that names awaited nodes (`with_awaited`).

        It is the first that has the block and looks at its blocks. Those before it may have been
        done before the recovery that stored the block, or may have joined after the loss.
        """
        lacks = self.lacks(block)
        gives = (node for node in block.copyset if node in self.giving and node not in lacks)
        return next(gives, None) == me

    def may_give(self, block: Held, node: int) -> bool:
        """Whether a node is the donor, or is if all before it that are unsure lack the block."""
        lacks = self.lacks(block)
        for each in block.copyset:
            if each == node or (each not in lacks and each not in self.unsure):
                return each == node and node not in lacks
        return False

    def doubting(self, block: Held, is_past: bool) -> Losses:
        """The losses with doubts about all members of a block's copyset, if one of them may have
        let go of the block (`is_past`): main storage may have lost it since."""
        return replace(self, unsure=self.unsure | {*block.copyset}) if is_past else self

    def in_doubt(self, block: Held, me: int) -> tuple[int, ...]:
        """The members before `me` that would give the block, and that let go of it perhaps; none if
        `me` gives it anyway, or does not have it."""
        if not self.missing(block) or self.may_give(block, me):
            return ()
        if not self.doubting(block, is_past=True).may_give(block, me):
            return ()
        lacks, at = self.lacks(block), block.copyset.index(me)
        return tuple(node for node in block.copyset[:at] if node not in lacks)

    def doubts(self, block: Held, me: int) -> frozenset[int]:
        """Members to ask whether they have the block."""
        return (self.unsure & frozenset(block.copyset)) - self.lacks(block) - {me}


def with_awaited(block: Held, losses: Losses, nodeset: Nodeset, replication: Replication) -> Held:
    """The block; if it has fewer copies than its epoch asks for, its copyset also names the awaited
    nodes of the nodeset.

    A recovery stores an epoch's end on fewer nodes while the others are lost, and then no envelope
    names these. If one of them came in empty before the copies are made, readers would count its
    silence for copies that nobody made, and would report a loss.
    """
    named, everyone = frozenset(block.copyset), frozenset(nodeset.nodes)
    unnamed = [int(node) for node in nodeset.nodes if node in losses.awaited - named]
    # Trap: a nodeset that could never keep the replication would never let a lost node in.
    if (
        not unnamed
        or not named <= everyone
        or can_replicate({NodeId(node) for node in named}, nodeset, replication)
        or not can_replicate(everyone, nodeset, replication)
    ):
        return block
    return block._replace(copyset=(*block.copyset, *unnamed))


class Move(NamedTuple):
    """The work for one block.

    Attributes:
        copyset: of the new envelope.
        stores: nodes that get the whole block, in copyset order; empty if enough copies are left.
        amends: the other nodes of the new copyset, which have the block; without the donor.
        changes: whether the envelope changes.
    """

    block: Held
    copyset: tuple[NodeId, ...]
    stores: tuple[NodeId, ...]
    amends: tuple[NodeId, ...]
    changes: bool


class Stuck(NamedTuple):
    """A block that cannot get its copies, because too few nodes can take one."""

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
    """The work of node `me` for a block that it holds.

    Args:
        nodeset: of the block's epoch, with the locations recorded with it.
        available: nodes worth sending to.
        random: draws one number for each new copy, and none for Stuck or None.
        noted: `me` noted a move of this block that has not ended, and `block` has the copyset of
            that move. No other node knows that copyset, so `me` has to finish the move.
        has_again: nodes that lost the block with a range of times, and said that they have it
            again.
    Returns:
        None if `me` is not the donor, or no copy is missing.
    """
    missing = losses.missing(block) - (has_again - losses.barred)
    # One donor for each block: its first live member. Two donors would choose two copysets.
    if not missing or not (noted or losses.donor(block) == me):
        return None
    kept = [NodeId(node) for node in block.copyset if node not in missing]
    if me not in block.copyset and me not in losses.barred:
        # `me` was leaving when it began the move, and is not leaving any more.
        kept.append(NodeId(me))
    # A node in service that lost it gets it back before all else, under the envelope that there
    # is: its copy must not name new nodes before these have the block.
    restored = [
        NodeId(node)
        for node in block.copyset
        if node in missing
        and node not in losses.barred
        and node not in losses.lacking
        and node in available
    ]
    # After that the block has its copyset again, and this move changes no envelope.
    if restored:
        return Move(block, tuple(map(NodeId, block.copyset)), tuple(restored), (), changes=False)
    takers = candidates(nodeset, available, {*losses.barred, *kept})
    stores = augment(kept, takers, nodeset, replication, random)
    # Too few nodes are up. The block is looked at again when one comes back.
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
    """A move, and the wave of its writes, after its nodes have told their envelopes.

    The wave is above every wave that the nodes know, so a copy that an earlier move left on a node
    has lower precedence. A copy that returns to its node gets the wave of the other copies. If the
    node has a copy of an earlier move, the returning copy gets a higher wave instead; the other
    nodes take that wave when they are asked next, because the copyset is the same. A node that has
    its copy again already is sent nothing.

    Args:
        known: the envelopes, by node, of the move's nodes that have the block.
    """
    block = move.block
    if move.changes:
        waves = [known[node].wave for node in (*move.stores, *move.amends) if node in known]
        # Trap: a move that was given up half-way left copies with a wave of its own. An equal wave
        # would make two envelopes of the same precedence.
        return move, max([block.wave, *waves]) + 1
    found = {node: known[node] for node in move.stores if node in known}
    back = [n for n, k in found.items() if k.wave >= block.wave and k.copyset == block.copyset]
    stores = tuple(node for node in move.stores if node not in back)
    left = [found[node].wave + 1 for node in stores if node in found]
    return move._replace(stores=stores), max([block.wave, *left])


def is_certain(rebuilding: RebuildingSet, nodeset: Nodeset, replication: Replication) -> bool:
    """Whether no block of an epoch can have all its copies on nodes that lack data.

    Then the donors have given copies of all blocks."""
    return not can_replicate(lacking(rebuilding), nodeset, replication)


def lacking(rebuilding: RebuildingSet) -> frozenset[NodeId]:
    """The nodes that lack data that they should have.

    A node that lost a range lacks data. An empty node lacks none: its data lies on other nodes."""
    return frozenset(
        NodeId(each.node) for each in rebuilding.lost if not each.relocates and not each.is_empty
    )


def in_order(blocks: Iterable[Held]) -> list[Held]:
    """Sort by partition, new to old; within a partition by place, so that one pass reads them."""
    return sorted(blocks, key=lambda each: (-each.partition, each.log, each.last, each.first))


def candidates(nodeset: Nodeset, available: Set[NodeId], without: Set[int]) -> list[Member]:
    """The members of a nodeset that may get a copy, with the weight by which they are drawn."""
    return [
        _taking(member)
        for member in nodeset.members
        if member.node in available and member.node not in without and not member.read_only
    ]


def augment(
    seed: Sequence[NodeId],
    takers: Sequence[Member],
    nodeset: Nodeset,
    replication: Replication,
    random: Chance,
) -> list[NodeId] | None:
    """The fewest nodes that make `seed` a copyset; None if no nodes can.

    The draw is that of `quorum.copyset.choose_copyset`, with copies that exist already. If these
    broke the epoch's rule before, the result has more copies than `replication` asks for.
    """
    used = {
        scope: {nodeset[node].domain(scope) for node in seed if node in nodeset}
        for scope, _ in replication.spans
    }
    wants = {scope: count - len(used[scope]) for scope, count in replication.spans}
    draws = max([0, replication.copies - len(seed), *wants.values()])
    fresh = {
        scope: len({member.domain(scope) for member in takers} - used[scope]) for scope in used
    }
    # Decided before the first draw, so that a block that is stuck takes no random numbers.
    if len(takers) < draws or any(fresh[scope] < wants[scope] for scope in wants):
        return None
    left, drawn = list(takers), []
    for draws_left in range(draws, 0, -1):
        for scope, count in replication.spans:
            # Every remaining draw has to be in a new domain of this scope.
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
    """The new copyset in order: new nodes take the places of the lost ones, and the rest stand at
    the end. So no node stands first more often than by chance."""
    fresh = [node for node in nodes if node not in copyset]
    found: list[NodeId] = []
    for node in copyset:
        if node not in missing or node in nodes:
            found.append(NodeId(node))
        elif fresh:
            found.append(fresh.pop(0))
    return (*found, *fresh)
