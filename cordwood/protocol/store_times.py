"""How long a wave may take, from how long each node took before.

A mean and a mean deviation of each node's answers, as TCP keeps them of its round trips:
a wave waits for the slowest of its nodes, mean and four deviations of it, and twice as long
for each wave before it. A needless wave costs three stores and fills the disks that made
it needless, so the wait follows slow disks up, to a bound. It is never shorter than the
first wait: nodes that answer in a millisecond stall for hundreds when they flush, and more
where five of them share two cores.

Answers to earlier waves count too: where every wave is given up a moment before its answer,
nothing else would ever tell.

Source: RFC 6298; LogDevice digest 2.4 (timeouts that double, from 10 ms to a minute).
"""

from __future__ import annotations

from collections.abc import Iterable

from cordwood.nodes import NodeId

DEVIATIONS = 4
MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
"""All three as in RFC 6298."""

DOUBLINGS_MAX = 8
"""More than any bound leaves room for; keeps the power small."""


class StoreTimes:
    """See the module.

    Args:
        first_s: wait for a node that has not answered yet, and the least for any.
        most_s: bound of every wait.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        # Mean and mean deviation, in seconds.
        self._known: dict[NodeId, tuple[float, float]] = {}

    def on_answer(self, node: NodeId, took_s: float) -> None:
        """`node` answered a store so long after it was sent."""
        known = self._known.get(node)
        if known is None:
            self._known[node] = (took_s, took_s / 2)
            return
        mean, deviation = known
        off = took_s - mean
        self._known[node] = (
            mean + MEAN_GAIN * off,
            deviation + DEVIATION_GAIN * (abs(off) - deviation),
        )

    def forget(self, node: NodeId) -> None:
        """`node` connected anew: it may be another machine."""
        self._known.pop(node, None)

    def node_s(self, node: NodeId) -> float:
        """How long to wait for one node, in the first wave."""
        known = self._known.get(node)
        if known is None:
            return self._first_s
        wanted = known[0] + DEVIATIONS * known[1]
        return min(self._most_s, max(self._first_s, wanted))

    def wave_s(self, copyset: Iterable[NodeId], wave: int) -> float:
        """How long wave number `wave`, from 1, may take on `copyset`."""
        longest = max(map(self.node_s, copyset), default=self._first_s)
        return min(self._most_s, longest * 2.0 ** min(max(wave, 1) - 1, DOUBLINGS_MAX))
