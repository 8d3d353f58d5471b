"""The nodes to kill: first a node with copies of the log, then its sequencer's node.

The first node is never the sequencer's, so that the two kills show two things. Its lost copies must
matter, so a node without blocks of the log is not killed while another node has some.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.demo.checks import CheckFailed
from cordwood.errors import CordwoodError
from cordwood.layout.message import StatusReply
from cordwood.nodes import NodeId


@dataclass(frozen=True, slots=True)
class Victim:
    """The node to kill.

    Attributes:
        sequencer: the node that numbers the log at the time of the choice, maybe the victim itself.
        epoch: the sequencer's epoch.
        blocks: number of the log's blocks on the victim.
    """

    node: NodeId
    sequencer: NodeId
    epoch: int
    blocks: int


def choose_victim(
    status: Mapping[NodeId, StatusReply | CordwoodError], log: int, chance: random.Random
) -> Victim:
    """Choose among the storage nodes of a log.

    Raises:
        CheckFailed: no node says that it sequences the log, or there is no other node.
    """
    found = choose_sequencer(status, log)
    held = _held(status, log)
    others = [node for node in held if node != found.sequencer]
    holders = [node for node in others if held[node]] or others
    if not holders:
        raise CheckFailed("no node but the sequencer's answers, so none may be killed")
    node = chance.choice(holders)
    return Victim(node, found.sequencer, found.epoch, held[node])


def choose_sequencer(status: Mapping[NodeId, StatusReply | CordwoodError], log: int) -> Victim:
    """The node that sequences a log; if two nodes claim it, the one in the higher epoch.

    Raises:
        CheckFailed: no node claims it.
    """
    epochs = [
        (state.epoch, node)
        for node, reply in status.items()
        if not isinstance(reply, CordwoodError)
        for state in reply.logs
        if state.log == log and state.sequencing
    ]
    if not epochs:
        raise CheckFailed(f"no node says that it sequences log {log}, so none may be killed")
    epoch, node = max(epochs)
    return Victim(node, node, epoch, _held(status, log)[node])


def _held(status: Mapping[NodeId, StatusReply | CordwoodError], log: int) -> dict[NodeId, int]:
    """Blocks of a log on each node that answers."""
    held: dict[NodeId, int] = {}
    for node, reply in sorted(status.items()):
        if isinstance(reply, CordwoodError):
            continue
        states = [state for state in reply.logs if state.log == log]
        held[node] = sum(state.blocks for state in states)
    return held
