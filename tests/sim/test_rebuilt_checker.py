"""L4 and S15 ask the nodes of an envelope for its block, but for losses that no node can notice."""

from __future__ import annotations

import pytest

from cordwood.sim.checkers.copies import check_copies
from cordwood.sim.checkers.evidence import Evidence
from cordwood.sim.checkers.rebuilt import check_rebuilt
from cordwood.sim.end_events import CopiesMended, UploadsLeft
from cordwood.sim.events import FaultStruck, HistoryEvent, NodeDumped, Released
from cordwood.sim.node_events import EpochsNodes, NodesetsKnown
from cordwood.sim.slots import DumpedSlots

PLACE = (3 << 32) + 12
COPYSET = (1, 2, 3)


def history(kind: str, hit: int = 3) -> list[HistoryEvent]:
    """A fault hits a node. Node 3 lacks a block in the end that its copyset says it has."""
    block = DumpedSlots(PLACE, PLACE, "data", copyset=COPYSET)
    nodeset = EpochsNodes(1, (1, 2, 3, 4), 3, ("rack",) * 4)
    return [
        FaultStruck(0, kind, (hit,)),
        NodesetsKnown(0, 1, 2, 3, (nodeset,)),
        Released(0, 2, PLACE, "node 1"),
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


@pytest.mark.parametrize("kind", ["rot", "crash"])
def test_a_copy_whose_loss_a_node_could_notice_is_missing(kind: str) -> None:
    (violation,) = check_copies(Evidence(history(kind)))
    assert (violation.invariant, violation.log) == ("S15", 2)


def test_a_copy_lost_without_a_trace_counts_for_the_nodes_of_its_copyset_only() -> None:
    """Seed 63000212: the last write of a WAL, below the LNG of the next recovery."""
    assert check_copies(Evidence(history("lost_write"))) == []
    (violation,) = check_copies(Evidence(history("lost_write", hit=4)))
    assert violation.invariant == "S15"


def test_what_waits_for_main_storage_at_the_end_is_a_violation() -> None:
    (violation,) = check_rebuilt(Evidence([UploadsLeft(1, (2,), (7,))]))
    assert violation.invariant == "L4"
    assert "logs [2], and ledgers [7]" in str(violation)
