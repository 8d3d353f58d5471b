"""The place of each record of a log, as acknowledgements and readers show it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from cordwood.sim.checkers.evidence import Append, Evidence
from cordwood.sim.history import Event


@dataclass(frozen=True, slots=True)
class Placed:
    """A record with its place in the log, and the event that shows it."""

    lsn: int
    append: Append
    index: int
    witness: Event

    @property
    def turn(self) -> tuple[int, int, int]:
        """The record's place among the records of its producer: epoch, call, place in the call."""
        return (self.append.invoked.producer_epoch, self.append.invoked_at, self.index)

    @property
    def id(self) -> str:
        return str(self.append.invoked.payloads[self.index].id)


def places_of(evidence: Evidence, log: int) -> list[Placed]:
    """Every record of a log whose place is known, once, by LSN."""
    found: dict[tuple[int, str | None], Placed] = {}
    for ack in evidence.acks.get(log, ()):
        append, index = evidence.origins[ack.payload.id or ""]
        end = append.end or append.invoked
        found[ack.lsn, ack.payload.id] = Placed(ack.lsn, append, index, end)
    for read in evidence.reads:
        for _, record in read.records() if read.log == log else ():
            if evidence.is_genuine(log, record.payload):
                append, index = evidence.origins[record.payload.id or ""]
                placed = Placed(record.lsn, append, index, record)
                found.setdefault((record.lsn, record.payload.id), placed)
    return sorted(found.values(), key=attrgetter("lsn"))
