"""The nodes that a reader counts out for a loss: their data is gone, or lies on other nodes.

A status of the member list is old once it is here. The node may have come back since, and may have
acknowledged records that no other node has. So a loss that needs such a status waits until the
statuses are newer than the markers that give the verdict. A record below a marker was acknowledged
before the marker came. A node that has this record came back even earlier, and these statuses do
not count it out any more.

Nothing is asked while a verdict needs no such status, or gives no gap yet.

Source: docs/protocol/read.md, "When silence means loss".
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence, Set

from cordwood.client.blocks import HeldBlock
from cordwood.client.cluster import Cluster
from cordwood.client.read.senders import Senders
from cordwood.lsn import LSN_MAX
from cordwood.nodes import Authority, NodeId, Nodeset, Replication
from cordwood.protocol.gap_detection import ReadBuffer
from cordwood.quorum.authority import REBUILT
from cordwood.quorum.f_majority import QuorumVerdict, weigh_replies

FindNodeset = Callable[[], tuple[Nodeset, Replication] | None]


class CountedOut:
    """The verdicts of one reader; `gap_detection.Proof`. See the module."""

    def __init__(
        self,
        cluster: Cluster,
        senders: Senders,
        buffer: ReadBuffer[HeldBlock],
        nodeset: weakref.WeakMethod[FindNodeset],
        on_news: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        """
        Args:
            nodeset: of the epoch of `next`; None if it is not known.
            on_news: told when statuses that were asked for are here.
        """
        self._cluster = cluster
        self._senders = senders
        self._buffer = buffer
        self._nodeset = nodeset
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        # How far nodes had come, and when this was seen.
        self._marker = 0
        self._seen_at = 0.0
        self._asked_for: float | None = None

    def judge(self, heard: Set[NodeId]) -> QuorumVerdict:
        """See `gap_detection.Judge`, by all statuses as they are known."""
        # A node that sends is up, even if its status says otherwise.
        away = self._cluster.statuses
        sending = self._senders.sending() if away else ()
        return self._weigh(heard, {n: s for n, s in away.items() if n not in sending})

    def cautious(self, heard: Set[NodeId]) -> QuorumVerdict:
        """The verdict that counts nobody out."""
        return self._weigh(heard, {})

    @property
    def is_needed(self) -> bool:
        """Whether `judge` may count a node out."""
        return any(status in REBUILT for status in self._cluster.statuses.values())

    def _weigh(self, heard: Set[NodeId], away: Mapping[NodeId, Authority]) -> QuorumVerdict:
        nodeset = self._nodeset()
        found = nodeset() if nodeset is not None else None
        # Without the nodeset, the nodes that may have stored it are not known.
        return QuorumVerdict.NONE if found is None else weigh_replies(heard, *found, away)

    def note(self) -> None:
        """Note how far nodes have come, unless an earlier note reaches past `next`."""
        if self._marker <= self._buffer.next:
            self._marker, self._seen_at = self._buffer.furthest, self._loop.time()

    def upto(self) -> int:
        """The end of the range for which the known statuses count nodes out; at `next` or below it
        they are asked for."""
        self.note()
        if self._cluster.statuses_at >= self._seen_at:
            return self._marker
        if self._asked_for != self._seen_at:
            self._asked_for = self._seen_at
            self._cluster.want_statuses(self._seen_at, self._on_news)
        return 0

    def lost_upto(
        self, passed: Sequence[NodeId], verdict: QuorumVerdict, is_waiting: Callable[[], bool]
    ) -> int:
        """As `upto`, for a verdict on a range that main storage lost; above all LSNs if it holds
        without these statuses.

        Args:
            passed: the nodes that have come past `next`.
            is_waiting: whether silent nodes are still in their grace period.
        """
        if not self.is_needed:
            return LSN_MAX + 1
        _, cautious = self._buffer.weigh_lost(passed, self.cautious)
        if cautious in (verdict, QuorumVerdict.COMPLETE):
            return LSN_MAX + 1
        if cautious is QuorumVerdict.INCOMPLETE and not is_waiting():
            return LSN_MAX + 1
        return self.upto()
