"""S20 of `extent`, `head_attributes`, `tail_attributes`: the first and last record of a log.

Each answer is compared with acknowledgements, readers, and requested trims. The checker claims
nothing about records that were not acknowledged before the call, or that may have been trimmed
before the answer.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from operator import attrgetter

from cordwood.block import GapKind
from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Ack, Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import GapDelivered, RecordDelivered
from cordwood.sim.position_events import ExtentTold

NO_RECORD = (GapKind.HOLE, GapKind.BRIDGE)


def check_extents(evidence: Evidence) -> list[Violation]:
    """No record is before the first record or after the last record of a certain answer.

    Both are records with these append times, and the trim point is covered by requested trims.
    """
    found: list[Violation] = []
    for at, event in evidence.of(ExtentTold):
        assert isinstance(event, ExtentTold)
        trim = evidence.trim_asked(event.log, at)
        if event.trim > trim:
            found.append(_wrong(event, f"trimmed to {format_lsn(event.trim)}", event.trim))
        if not evidence.may_lose(at):
            found.extend(_left_out(evidence, event, trim))
        found.extend(_no_records(evidence, event))
    return found


def _left_out(evidence: Evidence, event: ExtentTold, trim: int) -> Iterator[Violation]:
    """Find records that were acknowledged before the call and are outside the answer."""
    acks = evidence.acks_within(event.log, max(trim, event.trim) + 1, event.tail)
    known = [a for a in acks if evidence.time_of(a.append.end_at) < event.invoked_us]
    lsns = [ack.lsn for ack in known]
    if event.is_first_known:
        before = known[: bisect.bisect_left(lsns, event.first)] if event.first else known
        yield from _outside(event, before[:1], "is before the first")
    if event.is_last_known:
        after = known[bisect.bisect_right(lsns, event.last) :]
        yield from _outside(event, after[-1:], "is after the last")


def _outside(event: ExtentTold, acks: list[Ack], how: str) -> Iterator[Violation]:
    for ack in acks:
        text = (
            f"{event.client} was told that the log's records reach from "
            f"{format_lsn(event.first)} to {format_lsn(event.last)}, but {ack.payload.id} at "
            f"{format_lsn(ack.lsn)} {how}"
        )
        shown = (ack.append.end or ack.append.invoked, event)
        yield Violation("S20", text, event.log, ack.lsn, shown)


def _no_records(evidence: Evidence, event: ExtentTold) -> Iterator[Violation]:
    """Find answers that name a place where readers saw no record, or a record of another time."""
    for lsn, time_us in ((event.first, event.first_us), (event.last, event.last_us)):
        for read in evidence.reads if lsn else ():
            if read.log != event.log:
                continue
            records = [record for _, record in read.records()]
            at = bisect.bisect_left(records, lsn, key=attrgetter("lsn"))
            if at < len(records) and records[at].lsn == lsn:
                if records[at].append_us not in (0, time_us):
                    yield _wrong(event, f"{format_lsn(lsn)} has time {time_us}", lsn, records[at])
                    break
                continue
            gaps = [gap for _, gap in read.gaps() if gap.first <= lsn <= gap.last]
            wrong = next((gap for gap in gaps if gap.kind in NO_RECORD), None)
            if wrong is not None:
                yield _wrong(event, f"{format_lsn(lsn)} is a record", lsn, wrong)
                break


def _wrong(
    event: ExtentTold, what: str, lsn: int, *shown: RecordDelivered | GapDelivered
) -> Violation:
    text = f"{event.client} was told wrongly: {what}"
    return Violation("S20", text, event.log, lsn, (*shown, event))
