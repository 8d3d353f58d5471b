"""Rebuilding beside appends and recoveries: what falls between two steps of the one or the other."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import copies, put_records

from cordwood.client.store import Store
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.nodes import Authority
from cordwood.protocol.event_log import authority_of


def is_called_empty(cluster: ClusterAtHand, node: int) -> bool:
    """Whether every other node that runs has read that a node is empty."""
    empty = Authority.AUTHORITATIVE_EMPTY
    others = [other for number, other in cluster.running.items() if number != node]
    return all(authority_of(other._rebuild.set, node) is empty for other in others)


def test_a_donor_refuses_what_names_a_drained_node_before_it_looks() -> None:
    """The order goes to every donor, so each knows of it before it reads the member list again."""
    leaves = 5

    async def scenario(cluster: ClusterAtHand) -> None:
        is_over = False

        async def load(store: Store, log: str) -> None:
            while not is_over:
                await store.append(log, b"value")
                await asyncio.sleep(0.02)

        await put_records(cluster, records=5)
        async with cluster.client(timeout_s=30) as store, asyncio.TaskGroup() as tasks:
            for log in ("log-1", "log-2", "log-3"):
                tasks.create_task(load(store, log))
            await asyncio.sleep(1)
            for number in (1, 2, 3, 4):
                call = SayRebuild(leaves, RebuildOrder.DRAIN)
                tasks.create_task(cluster.running[number]._rebuild.answer(call))
            await asyncio.sleep(3)
            is_over = True
        await until(lambda: is_called_empty(cluster, leaves))
        found = await copies(cluster)
        assert len(found) > 100
        assert [place for place, nodes in found.items() if len(nodes.keys() - {leaves}) < 3] == []

    simulate(scenario, nodes=5)
