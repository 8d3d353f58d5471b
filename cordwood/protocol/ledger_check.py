"""Checks whether a ledger has its copies: which entries are checked, and the findings.

Each member of an entry's write set is asked for its copy. An entry of a closed ledger should have
Qw whole copies, and so should an entry of a *settled* fragment of an open one: all fragments before
the newest. A confirmed entry of the newest fragment should have Qa: its writer may still be sending
the others. A silent node counts as having its copies, and the report names it. An entry without a
whole copy is lost only if all its nodes answered. What ends the mark of a ledger asks for more:
silence counts as no copy there (`lacks_copies`).

Main storage has every entry of a *tiered* ledger, so nodes need no copies, and none is made anew.
An entry is short if main storage does not give it whole, and lost if no node has it either. A
ledger may become tiered while it is looked at: a node that let go of a copy lacks none.

A check of all entries reads all copies. A *sample* looks at the first and the last E entries of
each fragment, so each node is asked at both ends, and at a share of the entries between. In their
*turns* the nodes' own checks also look at all entries between, run by run.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.ledger import NO_ENTRY, LedgerMetadata, LedgerState
from cordwood.quorum.copyset import Chance
from cordwood.quorum.ensemble import write_set

MISSING_MAX = 257
"""Entries that a check or a repair names: one more than a mark, which says then that there are
more."""


class Copy(enum.Enum):
    """What a node told of its copy of an entry."""

    WHOLE = "whole"
    ABSENT = "absent"
    DAMAGED = "damaged"
    SILENT = "no answer"
    LET_GO = "let go of, as main storage has it"


@dataclass(frozen=True, slots=True)
class Part:
    """The entries of a fragment that are looked at, rising."""

    nodes: tuple[int, ...]
    entries: Sequence[int]


@dataclass(slots=True)
class LedgerCheck:
    """What a check found of one ledger.

    Attributes:
        ledger: its id.
        is_closed: whether it has its end.
        last: the last confirmed entry, -1 for none.
        entries: how many were looked at.
        copies: whole copies of these.
        wanted: copies that each of them should have, above `settled`.
        settled: the last entry of the fragments that get no more entries, -1 for none.
        wanted_settled: copies that each entry up to `settled` should have.
        short: entries with fewer, though all their nodes answered.
        first_short: the first of them.
        lost: entries without a whole copy, though all their nodes answered.
        first_lost: the first of them. Each is short as well.
        unread: entries without a whole copy, of which some node did not answer.
        missing: the first entries of which fewer nodes than wanted say that they have a whole copy;
            at most MISSING_MAX.
        damaged: copies that differ from the added entry.
        lacking: by node, the copies of short entries that it should have and does not have whole.
        silent: nodes that did not answer.
        narrow: first entries of the fragments that have entries in one domain only, though the
            nodes of the cluster lie in several.
        filled: copies that were made anew.
        is_tiered: whether main storage was asked for the ledger, and not its nodes.
    """

    ledger: int
    is_closed: bool
    last: int
    wanted: int
    settled: int = NO_ENTRY
    wanted_settled: int = 0
    entries: int = 0
    copies: int = 0
    short: int = 0
    first_short: int | None = None
    lost: int = 0
    first_lost: int | None = None
    unread: int = 0
    missing: list[int] = field(default_factory=list)
    damaged: int = 0
    lacking: Counter[int] = field(default_factory=Counter)
    silent: set[int] = field(default_factory=set)
    narrow: list[int] = field(default_factory=list)
    filled: int = 0
    is_tiered: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all that was looked at has its copies, as far as the nodes answered."""
        return not (self.short or self.unread)

    def add(self, entry: int, told: Mapping[int, Copy], *, elsewhere: bool = False) -> list[int]:
        """Count one entry.

        Args:
            told: by node of the entry's write set.
            elsewhere: whether a node that the metadata does not name has a whole copy.
        Returns:
            The nodes that lack a copy which another node has, of a settled fragment. In the newest
            fragment of an open ledger, the writer may still be sending it.
        """
        states = [*told.values()]
        whole, silent = states.count(Copy.WHOLE), states.count(Copy.SILENT)
        self.entries += 1
        self.copies += whole
        self.damaged += states.count(Copy.DAMAGED)
        self.silent.update(node for node, each in told.items() if each is Copy.SILENT)
        if Copy.LET_GO in states:
            return []
        is_settled = entry <= self.settled
        wanted = self.wanted_settled if is_settled else self.wanted
        if lacks_copies(whole, wanted):
            # Also if a node outside the write set has it: its nodes may be without a copy.
            self._note_missing(entry)
        if whole + silent >= wanted:
            self.unread += not (whole or elsewhere)
            return []
        self._note_short(entry)
        lacking = [n for n, each in told.items() if each in (Copy.ABSENT, Copy.DAMAGED)]
        self.lacking.update(lacking)
        if whole or elsewhere:
            return lacking if is_settled else []
        if silent:
            self.unread += 1
        else:
            self.lost += 1
            if self.first_lost is None:
                self.first_lost = entry
        return []

    def add_tiered(self, entry: int, stored: Copy, elsewhere: Collection[Copy] = ()) -> None:
        """Count one entry of a ledger that main storage has.

        Args:
            stored: its copy there.
            elsewhere: the answers of its nodes, if main storage does not have it whole.
        """
        self.entries += 1
        if stored is Copy.WHOLE:
            self.copies += 1
            return
        self.damaged += stored is Copy.DAMAGED
        self._note_missing(entry)
        if stored is Copy.SILENT:
            self.unread += 1
            return
        self._note_short(entry)
        if Copy.WHOLE in elsewhere:
            return
        if Copy.SILENT in elsewhere:
            self.unread += 1
            return
        self.lost += 1
        if self.first_lost is None:
            self.first_lost = entry

    def _note_short(self, entry: int) -> None:
        self.short += 1
        if self.first_short is None:
            self.first_short = entry

    def _note_missing(self, entry: int) -> None:
        if len(self.missing) < MISSING_MAX:
            self.missing.append(entry)


def lacks_copies(whole: int, wanted: int) -> bool:
    """Whether an entry is missing copies, as far as its nodes say.

    A silent node may have lost its copy, or may never have got it: after a repair that passed the
    entry over, the nodes that the metadata names are without it. A mark that went by such silence
    would let the node with the only other copy go.
    """
    return whole < wanted


def begun(metadata: LedgerMetadata, last: int) -> LedgerCheck:
    """A check of a ledger that is confirmed up to `last`, before the first entry."""
    is_closed = metadata.state is LedgerState.CLOSED
    striping = metadata.striping
    wanted = striping.write if is_closed else striping.ack
    if metadata.is_tiered:
        return LedgerCheck(metadata.ledger, is_closed, last, wanted=1, is_tiered=True)
    settled = metadata.settled_last
    return LedgerCheck(metadata.ledger, is_closed, last, wanted, settled, striping.write)


def parts(
    metadata: LedgerMetadata,
    last: int,
    share: float,
    chance: Chance,
    turn: tuple[int, int] | None = None,
) -> Iterator[Part]:
    """The checked entries of each fragment up to `last`.

    Args:
        share: of the entries between the ends of a fragment, 0 to 1.
        turn: k and n, for the k-th of n runs of the entries between the ends, beside that share.
    """
    ends = metadata.striping.ensemble
    for nodes, first, end in _fragments(metadata, last):
        yield Part(nodes, _chosen(first, end, ends, share, chance))
        # Each read of main storage costs money, and it checks its own copies.
        if turn is not None and not metadata.is_tiered and not _is_all(first, end, ends, share):
            yield Part(nodes, run_between(first + ends, end - ends, turn))


def run_between(first: int, last: int, turn: tuple[int, int]) -> range:
    """The k-th of n runs of some entries, k from 0 on: n turns have all of them.

    Without these turns, an entry that rots in the middle of a fragment would be found by its
    readers, or once its other copies are gone.
    """
    at, of = turn
    count = last + 1 - first
    return range(first + count * at // of, first + count * (at + 1) // of)


def parts_with(metadata: LedgerMetadata, last: int, entries: Collection[int]) -> Iterator[Part]:
    """Those of some entries that lie in each fragment up to `last`."""
    for nodes, first, end in _fragments(metadata, last):
        yield Part(nodes, sorted(each for each in entries if first <= each <= end))


def _fragments(metadata: LedgerMetadata, last: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Nodes, first and last entry of each fragment that has entries up to `last`."""
    fragments = metadata.fragments
    for number, fragment in enumerate(fragments):
        is_newest = number + 1 == len(fragments)
        end = last if is_newest else min(last, fragments[number + 1].first - 1)
        if fragment.first <= end:
            yield fragment.nodes, fragment.first, end


def _is_all(first: int, last: int, ends: int, share: float) -> bool:
    return share >= 1 or last - first < 2 * ends


def _chosen(first: int, last: int, ends: int, share: float, chance: Chance) -> Sequence[int]:
    if _is_all(first, last, ends, share):
        return range(first, last + 1)
    between = range(first + ends, last - ends + 1)
    drawn = {between[int(chance.random() * len(between))] for _ in range(int(share * len(between)))}
    return [*range(first, first + ends), *sorted(drawn), *range(last - ends + 1, last + 1)]


def nodes_of(part: Part, metadata: LedgerMetadata, entry: int) -> list[int]:
    """The nodes that should have an entry."""
    return [part.nodes[place] for place in write_set(entry, metadata.striping)]
