"""What scenes of rebuilding share: a cluster, a disk that is lost, and a look at all copies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from cluster_at_hand import ClusterAtHand, simulate, until

from cordwood.block import EnvelopeFlag
from cordwood.client.store import Store
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.lsn import EVENT_LOG
from cordwood.sim.holdings import held_blocks
from cordwood.sim.stored_tree import StoredTree
from cordwood.wire.connection import Connection


def with_either_log(scenario: Callable[[ClusterAtHand], Awaitable[None]], **options: Any) -> None:
    """Play it with events in the metadata store, and with events in the event log."""
    for replicated in (False, True):
        simulate(scenario, replicated_events=replicated, **options)


async def put_records(cluster: ClusterAtHand, logs: int = 3, records: int = 20) -> None:
    async with cluster.client(timeout_s=30) as store:
        for number in range(records):
            for log in range(1, logs + 1):
                await store.append(f"log-{log}", b"%d/%d" % (log, number))


def lose_disk(cluster: ClusterAtHand, node: int) -> None:
    """A node stops, and its disk is gone."""
    if node in cluster.running:
        cluster.kill(node)
    cluster.machine(node).disk.tree = StoredTree()


async def order(
    cluster: ClusterAtHand, node: int, said: RebuildOrder, *, forced: bool = False
) -> None:
    """An operator's order, through any node. It waits until the node is taken for dead."""
    via = next(number for number in sorted(cluster.running) if number != node)
    await cluster.running[via]._rebuild.answer(SayRebuild(node, said, forced))


async def call_lost(cluster: ClusterAtHand, node: int) -> None:
    await order(cluster, node, RebuildOrder.START)


async def copies(cluster: ClusterAtHand) -> dict[tuple[int, int], dict[int, tuple[int, ...]]]:
    """By log and first LSN: the nodes that have a copy that counts, with their envelopes'
    copysets. Of a block that was stored in several waves the latest counts."""
    found: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
    for number, node in sorted(cluster.running.items()):
        for log in sorted(node.engine.cache.logs):
            for block in await held_blocks(node.engine, log):
                if not block.envelope.flags & EnvelopeFlag.DRAINED:
                    place = (log, block.header.first)
                    found.setdefault(place, {})[number] = block.envelope.copyset
    return found


async def missing(cluster: ClusterAtHand, wanted: int = 3) -> Counter[str]:
    """What is wrong with the copies, by kind."""
    wrong: Counter[str] = Counter()
    for (log, _), nodes in (await copies(cluster)).items():
        # Epochs of the event log that begin while nodes are empty have fewer copies, so that the
        # next loss has a place. Their copysets tell how many.
        most = max(map(len, nodes.values()))
        if len(nodes) < (min(wanted, max(2, most)) if log == EVENT_LOG else wanted):
            wrong["too few copies"] += 1
        if any(not set(copyset) <= nodes.keys() for copyset in nodes.values()):
            wrong["an envelope names a node that lacks the block"] += 1
    return wrong


def lost(cluster: ClusterAtHand) -> set[int]:
    """The nodes of the rebuilding set, as the running nodes know it."""
    return {entry.node for node in cluster.running.values() for entry in node._rebuild.set.lost}


async def healed(cluster: ClusterAtHand, *, timeout_s: float = 300) -> None:
    """All nodes run, and nothing is said of any."""

    def is_healed() -> bool:
        return len(cluster.running) == len(cluster.numbers) and not lost(cluster)

    await asyncio.sleep(2)
    await until(is_healed, timeout_s=timeout_s)


def late_at_first(
    cluster: ClusterAtHand, store: Store, how: str, kind: type[Call] = SayRebuild
) -> None:
    """The first node that is asked gets the next order of "client-2" late."""
    ask_any, first = store._cluster.ask_any, cluster.machine(1)

    async def late(message: Call, *, timeout_s: float, asked: list[Connection]) -> Reply:
        if isinstance(message, kind):
            if how == "paused":
                first.pause()
            else:
                cluster.simulation.network.partition(["client-2"], [first.name])
            store._cluster.ask_any = ask_any  # type: ignore[method-assign]
        return await ask_any(message, timeout_s=timeout_s, asked=asked)

    store._cluster.ask_any = late  # type: ignore[method-assign]


def mend(cluster: ClusterAtHand, how: str) -> None:
    if how == "paused":
        cluster.machine(1).resume()
    else:
        cluster.simulation.network.mend_all()
