"""When nodes that joined get a share of the logs that are written already.

An epoch keeps the nodeset that it began with. So a log takes in new nodes with its next epoch only,
and a log that is written without a break has none for weeks. A node that has been a member for
`GROW_AFTER_S` is *settled*. When nodes settle, every log that is sequenced here and lacks one of
them is due once, a few at each look: a new epoch costs its log a pause and a recovery.

A rule: members in, logs out. The caller finds out whether the log's next nodeset would have the new
node; a nodeset smaller than the cluster may not.

Source: docs/sources/logdevice.md 2.5 (nodesets follow the cluster; changes are spread over time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Set
from itertools import islice

from cordwood.nodes import NodeId

GROW_AFTER_S = 60.0
"""A node that restarts, or is tried and taken away again, moves no log before that."""

GROW_LOGS = 50
"""Logs at one look, which comes every five seconds: ten thousand in a quarter of an hour."""


class NodesetGrowth:
    """See the module; of one node's sequencers."""

    def __init__(self) -> None:
        self._since_s: dict[NodeId, float] = {}
        self._known: frozenset[NodeId] = frozenset()
        self._waits: deque[int] = deque()

    def due(
        self,
        now_s: float,
        able: Collection[NodeId],
        nodesets: Callable[[], Mapping[int, Collection[NodeId]]],
    ) -> frozenset[int]:
        """The logs that are due now, until `on_looked_at`.

        Args:
            now_s: of a clock that does not go back.
            able: members that take new records.
            nodesets: by log that is sequenced here, the nodes of its present epoch; asked when
                nodes settle.
        """
        self._since_s = {node: self._since_s.get(node, now_s) for node in able}
        settled = frozenset(
            node for node, since_s in self._since_s.items() if now_s - since_s >= GROW_AFTER_S
        )
        if settled - self._known:
            # Logs that wait already lack another node; they are looked at once for both.
            self._waits = deque(log for log, nodes in nodesets().items() if settled - {*nodes})
        self._known = settled
        return frozenset(islice(self._waits, GROW_LOGS))

    def on_looked_at(self, logs: Set[int]) -> None:
        """These logs were looked at, with or without success."""
        while self._waits and self._waits[0] in logs:
            self._waits.popleft()
