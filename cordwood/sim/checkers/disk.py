"""The copies of each slot on the nodes' disks at the end of a run.

Blocks, holes and bridges of different nodes overlap in any way. So the dumps of a log are cut into
elementary ranges: runs of LSNs with the same copies. In each range, the copies of the highest seal
epoch count (a sequencer's seal epoch is 0). Other copies are leftovers, which a node may hold until
it purges them.

Source: docs/design.md §2 ("decided per elementary interval").
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from cordwood.lsn import ESN_MAX
from cordwood.sim.history import DumpedSlots, NodeDumped, PayloadMark, SlotKind


@dataclass(frozen=True, slots=True)
class Copy:
    """One block (or plug) on one node."""

    dump: NodeDumped
    slots: DumpedSlots

    @property
    def last(self) -> int:
        """The last LSN that it covers: a bridge covers the rest of its epoch."""
        return self.slots.last | ESN_MAX if self.is_bridge else self.slots.last

    @property
    def is_bridge(self) -> bool:
        return self.slots.kind is SlotKind.BRIDGE

    @property
    def is_data(self) -> bool:
        return self.slots.kind is SlotKind.DATA

    def payload_at(self, lsn: int) -> PayloadMark | None:
        """The mark of the record at `lsn`, None if the body was not decoded."""
        index = lsn - self.slots.first
        return self.slots.payloads[index] if index < len(self.slots.payloads) else None


@dataclass(frozen=True, slots=True)
class DiskRange:
    """LSNs `[first, last]` that the same copies cover.

    Attributes:
        first, last: its LSNs, both ends included.
        copies: the intact copies that cover all of it.
        winners: the copies of the highest seal epoch and its last attempt, which count.
        holds_data: whether the counting copies are records.
    """

    first: int
    last: int
    copies: tuple[Copy, ...]
    winners: tuple[Copy, ...]
    holds_data: bool


def _range(first: int, last: int, copies: tuple[Copy, ...]) -> DiskRange:
    highest = max([_place(copy) for copy in copies])
    winners = tuple([copy for copy in copies if _place(copy) == highest])
    return DiskRange(first, last, copies, winners, any(copy.is_data for copy in winners))


def _place(copy: Copy) -> tuple[int, int]:
    """Attempts of one recovery rank by their order; all waves of a sequencer rank alike."""
    slots = copy.slots
    return slots.seal_epoch, slots.wave if slots.seal_epoch else 0


class Disk:
    """The elementary ranges of one log, ascending, those without a copy left out."""

    def __init__(self, dumps: Iterable[NodeDumped] = ()) -> None:
        self.dumps: tuple[NodeDumped, ...] = tuple(dumps)
        intact = [
            Copy(dump, slots)
            for dump in self.dumps
            for slots in dump.slots
            if slots.intact and not slots.set_aside
        ]
        self.ranges: Sequence[DiskRange] = tuple(_cut(intact))
        self._firsts = [piece.first for piece in self.ranges]

    def at(self, lsn: int) -> DiskRange | None:
        """The range that holds `lsn`, None if no node has an intact copy of it."""
        index = bisect.bisect_right(self._firsts, lsn) - 1
        if index >= 0 and self.ranges[index].last >= lsn:
            return self.ranges[index]
        return None

    def within(self, first: int, last: int) -> Iterator[DiskRange]:
        """The ranges that meet `[first, last]`, ascending."""
        index = max(bisect.bisect_right(self._firsts, first) - 1, 0)
        while index < len(self.ranges) and self.ranges[index].first <= last:
            if self.ranges[index].last >= first:
                yield self.ranges[index]
            index += 1

    def bridges(self) -> Iterator[Copy]:
        """Every bridge that counts at its own place."""
        for piece in self.ranges:
            for copy in piece.winners:
                if copy.is_bridge and copy.slots.first == piece.first:
                    yield copy


def _cut(copies: list[Copy]) -> Iterator[DiskRange]:
    """Sweep over the boundaries, keeping the copies that cover the place.

    At most a few copies cover one place (nodes times recoveries), so rebuilding a short list
    without the ended copies keeps the sweep near O(n log n).
    """
    copies = sorted(copies, key=attrgetter("slots.first"))
    bounds = sorted({copy.slots.first for copy in copies} | {copy.last + 1 for copy in copies})
    covering: list[Copy] = []
    coming = 0
    for first, after in itertools.pairwise(bounds):
        covering = [copy for copy in covering if copy.last >= first]
        while coming < len(copies) and copies[coming].slots.first == first:
            covering.append(copies[coming])
            coming += 1
        if covering:
            yield _range(first, after - 1, tuple(covering))
