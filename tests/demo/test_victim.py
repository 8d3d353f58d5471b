"""Whom the demo may kill."""

from __future__ import annotations

import random

import pytest

from cordwood.demo.checks import CheckFailed
from cordwood.demo.victim import choose_sequencer, choose_victim
from cordwood.errors import CordwoodError, Unreachable
from cordwood.layout.message import LogState, StatusReply
from cordwood.nodes import NodeId

LOG = 7


def status(node: int, *, blocks: int = 0, sequencing: bool = False, log: int = LOG) -> StatusReply:
    state = LogState(log, sequencing, 1, 0, 0, blocks, 0, 0)
    return StatusReply(node, b"", "", 0.0, 0, 0, 0, 0, 0, 0, "", [], [state])


def cluster(*replies: StatusReply | CordwoodError) -> dict[NodeId, StatusReply | CordwoodError]:
    return {NodeId(number): reply for number, reply in enumerate(replies, start=1)}


def victims(nodes: dict[NodeId, StatusReply | CordwoodError]) -> set[int]:
    return {choose_victim(nodes, LOG, random.Random(seed)).node for seed in range(50)}


def test_any_holder_but_the_sequencer():
    nodes = cluster(status(1, blocks=3), status(2, blocks=5, sequencing=True), status(3),
                    status(4, blocks=1), Unreachable("down"))  # fmt: skip
    assert victims(nodes) == {1, 4}


def test_the_sequencer_is_spared_even_where_no_other_holds_anything():
    nodes = cluster(status(1), status(2, blocks=5, sequencing=True), status(3))
    assert victims(nodes) == {1, 3}


def test_what_a_node_holds_of_other_logs_does_not_count():
    nodes = cluster(status(1, blocks=9, log=8), status(2, sequencing=True), status(3, blocks=1))
    assert victims(nodes) == {3}


def test_the_second_is_the_sequencer_of_the_newest_epoch():
    old = StatusReply(3, b"", "", 0.0, 0, 0, 0, 0, 0, 0, "", [], [LogState(LOG, True, 4, *[0] * 5)])
    new = StatusReply(2, b"", "", 0.0, 0, 0, 0, 0, 0, 0, "", [], [LogState(LOG, True, 5, *[0] * 5)])
    victim = choose_sequencer(cluster(status(1, blocks=9), new, old, Unreachable("down")), LOG)
    assert (victim.node, victim.sequencer, victim.epoch) == (2, 2, 5)


def test_it_says_whom_it_spared_and_what_dies():
    nodes = cluster(status(1, blocks=3), status(2, sequencing=True))
    victim = choose_victim(nodes, LOG, random.Random(0))
    assert (victim.node, victim.sequencer, victim.blocks) == (1, 2, 3)


def test_one_seed_chooses_one_node():
    nodes = cluster(*(status(node, blocks=1, sequencing=node == 1) for node in range(1, 6)))
    assert len({choose_victim(nodes, LOG, random.Random(3)).node for _ in range(9)}) == 1


@pytest.mark.parametrize(
    "nodes",
    [
        cluster(status(1, blocks=3), status(2, blocks=3)),
        cluster(status(1, blocks=3), status(2, sequencing=True, log=8)),
        cluster(Unreachable("down"), status(2, sequencing=True)),
    ],
)
def test_nobody_where_the_sequencer_is_not_known_or_alone(nodes):
    with pytest.raises(CheckFailed, match="none may be killed"):
        choose_victim(nodes, LOG, random.Random(0))
