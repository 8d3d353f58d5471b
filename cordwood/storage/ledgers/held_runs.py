"""A ledger's entries in memory, in the runs in which they came: a reader gets them without a copy.

A writer sends the entries of one tick as one run (`layout.entry_run`), and a reader takes runs. So
an answer is made of views into these runs, without an object for each entry. Runs stay here for a
while after their flush, with the recent blocks of logs (`storage/recent_room.py`): most readers are
seconds behind.

The entries of a run are always the newest copies that this node has: an entry that comes again
removes the earlier run from here.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cordwood.block import Buffer
from cordwood.layout.entry_run import bodies_of, columns_of, heads_bytes
from cordwood.layout.ledger_records import LedgerEntries


class Cut(NamedTuple):
    """A part of a run.

    Attributes:
        heads, bodies: of `taken` entries, in order; they point into the run.
        size: the bytes of the bodies.
    """

    taken: int
    heads: list[Buffer]
    bodies: list[Buffer]
    size: int


class HeldRun:
    """Entries as they came, their numbers rising.

    Attributes:
        first, last: the numbers of its first and last entry.
        packed: see `layout.entry_run`.
    """

    __slots__ = ("_count", "_ends", "first", "last", "ledger", "packed")

    def __init__(self, ledger: int, first: int, last: int, count: int, packed: memoryview) -> None:
        self.ledger = ledger
        self.first = first
        self.last = last
        self.packed = packed
        self._count = count
        self._ends: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, record: LedgerEntries) -> HeldRun | None:
        """The run of a record; None if its numbers do not rise, as of a mended ledger."""
        entries, packed = record.entries, record.packed
        first, last, count = entries[0].entry, entries[-1].entry, len(entries)
        if not packed or last - first < count - 1:
            return None
        if count > 1:
            numbers = columns_of(packed, count)["entry"]
            if not (numbers[1:] > numbers[:-1]).all():
                return None
        return cls(record.ledger, first, last, count, packed)

    def cut(self, first: int, stop: int, step: int, bytes_max: int) -> Cut | None:
        """Entries `first`, `first + step` and so on below `stop`: the consecutive ones that are
        here, of at most `bytes_max` bytes, perhaps none. None if the first is not here.

        Args:
            first: a number between those of the first and the last entry.
        """
        if self.last - self.first == self._count - 1 and step == 1:
            return self._cut_row(
                first - self.first, min(stop, self.last + 1) - self.first, bytes_max
            )
        numbers = columns_of(self.packed, self._count)["entry"]
        at = int(numbers.searchsorted(np.uint64(first)))
        later = numbers[at:] - np.uint64(first)
        if later[0]:
            return None
        places = at + np.flatnonzero((later % step == 0) & (later < np.uint64(stop - first)))
        # Its next entries may have come in another run, or not at all.
        follow = (numbers[places] - np.uint64(first)) // step == np.arange(len(places))
        places = places[: len(follow) if follow.all() else int(follow.argmin())]
        ends = self._body_ends()
        sizes = np.cumsum(ends[places + 1] - ends[places])
        taken = int(sizes.searchsorted(bytes_max, side="right"))
        bodies, width = bodies_of(self.packed, self._count), heads_bytes(1)
        some = places[:taken].tolist()
        return Cut(
            taken,
            [self.packed[each * width : (each + 1) * width] for each in some],
            [bodies[ends[each] : ends[each + 1]] for each in some],
            int(sizes[taken - 1]) if taken else 0,
        )

    def _cut_row(self, start: int, stop: int, bytes_max: int) -> Cut:
        """The entries at these places, without a gap between them."""
        bodies = bodies_of(self.packed, self._count)
        if start == 0 and stop == self._count and len(bodies) <= bytes_max:
            return Cut(stop, [self.packed[: heads_bytes(stop)]], [bodies], len(bodies))
        ends = self._body_ends()
        begin = int(ends[start])
        stop = min(stop, int(ends.searchsorted(begin + bytes_max, side="right")) - 1)
        end = int(ends[stop])
        heads = self.packed[heads_bytes(start) : heads_bytes(stop)]
        return Cut(stop - start, [heads], [bodies[begin:end]], end - begin)

    def _body_ends(self) -> npt.NDArray[np.int64]:
        """Where each body begins, and where the last one ends."""
        if self._ends is None:
            self._ends = np.zeros(self._count + 1, np.int64)
            np.cumsum(columns_of(self.packed, self._count)["size"], out=self._ends[1:])
        return self._ends


class HeldRuns:
    """The runs of one ledger, by number. No two runs overlap."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[HeldRun] = []

    def __len__(self) -> int:
        return len(self._runs)

    def replace(self, first: int, last: int, run: HeldRun | None) -> None:
        """Replace all runs with entries of these numbers, because newer copies arrived.

        Args:
            run: these entries; None if they are not to be kept here.
        """
        at = len(self._runs)
        if at and self._runs[-1].last >= first:
            at = max(0, bisect_right(self._firsts, first) - 1)
            at += self._runs[at].last < first
            stop = bisect_right(self._firsts, last)
            del self._firsts[at:stop], self._runs[at:stop]
        if run is not None:
            self._firsts.insert(at, run.first)
            self._runs.insert(at, run)

    def at(self, entry: int) -> HeldRun | None:
        """The run whose numbers go over this one."""
        place = bisect_right(self._firsts, entry) - 1
        if place < 0 or self._runs[place].last < entry:
            return None
        return self._runs[place]

    def has(self, run: HeldRun) -> bool:
        """Whether this run is here."""
        return self.at(run.first) is run

    def drop(self, run: HeldRun) -> None:
        """Remove this run, if it is here."""
        at = bisect_left(self._firsts, run.first)
        if at < len(self._runs) and self._runs[at] is run:
            del self._firsts[at], self._runs[at]

    def clear(self) -> None:
        """Remove all runs."""
        self._firsts.clear()
        self._runs.clear()
