"""L6: what nodes hold has its limits."""

from __future__ import annotations

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.node_events import Gauged


def check_limits(evidence: Evidence) -> list[Violation]:
    """L6: what is in a node's WAL and memory, and for how long, stays within its limits.

    Of each node and limit the first time that it did not is told.
    """
    found: dict[tuple[int, str], Violation] = {}
    for _, event in evidence.of(Gauged):
        if isinstance(event, Gauged) and event.value > event.limit:
            text = f"node {event.node}: {event.what} is {event.value}, over {event.limit}"
            found.setdefault((event.node, event.what), Violation("L6", text, 0, 0, (event,)))
    return list(found.values())
