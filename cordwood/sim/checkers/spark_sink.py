"""S29: a streaming query wrote exactly the rows that it read, once, despite kills and restarts.

The history is a query's and not a cluster's. It has each try of a micro-batch, with its planned
range and the rows that its tasks were given, and at the end the content of the sink's log. The
value of a row at the sink names its origin, so that this checker needs no code that is checked.

Source: docs/sources/reliability.md §3, S29.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.violation import Violation

S29 = "S29"


@dataclass(frozen=True, slots=True, order=True)
class SinkRow:
    """A row, identified by its origin: the source's log and LSN, and a digest of its value."""

    log: int
    lsn: int
    digest: str


@dataclass(frozen=True, slots=True)
class BatchTry:
    """One try of a micro-batch.

    Attributes:
        batch: its number in the query.
        ranges: `[first, stop)` by log, as planned.
        parts: the rows that each task was given, in their order; None where a try died
            before its tasks had all of them.
    """

    batch: int
    ranges: Mapping[int, tuple[int, int]]
    parts: tuple[tuple[SinkRow, ...], ...] | None = None

    @property
    def rows(self) -> tuple[SinkRow, ...] | None:
        """All rows, by log and LSN."""
        if self.parts is None:
            return None
        return tuple(sorted(row for part in self.parts for row in part))


def check_sink(
    tries: Sequence[BatchTry], source: Iterable[SinkRow], sink: Sequence[SinkRow]
) -> list[Violation]:
    """Check S29.

    Args:
        tries: of one query over all its restarts, in the order in which they happened; the last
            batch was finished.
        source: the content of the logs that were read.
        sink: the written rows, in the order of the log.
    """
    return [
        *_replays_differ(tries),
        *_do_not_tile(tries),
        *_lost_or_doubled(tries, source, sink),
        *_out_of_order(tries, sink),
    ]


def _replays_differ(tries: Sequence[BatchTry]) -> Iterator[Violation]:
    """A batch that was planned twice has the same ranges and the same rows."""
    firsts: dict[int, BatchTry] = {}
    for each in tries:
        first = firsts.setdefault(each.batch, each)
        if first.ranges != each.ranges:
            log = min({*first.ranges, *each.ranges})
            told = f"batch {each.batch} has two plans, {first.ranges} and {each.ranges}"
            yield Violation(S29, told, log)
        elif first.rows is None:
            firsts[each.batch] = each
        elif each.rows is not None and first.rows != each.rows:
            odd = min(set(first.rows) ^ set(each.rows), default=first.rows[0])
            told = f"a second read of batch {each.batch} gave other rows"
            yield Violation(S29, told, odd.log, odd.lsn)


def _do_not_tile(tries: Sequence[BatchTry]) -> Iterator[Violation]:
    """In each log a batch begins where the batch before it ended."""
    batches = {each.batch: each.ranges for each in tries}
    ends: dict[int, int] = {}
    for batch in sorted(batches):
        for log, (first, stop) in sorted(batches[batch].items()):
            if ends.get(log, first) != first:
                ended = format_lsn(ends[log])
                told = f"batch {batch} begins at {format_lsn(first)}, but the last ended at {ended}"
                yield Violation(S29, told, log, first)
            ends[log] = stop


def _lost_or_doubled(
    tries: Sequence[BatchTry], source: Iterable[SinkRow], sink: Sequence[SinkRow]
) -> Iterator[Violation]:
    """Each row of the planned ranges is at the sink once, and nothing else is."""
    spans: dict[int, tuple[int, int]] = {}
    for each in tries:
        for log, (first, stop) in each.ranges.items():
            known = spans.get(log, (first, stop))
            spans[log] = min(known[0], first), max(known[1], stop)
    nowhere = (0, 0)
    wanted = {
        row for row in source
        if spans.get(row.log, nowhere)[0] <= row.lsn < spans.get(row.log, nowhere)[1]
    }  # fmt: skip
    found = Counter(sink)
    for row in sorted(wanted | found.keys()):
        count = found[row]
        if row not in wanted:
            yield Violation(S29, f"a row was written {count} times, but not read", row.log, row.lsn)
        elif count != 1:
            told = "was not written" if not count else f"was written {count} times"
            yield Violation(S29, f"a row was read, but {told}", row.log, row.lsn)


def _out_of_order(tries: Sequence[BatchTry], sink: Sequence[SinkRow]) -> Iterator[Violation]:
    """Each batch has a try whose rows are all at the sink in the order of its tasks."""
    places = {row: place for place, row in enumerate(sink)}
    batches = sorted({each.batch for each in tries if each.parts is not None})
    for batch in batches:
        ways = [each.parts for each in tries if each.batch == batch and each.parts is not None]
        if not any(all(_in_order(part, places) for part in parts) for parts in ways):
            row = next((row for part in ways[-1] for row in part), SinkRow(0, 0, ""))
            told = f"rows of batch {batch} are not in the order of their task"
            yield Violation(S29, told, row.log, row.lsn)
    lasts = [
        max((places[row] for row in rows if row in places), default=-1)
        for batch in batches
        if (rows := _rows_of(tries, batch))
    ]
    if any(after < before for before, after in pairwise(lasts)):
        yield Violation(S29, "a batch is before an earlier batch", 0)


def _in_order(part: Sequence[SinkRow], places: Mapping[SinkRow, int]) -> bool:
    at = [places[row] for row in part if row in places]
    return at == sorted(at)


def _rows_of(tries: Sequence[BatchTry], batch: int) -> tuple[SinkRow, ...]:
    return next((each.rows for each in tries if each.batch == batch and each.rows), ())
