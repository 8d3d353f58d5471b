"""Decides which copies of ledgers on lost nodes are made anew, and when this is done.

An *auditor* looks at every ledger and marks those that name a lost node in any fragment. A node
that is drained counts as lost, but not for the last fragment of an open ledger. A *mark* says which
nodes, and since when. It stays until nothing of the ledger names these nodes any more,
also where they are let in again meanwhile with an empty disk. *Workers* take marks, one at a time:

- a closed ledger is repaired: its entries are copied, and then another node is named;
- a ledger that is not closed is recovered first, after the *grace*, if its last fragment names a
  lost node. A living writer replaces the node when it fails an entry. With E above Qw not every
  entry is sent to it. So after the grace the ledger has no writer, or one that sent the node
  nothing since the loss. That writer is shut out;
- while a recovery fails, the fragments before the last are repaired: the next loss would take their
  entries. The mark stays until the ledger is closed;
- while a mark has to stay, settled entries that lack copies get them as far as possible
  (`ledger_fills`);
- an entry without a readable copy is passed over, and stays in the mark, which stays then. It is
  looked for again and again: a node that was away may come back with it;
- a ledger that main storage has lacks no copies, even if its fragments name lost nodes;
- of an open ledger with a whole last fragment, the fragments before are repaired. Its writer goes
  on meanwhile, and the last fragment is left to it.

A rule: states in, what to do out.

Source: docs/sources/bookkeeper.md (d).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Set
from typing import NamedTuple

from cordwood.ledger import LedgerMetadata, LedgerState

GRACE_US = 30_000_000
"""How long the writer of a ledger has, after a loss was marked, to put another node in place."""

GAPS_MAX = 256
"""Entries that a mark names. Of further ones it says that there are some."""

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
        gaps: entries that a repair passed over, because no node had a readable copy; rising.
        strays: nodes that did not say whether they have a copy of these. They are lost, and nothing
            of the ledger may name them any more; but if one of them comes back, it may have it.
        has_more: whether entries were passed over that `gaps` does not name.
    """

    ledger: int
    nodes: tuple[int, ...]
    since_us: int
    short_from: int = -1
    gaps: tuple[int, ...] = ()
    strays: tuple[int, ...] = ()
    has_more: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether it stays when nothing of the ledger names its nodes any more."""
        return bool(self.gaps) or self.has_more

    @property
    def may_need(self) -> tuple[int, ...]:
        """Nodes whose directories may have the last copies of entries, rising."""
        return tuple(sorted({*self.nodes, *self.strays}))


class Step(enum.Enum):
    """The next step for a mark."""

    DONE = "nothing of the ledger names these nodes"
    REPAIR = "copy its entries to other nodes"
    REPAIR_OLDER = "copy entries of the fragments before the last, which its writer goes on with"
    RECOVER = "close it first"
    FILL = "look for copies of the entries that a repair passed over"
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


def mark_of(
    metadata: LedgerMetadata, lost: Set[int], now_us: int, leaving: Set[int] = frozenset()
) -> Mark | None:
    """A ledger's mark; None if it names no lost node.

    Args:
        leaving: nodes that are being drained. Until such a node is empty, it takes the entries of
            writers: the last fragment of an open ledger is left to the writer, and is no reason for
            a mark. Once the node is empty, it is among the lost nodes.
    """
    if metadata.state is LedgerState.OPEN:
        leaving = leaving & _named_beside_the_newest(metadata)
    nodes = lacking(metadata, lost | leaving)
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
    return before._replace(nodes=nodes, since_us=found.since_us, short_from=short_from)


def with_gaps(mark: Mark, entries: Collection[int], silent: Collection[int]) -> Mark:
    """A mark with further entries that a repair passed over, of which it names the first GAPS_MAX,
    and with the nodes that did not say whether they have them."""
    gaps = sorted({*mark.gaps, *entries})
    return mark._replace(
        gaps=tuple(gaps[:GAPS_MAX]),
        strays=tuple(sorted({*mark.strays, *silent})),
        has_more=mark.has_more or len(gaps) > GAPS_MAX,
    )


def may_fill_more(has_more: bool, filled: int, missing: Collection[int]) -> bool:
    """Whether all settled entries are looked at after the gaps: there are more entries without a
    copy, and all gaps are filled, or a node is back with entries.

    Without the second condition, one entry that is lost would keep the others from their copies.
    Without any, a ledger with a lost entry would be read as a whole every few minutes.
    """
    return has_more and (filled > 0 or not missing)


def with_missing(
    mark: Mark, missing: Collection[int], without: Collection[int], *, of_all: bool
) -> Mark:
    """A mark after its gaps were filled as far as possible.

    Args:
        missing: entries that lack copies still.
        without: nodes that say that they have no whole copy of any of these.
        of_all: whether all settled entries were looked at, and not only the gaps.
    """
    gaps = sorted(missing)
    has_more = len(gaps) > GAPS_MAX or (mark.has_more and not of_all)
    # A node may have entries that the mark does not name.
    strays = mark.strays if has_more else tuple(n for n in mark.strays if n not in without)
    return mark._replace(gaps=tuple(gaps[:GAPS_MAX]), strays=strays, has_more=has_more)


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
    metadata: LedgerMetadata | None,
    mark: Mark,
    now_us: int,
    fenced: Set[int] = frozenset(),
    seen_us: int = 0,
) -> Step:
    """The next step for a mark.

    Args:
        metadata: the ledger's present metadata; None if it was deleted.
        now_us: by this node's clock.
        fenced: those of `nodes_to_ask` that are fenced.
        seen_us: for how long this node has seen the mark as it is; see `SeenMarks`.
    """
    if metadata is None or metadata.is_tiered:
        return Step.DONE
    is_in_recovery = metadata.state is LedgerState.IN_RECOVERY
    if not lacking(metadata, {*mark.nodes}) and not is_in_recovery:
        return Step.FILL if mark.is_kept else Step.DONE
    if metadata.state is LedgerState.CLOSED:
        return Step.REPAIR
    is_over = max(now_us - mark.since_us, seen_us) >= GRACE_US
    newest = metadata.newest
    is_of_mark = newest.first == mark.short_from and bool({*newest.nodes} & {*mark.nodes})
    is_short = is_of_mark or bool(nodes_to_ask(metadata, mark) & fenced)
    # A ledger in recovery has no writer any more, and perhaps no client that ends the recovery.
    if is_short or is_in_recovery:
        return Step.RECOVER if is_over else Step.WAIT
    return Step.REPAIR_OLDER if lacks_older(metadata, {*mark.nodes}) else Step.WAIT


def step_without_end(metadata: LedgerMetadata | None, mark: Mark) -> Step:
    """What is done after a recovery failed: it may fail for ever, if a node does not come back.

    Args:
        metadata: the ledger's metadata after that; None if it was deleted.
    """
    is_unclosed = metadata is not None and metadata.state is not LedgerState.CLOSED
    if metadata is not None and is_unclosed and lacks_older(metadata, {*mark.nodes}):
        return Step.REPAIR_OLDER
    return Step.WAIT


def lacks_older(metadata: LedgerMetadata, lost: Set[int]) -> bool:
    """Whether a lost node is named beside the newest fragment: by a settled one, or as joining."""
    return bool(lost & _named_beside_the_newest(metadata))


def _named_beside_the_newest(metadata: LedgerMetadata) -> frozenset[int]:
    settled = (node for each in metadata.settled for node in each.nodes)
    return frozenset((*settled, *metadata.joining))


def may_refill(metadata: LedgerMetadata, mark: Mark) -> bool:
    """Whether marked nodes that are back may be filled in their own places.

    They are named afterwards as before. So the mark must go after that, or they would be filled
    again at each look. It cannot go while a ledger is in recovery, nor while the newest fragment of
    an open ledger names one of them. They get what they lack then by `ledger_fills`.
    """
    if metadata.state is LedgerState.OPEN:
        return not {*metadata.newest.nodes} & {*mark.nodes}
    return metadata.state is LedgerState.CLOSED


def may_finish(before: LedgerMetadata, after: LedgerMetadata | None, mark: Mark) -> bool:
    """Whether nothing is left of a mark once the older fragments of an open ledger are repaired.

    A fragment that was the newest before the repair was not repaired, nor any that came later. If
    one of these names a marked node, the mark stays. It stays in a recovery as well: perhaps nobody
    else ends that.

    Args:
        before: the metadata by which the repair was chosen.
        after: read after the repair; None if the ledger was deleted.
    """
    if after is None:
        return True
    if after.state is LedgerState.IN_RECOVERY:
        return False
    rest = after.fragments[len(before.fragments) - 1 :]
    named_still = {*after.joining, *(node for each in rest for node in each.nodes)}
    return not named_still & {*mark.nodes}


class SeenMarks:
    """For how long a node has seen marks as they are, by its own steady clock.

    The time of a mark is of the clock of the node that added it. If that clock was a day ahead, the
    grace by the clocks of the others is a day longer, and the ledger lacks its copies for that day.
    """

    def __init__(self) -> None:
        self._since: dict[int, tuple[Mark, float]] = {}

    def seen_us(self, mark: Mark, now_s: float) -> int:
        """Look at a mark: for how many microseconds it has been so, 0 for a new or changed mark."""
        before, since_s = self._since.get(mark.ledger, (None, now_s))
        if before != mark:
            since_s = now_s
        self._since[mark.ledger] = mark, since_s
        return int(1e6 * (now_s - since_s))

    def keep(self, ledgers: Set[int]) -> None:
        """Forget all but these: they are marked still."""
        self._since = {each: seen for each, seen in self._since.items() if each in ledgers}


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
