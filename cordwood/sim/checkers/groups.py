"""Atomic groups: S22."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from cordwood.block import GapKind
from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Append, Evidence, Read
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import Event

Places: TypeAlias = dict[int, tuple[int, Event]]
"""By index in a group, the LSN of that record and the event that shows it."""

TOLD = frozenset({GapKind.TRIM, GapKind.DATA_LOSS, GapKind.ACCESS, GapKind.FILTERED})
"""Gaps that mean that a record was there, or may have been there, or was not asked for."""


def check_groups(evidence: Evidence) -> list[Violation]:
    """S22: an atomic group is there whole, its records one after the other, or not at all.

    A part of it is never released, and a reader that has passed it was given all of it. After one
    record of it was read, holes and bridges in its place mean that the rest is missing.
    """
    found: list[Violation] = []
    by_log: dict[int, list[Append]] = {}
    for append in evidence.appends:
        if append.invoked.atomic:
            by_log.setdefault(append.invoked.log, []).append(append)
    for log, groups in sorted(by_log.items()):
        of_payload = {
            payload.id: (group, index)
            for group in groups
            for index, payload in enumerate(group.invoked.payloads)
        }
        places = _acked(groups)
        for read in evidence.reads:
            if read.log == log:
                seen = _seen(read, of_payload)
                for op, delivered in seen.items():
                    places.setdefault(op, {}).update(delivered)
                found += _half_read(read, groups, seen)
        for group in groups:
            where = places.get(group.invoked.op)
            if where:
                found += _scattered(group, where)
                found += _released_inside(evidence, group, where)
    return found


def _acked(groups: list[Append]) -> dict[int, Places]:
    return {
        group.invoked.op: {
            index: (lsn, group.end or group.invoked) for index, lsn in enumerate(group.lsns)
        }
        for group in groups
        if group.lsns
    }


def _seen(read: Read, of_payload: Mapping[str | None, tuple[Append, int]]) -> dict[int, Places]:
    """The records of each group that one read was given, by the group's call."""
    seen: dict[int, Places] = {}
    for _, record in read.records():
        group, index = of_payload.get(record.payload.id, (None, 0))
        if group is not None:
            seen.setdefault(group.invoked.op, {})[index] = (record.lsn, record)
    return seen


def _half_read(read: Read, groups: list[Append], seen: dict[int, Places]) -> Iterator[Violation]:
    """Groups of which a read was given only a part, although it has passed the whole group."""
    for group in groups:
        delivered = seen.get(group.invoked.op)
        if not delivered:
            continue
        index, (lsn, witness) = next(iter(sorted(delivered.items())))
        first = lsn - index
        for missing, payload in enumerate(group.invoked.payloads):
            at = first + missing
            if missing in delivered or not read.started.start <= at <= read.passed:
                continue
            gap = next((gap for _, gap in read.gaps() if gap.first <= at <= gap.last), None)
            if gap is not None and gap.kind in TOLD:
                continue
            text = f"reader {read.reader} got only a part of a group, without {payload.id}"
            shown = (group.invoked, witness, *([gap] if gap is not None else []))
            yield Violation("S22", text, read.log, at, shown)
            break


def _scattered(group: Append, where: Places) -> Iterator[Violation]:
    """Records of a group that do not follow one another."""
    (index, (lsn, witness)), *others = sorted(where.items())
    for other, (at, told) in others:
        if at - other != lsn - index:
            text = f"{_id(group, other)} does not follow {_id(group, index)} of its group"
            yield Violation("S22", text, group.invoked.log, at, (group.invoked, witness, told))
            return


def _released_inside(evidence: Evidence, group: Append, where: Places) -> Iterator[Violation]:
    """A release that ends inside a group."""
    releases = evidence.releases.get(group.invoked.log)
    if releases is None:
        return
    index, (lsn, witness) = next(iter(sorted(where.items())))
    first, last = lsn - index, lsn - index + len(group.invoked.payloads) - 1
    for _, event in releases.events:
        if first <= event.lsn < last:
            text = f"{event.by} released only a part of the group at {format_lsn(first)}"
            yield Violation("S22", text, group.invoked.log, event.lsn, (witness, event))
            return


def _id(group: Append, index: int) -> str:
    return str(group.invoked.payloads[index].id)
