"""What recovery decides about an epoch's tail, from what an f-majority holds.

Fed with the copies above the LNG, the digest names for each range one outcome:
the copy with the highest precedence (written by recovery, seal epoch, wave), or
a hole where no member heard holds anything: what was acknowledged is on a full
copyset, and an f-majority meets every one. A bridge follows the last record. What an
earlier recovery wrote counts like any copy, so recoveries that follow one
another reach the same end.

Copies of one block never differ in content, whatever their waves; what can
overlap a block is a hole or a bridge of an earlier recovery. Boundaries are
those of blocks, so the decision is taken per elementary interval, and a block
stands or falls as a whole, and so does an atomic group of them (`protocol.groups`).

Blocks of producers, and conditional ones, above the first hole become holes: a producer's
later block must not survive an earlier one that did not, nor what was appended on condition
of a tail that is none (docs/design.md §3).

Where those heard do not meet every copyset (*non-authoritative*), what nobody holds may have been
acknowledged, so nothing new is plugged: readers are told of a loss there, and at the epoch's end.
What is found plugged is plugged again: the recovery that plugged it heard enough.
Blocks above what is missing are kept, for nothing shows that they were not acknowledged; only
torn groups are not, which are never shown in part.

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
    """One node's copy of a block, with whatever the shell needs to store it again."""

    header: BlockHeader
    envelope: Envelope
    body: Body


@dataclass(frozen=True, slots=True)
class Mend(Generic[Body]):
    """What an epoch becomes above its LNG.

    Attributes:
        blocks: blocks to keep, in LSN order; each goes to a full copyset again.
        holes: ranges `(first, last)` to plug, in LSN order.
        bridge: the LSN from which on the epoch is over; None where that is not known.
        end: the last LSN that is kept, at least the LNG.
        is_authoritative: what is neither kept nor plugged was never acknowledged.
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
        """Take copies from one node; what ends at or below the LNG is settled already."""
        for copy in copies:
            header = copy.header
            assert header.first >> 32 == self._epoch, "a digest is of one epoch"
            if header.last <= self._lng:
                continue
            key = (header.first, header.last, header.kind)
            best = self._best.get(key)
            if best is None or copy.envelope.precedence > best.envelope.precedence:
                self._best[key] = copy

    def mend(self, *, is_authoritative: bool = True) -> Mend[Body]:
        """Decide.

        Args:
            is_authoritative: whether the copies are from nodes that meet every copyset.
        """
        kept: list[Copy[Body]] = []
        holes: list[tuple[int, int]] = []
        expected = self._lng + 1
        winners = self._winners()
        whole = whole_groups(block.header for block in winners)
        for block in winners:
            if block.header.group not in whole:
                continue
            if block.header.first > expected:
                holes.append((expected, block.header.first - 1))
            if holes and block.header.depends and is_authoritative:
                holes.append((block.header.first, block.header.last))
            else:
                kept.append(block)
            expected = block.header.last + 1
        end = kept[-1].header.last if kept else self._lng
        assert end & ESN_MAX < ESN_MAX, "sequencers leave the last esn to the bridge"
        if not is_authoritative:
            return Mend(tuple(kept), *self._found_plugs(kept, end), end, False)
        holes = [(first, last) for first, last in holes if first < end]
        return Mend(tuple(kept), tuple(_joined(holes)), end + 1, end)

    def _found_plugs(
        self, kept: list[Copy[Body]], end: int
    ) -> tuple[tuple[tuple[int, int], ...], int | None]:
        """Holes and bridge that copies say, where nothing is kept: an earlier recovery knew.

        A bridge below a block that counts was overtaken: what else that later recovery kept
        above it may not have been heard.
        """
        plugs = [copy.header for copy in self._best.values() if copy.header.kind != BlockKind.DATA]
        bridges = [p.first for p in plugs if p.kind == BlockKind.BRIDGE and p.first > end]
        bridge = min(bridges, default=None)
        below = (bridge or self._epoch << 32 | ESN_MAX) - 1
        found = _united(
            (max(plug.first, self._lng + 1), min(plug.last, below))
            for plug in plugs
            if plug.kind == BlockKind.HOLE
        )
        holes = _without(found, [(copy.header.first, copy.header.last) for copy in kept])
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
    """Holes that touch become one: a missing run is one hole between its neighbours."""
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
    """What of `ranges` none of `taken` covers; both ascending, without overlaps."""
    left = list(ranges)
    for first, last in taken:
        left = [
            piece
            for low, high in left
            for piece in ((low, min(high, first - 1)), (max(low, last + 1), high))
            if piece[0] <= piece[1]
        ]
    return left
