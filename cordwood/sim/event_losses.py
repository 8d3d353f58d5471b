"""Records of the event log that are lost for ever, with the nodes that hold them.

The metadata store is away, so the base does not get the newest events. Then the nodes that hold the
newest record are lost, and all other nodes restart. They begin with the base, and find that records
are lost.

Source: docs/protocol/event-log.md (A loss beyond the copies).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from cordwood.errors import CordwoodError
from cordwood.lsn import EVENT_LOG
from cordwood.nodes import NodeId
from cordwood.rebuilding import PARTS, Rebalance, Transfer
from cordwood.sim.cluster import SimCluster
from cordwood.sim.holdings import held_blocks
from cordwood.sim.options import RunOptions

SAY_S = 8.0
"""How long it is tried to say something: a call and its repeat."""

LOSES_SHARE = 0.5
"""Of the seeds that lose all copies of a record, the share in which records of the event log are
lost with the nodes, if the other nodes could hold its copies."""

SAID_S = (0.2, 1.5)
"""Time for the donors' own words before the loss."""


def with_events(options: RunOptions, chance: random.Random, *, loses_copies: bool) -> RunOptions:
    """The run that loses nodes at its end, with the rebuilding set in the event log.

    Args:
        loses_copies: whether all nodes are lost that hold some block.
    """
    copies = options.cluster.replication.copies
    can_lose = loses_copies and 2 <= copies <= options.cluster.nodes // 2
    return replace(
        options,
        cluster=replace(options.cluster, replicated_events=True),
        loses_events=can_lose and chance.random() < LOSES_SHARE,
    )


async def say_unkept(cluster: SimCluster, chance: random.Random) -> tuple[NodeId, ...]:
    """Say something in the event log that the base does not get. Returns the nodes that hold the
    newest record; none if they are not to be lost, as too few nodes would be left."""
    if not all(node._events.has_moved for node in cluster.running.values()):
        return ()
    cluster.metadata.is_out = True
    lost = await _say(cluster, chance)
    cluster.metadata.is_out = bool(lost)
    return lost


async def _say(cluster: SimCluster, chance: random.Random) -> tuple[NodeId, ...]:
    numbers = cluster.numbers
    source, target = chance.sample(numbers, 2)
    node = cluster.running[chance.choice(numbers)]
    try:
        async with asyncio.timeout(SAY_S):
            await node._events.say(Rebalance((Transfer(source, target, PARTS // 2),)))
    except (CordwoodError, TimeoutError):
        return ()
    await asyncio.sleep(chance.uniform(*SAID_S))
    newest = []
    for _, node in sorted(cluster.running.items()):
        newest += (await held_blocks(node.engine, EVENT_LOG))[-1:]
    if not newest:
        return ()
    held = max(newest, key=lambda block: block.header.last).envelope.copyset
    left = len(numbers) - len(held)
    return tuple(map(NodeId, sorted(held))) if left >= cluster.options.replication.copies else ()


def restart(cluster: SimCluster, lost: Sequence[NodeId]) -> None:
    """All nodes that are left start anew at once, and the metadata store is back."""
    for node in sorted(cluster.running):
        cluster.kill(node)
    cluster.metadata.is_out = False
    for node in cluster.numbers:
        if node not in lost:
            cluster.start(node)
