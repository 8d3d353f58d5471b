"""Plans a rebalance: which nodes give how much to which, and which of their blocks.

An epoch's blocks stay in the epoch's nodeset, which never changes: readers and recoveries judge
silence by it. So blocks move between members of one nodeset only, and a node of a new number gets
none of old epochs. A node that came back empty under its number, or got a larger weight, gets its
share.

A share says what part of a node's blocks goes to another node. Which blocks these are follows from
their place in the log alone, so a donor that starts again chooses the same blocks, and only blocks
that still name it are left to move. No block is chosen for two shares, so no two donors move one
block at once.

Source: docs/protocol/rebuilding.md ("A rebalance"); docs/sources/logdevice.md 2.5, 2.9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol.rebuild_plan import Held, Losses, Move
from cordwood.quorum.copyset import can_replicate
from cordwood.rebuilding import PARTS, Transfer

SLACK = 0.05
"""A node that holds as much more than its share, or less, is left alone: a rebalance costs more
than that is worth, and blocks that are chosen by chance do not come out more even."""

_MASK = (1 << 64) - 1


class Group(NamedTuple):
    """Bytes of blocks of one nodeset that a node holds.

    Attributes:
        nodes: of the nodeset, in node order.
        copies: that its blocks have.
    """

    nodes: tuple[int, ...]
    copies: int
    bytes: int


def chosen(block: Held, shares: Iterable[Transfer]) -> Transfer | None:
    """The share that a block is part of, by its place; None for none, or if it was given."""
    point, at = _point(block), 0
    for share in shares:
        # Many nodes together may give more than PARTS: then their shares go around more than once.
        is_in = (point - at) % PARTS < share.parts
        at += share.parts
        if is_in and share.source in block.copyset and share.target not in block.copyset:
            return share
    return None


def gives(losses: Losses, block: Held, me: int) -> Transfer | None:
    """What node `me` gives of a block. A block that lacks copies is made whole first."""
    if not losses.shares or losses.missing(block):
        return None
    share = chosen(block, losses.shares)
    return share if share is not None and share.source == me else None


def plan_given(
    block: Held, share: Transfer, nodeset: Nodeset, replication: Replication
) -> Move | None:
    """The move of a block to the target of its share; None if it has to stay.

    Args:
        nodeset: of the block's epoch, with the locations recorded with it.
    """
    target = NodeId(share.target)
    if target not in nodeset.nodes or nodeset[target].read_only:
        return None
    copyset = tuple(target if node == share.source else NodeId(node) for node in block.copyset)
    if not can_replicate({*copyset}, nodeset, replication):
        return None
    amends = tuple(node for node in copyset if node != target)
    return Move(block, copyset, (target,), amends, changes=True)


def plan_shares(
    held: Mapping[int, Iterable[Group]],
    members: Mapping[NodeId, Member],
    targets: Collection[int] = (),
) -> tuple[Transfer, ...]:
    """The bytes that nodes should give, so that each holds its weight's share of every nodeset.

    Args:
        held: bytes by node; missing nodes neither give nor get.
        targets: the only nodes that get something; none for all.
    Returns:
        In the order of sources, see `_laid_out`; empty if all is even enough.
    """
    by_nodeset: dict[tuple[tuple[int, ...], int], dict[int, int]] = {}
    for node, groups in held.items():
        for group in groups:
            found = by_nodeset.setdefault((group.nodes, group.copies), {})
            found[node] = found.get(node, 0) + group.bytes
    moved: dict[tuple[int, int], float] = {}
    for (nodes, copies), bytes_of in sorted(by_nodeset.items()):
        able = [node for node in nodes if node in held and NodeId(node) in members]
        for pair, size in _even(able, copies, bytes_of, members, targets).items():
            moved[pair] = moved.get(pair, 0.0) + size
    shares = []
    for (source, target), size in sorted(moved.items()):
        # The share is taken from the blocks that may go to the target. A donor chooses among all of
        # its blocks, and blocks that may not go there stay.
        able_bytes = sum(
            bytes_of.get(source, 0)
            for (nodes, _), bytes_of in by_nodeset.items()
            if target in nodes
        )
        parts = min(PARTS, round(size / able_bytes * PARTS))
        if parts:
            shares.append(Transfer(source, target, parts))
    return _laid_out(shares)


def _laid_out(shares: Iterable[Transfer]) -> tuple[Transfer, ...]:
    """Shares in the order in which `chosen` gives each its part of all places.

    A block can go to a target once. So where shares go around again, each time around begins with
    another target: what two sources give to one target is in different places then.
    """
    found: list[Transfer] = []
    for _, group in groupby(sorted(shares, key=_ends), key=attrgetter("source")):
        mine = [*group]
        turn = sum(each.parts for each in found) // PARTS % len(mine)
        found += mine[turn:] + mine[:turn]
    return tuple(found)


def _ends(share: Transfer) -> tuple[int, int]:
    return share.source, share.target


def _even(
    able: Collection[int],
    copies: int,
    bytes_of: Mapping[int, int],
    members: Mapping[NodeId, Member],
    targets: Collection[int],
) -> dict[tuple[int, int], float]:
    """Bytes by source and target, within one nodeset."""
    total = sum(bytes_of.get(node, 0) for node in able)
    weights = {node: members[NodeId(node)].weight for node in able}
    weight = sum(weights.values())
    if not total or not weight:
        return {}
    # Even a node with a large weight has each block once at most.
    ideal = {node: min(total * weights[node] / weight, total / copies) for node in able}
    over = {n: bytes_of.get(n, 0) - ideal[n] for n in able}
    gives_ = {n: more for n, more in over.items() if more > SLACK * total / len(able)}
    takes = {
        n: -more
        for n, more in over.items()
        if -more > SLACK * total / len(able)
        and (not targets or n in targets)
        and not members[NodeId(n)].read_only
    }
    size = min(sum(gives_.values()), sum(takes.values()))
    return {
        (source, target): size * give / sum(gives_.values()) * take / sum(takes.values())
        for source, give in gives_.items()
        for target, take in takes.items()
    }


def _point(block: Held) -> int:
    """A number below PARTS that is drawn by a block's place, alike on all nodes."""
    mixed = (block.log * 0x9E3779B97F4A7C15 + block.first) & _MASK
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = ((mixed ^ (mixed >> 30)) * multiplier) & _MASK
    return (mixed ^ (mixed >> 31)) % PARTS
