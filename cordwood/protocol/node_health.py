"""Which nodes a sequencer should pick for new copies, from how they answered.

A node that let a wave time out, or said that it is full, is left out for a while, and
one that the failure detector suspects for as long as that lasts;
if the rest cannot hold a copyset, every node that is up counts again, since a slow
copy is better than none.

Source: LogDevice digest 2.4 ("NodeSetState").
"""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.nodes import NodeId

SLOW_S = 2.0
"""After a timed-out wave. LogDevice's graylist lasts 600 s; here a node that was only
paused should get its share back soon, and a dead one is not connected anyway."""

FULL_S = 1.0
"""After "overloaded", as LogDevice does."""


class NodeHealth:
    """When each node may be picked again."""

    def __init__(self) -> None:
        self._again: dict[NodeId, float] = {}
        self._silent: frozenset[NodeId] = frozenset()

    def set_silent(self, nodes: frozenset[NodeId]) -> None:
        """These are the nodes that the failure detector suspects, or calls dead, now."""
        self._silent = nodes

    def on_slow(self, node: NodeId, now: float) -> None:
        """`node` did not answer a wave in time."""
        self._again[node] = now + SLOW_S

    def on_full(self, node: NodeId, now: float) -> None:
        """`node` refused a wave for want of room."""
        self._again[node] = now + FULL_S

    def on_failed(self, node: NodeId) -> None:
        """`node` cannot store any more until it is restarted."""
        self._again[node] = float("inf")

    def on_up(self, node: NodeId) -> None:
        """`node` connected anew, so what was known of it is old."""
        self._again.pop(node, None)

    def pick_from(self, up: Iterable[NodeId], now: float) -> frozenset[NodeId]:
        """The nodes of `up` that nothing speaks against at `now`."""
        return frozenset(
            node for node in up if node not in self._silent and self._again.get(node, 0.0) <= now
        )
