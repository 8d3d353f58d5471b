"""A reader's health: how long it has had no news of a log of which there may be more.

The earliest of three times counts: since when readable records are known but none arrive, since
when no node is connected, and since when no node reports the log's end. The last two matter because
an isolated reader cannot know of new records: without them it would wait in silence forever.

Source: docs/sources/logdevice.md 2.11 (`isConnectionHealthy`, health callbacks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.lsn import format_lsn
from cordwood.nodes import NodeId

UNKNOWN = "and no node reports whether there is more"
"""The reader's knowledge of the log while it is isolated."""

HEALTH_S = 10.0
"""A reader may stand still this long before it reports so. It is twice the time to ask all nodes
for all copies, and the bound within which readers reach the tail once faults end."""


class ReadHealth:
    """See the module. Times are the loop's.

    Attributes:
        trouble: why a reader that waits gets nothing; "" if all is well.
    """

    __slots__ = ("_alone_since", "_behind_since", "_unanswered_since", "trouble")

    def __init__(self) -> None:
        self.trouble = ""
        self._behind_since: float | None = None
        self._alone_since: float | None = None
        self._unanswered_since: float | None = None

    def on_taken(self) -> None:
        """The reader got something: all clocks stop."""
        self._behind_since = self._alone_since = self._unanswered_since = None

    def on_behind(self, now: float) -> None:
        """Note that there is more to read, and that it has not arrived."""
        if self._behind_since is None:
            self._behind_since = now

    def on_connected(self, is_connected: bool, now: float) -> None:
        """Note whether any node is connected."""
        if is_connected:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now

    def on_tail(self) -> None:
        """A node tells where the log ends."""
        self._unanswered_since = None

    def on_no_tail(self, asked_at: float) -> None:
        """No node has reported the end since `asked_at`."""
        if self._unanswered_since is None:
            self._unanswered_since = asked_at

    @property
    def is_behind(self) -> bool:
        """Whether more is known to be readable."""
        return self._behind_since is not None

    @property
    def due(self) -> float | None:
        """The time at which a trouble must be reported; None if all is well or the trouble was
        reported."""
        clocks = (self._behind_since, self._alone_since, self._unanswered_since)
        running = [each for each in clocks if each is not None]
        return min(running) + HEALTH_S if running and not self.trouble else None

    @property
    def is_over(self) -> bool:
        """Whether a trouble that was told is over: no clock runs any more."""
        return bool(self.trouble) and (
            self._behind_since is self._alone_since is self._unanswered_since is None
        )

    def why(
        self, at: int, nodes: int, absent: Sequence[NodeId], doubted: Mapping[NodeId, str]
    ) -> str:
        """The trouble in words.

        Args:
            at: the LSN that the reader waits for.
            nodes: the number of nodes that may hold it. `absent` nodes are not connected, and the
                reader does not count on `doubted` nodes.
        """
        known = "though more is readable" if self.is_behind else UNKNOWN
        left_out = ", ".join(f"node {node} ({doubt})" for node, doubt in doubted.items())
        return (
            f"nothing at {format_lsn(at)} for {HEALTH_S:g} s, {known}: "
            f"{len(absent)} of {nodes} nodes are not connected; not counted on: "
            f"{left_out or 'none'}"
        )
