"""Decides which copies of ledgers on lost nodes are made anew, and when this is done.

An *auditor* looks at every ledger and marks those that name a lost node in any fragment. A *mark*
says which nodes, and since when. It stays until nothing of the ledger names these nodes any more,
also where they are let in again meanwhile with an empty disk. *Workers* take marks, one at a time:

- a closed ledger is repaired: its entries are copied, and then another node is named;
- a ledger that is not closed is recovered first, after the *grace*, if its last fragment names a
  lost node. A living writer replaces the node with its next entry. So after the grace the ledger
  has no writer, or an idle writer, which is shut out;
- a ledger that main storage has lacks no copies, even if its fragments name lost nodes;
- of an open ledger with a whole last fragment, the fragments before are repaired. Its writer goes
  on meanwhile, and the last fragment is left to it.

A rule: states in, what to do out.

Source: docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

import enum
from collections.abc import Set
from typing import NamedTuple

from cordwood.ledger import LedgerMetadata, LedgerState

GRACE_US = 30_000_000
"""How long the writer of a ledger has, after a loss was marked, to put another node in place."""

AGAIN_S = 5.0
AGAIN_MAX_S = 300.0
"""Pauses before a ledger is tried again that could not be repaired: they double."""


class Mark(NamedTuple):
    """A ledger that lacks copies.

    Attributes:
        nodes: lost nodes that the ledger names, or named at the look; rising.
        since_us: when the last of them was added, by the clock of the node that added it.
        short_from: where the last fragment began that named one of them, of a ledger that was not
            closed; -1 where it named none. A later fragment that names such a node was written when
            the node was back. It may have entries that the node acknowledged before its loss, if
            the writer replaced another member then. The node is fenced in that case
            (`nodes_to_ask`).
    """

    ledger: int
    nodes: tuple[int, ...]
    since_us: int
    short_from: int = -1


class Step(enum.Enum):
    """The next step for a mark."""

    DONE = "nothing of the ledger names these nodes"
    REPAIR = "copy its entries to other nodes"
    REPAIR_OLDER = "copy entries of the fragments before the last, which its writer goes on with"
    RECOVER = "close it first"
    WAIT = "its writer may go on, or the grace is not over"


def named(metadata: LedgerMetadata) -> frozenset[int]:
    """Every node that has to have entries: none, of a ledger that main storage has.

    Race: a node that gets copies loses its disk before it is named, and begins anew. So it counts
    from before its first copy.
    """
    if metadata.is_tiered:
        return frozenset()
    return frozenset(
        (*metadata.joining, *(node for each in metadata.fragments for node in each.nodes))
    )


def lacking(metadata: LedgerMetadata, lost: Set[int]) -> tuple[int, ...]:
    """The lost nodes that a ledger names, in any fragment.

    A fragment without entries counts: a reader that finds only lost nodes there cannot tell that
    it is empty (BookKeeper #3239).
    """
    return tuple(sorted(named(metadata) & lost))


def mark_of(metadata: LedgerMetadata, lost: Set[int], now_us: int) -> Mark | None:
    """A ledger's mark; None if it names no lost node."""
    nodes = lacking(metadata, lost)
    if not nodes:
        return None
    is_short = metadata.state is not LedgerState.CLOSED and {*metadata.newest.nodes} & lost
    return Mark(metadata.ledger, nodes, now_us, metadata.newest.first if is_short else -1)


def merged(before: Mark | None, found: Mark) -> Mark:
    """A mark with the present findings. If there are new ones, its grace begins anew."""
    if before is None:
        return found
    nodes = tuple(sorted({*before.nodes, *found.nodes}))
    short_from = max(before.short_from, found.short_from)
    if (nodes, short_from) == (before.nodes, before.short_from):
        return before
    return Mark(before.ledger, nodes, found.since_us, short_from)


def nodes_to_ask(metadata: LedgerMetadata | None, mark: Mark) -> frozenset[int]:
    """Nodes that have to say whether they are fenced, before the next step is known.

    The newest fragment of an open ledger names them, and was not there when they were marked. If
    its writer began it on a node that was back, the node is not fenced, and the writer goes on. If
    the writer did not know of the loss, the node fenced the ledger before it served again. Then
    the writer cannot go on, and only a recovery ends the ledger.
    """
    if metadata is None or metadata.state is not LedgerState.OPEN:
        return frozenset()
    newest = metadata.newest
    if newest.first == mark.short_from:
        return frozenset()
    return frozenset(newest.nodes) & {*mark.nodes}


def step(
    metadata: LedgerMetadata | None, mark: Mark, now_us: int, fenced: Set[int] = frozenset()
) -> Step:
    """The next step for a mark.

    Args:
        metadata: the ledger's present metadata; None if it was deleted.
        fenced: those of `nodes_to_ask` that are fenced.
    """
    if metadata is None or not lacking(metadata, {*mark.nodes}):
        return Step.DONE
    if metadata.state is LedgerState.CLOSED:
        return Step.REPAIR
    is_over = now_us - mark.since_us >= GRACE_US
    newest = metadata.newest
    is_of_mark = newest.first == mark.short_from and bool({*newest.nodes} & {*mark.nodes})
    is_short = is_of_mark or bool(nodes_to_ask(metadata, mark) & fenced)
    # A ledger in recovery has no writer any more, and perhaps no client that ends the recovery.
    if is_short or metadata.state is LedgerState.IN_RECOVERY:
        return Step.RECOVER if is_over else Step.WAIT
    return Step.REPAIR_OLDER if lacks_older(metadata, {*mark.nodes}) else Step.WAIT


def lacks_older(metadata: LedgerMetadata, lost: Set[int]) -> bool:
    """Whether a lost node is named beside the newest fragment: by a settled one, or as joining."""
    settled = {node for each in metadata.settled for node in each.nodes}
    return bool(lost & (settled | {*metadata.joining}))


def may_refill(metadata: LedgerMetadata, mark: Mark) -> bool:
    """Whether marked nodes that are back may be filled in their own places.

    They are named afterwards as before. So the mark must go after that, or they would be filled
    again at each look. It cannot go while the newest fragment of an open ledger names one of them.
    """
    is_closed = metadata.state is LedgerState.CLOSED
    return is_closed or not {*metadata.newest.nodes} & {*mark.nodes}


def may_finish(before: LedgerMetadata, after: LedgerMetadata | None, mark: Mark) -> bool:
    """Whether nothing is left of a mark once the older fragments of an open ledger are repaired.

    A fragment that was the newest before the repair was not repaired, nor any that came later. If
    one of these names a marked node, the mark stays.

    Args:
        before: the metadata by which the repair was chosen.
        after: read after the repair; None if the ledger was deleted.
    """
    if after is None:
        return True
    rest = after.fragments[len(before.fragments) - 1 :]
    named_still = {*after.joining, *(node for each in rest for node in each.nodes)}
    return not named_still & {*mark.nodes}


class Retries:
    """The times of further tries to repair a ledger."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, float]] = {}

    def is_due(self, ledger: int, now_s: float) -> bool:
        """Whether it may be tried now."""
        return ledger not in self._due or now_s >= self._due[ledger][0]

    def failed(self, ledger: int, now_s: float) -> None:
        """It was tried, and lacks copies still."""
        _, pause_s = self._due.get(ledger, (0.0, AGAIN_S / 2))
        pause_s = min(2 * pause_s, AGAIN_MAX_S)
        self._due[ledger] = now_s + pause_s, pause_s

    def keep(self, ledgers: Set[int]) -> None:
        """Forget all but these: they are marked still."""
        self._due = {each: due for each, due in self._due.items() if each in ledgers}
