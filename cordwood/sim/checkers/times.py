"""S20: `find_time` finds the place of a time among the append times that readers saw; `find_key`
finds the place of a key, see `found_keys`. S31: append times never fall along a log."""

from __future__ import annotations

import bisect
import itertools

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.extents import check_extents
from cordwood.sim.checkers.found_keys import check_find_key
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import RecordDelivered
from cordwood.sim.position_events import TimeFound

Records = tuple[list[int], list[RecordDelivered]]
"""LSNs, ascending, and the record at each."""


def check_positions(evidence: Evidence) -> list[Violation]:
    """S20: certain answers of `find_time`, `find_key` and `extent` agree with the log's records."""
    return check_find_time(evidence) + check_find_key(evidence) + check_extents(evidence)


def check_find_time(evidence: Evidence) -> list[Violation]:
    """`find_time` divides older records from the others. Only an answer that is not exact may be
    too early.

    No record below the found LSN is as late as the time. If the answer is exact, no record from
    there up to the tail is older. Trimmed records do not count.
    """
    asked = [(at, event) for at, event in evidence.of(TimeFound) if isinstance(event, TimeFound)]
    seen = {log: _records(evidence, log) for log in {event.log for _, event in asked}}
    found: list[Violation] = []
    for at, event in asked:
        lsns, records = seen[event.log]
        split = bisect.bisect_left(lsns, event.lsn)
        start = bisect.bisect_right(lsns, evidence.trim_asked(event.log, at))
        late = next((r for r in records[start:split] if r.append_us >= event.wanted_us), None)
        if late is not None:
            found.append(_wrong(event, late, "is not older, but below"))
        stop = bisect.bisect_right(lsns, event.tail)
        early = next((r for r in records[split:stop] if r.append_us < event.wanted_us), None)
        if event.is_exact and early is not None:
            found.append(_wrong(event, early, "is older, but not below"))
    return found


def check_append_times(evidence: Evidence) -> list[Violation]:
    """S31: append time never falls along a log, over all records that its readers got.

    The promise does not hold for a run that lost data: records that nodes with losses may have
    acknowledged are kept, however young (`recovery.recover_log.Begins`).
    """
    if evidence.run.beyond_tolerance or evidence.lost_at is not None:
        return []
    found: list[Violation] = []
    for log in evidence.logs:
        _, records = _records(evidence, log)
        for before, after in itertools.pairwise(records):
            if after.append_us < before.append_us:
                text = (
                    f"append time {after.append_us} follows the later {before.append_us} "
                    f"of {format_lsn(before.lsn)}"
                )
                found.append(Violation("S31", text, log, after.lsn, (before, after)))
                break
    return found


def _records(evidence: Evidence, log: int) -> Records:
    """Every record of a log whose append time a reader saw."""
    known: dict[int, RecordDelivered] = {}
    for read in evidence.reads:
        if read.log == log:
            known.update({r.lsn: r for _, r in read.records() if r.append_us})
    lsns = sorted(known)
    return lsns, [known[lsn] for lsn in lsns]


def _wrong(event: TimeFound, record: RecordDelivered, how: str) -> Violation:
    text = (
        f"{event.client} looked for time {event.wanted_us} and got {format_lsn(event.lsn)}; "
        f"{format_lsn(record.lsn)}, of time {record.append_us}, {how}"
    )
    return Violation("S20", text, event.log, record.lsn, (record, event))
