"""Losses that a node cannot notice, so that no node can mend them."""

from __future__ import annotations

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.history import FaultStruck

UNSEEN = frozenset({"lost_write", "misdirected_write"})
"""Faults that a node need not notice: nothing after a WAL's last write tells whether the write was
durable, or cut short by the crash (seed 38000817)."""


def unseen_losses(evidence: Evidence) -> set[int]:
    """Nodes that may lack the last write of a WAL without a trace."""
    return {
        node
        for _, event in evidence.of(FaultStruck)
        if isinstance(event, FaultStruck) and event.kind in UNSEEN
        for node in event.nodes
    }
