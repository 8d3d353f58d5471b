"""S17: a node runs on its own disk, or not at all.

L4 checks nodes that come back after rebuilding.
"""

from __future__ import annotations

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import DiskGiven, NodeStarted


def check_own_disk(evidence: Evidence) -> list[Violation]:
    """S17: no node runs on an empty disk, another node's disk, or an older copy of its own disk."""
    found: list[Violation] = []
    foreign: dict[int, DiskGiven] = {}
    for _, event in evidence.of(DiskGiven, NodeStarted):
        if isinstance(event, DiskGiven):
            foreign.pop(event.node, None)
            if not event.own:
                foreign[event.node] = event
        elif isinstance(event, NodeStarted) and event.node in foreign:
            text = f"node {event.node} runs on a disk that is not its own"
            found.append(Violation("S17", text, 0, 0, (foreign[event.node], event)))
    return found
