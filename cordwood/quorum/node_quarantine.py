"""Nodes that failed often of late, and are not chosen for new entries for a while.

A node that fails all the time is a member of each new ensemble otherwise, and each writer has to
find that out by itself. A quarantine ends after a while, or as soon as the node stores something: a
writer that had it before still sends to it. BookKeeper's lasts half an hour whatever the node does
(#4879).

Source: docs/sources/bookkeeper.md (c), (e), (h).
"""

from __future__ import annotations

from dataclasses import dataclass, field

FAILURES = 5
"""Calls that fail in a row until a node is held back. A restart fails some four at once, and that
is no reason to avoid a node."""

WITHIN_S = 60.0
"""They count for so long."""

FIRST_S = 30.0
"""How long it is held back first; each time twice as long."""

LONGEST_S = 1800.0
"""BookKeeper's."""


@dataclass(slots=True)
class _Record:
    failures: list[float] = field(default_factory=list)
    until: float = 0.0
    period_s: float = FIRST_S


class NodeQuarantine:
    """See the module. It has a record of each node that failed since it stored something."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def on_failed(self, node: int, now: float) -> None:
        """A node did not take entries, or did not answer."""
        record = self._records.setdefault(node, _Record())
        if now < record.until:
            return  # What was on its way when it began.
        record.failures = [at for at in record.failures if now - at < WITHIN_S] + [now]
        if len(record.failures) >= FAILURES:
            record.failures.clear()
            record.until = now + record.period_s
            record.period_s = min(LONGEST_S, 2 * record.period_s)

    def on_stored(self, node: int) -> None:
        """A node took entries: it is well."""
        self._records.pop(node, None)

    def held(self, now: float) -> frozenset[int]:
        """Nodes that are held back now."""
        return frozenset(node for node, record in self._records.items() if now < record.until)
