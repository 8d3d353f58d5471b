"""S20 of `find_key`: it names the last record with a lower key, and the first record without
one."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import AppendOk, Event, RecordDelivered
from cordwood.sim.position_events import KeyFound

Keyed = Sequence[tuple[int, str, Event]]
"""By LSN: a record's key, and the event that shows it."""


def check_find_key(evidence: Evidence) -> list[Violation]:
    """In a log whose keys do not fall, no record up to the tail is between the two that were found.

    Trimmed records do not count. For an answer beside a loss only the order is checked.
    """
    asked = [(at, event) for at, event in evidence.of(KeyFound) if isinstance(event, KeyFound)]
    known = {log: _keyed(evidence, log) for log in {event.log for _, event in asked}}
    found: list[Violation] = []
    for at, event in asked:
        records = known[event.log]
        start = bisect.bisect_right(records, evidence.trim_asked(event.log, at), key=lambda r: r[0])
        stop = bisect.bisect_right(records, event.tail, key=lambda r: r[0])
        found += _judge(event, records[start:stop])
    return found


def _judge(event: KeyFound, records: Keyed) -> list[Violation]:
    found: list[Violation] = []
    for lsn, key, told in records:
        is_lower = key < event.key
        if is_lower and event.at and lsn >= event.at:
            found.append(_wrong(event, lsn, told, "has a lower key and is behind"))
        elif not is_lower and event.before and lsn <= event.before:
            found.append(_wrong(event, lsn, told, "has no lower key and is before"))
        elif event.is_exact and is_lower and lsn > event.before:
            found.append(_wrong(event, lsn, told, "has a lower key and is nearer"))
        elif event.is_exact and not is_lower and not 0 < event.at <= lsn:
            found.append(_wrong(event, lsn, told, "has no lower key and is nearer"))
    return found[:1]


def _keyed(evidence: Evidence, log: int) -> Keyed:
    """Every record with a key that was acknowledged, or that a reader saw."""
    known: dict[int, tuple[str, Event]] = {}
    for ack in evidence.acks.get(log, ()):
        end = ack.append.end
        assert isinstance(end, AppendOk), "an ack is the end of its append"
        _note(known, ack.lsn, evidence.key_of(ack.payload), end)
    for read in evidence.reads:
        if read.log == log and not read.started.heads:
            for _, record in read.records():
                _note(known, record.lsn, evidence.key_of(record.payload), record)
    return [(lsn, *known[lsn]) for lsn in sorted(known)]


def _note(
    known: dict[int, tuple[str, Event]],
    lsn: int,
    key: str | None,
    event: AppendOk | RecordDelivered,
) -> None:
    if key:
        known.setdefault(lsn, (key, event))


def _wrong(event: KeyFound, lsn: int, told: Event, how: str) -> Violation:
    places = [format_lsn(each) if each else "nothing" for each in (event.before, event.at)]
    text = (
        f"{event.client} looked for key {event.key} and was told {places[0]} before it and "
        f"{places[1]} at it, but {format_lsn(lsn)} {how}"
    )
    return Violation("S20", text, event.log, lsn, (told, event))
