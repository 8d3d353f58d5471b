"""Decides which copies a repair makes, and whether it goes on after another client's change.

A repair goes through the *lost places* of a ledger: a fragment, and a member of it that is lost.
It copies the entries that belong there to another node, and then the fragment names that node. Only
*settled* fragments are repaired: all of a closed ledger, and otherwise all before the newest one.
The newest fragment of a ledger that is not closed belongs to its writer, or to a recovery, and a
repair reads no entry of it.

The writer of an open ledger goes on meanwhile. It may change the metadata at any time, and its
change stays: the repair applies its own change to the metadata that it finds. It does so only
while the replacing node has joined without a break (`may_go_on`). Of a closed ledger, only attempts
at moving it to main storage may come between (`is_only_claimed`).

An entry without a readable copy is passed over, and all others are copied (`unreadable`). Nothing
is concluded from its absence on the replacing node: the fragment is settled.

A rule: states in, decisions out.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, overload

from msgspec.structs import replace

from cordwood.ledger import Fragment, LedgerMetadata, LedgerState, Striping
from cordwood.protocol.ledger_check import Copy
from cordwood.quorum.ensemble import is_written_to

IsLost = Callable[[int], bool]


class LostPlace(NamedTuple):
    """A lost member of a settled fragment.

    Attributes:
        first, last: of the fragment's entries, both included; `last` is below `first` for a
            fragment without entries.
        place: of the member in the ensemble.
        lost: the member.
    """

    first: int
    last: int
    place: int
    lost: int


def lost_places(metadata: LedgerMetadata, is_lost: IsLost) -> list[LostPlace]:
    """All lost places, in the order of entries."""
    ends = [*(each.first - 1 for each in metadata.fragments[1:]), metadata.last]
    return [
        LostPlace(fragment.first, last, place, node)
        for fragment, last in zip(metadata.settled, ends, strict=False)
        for place, node in enumerate(fragment.nodes)
        if is_lost(node)
    ]


def entries_of(place: LostPlace, striping: Striping) -> PlaceEntries:
    """The entries that belong to a lost place, rising."""
    return PlaceEntries(place, striping)


class PlaceEntries(Sequence[int]):
    """See `entries_of`. Numbers are computed when they are asked for: a fragment may have millions
    of entries, and a list of them would hold up the loop of the node for seconds."""

    def __init__(self, place: LostPlace, striping: Striping) -> None:
        self._first = place.first
        self._period = striping.ensemble
        count = max(0, place.last + 1 - place.first)
        # Of E entries in a row, the same ones belong to a place each time.
        within = range(min(self._period, count))
        self._steps = [
            each for each in within if is_written_to(place.place, place.first + each, striping)
        ]
        periods, rest = divmod(count, self._period)
        self._len = periods * len(self._steps) + sum(each < rest for each in self._steps)

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self._entry(each) for each in range(*at.indices(self._len))]
        if not 0 <= at < self._len:
            raise IndexError(f"{at} of {self._len} entries")
        return self._entry(at)

    def _entry(self, at: int) -> int:
        period, step = divmod(at, len(self._steps))
        return self._first + period * self._period + self._steps[step]


def unreadable(told: Mapping[int, Mapping[int, Copy]], is_gone: IsLost) -> frozenset[int] | None:
    """The entries that a repair passes over, because no node has a readable copy; None if it has to
    wait for a node that may have one.

    Without this rule, one rotten entry would keep all others of its ledger at one copy too few,
    until another node is lost. But an entry whose copy is on a node that is merely away
    is waited for: it can be copied soon.

    Args:
        told: by entry and member of its write set, the state of the copy.
        is_gone: whether a node is no member, or its data is reported gone or elsewhere. Its silence
            does not count: it may never answer.
    """
    found = set()
    for entry, states in told.items():
        if Copy.WHOLE in states.values():
            continue
        if Copy.LET_GO in states.values():
            return None
        if any(each is Copy.SILENT and not is_gone(node) for node, each in states.items()):
            return None
        found.add(entry)
    return frozenset(found)


def may_pass_over(*, is_noted: bool, is_refill: bool) -> bool:
    """Whether a place gets its copies although entries without a readable copy are passed over.

    Not if another node would be named and nobody keeps a note: the lost node may have the only
    copies, and nothing would tell afterwards that its directory is needed.

    Args:
        is_noted: whether the caller keeps a note of these entries and of the silent nodes.
        is_refill: whether the lost node is filled in its own place: it is back with an empty disk.
    """
    return is_noted or is_refill


def fragment_of(metadata: LedgerMetadata, place: LostPlace) -> Fragment | None:
    """The settled fragment of a lost place; None if it does not name the lost node there any
    more."""
    found = _at(metadata, place)
    return found if found is not None and found.nodes[place.place] == place.lost else None


def is_named(metadata: LedgerMetadata, place: LostPlace, node: int) -> bool:
    """Whether the fragment names the replacing node there: the answer to the repair's own change
    was lost, or another repair did the same."""
    found = _at(metadata, place)
    return found is not None and found.nodes[place.place] == node


def _at(metadata: LedgerMetadata, place: LostPlace) -> Fragment | None:
    return next((each for each in metadata.settled if each.first == place.first), None)


def is_only_claimed(before: LedgerMetadata, found: LedgerMetadata) -> bool:
    """Whether other clients changed nothing but the attempt at moving the ledger to main storage:
    its nodes and its end are as before, and main storage does not have it yet.

    An attempt that fails is followed by another one every few minutes. A repair that gave up at
    each would never come to its end, if that takes longer.
    """
    return not found.is_tiered and replace(found, tier=before.tier) == before


def may_join(
    found: LedgerMetadata, place: LostPlace, node: int, *, was_closed: bool = False
) -> bool:
    """Whether a node may still get the copies of a lost place.

    Not if another repair has filled the place, or has named this node in another place of the
    fragment: a fragment has distinct nodes.

    Args:
        found: the present metadata.
        was_closed: see `ended`.
    """
    fragment = fragment_of(found, place)
    is_free = fragment is not None and node not in fragment.nodes
    return is_free and (was_closed or found.state is not LedgerState.CLOSED)


def may_go_on(
    found: LedgerMetadata, place: LostPlace, node: int, *, was_closed: bool = False
) -> bool:
    """Whether a repair may name its node although another client has changed the metadata
    meanwhile.

    Not if the ledger was closed meanwhile: its end lets no node join any more. A node that lost its
    disk from then on would not have been looked for, and its copies would be missing.

    Args:
        found: the present metadata.
        was_closed: see `ended`.
    """
    return node in found.joining and may_join(found, place, node, was_closed=was_closed)


def is_finished(
    before: LedgerMetadata, after: LedgerMetadata, filled: Collection[LostPlace], is_lost: IsLost
) -> bool:
    """Whether a repair has filled every lost place of the fragments that were settled when it
    began.

    Race: another repair may name a node that was lost after it got its copies. This repair had not
    found that place among the lost ones.

    Args:
        before, after: the metadata when the repair began, and at its end.
        filled: places that the repair filled, each with the node that it filled.
    """
    return all(
        place.first > before.settled_last or place in filled
        for place in lost_places(after, is_lost)
    )


def ended(
    metadata: LedgerMetadata, used: Collection[int], is_lost: IsLost, *, was_closed: bool
) -> LedgerMetadata:
    """The metadata after a repair: nodes that it used are named now, and join no more.

    A lost node that joined lost its copies, so it joins no more either. In a ledger that was open,
    other nodes may be those of another repair, and stay. In a ledger in recovery all stay until its
    end: a node that the repair used may also be one of the recovery's.

    Args:
        used: nodes that the repair copied to.
        was_closed: whether the ledger was closed when the repair began: then the repair would have
            failed if there had been another one.
    """
    if was_closed:
        return metadata.joined()
    if metadata.state is not LedgerState.OPEN:
        return metadata
    left = tuple(node for node in metadata.joining if node not in used and not is_lost(node))
    return replace(metadata, joining=left)
