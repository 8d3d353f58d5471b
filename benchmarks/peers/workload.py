"""The loads that every peer runs, and their measurements. Pure.

There are three loads: appends with a fixed number in flight, where each answer allows the next
append; reading all appended records, from the oldest on; and the lag of a reader at the tail, with
records offered at a fixed rate, whether the earlier ones arrived or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from cordwood.bench.pace import TICK_S

SIZES = (100, 1024, 64 << 10)
"""Bytes of a record."""

IN_FLIGHT = (1, 16, 256, 2048)
"""Records sent and not yet answered."""

FILL_IN_FLIGHT = {100: 2048, 1024: 2048, 64 << 10: 64}
"""Appends in flight, by size, while records for the reads are made; this is not measured."""

TAIL_SIZE = 1024
TAIL_RATE = 2_000
"""Records a second: far below the limit of each system, so that no queue adds to the lag."""


@dataclass(frozen=True, slots=True)
class AppendLoad:
    """One cell of the table of appends.

    Attributes:
        size: bytes of a record.
        in_flight: records sent and not yet answered.
        seconds: the time after which no more records are sent; the load waits for the records in
            flight.
        bytes_max: the bytes after which no more records are sent, a bound of the disk's space.
    """

    size: int
    in_flight: int
    seconds: float
    bytes_max: int

    @property
    def records_max(self) -> int:
        """The most records of one run."""
        return max(4 * self.in_flight, self.bytes_max // self.size)


@dataclass(frozen=True, slots=True)
class AppendRun:
    """The result of one run of a load.

    Attributes:
        records: appended and answered.
        seconds: from the first sent to the last answer.
        p50_ms, p99_ms: from sending a record to its answer.
    """

    records: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds


@dataclass(frozen=True, slots=True)
class TailLoad:
    """Records offered to a reader at the tail.

    Attributes:
        size: bytes of a record; the first 8 say when it was due.
        rate: records a second.
        seconds: how long they are offered, the warm-up included.
        warm_up_s: the records of this first part are not counted.
    """

    size: int
    rate: int
    seconds: float
    warm_up_s: float

    @property
    def batch(self) -> int:
        """The number of records of a tick."""
        return max(1, round(self.rate * TICK_S))

    @property
    def ticks(self) -> int:
        """The number of all batches."""
        return max(1, round(self.seconds / TICK_S))

    @property
    def ticks_not_counted(self) -> int:
        """The number of batches of the warm-up."""
        return min(self.ticks - 1, round(self.warm_up_s / TICK_S))


@dataclass(frozen=True, slots=True)
class Lag:
    """The lags of records at the tail, in ms: from the time when a record was due until a reader
    had it."""

    p50_ms: float
    p99_ms: float


def percentile(weighted: Iterable[tuple[float, int]], share: float) -> float:
    """A percentile by nearest rank of weighted values.

    Args:
        weighted: values and counts, in any order, at least one.
        share: 0.5 for the median.
    """
    ordered = sorted(weighted)
    total = sum(count for _, count in ordered)
    seen = 0
    for value, count in ordered:
        seen += count
        if seen >= share * total:
            return value
    raise ValueError("a percentile of nothing")


def lag_of(lags_s: Iterable[float]) -> Lag:
    """Join the lags of records."""
    weighted = [(lag, 1) for lag in lags_s]
    return Lag(percentile(weighted, 0.5) * 1000, percentile(weighted, 0.99) * 1000)


class Window:
    """A closed loop: the number of records that may be sent, and the time that each waited for its
    answer.

    Answers are assumed to come in the order of sending. If a server answers in another order, the
    sum of the latencies is the same.
    """

    def __init__(self, load: AppendLoad) -> None:
        self._load = load
        self._sent_at: deque[tuple[float, int]] = deque()
        self._latencies: list[tuple[float, int]] = []
        self._began = 0.0
        self._left = load.records_max
        self._in_flight = 0
        self.answered = 0

    def begin(self, now: float) -> int:
        """The number of records to send first."""
        self._began = now
        return self._send(self._load.in_flight, now)

    def on_answered(self, count: int, now: float) -> int:
        """Count answers. Returns the number of records to send in their place."""
        assert count <= self._in_flight, "as many answers as records at most"
        self.answered += count
        self._in_flight -= count
        rest = count
        while rest:
            sent, waiting = self._sent_at.popleft()
            taken = min(rest, waiting)
            self._latencies.append((now - sent, taken))
            if taken < waiting:
                self._sent_at.appendleft((sent, waiting - taken))
            rest -= taken
        return self._send(count, now) if now - self._began < self._load.seconds else 0

    def _send(self, count: int, now: float) -> int:
        count = min(count, self._left)
        self._left -= count
        self._in_flight += count
        if count:
            self._sent_at.append((now, count))
        return count

    @property
    def is_done(self) -> bool:
        """Whether all sent records were answered, and none is left to send."""
        return self._in_flight == 0

    @property
    def unanswered(self) -> int:
        """Records in flight."""
        return self._in_flight

    def run(self, now: float) -> AppendRun:
        """The result, once `is_done`."""
        return AppendRun(
            self.answered,
            now - self._began,
            percentile(self._latencies, 0.5) * 1000,
            percentile(self._latencies, 0.99) * 1000,
        )
