"""S32: a client that asks for a log is given that log, even if names change before or after.

The namer records the log of the name, and each of its records names its log. The client's knowledge
of a name may be BOUND_S old, as it promises (`client.find.known_logs`), if no fault strikes near.

Source: docs/sources/reliability.md §3 (S32).
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import FaultEased, FaultsHealed, FaultStruck
from cordwood.sim.name_events import LogMade, LogSought, NamedAppend, NamedRead, NameLeads

BOUND_US = 8_000_000
"""The client reads the member list every five seconds; then come a node's watch and a call."""

CALM_US = 5_000_000
"""How long clients and nodes may be busy with a fault after its end."""


class Leads:
    """The log of the name over time, and the times when no fault was near."""

    def __init__(self, evidence: Evidence) -> None:
        self.changes: list[NameLeads] = []
        # Begin and end of each time with a fault.
        self._busy: list[tuple[int, int]] = []
        active, since_us = 0, 0
        for _, event in evidence.of(NameLeads, FaultStruck, FaultEased, FaultsHealed):
            if isinstance(event, NameLeads):
                self.changes.append(event)
                continue
            was = active
            active = active + 1 if isinstance(event, FaultStruck) else max(0, active - 1)
            if isinstance(event, FaultsHealed):
                active = 0
            if active and not was:
                since_us = event.time_us
            elif was and not active:
                self._busy.append((since_us, event.time_us))
        if active:
            self._busy.append((since_us, 1 << 62))

    def is_calm(self, first_us: int, last_us: int) -> bool:
        """Whether no fault was near."""
        first_us, last_us = first_us - CALM_US, last_us + CALM_US
        return not any(start <= last_us and end >= first_us for start, end in self._busy)

    def is_at(self, log: int, first_us: int, last_us: int) -> bool:
        """Whether the name stood, or may have stood, for a log at some time in between."""
        for at, change in enumerate(self.changes):
            if change.log == log:
                later = self.changes[at + 1 :]
                until_us = later[0].time_us if later else 1 << 62
                if change.invoked_us <= last_us and until_us >= first_us:
                    return True
        return False

    def has_changed(self, first_us: int, last_us: int) -> bool:
        """Whether the name went, or may have gone, to another log in between."""
        is_one = bool(self.changes) and self.changes[0].time_us < first_us
        near = [c for c in self.changes if c.invoked_us <= last_us and c.time_us >= first_us]
        return not is_one or bool(near)


def check_names(evidence: Evidence) -> list[Violation]:
    """S32: reads, consumers and appends by a name or a number use the log of that name or number.

    No record belongs to another log, a consumer passes over no record of a log that is new to it,
    and a record that was acknowledged under a name is there. A log that was made and not deleted is
    found.
    """
    leads = Leads(evidence)
    found: list[Violation] = []
    consumed = Consumed()
    for _, event in evidence.of(NamedRead, NamedAppend):
        if isinstance(event, NamedRead):
            found += _read(event, leads)
            if event.consumer:
                found += consumed.on_read(event)
        elif isinstance(event, NamedAppend) and not event.found:
            since_us = event.invoked_us - BOUND_US
            last = leads.changes[-1].invoked_us if leads.changes else 0
            is_still = event.invoked_us > last + BOUND_US
            is_still |= not leads.has_changed(since_us, event.time_us)
            if is_still and leads.is_calm(since_us, event.time_us):
                where = format_lsn(event.lsn)
                text = f"{event.client} got an acknowledgement at {where}, but no record is there"
                found.append(Violation("S32", text, 0, event.lsn, (event,)))
    found += _lost(evidence)
    return found


def _lost(evidence: Evidence) -> Iterator[Violation]:
    """Find logs that were made and not deleted, and that cannot be found."""
    made: dict[int, LogMade] = {}
    for _, event in evidence.of(LogMade, LogSought):
        if isinstance(event, LogMade):
            made[event.log] = event
        elif isinstance(event, LogSought) and event.log in made and not event.is_deleted:
            ways = {
                "by its number": event.is_found,
                "by its name": event.is_named,
                "in the list": event.is_listed,
            }
            missed = [way for way, is_there in ways.items() if not is_there]
            if missed:
                text = f"log number {event.log} is not deleted, but not found {', '.join(missed)}"
                yield Violation("S32", text, event.log, 0, (made[event.log], event))


def _read(read: NamedRead, leads: Leads) -> Iterator[Violation]:
    if read.wanted and read.log != read.wanted:
        text = f"{read.client} asked for log number {read.wanted}, but read number {read.log}"
        yield Violation("S32", text, read.log, 0, (read,))
    for log, _ in read.given:
        if read.log and log != read.log:
            text = f"{read.client} read log number {read.log}, but got a record of number {log}"
            yield Violation("S32", text, read.log, 0, (read,))
            break
    if read.wanted or not read.log:
        return
    since_us = read.invoked_us - BOUND_US
    if not leads.is_at(read.log, since_us, read.time_us) and leads.is_calm(since_us, read.time_us):
        text = f"{read.client} read log number {read.log} by a name that it lost long before"
        yield Violation("S32", text, read.log, 0, (read,))


class Consumed:
    """The last position of each consumer in each log."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}
        # Consumers that were given a gap: a gap does not say how many records it covers.
        self._gapped: set[str] = set()

    def on_read(self, read: NamedRead) -> Iterator[Violation]:
        """Check the next record of a consumer, in the log that it reads."""
        if read.is_gap:
            self._gapped.add(read.consumer)
        for log, number in read.given:
            expected = self._next.get((read.consumer, log), 0)
            if number > expected and read.consumer not in self._gapped:
                text = f"{read.consumer} got record {number} of log {log}, not {expected}"
                yield Violation("S32", text, log, 0, (read,))
                return
            self._gapped.discard(read.consumer)
            self._next[read.consumer, log] = max(expected, number + 1)
