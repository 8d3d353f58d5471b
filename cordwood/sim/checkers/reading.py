"""The records and gaps of readers: S2 acked ⊆ read, S5 agreement, S6 tiling, S8 repeatable read."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cordwood.block import GapKind
from cordwood.lsn import LSN_MAX, OLDEST, format_lsn
from cordwood.sim.checkers.evidence import Ack, Evidence, Read, last_of
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import EndReason, GapDelivered, RecordDelivered, Released

PERMANENT = frozenset({GapKind.HOLE, GapKind.BRIDGE})
"""Gaps that are true for ever; gaps of other kinds tell the present state of a slot."""


GONE = frozenset({GapKind.DATA_LOSS, GapKind.TRIM, GapKind.FILTERED, GapKind.ACCESS})
"""Gaps where an acknowledged record may have been, or is there and was not asked for."""


class Ranges:
    """Ranges of LSNs, both ends included; looking a place up takes O(log n)."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(ranges):
            self._firsts.append(first)
            self._lasts.append(max(last, self._lasts[-1]) if self._lasts else last)

    def __contains__(self, lsn: int) -> bool:
        index = bisect.bisect_right(self._firsts, lsn) - 1
        return index >= 0 and lsn <= self._lasts[index]


def check_acked_is_read(evidence: Evidence) -> list[Violation]:
    """S2: a reader that passes an acknowledged record delivers it.

    A reader that ended at the tail has passed everything acknowledged before its end. S7 checks
    gaps for losses, trims and filters, S28 checks ACCESS gaps, and S1 checks other records at this
    place.
    """
    found: list[Violation] = []
    for read in evidence.reads:
        given = {record.lsn for _, record in read.records()}
        lost = Ranges((gap.first, gap.last) for _, gap in read.gaps() if gap.kind in GONE)
        at_tail = read.ended is not None and read.ended.reason is EndReason.TAIL
        missing: list[Ack] = []
        last = LSN_MAX if at_tail else read.passed
        for ack in evidence.acks_within(read.log, read.started.start, last):
            if (
                ack.lsn in given
                or (ack.lsn > read.passed and ack.append.end_at > read.ended_at)
                or ack.lsn in lost
            ):
                found.extend(_missing(read, missing))
                missing = []
            else:
                missing.append(ack)
        found.extend(_missing(read, missing))
    return found


def _missing(read: Read, acks: list[Ack]) -> Iterator[Violation]:
    """One violation for each run of acknowledged records that a reader did not deliver."""
    if not acks:
        return
    end = acks[0].append.end
    run = f" and {len(acks) - 1} more up to {format_lsn(acks[-1].lsn)}" if acks[1:] else ""
    how = "never saw" if acks[0].lsn > read.passed else "passed without delivering"
    text = f"reader {read.reader} {how} {acks[0].payload.id}{run}, acknowledged"
    shown = (end, read.started) if end is not None else (read.started,)
    yield Violation("S2", text, read.log, acks[0].lsn, shown)


@dataclass(slots=True)
class _Seen:
    """Records of one log by LSN: the first reader that saw the record, and the first other
    reader."""

    first: dict[int, RecordDelivered] = field(default_factory=dict)
    other: dict[int, RecordDelivered] = field(default_factory=dict)

    def on_record(self, record: RecordDelivered) -> RecordDelivered:
        """Note a record. Returns the first record that was seen at its LSN."""
        earliest = self.first.setdefault(record.lsn, record)
        if earliest.reader != record.reader:
            self.other.setdefault(record.lsn, record)
        return earliest


def check_readers_agree(evidence: Evidence) -> list[Violation]:
    """S5: any two readers got the same record, or both no record, at every slot."""
    found: list[Violation] = []
    logs: dict[int, _Seen] = {}
    for read in evidence.reads:
        seen = logs.setdefault(read.log, _Seen())
        for _, record in read.records():
            if not evidence.is_genuine(read.log, record.payload):
                continue
            earliest = seen.on_record(record)
            if earliest.reader != record.reader and earliest.payload != record.payload:
                found.append(_disagree("S5", read.log, earliest, record))
    ordered = {log: sorted(seen.first) for log, seen in logs.items()}
    for read in evidence.reads:
        seen = logs[read.log]
        for _, gap in read.gaps():
            if gap.kind in PERMANENT:
                for lsn in _from_to(ordered[read.log], gap.first, gap.last):
                    witness = seen.first[lsn]
                    if witness.reader == read.reader:
                        witness = seen.other.get(lsn, witness)
                    if witness.reader != read.reader:
                        found.append(_disagree("S5", read.log, witness, gap))
                        break
    return found


def _from_to(ordered: list[int], first: int, last: int) -> Iterator[int]:
    index = bisect.bisect_left(ordered, first)
    while index < len(ordered) and ordered[index] <= last:
        yield ordered[index]
        index += 1


def _disagree(
    invariant: str, log: int, earlier: RecordDelivered, later: RecordDelivered | GapDelivered
) -> Violation:
    got = later.payload.id if isinstance(later, RecordDelivered) else f"a {later.kind.value}"
    text = f"{earlier.reader} got {earlier.payload.id}, {later.reader} got {got}"
    return Violation(invariant, text, log, earlier.lsn, (earlier, later))


def check_tiling(evidence: Evidence) -> list[Violation]:
    """S6: a read's records and gaps are in order and tile `[start, until]`, both included.

    No record is ever below OLDEST, so a reader that starts below it may tile from OLDEST.
    """
    return [violation for read in evidence.reads for violation in _tiling(read)]


def _tiling(read: Read) -> Iterator[Violation]:
    start, until = read.started.start, read.started.until
    due = start
    for _, item in read.items:
        first = item.lsn if isinstance(item, RecordDelivered) else item.first
        last = last_of(item)
        if first != due and not (due == start and due < first == OLDEST):
            text = f"reader {read.reader} got {format_lsn(first)}, expected {format_lsn(due)}"
            yield Violation("S6", text, read.log, min(first, due), (read.started, item))
        if last < first or (until is not None and last > until):
            text = f"reader {read.reader} got a range with a wrong end, {format_lsn(last)}"
            yield Violation("S6", text, read.log, first, (read.started, item))
        due = max(due, last + 1)
    if read.ended and read.ended.reason is EndReason.UNTIL and (until is None or due <= until):
        text = f"reader {read.reader} reached its end, but {format_lsn(due)} is missing"
        yield Violation("S6", text, read.log, due, (read.started, read.ended))


def check_repeatable_read(evidence: Evidence) -> list[Violation]:
    """S8: a later read gets the same records; none is read before its release; no release falls."""
    return [*_changed(evidence), *_early(evidence), *_regress(evidence)]


def _regress(evidence: Evidence) -> Iterator[Violation]:
    for log, store in sorted(evidence.stores.items()):
        for (_, before), (_, after) in itertools.pairwise(store.cleaned):
            if after.epoch < before.epoch:
                text = f"the last clean epoch fell from {before.epoch} to {after.epoch}"
                yield Violation("S8", text, log, after.tail, (before, after))
    for log, releases in sorted(evidence.releases.items()):
        highest: dict[str, Released] = {}
        for _, release in releases.events:
            known = highest.setdefault(release.by, release)
            if release.lsn < known.lsn:
                text = f"the release of {release.by} fell from {format_lsn(known.lsn)}"
                yield Violation("S8", text, log, release.lsn, (known, release))
            else:
                highest[release.by] = release


def _changed(evidence: Evidence) -> list[Violation]:
    """Find records that a reader got once and did not get again in a later read."""
    found = []
    mine: dict[tuple[str, int], dict[int, RecordDelivered]] = {}
    for read in evidence.reads:
        seen = mine.setdefault((read.reader, read.log), {})
        for _, record in read.records():
            if evidence.is_genuine(read.log, record.payload):
                earlier = seen.setdefault(record.lsn, record)
                if earlier.payload != record.payload:
                    found.append(_disagree("S8", read.log, earlier, record))
    ordered = {key: sorted(seen) for key, seen in mine.items()}
    for read in evidence.reads:
        key = (read.reader, read.log)
        for _, gap in read.gaps():
            hit = next(_from_to(ordered[key], gap.first, gap.last), None)
            if gap.kind in PERMANENT and hit is not None:
                found.append(_disagree("S8", read.log, mine[key][hit], gap))
    return found


def _early(evidence: Evidence) -> list[Violation]:
    """Find records delivered before they were released, where the history has the releases."""
    found = []
    for read in evidence.reads:
        releases = evidence.releases.get(read.log)
        store = evidence.stores.get(read.log)
        if releases is None:
            continue
        for at, record in read.records():
            clean = store.last_clean(at) if store else 0
            if record.lsn > releases.highest(at) and record.lsn >> 32 > clean:
                text = f"reader {read.reader} got {record.payload.id} before its release"
                found.append(Violation("S8", text, read.log, record.lsn, (record,)))
    return found
