"""L4 asks each node of an envelope for its block, but for losses that no node can notice."""

from __future__ import annotations

import pytest

from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.rebuilt import check_rebuilt
from cordwood.sim.end_events import CopiesMended
from cordwood.sim.events import FaultStruck, HistoryEvent, NodeDumped
from cordwood.sim.slots import DumpedSlots

PLACE = (3 << 32) + 12
COPYSET = (1, 2, 3)


def history(kind: str) -> list[HistoryEvent]:
    """A fault hits node 3, which lacks a block in the end that its copyset says it has."""
    block = DumpedSlots(PLACE, PLACE, "data", copyset=COPYSET)
    return [
        FaultStruck(0, kind, (3,)),
        CopiesMended(1, ()),
        *(NodeDumped(2, node, "rack", 2, (block,) if node < 3 else ()) for node in COPYSET),
    ]


@pytest.mark.parametrize("kind", ["rot", "rotten_tables", "lost_partition", "zeroed", "crash"])
def test_a_node_that_could_notice_its_loss_has_to_mend_it(kind: str) -> None:
    (violation,) = check_rebuilt(Evidence(history(kind)))
    assert (violation.invariant, violation.log) == ("L4", 2)
    assert "[3]" in str(violation)


@pytest.mark.parametrize("kind", ["lost_write", "misdirected_write"])
def test_a_last_write_that_never_was_leaves_no_trace(kind: str) -> None:
    """Seed 38000817: the write was the WAL's last before a crash."""
    assert check_rebuilt(Evidence(history(kind))) == []
