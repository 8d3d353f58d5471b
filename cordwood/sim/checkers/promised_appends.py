"""Appends with further promises: S21 producers' records once and in order, S25 conditional appends.

These checkers use only places that the log shows: the place of a record is that of its
acknowledgement, or the place at which a reader was given it.

Source: docs/design.md §3 ("Producers"); docs/sources/reliability.md §3.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from cordwood.block import GapKind
from cordwood.lsn import OLDEST, format_lsn
from cordwood.sim.checkers.evidence import Append, Evidence
from cordwood.sim.checkers.places import Placed, places_of
from cordwood.sim.checkers.tokens import check_tokens
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import GIVEN_UP, AppendFailed, AppendUnknown

MOVED = "TailMoved"
"""The error of a conditional append whose condition did not hold."""

SILENT = (GapKind.BRIDGE, GapKind.HOLE)
"""Gaps that mean that there never was a record."""


def check_producers(evidence: Evidence) -> list[Violation]:
    """S21: a producer's records are there once, in order, without omissions; a lower epoch ends.

    S4 checks that a record has only one place. A call of unknown outcome is an omission if the log
    has a later call of the same epoch and not this call: a producer that skips a sequence is
    refused.
    """
    found: list[Violation] = []
    for log in sorted({a.invoked.log for a in evidence.appends if a.invoked.producer}):
        producers: dict[int, list[Placed]] = defaultdict(list)
        for placed in places_of(evidence, log):
            if placed.append.invoked.producer:
                producers[placed.append.invoked.producer].append(placed)
        for producer in sorted(producers):
            found.extend(_out_of_turn(log, producers[producer]))
            found.extend(_left_out(evidence, log, producers[producer]))
    return found


def _out_of_turn(log: int, records: list[Placed]) -> Iterator[Violation]:
    """Find records of one producer that are after a later record of the same producer."""
    for one, other in itertools.pairwise(records):
        if one.turn > other.turn:
            text = f"{other.id} of epoch {other.turn[0]} is behind {one.id} of epoch {one.turn[0]}"
            yield Violation("S21", text, log, other.lsn, (one.witness, other.witness))


def _left_out(evidence: Evidence, log: int, records: list[Placed]) -> Iterator[Violation]:
    """Find calls without a place, although a later call of the same epoch has a place."""
    last: dict[int, Placed] = {}
    for record in records:
        last[record.append.invoked.producer_epoch] = record
    stand = {id(record.append) for record in records}
    producer = records[0].append.invoked.producer
    for append in evidence.appends:
        call = append.invoked
        behind = last.get(call.producer_epoch)
        if (call.log, call.producer) != (log, producer) or id(append) in stand:
            continue
        is_unknown = isinstance(append.end, AppendUnknown) and append.end.error != GIVEN_UP
        if is_unknown and behind is not None and append.invoked_at < behind.append.invoked_at:
            before = max((r.lsn for r in records if r.turn < (call.producer_epoch,
                          append.invoked_at, 0)), default=0)  # fmt: skip
            if _was_passed(evidence, log, before, behind.lsn):
                text = f"{call.payloads[0].id} is nowhere, but the later {behind.id} has a place"
                yield Violation("S21", text, log, behind.lsn, (call, behind.witness))


def _was_passed(evidence: Evidence, log: int, first: int, last: int) -> bool:
    """Whether some reader saw all of the log from `first` to `last`, without a loss.

    A reader without payloads does not see which record it is given (seed 127).
    """
    for read in evidence.reads:
        if read.started.heads:
            continue
        if read.log == log and read.started.start <= max(first, OLDEST) and read.passed >= last:
            gaps = (gap for _, gap in read.gaps() if gap.kind not in SILENT)
            if not any(gap.first <= last and gap.last >= first for gap in gaps):
                return True
    return False


def check_conditions(evidence: Evidence) -> list[Violation]:
    """S25: a conditional append follows its expected tail; an append under a low token is refused.

    There is no record between the two. A conditional append is refused only if another append could
    have moved the tail by then. For fencing tokens see `tokens`.
    """
    found = check_tokens(evidence)
    conditional: dict[int, list[Append]] = defaultdict(list)
    for append in evidence.appends:
        if append.invoked.expected_tail is not None:
            conditional[append.invoked.log].append(append)
    for log, appends in sorted(conditional.items()):
        places = places_of(evidence, log)
        for placed in places:
            if placed.append.invoked.expected_tail is not None and not placed.index:
                found.extend(_not_behind(log, placed, places))
        for append in appends:
            if isinstance(append.end, AppendFailed) and append.end.error == MOVED:
                found.extend(_refused_for_nothing(evidence, log, append))
    return found


def _not_behind(log: int, placed: Placed, places: list[Placed]) -> Iterator[Violation]:
    expected = placed.append.invoked.expected_tail or 0
    if placed.lsn <= expected:
        text = f"{placed.id} is not above its expected tail {format_lsn(expected)}"
        yield Violation("S25", text, log, placed.lsn, (placed.append.invoked, placed.witness))
        return
    start = bisect.bisect_right(places, expected, key=attrgetter("lsn"))
    stop = bisect.bisect_left(places, placed.lsn, key=attrgetter("lsn"))
    for between in places[start:stop]:
        text = (
            f"{placed.id} expected the tail {format_lsn(expected)}, but {between.id} is"
            f" between them at {format_lsn(between.lsn)}"
        )
        shown = (placed.append.invoked, between.witness, placed.witness)
        yield Violation("S25", text, log, placed.lsn, shown)
        return


def _refused_for_nothing(evidence: Evidence, log: int, append: Append) -> Iterator[Violation]:
    """Find a refusal although no other append can be above the expected tail."""
    expected = append.invoked.expected_tail or 0
    for other in evidence.appends:
        if other is append or other.invoked.log != log or other.invoked_at > append.end_at:
            continue
        if not other.lsns or max(other.lsns) > expected:
            return
    assert append.end is not None, "it failed"
    text = f"{append.invoked.payloads[0].id} was refused, but no append moved the tail"
    yield Violation("S25", text, log, expected, (append.invoked, append.end))
