"""S32: who asks for a log is given that log, whatever its name was before and becomes.

The namer says where the name leads, and each of its records for which log it is. A name may be old
by BOUND_S, as the client promises (`client.find.known_logs`), where no fault strikes near.

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
"""The member list every five seconds, a node's watch, a question."""

CALM_US = 5_000_000
"""How long after a fault clients and nodes may be busy with it."""


class Leads:
    """Where the name led, and when no fault was near."""

    def __init__(self, evidence: Evidence) -> None:
        self.changes: list[NameLeads] = []
        # From when to when some fault was there.
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
        """Whether the name led, or may have led, to a log at some time in between."""
        for at, change in enumerate(self.changes):
            if change.log == log:
                later = self.changes[at + 1 :]
                until_us = later[0].time_us if later else 1 << 62
                if change.invoked_us <= last_us and until_us >= first_us:
                    return True
        return False

    def has_changed(self, first_us: int, last_us: int) -> bool:
        """Whether the name went elsewhere, or may have, in between."""
        is_one = bool(self.changes) and self.changes[0].time_us < first_us
        near = [c for c in self.changes if c.invoked_us <= last_us and c.time_us >= first_us]
        return not is_one or bool(near)


def check_names(evidence: Evidence) -> list[Violation]:
    """S32: who reads, consumes or appends by a name or a number does so in the log that it is.

    No record is of another log, a consumer passes none over in a log that is new to it, and what
    was acknowledged under a name is there. A log that was made and not deleted is found.
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
                text = f"{event.client} was told that it is stored at {where}, and it is not"
                found.append(Violation("S32", text, 0, event.lsn, (event,)))
    found += _lost(evidence)
    return found


def _lost(evidence: Evidence) -> Iterator[Violation]:
    """Logs that somebody made, that nobody deleted, and that are not to be found."""
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
                text = f"log number {event.log} is not deleted, and not found {', '.join(missed)}"
                yield Violation("S32", text, event.log, 0, (made[event.log], event))


def _read(read: NamedRead, leads: Leads) -> Iterator[Violation]:
    if read.wanted and read.log != read.wanted:
        text = f"{read.client} asked for log number {read.wanted}, and read number {read.log}"
        yield Violation("S32", text, read.log, 0, (read,))
    for log, _ in read.given:
        if read.log and log != read.log:
            text = f"{read.client} read log number {read.log}, and was given a record of {log}"
            yield Violation("S32", text, read.log, 0, (read,))
            break
    if read.wanted or not read.log:
        return
    since_us = read.invoked_us - BOUND_US
    if not leads.is_at(read.log, since_us, read.time_us) and leads.is_calm(since_us, read.time_us):
        text = f"{read.client} read log number {read.log} by a name that it had lost long before"
        yield Violation("S32", text, read.log, 0, (read,))


class Consumed:
    """How far each consumer came in each log."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}
        # Consumers that were told of a gap: it does not say how many records it stands for.
        self._gapped: set[str] = set()

    def on_read(self, read: NamedRead) -> Iterator[Violation]:
        """What a consumer was given next, in the log that it reads."""
        if read.is_gap:
            self._gapped.add(read.consumer)
        for log, number in read.given:
            expected = self._next.get((read.consumer, log), 0)
            if number > expected and read.consumer not in self._gapped:
                text = f"{read.consumer} was given record {number} of log {log}, not {expected}"
                yield Violation("S32", text, log, 0, (read,))
                return
            self._gapped.discard(read.consumer)
            self._next[read.consumer, log] = max(expected, number + 1)
