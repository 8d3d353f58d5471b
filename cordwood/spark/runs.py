"""Divides a range of a log into runs of LSNs that records may have.

LSNs are never subtracted across epochs: between two epochs lie some four thousand million LSNs that
were never issued. Inside an epoch they are dense up to the end of its records: the tail or, for a
finished epoch, its bridge. So a range is cut into a run for each epoch, and counts, cuts and limits
work on runs. A count is exact but for holes that recovery plugged, which make it too high and never
too low.

Source: docs/sources/spark.md §8 ("never subtract LSNs").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cordwood.lsn import ESN_MAX, OLDEST

EpochEnd = Callable[[int], int | None]
"""Where the records of a closed epoch end, exclusive; None if no node knows any more."""


@dataclass(frozen=True, slots=True)
class LsnRun:
    """The LSNs `[first, stop)` of one epoch; empty where they are equal."""

    first: int
    stop: int

    @property
    def records(self) -> int:
        """How many there are at most."""
        return self.stop - self.first


def runs_of(start: int, stop: int, epoch_end: EpochEnd) -> list[LsnRun]:
    """Cut `[start, stop)` into runs, empty ones left out.

    An epoch with an unknown end counts as empty: nothing is cut or counted in it, and a reader that
    passes it reads all of it.

    Args:
        epoch_end: asked only of epochs that end inside the range.
    """
    start = max(start, OLDEST)
    runs = []
    for epoch in range(start >> 32, (stop >> 32) + 1):
        first = max(start, epoch << 32 | 1)
        last = stop if epoch == stop >> 32 else epoch_end(epoch)
        if last is not None and first < last <= (epoch << 32 | ESN_MAX):
            runs.append(LsnRun(first, last))
    return runs


def records_in(runs: Sequence[LsnRun]) -> int:
    """How many records the runs hold at most."""
    return sum(run.records for run in runs)


def advance(runs: Sequence[LsnRun], records: int) -> int:
    """The LSN before which `count` records lie; `records` is in [0, records_in(runs)].

    At the end of a run it is the run's `stop`, so that a bridge is read with the records after it.
    """
    assert runs, "nothing to advance in"
    for run in runs:
        if records <= run.records:
            return run.first + records
        records -= run.records
    raise AssertionError(f"{records} more records than the runs hold")
