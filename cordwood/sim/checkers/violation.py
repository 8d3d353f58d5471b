"""The result of a checker: the broken promise, its place, and the events that show it."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.lsn import format_lsn
from cordwood.sim.history import Event


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise.

    Attributes:
        invariant: its id in the list of docs/sources/reliability.md §3, as `S2` or `L1`.
        text: what happened, in words.
        log: the log's number.
        lsn: the place; 0 if the promise is not about a place.
        evidence: the events that contradict one another, in the order to read them.
    """

    invariant: str
    text: str
    log: int
    lsn: int = 0
    evidence: tuple[Event, ...] = ()

    def __str__(self) -> str:
        place = f" {format_lsn(self.lsn)}" if self.lsn else ""
        return f"{self.invariant} log {self.log}{place}: {self.text}"
