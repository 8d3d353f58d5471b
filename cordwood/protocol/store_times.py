"""How long a wave may take, from how long each node took before.

A mean and a mean deviation of each node's answers, as TCP keeps them of its round trips:
a wave waits for the slowest of its nodes, mean and four deviations of it, and twice as long
for each wave before it. A needless wave costs three stores and fills the disks that made
it needless, so the wait follows slow disks up, to a bound. It is never shorter than the
first wait: nodes that answer in a millisecond stall for hundreds when they flush, and more
where five of them share two cores.

Answers to earlier waves count too: where every wave is given up a moment before its answer,
nothing else would ever tell.

A node also lags that answers in time and always late: far later than the others do, and than
it can, for a second on end. A disk a hundred times slower does that between its stalls, and
each stall costs somebody a whole wait. One quick answer ends the verdict, so a flush that many
waves wait for is not taken for it, nor is a node that was always far away.

Source: RFC 6298; docs/sources/logdevice.md 2.4 (timeouts that double, from 10 ms to a minute);
docs/sources/reliability.md §3 (L7).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from cordwood.nodes import NodeId

DEVIATIONS = 4
MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
"""All three as in RFC 6298."""

DOUBLINGS_MAX = 8
"""More than any bound leaves room for; keeps the power small."""

LATE_FLOOR_S = 0.01
"""No answer within it is late, whatever the others take: busy machines take so long to wake
a process."""

LATE_TIMES = 8
"""How many times what the others take, and what the node took at its quickest, is late. Sizes
of runs and the load of a machine make answers differ by a few times."""

LAG_S = 1.0
"""For how long a node has to be late each time: longer than the flush that one stall is."""

LAG_ANSWERS = 8
"""And how often. Of a node that is hardly used nothing is known after a second."""


class _Node:
    """What one node's answers told.

    Attributes:
        mean_s: smoothed.
        deviation_s: smoothed.
        quickest_s: of all.
        late: answers since the last that was not late.
        late_since: when the first of these came.
    """

    __slots__ = ("deviation_s", "late", "late_since", "mean_s", "quickest_s")

    def __init__(self, took_s: float) -> None:
        self.mean_s = took_s
        self.deviation_s = took_s / 2
        self.quickest_s = took_s
        self.late = 0
        self.late_since = 0.0

    def add(self, took_s: float) -> None:
        off = took_s - self.mean_s
        self.mean_s += MEAN_GAIN * off
        self.deviation_s += DEVIATION_GAIN * (abs(off) - self.deviation_s)
        self.quickest_s = min(self.quickest_s, took_s)


class StoreTimes:
    """See the module. Times are in seconds.

    Args:
        first_s: wait for a node that has not answered yet, and the least for any.
        most_s: bound of every wait.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._nodes: dict[NodeId, _Node] = {}

    def on_answer(self, node: NodeId, took_s: float, now: float) -> bool:
        """`node` answered a store so long after it was sent; whether it lags.

        A node that was said to lag is not said so again before another LAG_S.
        """
        known = self._nodes.get(node)
        if known is None:
            self._nodes[node] = _Node(took_s)
            return False
        known.add(took_s)
        if took_s <= LATE_FLOOR_S or took_s <= self.late_s(node):
            known.late = 0
            return False
        if not known.late:
            known.late_since = now
        known.late += 1
        if known.late < LAG_ANSWERS or now - known.late_since < LAG_S:
            return False
        known.late = 0
        return True

    def late_s(self, node: NodeId) -> float:
        """From when on an answer of `node` is late: for ever if no other node is known."""
        others = [known.mean_s for other, known in self._nodes.items() if other != node]
        if not others:
            return float("inf")
        known = self._nodes.get(node)
        usual_s = max(statistics.median(others), 0.0 if known is None else known.quickest_s)
        return max(LATE_FLOOR_S, LATE_TIMES * usual_s)

    def forget(self, node: NodeId) -> None:
        """`node` connected anew: it may be another machine."""
        self._nodes.pop(node, None)

    def node_s(self, node: NodeId) -> float:
        """How long to wait for one node, in the first wave."""
        known = self._nodes.get(node)
        if known is None:
            return self._first_s
        wanted = known.mean_s + DEVIATIONS * known.deviation_s
        return min(self._most_s, max(self._first_s, wanted))

    def wave_s(self, copyset: Iterable[NodeId], wave: int) -> float:
        """How long wave number `wave`, from 1, may take on `copyset`."""
        longest = max(map(self.node_s, copyset), default=self._first_s)
        return min(self._most_s, longest * 2.0 ** min(max(wave, 1) - 1, DOUBLINGS_MAX))
