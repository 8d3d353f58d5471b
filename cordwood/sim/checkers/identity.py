"""S17, as far as it goes today: a node runs on its own disk, or not at all.

Letting a node back in that lost its disk comes with rebuilding.
"""

from __future__ import annotations

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import DiskGiven, NodeStarted


def check_own_disk(evidence: Evidence) -> list[Violation]:
    """S17: on an empty disk, another node's, or an older copy of its own no node runs."""
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
