"""Which node is killed: one that holds copies of the log, and never its sequencer's.

A sequencer that is lost must be replaced by one that recovers the log, and until recovery
can do with members absent that would stop the appends. The dead copies must matter, so a
node that holds none of the log is spared while another holds some.
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
        sequencer: the node that numbers the log, which is spared.
        blocks: what the victim holds of the log.
    """

    node: NodeId
    sequencer: NodeId
    blocks: int


def choose_victim(
    status: Mapping[NodeId, StatusReply | CordwoodError], log: int, chance: random.Random
) -> Victim:
    """Choose among the storage nodes of a log.

    Raises:
        CheckFailed: no node says that it sequences the log, or there is no other node.
    """
    held: dict[NodeId, int] = {}
    sequencer: NodeId | None = None
    for node, reply in sorted(status.items()):
        if isinstance(reply, CordwoodError):
            continue
        states = [state for state in reply.logs if state.log == log]
        held[node] = sum(state.blocks for state in states)
        if any(state.sequencing for state in states):
            sequencer = node
    if sequencer is None:
        raise CheckFailed(f"no node says that it sequences log {log}, so none may be killed")
    others = [node for node in held if node != sequencer]
    holders = [node for node in others if held[node]] or others
    if not holders:
        raise CheckFailed("no node but the sequencer's answers, so none may be killed")
    node = chance.choice(holders)
    return Victim(node, sequencer, held[node])
