"""Decides the reports about lost nodes: by other nodes about a dead node, and by a node that
starts.

Each node counts for itself how long others have been dead. The live nodes take turns to report it,
the node with the lowest number first, so that not every node writes the event. A node that cannot
write, because it alone is cut off from the metadata store, thus costs its turn and no more. If two
nodes report it, the second report has no effect. A node that sees no majority reports nothing: it
may be cut off itself.

A node that starts looks at its own entry before it serves requests. Data that was called gone may
be there after all, and an empty disk may stand where the data should be.

Source: docs/sources/logdevice.md 2.9 (triggers).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from cordwood.rebuilding import LostNode, NeedsRebuild, RebuildingSet

TURN_S = 10.0
"""How long a live node reports a loss until the next one does: ten looks, and longer than a call to
a metadata store that does not answer."""

AWAITED_LOST_MAX = 2
"""Nodes that may be lost at a time for another lost or drained node to get its missing donor out of
the way, whatever share of the cluster they are. Two of five are more than the share that may be
rebuilt, and logs with three copies, the default, survive them. With more, blocks may have no copy
left, and an operator decides."""


class LossWatch:
    """One node's watch over the others.

    Args:
        after_s: a node is lost when it has been dead for so long; 0 for never.
    """

    def __init__(self, me: int, after_s: float) -> None:
        self._me = me
        self._after_s = after_s
        self._dead_since: dict[int, float] = {}

    def on_set(self, rebuilding: RebuildingSet) -> None:
        """Take a new set: its nodes are counted anew from the end of their entries.

        Race: an entry may begin and end between two calls of `due`.
        """
        for entry in rebuilding.lost:
            if not _may_be_lost(entry):
                self._dead_since.pop(entry.node, None)

    def due(
        self, now: float, members: Iterable[int], dead: Collection[int], rebuilding: RebuildingSet
    ) -> list[NeedsRebuild]:
        """The events to write now. Call it every so often; a node not seen dead is counted anew."""
        nodes = tuple(sorted(members))
        # Race: a node that is back ends its entry before it listens, and is seen dead until then.
        # So a node is counted anew from the end of its entry.
        self._dead_since = {
            node: self._dead_since.get(node, now)
            for node in nodes
            if node in dead and _may_be_lost(rebuilding.entry(node))
        }
        alive = [node for node in nodes if node not in dead]
        if not self._after_s or self._me not in alive:
            return []
        # A node that is cut off sees all others dead, and is the first of those that it sees. Nodes
        # whose data lies on others already are not missed.
        empty = {entry.node for entry in rebuilding.lost if entry.is_empty}
        if 2 * len(set(alive) - empty) <= len(set(nodes) - empty):
            return []
        return [
            NeedsRebuild(
                node, nodes, if_version=rebuilding.version, forced=_is_awaited(node, rebuilding)
            )
            for node, since in self._dead_since.items()
            if now - since >= self._after_s and self._has_turn(now - since - self._after_s, alive)
        ]

    def _has_turn(self, lost_s: float, alive: list[int]) -> bool:
        """Whether this node reports a loss that is due for so long. An event that is refused costs
        the event log a record all the same, so only one node repeats it at a time."""
        return alive[int(lost_s // TURN_S) % len(alive)] == self._me


def _is_awaited(node: int, rebuilding: RebuildingSet) -> bool:
    """Whether the loss of a node is to be taken although a large share of nodes is rebuilt then.

    Another entry waits for this node as a donor. If its loss were refused, neither node would ever
    be rebuilt. This does not begin a mass rebuilding: most nodes live, and few are lost.
    """
    others = [e for e in rebuilding.lost if e.node != node and not e.is_empty and not e.ranges]
    waits = any(node in e.donors and node not in e.done for e in others)
    return waits and len(others) < AWAITED_LOST_MAX


def _may_be_lost(entry: LostNode | None) -> bool:
    """Whether a dead node is to be reported as lost, by its entry. A drained node is, until it is
    empty: only it can give the blocks of which it is the donor, also those of other lost nodes."""
    return entry is None or bool(entry.ranges) or (entry.relocates and not entry.is_empty)


class Start(enum.Enum):
    """What a node does that starts, by its own entry and its disk."""

    SERVE = "nothing is said of it"
    BACK = "it has its data, which was not rebuilt yet: it says so"
    ANEW = "its data lies on other nodes, and its disk is empty: it joins and acks"
    WAITS = "its disk is empty, and its data is not rebuilt yet: it ends, and tries again"
    STALE = "its data lies on other nodes, and it has the old copies: it ends"
    KEEPS_LEDGERS = "as STALE, but its ledgers are wanted: it drops the old copies, and joins"


def on_start(
    entry: LostNode | None,
    *,
    is_known: bool,
    is_blank: bool,
    anew: int | None = None,
    keeps_ledgers: bool = False,
    is_dropping: bool = False,
) -> Start:
    """What a node does that starts.

    Args:
        entry: its own.
        is_known: whether it ran before, on this disk or another.
        is_blank: whether its disk holds nothing.
        anew: the version of the entry by which this disk was begun anew; None for an old disk.
        keeps_ledgers: whether an operator wants the ledgers of an old disk.
        is_dropping: whether an earlier start began to drop the logs of this disk, and may not have
            come to the end.
    """
    if is_dropping:
        # Some blocks of logs may be gone. Whatever the set says now, the disk must not count as
        # whole: it waits, as an empty disk does, until it is called empty again.
        is_empty = entry is not None and entry.is_empty
        return Start.KEEPS_LEDGERS if is_empty else Start.WAITS
    if entry is None or entry.ranges:
        # An empty disk may be a disk that was not mounted, so it says nothing of itself: the others
        # begin when the node has been dead for long, or an operator does.
        return Start.WAITS if is_blank and is_known else Start.SERVE
    if entry.is_empty:
        if is_blank or anew == entry.version:
            return Start.ANEW
        # A drained node stays up and empty until an operator undrains it.
        if entry.drain:
            return Start.SERVE
        return Start.KEEPS_LEDGERS if keeps_ledgers else Start.STALE
    if is_blank or anew == entry.version:
        # Of the latter the event log lost that the node was empty: it is made anew once more.
        return Start.WAITS
    return Start.SERVE if entry.relocates else Start.BACK
