"""S16: scrubbing finds rot at rest, and reports no good copy as damaged.

S2, S3 and S7 check that a damaged copy is never reported as absent. L4 checks that it is mended.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.lsn import format_lsn
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.violation import Violation
from cordwood.sim.history import FaultStruck
from cordwood.sim.scrub_events import NodeScrubbed, Range

OTHER_DAMAGE = frozenset({"lost_partition", "lost_write", "misdirected_write"})
"""Faults that damage a disk in other ways than rot; the history does not tell what they hit."""


def check_scrubbed(evidence: Evidence) -> list[Violation]:
    """S16: a pass finds every rotten block, and every range reported as damaged has rotted."""
    spoiled = {
        node
        for _, event in evidence.of(FaultStruck)
        if isinstance(event, FaultStruck) and event.kind in OTHER_DAMAGE
        for node in event.nodes
    }
    found: list[Violation] = []
    for _, event in evidence.of(NodeScrubbed):
        if not isinstance(event, NodeScrubbed):
            continue
        for rotten in event.rotten:
            if event.passes and not _meets(rotten, event.damaged):
                text = f"node {event.node}'s scrub missed the rot up to {format_lsn(rotten[1])}"
                found.append(Violation("S16", text, event.log, rotten[0], (event,)))
        for damaged in event.damaged:
            if event.node not in spoiled and not _meets(damaged, event.rotten):
                text = f"node {event.node} reports an intact range as damaged"
                found.append(Violation("S16", text, event.log, damaged[0], (event,)))
    return found


def _meets(one: Range, others: Sequence[Range]) -> bool:
    return any(one[0] <= last and first <= one[1] for first, last in others)
