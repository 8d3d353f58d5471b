"""Finds the place of a time in a log, by a search over the append times of its blocks.

Append time never falls along a log, across epochs too, so a binary search finds the first block of
a time or later: first over epochs by their first blocks, then over the LSNs of one epoch. Each step
looks at one block. There are at most 32 steps in an epoch of 2**32 LSNs, and before that as many as
the binary logarithm of the number of epochs. Nothing else is read. Blocks without any copy left are
skipped, as a reader does.

The rule is here; the caller reads the blocks. It is for when too few nodes answer the store's
own `find_time` for that to be exact.

Source: docs/design.md §2 (append time alone drives find_time).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cordwood.spark.runs import LsnRun


@dataclass(frozen=True, slots=True)
class Seen:
    """A block that the search looked at: its LSNs `[first, last]`, and its append time."""

    first: int
    last: int
    append_time_us: int


Look = Callable[[int, int], Seen | None]
"""The first block with records in `[lsn, stop)`, which may begin before `lsn`; None if none."""


def find_time(time_us: int, runs: Sequence[LsnRun], look: Look) -> int | None:
    """The LSN of the first record appended at `time_us` or later; None without one.

    Args:
        runs: where the log has records, oldest first.
    """
    at = _first_run_from(time_us, runs, look)
    if at > 0:
        found = _inside(time_us, runs[at - 1], look)
        if found is not None:
            return found
    for run in runs[at:]:
        seen = look(run.first, run.stop)
        if seen is not None:
            return max(seen.first, run.first)
    return None


def _first_run_from(time_us: int, runs: Sequence[LsnRun], look: Look) -> int:
    """Index of the first run that begins at `time_us` or later. A run without blocks counts as a
    part of the run before it. This costs a step, and no record is missed."""
    low, high = 0, len(runs)
    while low < high:
        middle = (low + high) // 2
        seen = None
        probe = middle
        while seen is None and probe < high:
            seen = look(runs[probe].first, runs[probe].stop)
            probe += 1
        if seen is None or seen.append_time_us >= time_us:
            high = middle
        else:
            low = probe
    return low


def _inside(time_us: int, run: LsnRun, look: Look) -> int | None:
    """As `find_time`, in one run that begins before that time."""
    low, high = run.first, run.stop
    found = None
    while low < high:
        middle = (low + high) // 2
        seen = look(middle, high)
        if seen is None:
            high = middle
        elif seen.append_time_us >= time_us:
            found = max(seen.first, run.first)
            high = min(middle, found)
        else:
            low = seen.last + 1
    return found
