"""Recovery's decision about an epoch's tail, from the copies that an f-majority holds.

The digest takes the copies above the LNG. For each range it decides one outcome: the copy with the
highest precedence (written by recovery, seal epoch, wave), or a hole if no node that answered holds
a copy. A hole is safe: an acknowledged record is on a full copyset, and an f-majority meets every
copyset. A bridge follows the last record. Copies that an earlier recovery wrote count like any
other copy, so consecutive recoveries reach the same end.

Copies of one block have the same content in all waves. Only a hole or a bridge of an earlier
recovery can overlap a block. A block is kept or dropped as a whole, and so is an atomic group of
blocks (`protocol.groups`).

If the nodes that answered do not meet every copyset, the recovery is *non-authoritative*. A record
that none of them holds may have been acknowledged. So recovery plugs no new hole: readers get a
loss there, and at the epoch's end. Recovery repeats the holes that it finds, because the recovery
that plugged them heard enough nodes.

Source: docs/sources/logdevice.md 2.7 (5, 6); docs/design.md §2, §3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cordwood.block import BlockHeader, BlockKind, Envelope
from cordwood.lsn import ESN_MAX, format_lsn
from cordwood.protocol.groups import whole_groups

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class Copy(Generic[Body]):
    """One node's copy of a block, with the body that the caller needs to store it again."""

    header: BlockHeader
    envelope: Envelope
    body: Body


@dataclass(frozen=True, slots=True)
class Mend(Generic[Body]):
    """The result for an epoch above its LNG.

    Attributes:
        blocks: blocks to keep, in LSN order; recovery stores each on a full copyset again.
        holes: ranges `(first, last)` to plug, in LSN order.
        bridge: the LSN at which the epoch is over; None if that is not known.
        end: the last LSN that is kept, at least the LNG.
        is_authoritative: whether LSNs that are neither kept nor plugged were never acknowledged.
    """

    blocks: tuple[Copy[Body], ...]
    holes: tuple[tuple[int, int], ...]
    bridge: int | None
    end: int
    is_authoritative: bool = True


class Digest(Generic[Body]):
    """Copies above `lng` of one epoch, from an f-majority of its nodeset."""

    def __init__(self, epoch: int, lng: int) -> None:
        assert lng >> 32 == epoch, f"{format_lsn(lng)} is no LNG of epoch {epoch}"
        self._epoch = epoch
        self._lng = lng
        self._best: dict[tuple[int, int, BlockKind], Copy[Body]] = {}

    def add(self, copies: Iterable[Copy[Body]]) -> None:
        """Take copies from one node; blocks that end at or below the LNG need no decision."""
        for copy in copies:
            header = copy.header
            assert header.first >> 32 == self._epoch, "a digest is of one epoch"
            # All of it is on a full copyset, so no recovery decides about it again.
            if header.last <= self._lng:
                continue
            key = (header.first, header.last, header.kind)
            best = self._best.get(key)
            # Copies of one block differ only in their envelopes. The one of the latest recovery,
            # attempt or wave names the copyset that counts.
            if best is None or copy.envelope.precedence > best.envelope.precedence:
                self._best[key] = copy

    @property
    def earlier_marks(self) -> int:
        """The plugs and bridges that an earlier recovery left in it."""
        return sum(kind != BlockKind.DATA for _, _, kind in self._best)

    def mend(self, *, is_authoritative: bool = True) -> Mend[Body]:
        """Decide.

        Args:
            is_authoritative: whether the nodes that gave copies meet every copyset.
        """
        kept: list[Copy[Body]] = []
        holes: list[tuple[int, int]] = []
        expected = self._lng + 1
        winners = self._winners()
        whole = whole_groups(block.header for block in winners)
        for block in winners:
            if block.header.group not in whole:
                # A group with a missing block was not acknowledged, and is never read in part.
                continue
            if block.header.first > expected:
                holes.append((expected, block.header.first - 1))
            if holes and block.header.depends and is_authoritative:
                # Trap: a producer's block must not survive if an earlier block of it did not.
                # A conditional block must not survive without the tail that it named
                # (docs/design.md §3).
                holes.append((block.header.first, block.header.last))
            else:
                # A non-authoritative recovery keeps the blocks above a missing range: nothing
                # shows that they were not acknowledged.
                kept.append(block)
            # Even if a hole replaces the block: the hole covers its LSNs.
            expected = block.header.last + 1
        end = kept[-1].header.last if kept else self._lng
        assert end & ESN_MAX < ESN_MAX, "sequencers leave the last esn to the bridge"
        if not is_authoritative:
            return Mend(tuple(kept), *self.found_plugs(kept, end), end, False)
        # Nothing is kept above the last block, so the bridge covers the holes there.
        holes = [(first, last) for first, last in holes if first < end]
        return Mend(tuple(kept), tuple(_joined(holes)), end + 1, end)

    def found_plugs(
        self, kept: list[Copy[Body]], end: int
    ) -> tuple[tuple[tuple[int, int], ...], int | None]:
        """The holes and the bridge of an earlier recovery, where no block is kept."""
        plugs = [copy.header for copy in self._best.values() if copy.header.kind != BlockKind.DATA]
        # Trap: a later recovery overtook a bridge below a block that counts. That recovery may
        # have kept more above the bridge, on nodes that did not answer.
        bridges = [p.first for p in plugs if p.kind == BlockKind.BRIDGE and p.first > end]
        bridge = min(bridges, default=None)
        below = (bridge or self._epoch << 32 | ESN_MAX) - 1
        found = _united(
            (max(plug.first, self._lng + 1), min(plug.last, below))
            for plug in plugs
            if plug.kind == BlockKind.HOLE
        )
        holes = _without(found, [(copy.header.first, copy.header.last) for copy in kept])
        # The hole reaches the bridge, so the epoch is over at its first LSN already.
        if bridge is not None and holes and holes[-1] == (end + 1, bridge - 1):
            return tuple(holes[:-1]), end + 1
        return tuple(holes), bridge

    def _winners(self) -> list[Copy[Body]]:
        """Data blocks that no hole or bridge of higher precedence covers, in LSN order."""
        plugs = [copy for copy in self._best.values() if copy.header.kind != BlockKind.DATA]
        blocks = [copy for copy in self._best.values() if copy.header.kind == BlockKind.DATA]
        blocks.sort(key=lambda copy: copy.header.first)
        return [
            block
            for block in blocks
            if not any(
                plug.header.first <= block.header.last
                and block.header.first <= plug.header.last
                and plug.envelope.precedence > block.envelope.precedence
                for plug in plugs
            )
        ]


def _joined(holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join holes that touch: a missing range is one hole between its neighbours."""
    joined: list[tuple[int, int]] = []
    for first, last in holes:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def _united(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in ascending ranges that do not overlap."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(each for each in ranges if each[0] <= each[1]):
        if united and first <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return united


def _without(
    ranges: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The parts of `ranges` that `taken` does not cover; both ascending, without overlaps."""
    left = list(ranges)
    for first, last in taken:
        left = [
            piece
            for low, high in left
            for piece in ((low, min(high, first - 1)), (max(low, last + 1), high))
            if piece[0] <= piece[1]
        ]
    return left
