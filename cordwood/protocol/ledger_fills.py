"""Decides which entries are looked at while the mark of a ledger has to stay.

A mark stays while a recovery of its ledger fails, while a writer goes on with a marked node, and
while a repair finds no other node. Two kinds of settled entries would lack their copies for that
time, which may be for ever, and the next lost disk would take them:

- entries that a repair passed over, once a node is back that has them;
- entries of a marked node that is back with an empty disk, and that a repair may not fill in its
  own place (`may_refill`).

So copies of them are stored beside the other work. A look at all settled entries reads all copies
of the ledger: it is made once for each version of the mark, each return of a node, and each time
that more entries are settled. Later looks are at those entries alone that lacked copies then.

A rule: states in, decisions out.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from cordwood.ledger import LedgerMetadata
from cordwood.protocol.ledger_autorecovery import Mark, may_refill
from cordwood.protocol.ledger_check import MISSING_MAX


class Look(NamedTuple):
    """What is looked at.

    Attributes:
        entries: None for all settled ones.
        has_more: whether others may lack copies, too.
    """

    entries: Sequence[int] | None
    has_more: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look at."""
        return self.entries is not None and not self.entries


ALL = Look(None)


class Seen(NamedTuple):
    """What a look rests on: once it is another, a new look begins with all entries.

    Attributes:
        version: of the mark. A node that lost its disk once more changed it.
        back: see `back_in_place`.
        last: the last settled entry.
    """

    version: int
    back: frozenset[int]
    last: int


def back_in_place(metadata: LedgerMetadata, mark: Mark, whole: Set[int]) -> frozenset[int]:
    """Marked nodes that are back, and that get what they lack beside the repair: a settled fragment
    names them, and a repair may not fill them.

    Args:
        whole: members that have their data or may have it, and that are not drained.
    """
    if may_refill(metadata, mark):
        return frozenset()
    settled = {node for each in metadata.settled for node in each.nodes}
    return frozenset(settled & whole & {*mark.nodes})


class Fills:
    """What a node found when it looked last, by ledger."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Seen, Look]] = {}

    def look(self, mark: Mark, seen: Seen) -> Look:
        """What to look at now."""
        found = self._found.get(mark.ledger)
        if found is not None and found[0] == seen:
            return found[1]
        return ALL if seen.back or mark.has_more else Look(mark.gaps)

    def note(self, mark: Mark, seen: Seen, missing: Sequence[int], *, has_more: bool) -> None:
        """Keep what lacks copies still.

        Args:
            has_more: whether others may lack copies that were not looked at.
        """
        left = Look(tuple(missing), has_more or len(missing) >= MISSING_MAX)
        self._found[mark.ledger] = seen, left

    def keep(self, ledgers: Set[int]) -> None:
        """Forget all but these: they are marked still."""
        self._found = {each: found for each, found in self._found.items() if each in ledgers}
