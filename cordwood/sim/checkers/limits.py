"""L6: nodes stay within their limits of bytes and times."""

from __future__ import annotations

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.node_events import Gauged


def check_limits(evidence: Evidence) -> list[Violation]:
    """L6: the bytes in a node's WAL and memory, and their age, stay within their limits.

    Reports the first time that each node exceeded each limit.
    """
    found: dict[tuple[int, str], Violation] = {}
    for _, event in evidence.of(Gauged):
        if isinstance(event, Gauged) and event.value > event.limit:
            text = f"node {event.node}: {event.what} is {event.value}, over {event.limit}"
            found.setdefault((event.node, event.what), Violation("L6", text, 0, 0, (event,)))
    return list(found.values())
