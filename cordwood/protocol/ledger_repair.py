"""Decides which copies a repair makes, and whether it goes on after another client's change.

A repair goes through the *lost places* of a ledger: a fragment, and a member of it that is lost.
It copies the entries that belong there to another node, and then the fragment names that node. Only
*settled* fragments are repaired: all of a closed ledger, and otherwise all before the newest one.
The newest fragment of a ledger that is not closed belongs to its writer, or to a recovery, and a
repair reads no entry of it.

The writer of an open ledger goes on meanwhile. It may change the metadata at any time, and its
change stays: the repair applies its own change to the metadata that it finds. It does so only
while the replacing node has joined without a break (`may_go_on`).

A rule: states in, decisions out.

Source: docs/protocol/ledgers.md; docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec.structs import replace

from cordwood.ledger import Fragment, LedgerMetadata, LedgerState, Striping
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


def entries_of(place: LostPlace, striping: Striping) -> list[int]:
    """The entries that belong to a lost place, rising."""
    entries = range(place.first, place.last + 1)
    return [each for each in entries if is_written_to(place.place, each, striping)]


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


def may_join(found: LedgerMetadata, place: LostPlace, node: int) -> bool:
    """Whether a node may still get the copies of a lost place of a ledger that was not closed.

    Not if another repair has filled the place, or has named this node in another place of the
    fragment: a fragment has distinct nodes.

    Args:
        found: the present metadata.
    """
    fragment = fragment_of(found, place)
    is_free = fragment is not None and node not in fragment.nodes
    return is_free and found.state is not LedgerState.CLOSED


def may_go_on(found: LedgerMetadata, place: LostPlace, node: int) -> bool:
    """Whether a repair of a ledger that was not closed may name its node although another client
    has changed the metadata meanwhile.

    Not once the ledger is closed: its end lets no node join any more. A node that lost its disk
    from then on would not have been looked for, and its copies would be missing.

    Args:
        found: the present metadata.
    """
    return node in found.joining and may_join(found, place, node)


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
