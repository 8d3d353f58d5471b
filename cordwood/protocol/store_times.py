"""Computes how long a wave may take, from each node's earlier answers.

For each node it keeps a mean and a mean deviation of its answer times, as TCP does for round trips.
A wave waits for the mean plus four deviations of its slowest node, and twice as long for each wave
of the run before it. A needless wave costs three stores, and loads the disks whose slowness caused
it. So the wait follows slow disks up, to a bound.

A node *lags* if all its answers in a second are in time but late: far later than those of the other
nodes, and than its own quickest. A disk that is a hundred times slower behaves so between its
stalls, and each stall costs an append a whole wait. One quick answer ends the verdict. So neither a
flush for which many waves wait nor a distant node counts as lagging.

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
"""More doublings than any bound allows; it keeps the power small."""

LATE_FLOOR_S = 0.01
"""An answer within this time is never late: a busy machine takes as long to wake a process."""

LATE_TIMES = 8
"""A late answer takes more than this many times the median of the other nodes, and the node's own
quickest answer. Run sizes and a machine's load make answers differ by a few times."""

LAG_S = 1.0
"""A lagging node is late in every answer for this long: longer than one flush stalls it."""

LAG_ANSWERS = 8
"""The least late answers of a lagging node: a node that is hardly used has too few in a second."""


class _Node:
    """One node's answer times.

    Attributes:
        mean_s: smoothed.
        deviation_s: smoothed.
        quickest_s: of all answers.
        late: late answers since the last answer that was not late.
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
        first_s: the wait for a node that has not answered yet, and the shortest wait.
        most_s: the longest wait.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._nodes: dict[NodeId, _Node] = {}

    def on_answer(self, node: NodeId, took_s: float, now: float) -> bool:
        """`node` answered a store `took_s` after it was sent; whether the node lags.

        Answers to earlier waves count too. If every wave were given up just before its answer, no
        other answer would show how slow the node is. After True, the next True for the node comes
        at the earliest LAG_S later.
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
        """The time above which an answer of `node` is late; infinite if no other node is known."""
        others = [known.mean_s for other, known in self._nodes.items() if other != node]
        if not others:
            return float("inf")
        known = self._nodes.get(node)
        usual_s = max(statistics.median(others), 0.0 if known is None else known.quickest_s)
        return max(LATE_FLOOR_S, LATE_TIMES * usual_s)

    def forget(self, node: NodeId) -> None:
        """`node` connected again: it may be another machine."""
        self._nodes.pop(node, None)

    def node_s(self, node: NodeId) -> float:
        """How long to wait for one node, in the first wave."""
        known = self._nodes.get(node)
        if known is None:
            return self._first_s
        wanted = known.mean_s + DEVIATIONS * known.deviation_s
        # Never shorter than the first wait: a node that answers in a millisecond stalls for
        # hundreds of milliseconds in a flush, and for more if five nodes share two cores.
        return min(self._most_s, max(self._first_s, wanted))

    def wave_s(self, copyset: Iterable[NodeId], wave: int) -> float:
        """How long wave number `wave`, from 1, may take on `copyset`."""
        longest = max(map(self.node_s, copyset), default=self._first_s)
        return min(self._most_s, longest * 2.0 ** min(max(wave, 1) - 1, DOUBLINGS_MAX))
