"""Asks all nodes for their state, before other nodes may be taken away.

Gossip tells which nodes are dead, three seconds after they died. A node that has just started takes
all others for alive. A node that runs may also have lost records, or have no space. So each node is
asked, and a node that does not answer counts as absent.

Source: docs/protocol/maintenance.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from cordwood.errors import CordwoodError
from cordwood.impact.check import Fitness
from cordwood.layout.message_impact import AskFitness, FitnessReply
from cordwood.nodes import NodeId
from cordwood.storage.engine import StorageEngine
from cordwood.wire.peers import Peers

logger = logging.getLogger(__name__)

ASK_S = 2.0
"""The deadline of an answer from memory: as long as a dial may take, so a node that has just
started can answer."""


def fitness_reply(engine: StorageEngine) -> FitnessReply:
    """This node's state."""
    rotten = engine.logs.damages.all()
    unsure = engine.damage or (f"{len(rotten)} ranges have rotted in LogsDB" if rotten else "")
    full = engine.failed or engine.read_only or engine.low_space
    has_lost = engine.logs.has_lost
    return FitnessReply(unsure[:4096], full[:4096], has_lost, waits=engine.unsure)


async def ask_fitness(
    me: NodeId, engine: StorageEngine, peers: Peers, nodes: Collection[NodeId]
) -> Fitness:
    """The states of nodes, this node included.

    Args:
        nodes: the nodes to ask.
    """

    async def ask(node: NodeId) -> FitnessReply | None:
        try:
            reply = await peers.call(node, AskFitness(), timeout_s=ASK_S)
        except CordwoodError as error:
            logger.info("node %d does not say how it is: %s", node, error)
            return None
        assert isinstance(reply, FitnessReply), "AskFitness has one kind of answer"
        return reply

    others = sorted(frozenset(nodes) - {me})
    answers = dict(zip(others, await asyncio.gather(*map(ask, others)), strict=True))
    silent = frozenset(node for node, answer in answers.items() if answer is None)
    told = {node: answer for node, answer in answers.items() if answer is not None}
    told[me] = fitness_reply(engine)
    unsure = frozenset(node for node, answer in told.items() if answer.unsure)
    full = frozenset(node for node, answer in told.items() if answer.full)
    waiting = frozenset(node for node, answer in told.items() if answer.waits)
    return Fitness(silent, unsure, full, waiting)
