"""Nodes that failed often of late: they are not chosen for new entries for a while.

Otherwise a node that always fails would be a member of each new ensemble, and each writer would
have to find this out. A quarantine ends after a while, or as soon as the node stores an entry:
earlier writers still send to it. BookKeeper's lasts half an hour whatever the node does
(#4879).

Source: docs/sources/bookkeeper.md (c), (e), (h).
"""

from __future__ import annotations

from dataclasses import dataclass, field

FAILURES = 5
"""Calls that fail in a row until a node is held back. A restart fails some four at once, and that
is no reason to avoid a node."""

WITHIN_S = 60.0
"""The time for which failures count."""

FIRST_S = 30.0
"""The length of the first quarantine; each further one is twice as long."""

LONGEST_S = 1800.0
"""The longest quarantine: BookKeeper's."""


@dataclass(slots=True)
class _Record:
    failures: list[float] = field(default_factory=list)
    until: float = 0.0
    period_s: float = FIRST_S


class NodeQuarantine:
    """See the module. It has a record of each node that failed since it last stored an entry."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def on_failed(self, node: int, now: float) -> None:
        """Note that a node did not take entries, or did not answer."""
        record = self._records.setdefault(node, _Record())
        if now < record.until:
            return  # An entry that was in flight when the quarantine began.
        record.failures = [at for at in record.failures if now - at < WITHIN_S] + [now]
        if len(record.failures) >= FAILURES:
            record.failures.clear()
            record.until = now + record.period_s
            record.period_s = min(LONGEST_S, 2 * record.period_s)

    def on_stored(self, node: int) -> None:
        """Note that a node took entries: it is healthy."""
        self._records.pop(node, None)

    def held(self, now: float) -> frozenset[int]:
        """The nodes in quarantine now."""
        return frozenset(node for node, record in self._records.items() if now < record.until)
