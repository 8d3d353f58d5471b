"""Greylisting: finds the nodes that are so slow that a reader does better without them.

A reader notices a node that is down by its silence. It does not notice a slow node, and in
single-copy mode every block waits for that node. So a reader measures how long each node takes to
complete a window, and keeps a moving average for each node. It stops counting on nodes that are far
slower than their peers. After a probation these nodes are measured again. A node that is slow again
stays away twice as long; a node that was quick for a while begins with the first probation again.
Page: docs/protocol/single-copy-delivery.md, "Slow nodes".

Source: docs/sources/logdevice.md 2.11 (outlier detector).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cordwood.nodes import NodeId

BUCKET_S = 1.0
BUCKETS = 30
"""The average covers the last half minute: long enough that one pause does not decide (see
SAMPLES_MIN), short enough to forget a node's bad hour. LogDevice's average covers 30 minutes: its
readers are background jobs with minutes to spare."""

MARGIN = 4.0
"""A slow node takes this many times the median of all. Nodes of one kind differ by less than two
times. LogDevice has 10, but a node that is four times slower than its peers already costs a reader
three quarters of its speed."""

SLOW_MIN_S = 0.25
"""A node below this is never slow: rounds through a loaded loop take tens of ms."""

SAMPLES_MIN = 2
"""One late window may come from a pause of any kind."""

OPEN_S = 1.0
"""A node's first window counts after this time, even if it is not complete."""

PROBATION_MIN_S = 10.0
PROBATION_MAX_S = 1800.0
"""A wrong first probation costs little, so it is shorter than LogDevice's minute. The longest
probation is LogDevice's."""

WINDOWS_MAX = 8
"""Windows measured at a time. The oldest of them measures a node that is further behind."""


@dataclass(slots=True)
class _Series:
    """Latencies of one node, in buckets of time."""

    buckets: deque[tuple[int, float, int]] = field(default_factory=deque)

    def add(self, latency_s: float, now_s: float) -> None:
        bucket = int(now_s / BUCKET_S)
        if self.buckets and self.buckets[-1][0] == bucket:
            _, total, count = self.buckets.pop()
            self.buckets.append((bucket, total + latency_s, count + 1))
        else:
            self.buckets.append((bucket, latency_s, 1))
        self.expire(now_s)

    def expire(self, now_s: float) -> None:
        while self.buckets and self.buckets[0][0] <= int(now_s / BUCKET_S) - BUCKETS:
            self.buckets.popleft()

    @property
    def count(self) -> int:
        return sum(count for _, _, count in self.buckets)

    @property
    def mean_s(self) -> float:
        return sum(total for _, total, _ in self.buckets) / max(1, self.count)


@dataclass(slots=True)
class _Probation:
    """A node's probation: the length of its next probation, and the end of the present one."""

    length_s: float = PROBATION_MIN_S
    ends_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """Nodes not to count on any more, and nodes to try again, each in node order."""

    slow: tuple[NodeId, ...] = ()
    back: tuple[NodeId, ...] = ()


NO_CHANGE = Change()


class SlowNodes:
    """See the module.

    Times are seconds on any clock that does not go back.
    """

    def __init__(self, spare: int) -> None:
        """
        Args:
            spare: how many nodes may be away at once: copies less one.
        """
        self._spare = spare
        self._windows: deque[tuple[int, float, set[NodeId]]] = deque(maxlen=WINDOWS_MAX)
        self._series: dict[NodeId, _Series] = {}
        self._probations: dict[NodeId, _Probation] = {}
        self._grey: set[NodeId] = set()
        self._late_at = -math.inf  # when a window last took SLOW_MIN_S or more

    @property
    def greylisted(self) -> tuple[NodeId, ...]:
        """Nodes on probation, in node order."""
        return tuple(sorted(self._grey))

    def latency_s(self, node: NodeId) -> float | None:
        """A node's moving average; None if nothing is known."""
        series = self._series.get(node)
        return series.mean_s if series is not None and series.count else None

    def on_window(self, high: int, now_s: float) -> None:
        """Nodes were allowed to send up to `high`."""
        self._windows.append((high, now_s, set()))

    def on_rewind(self, high: int, now_s: float) -> None:
        """Nodes start again, so no node will complete the open windows."""
        self._windows.clear()
        self.on_window(high, now_s)

    def on_marker(self, node: NodeId, marker: int, now_s: float) -> None:
        """`node` has come as far as `marker`."""
        for high, since_s, completed in self._windows:
            if marker <= high:
                return
            if node not in completed:
                completed.add(node)
                if now_s - since_s >= SLOW_MIN_S:
                    self._late_at = now_s
                self._series.setdefault(node, _Series()).add(now_s - since_s, now_s)

    def decide(self, nodes: Sequence[NodeId], down: Iterable[NodeId], now_s: float) -> Change:
        """The nodes that are slow now, and the nodes whose probation is over.

        Args:
            nodes: the nodes that send.
            down: nodes that the reader does not count on for other reasons.
        """
        if self._all_quick(len(nodes), now_s):
            return NO_CHANGE
        back = tuple(n for n in self.greylisted if self._probations[n].ends_s <= now_s)
        for node in back:
            self._grey.discard(node)
            # Measure it again from the start: its earlier speed says nothing.
            self._series.pop(node, None)
        away = set(down) | self._grey
        room = self._spare - len(away.intersection(nodes))
        found = self._outliers([n for n in nodes if n not in away], now_s)
        slow = tuple(sorted(found[: max(0, room)]))
        for node in slow:
            self._put_away(node, now_s)
        return Change(slow, back)

    def _all_quick(self, nodes: int, now_s: float) -> bool:
        """Whether no node is away and no window, complete or open, took SLOW_MIN_S lately.

        A short cut: it is true for most readers at the tail, and hundreds of them ask often.
        """
        if self._grey or now_s - self._late_at <= (BUCKETS + 1) * BUCKET_S:
            return False
        return not any(
            now_s - at >= SLOW_MIN_S and 0 < len(done) < nodes for _, at, done in self._windows
        )

    def _outliers(self, nodes: Sequence[NodeId], now_s: float) -> list[NodeId]:
        """Slow nodes among `nodes`, the slowest first."""
        latencies = {node: self._latest_s(node, now_s) for node in nodes}
        known = {node: latency for node, latency in latencies.items() if latency is not None}
        slow: list[tuple[float, NodeId]] = []
        if len(known) > 1:
            usual = statistics.median_low(known.values())
            for node, latency in known.items():
                if latency >= SLOW_MIN_S and latency > MARGIN * usual:
                    slow.append((-latency, node))
        return [node for _, node in sorted(slow)]

    def _latest_s(self, node: NodeId, now_s: float) -> float | None:
        """The average, with the oldest window that the node still has open."""
        series = self._series.get(node)
        if series is not None:
            series.expire(now_s)
        open_s = next((now_s - at for _, at, done in self._windows if done and node not in done),
                      None)  # fmt: skip
        samples = series.count if series is not None else 0
        mean_s = series.mean_s if series is not None else 0.0
        if open_s is not None and open_s > mean_s and (samples or open_s >= OPEN_S):
            return (mean_s * samples + open_s) / (samples + 1)
        return mean_s if samples >= SAMPLES_MIN else None

    def _put_away(self, node: NodeId, now_s: float) -> None:
        probation = self._probations.setdefault(node, _Probation())
        if probation.ends_s:
            # A node that is slow again at once doubles its probation. Quick time is subtracted.
            behaved_s = now_s - probation.ends_s
            probation.length_s = min(
                PROBATION_MAX_S, max(PROBATION_MIN_S, 2 * probation.length_s - behaved_s)
            )
        probation.ends_s = now_s + probation.length_s
        self._grey.add(node)
