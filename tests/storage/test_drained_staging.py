"""Staged blocks of a drained node: it takes no more, and is done once it gave what it had."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import missing, order
from scenarios import as_scenario

from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.nodes import NodeId


def is_empty(cluster: ClusterAtHand, node: int) -> bool:
    entry = cluster.running[1]._rebuild.set.entry(node)
    return entry is not None and entry.is_empty


@as_scenario(simulate, nodes=5)
async def test_a_drain_gives_what_is_staged_and_what_comes_later_goes_elsewhere(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"0")
        first = await store.stage("log", [b"1"])
        node = first.blocks[0].nodes[-1]
        if node == 1:
            node = first.blocks[0].nodes[0]
        await order(cluster, node, RebuildOrder.DRAIN)
        await until(lambda: is_empty(cluster, node), timeout_s=20)
        later = await store.stage("log", [b"2"])
        assert all(node not in block.nodes for block in later.blocks)
        assert not cluster.running[NodeId(node)].engine.staged.blocks
        assert not await missing(cluster)
        await store.publish("query", 0, [first, later])
        assert await values(store, "log") == [b"0", b"1", b"2"]


@as_scenario(simulate, nodes=3)
async def test_a_drain_waits_for_what_is_staged_and_has_no_other_place(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30) as store:
        staged = await store.stage("log", [b"1"])
        await order(cluster, 3, RebuildOrder.DRAIN, forced=True)
        await asyncio.sleep(20)
        assert not is_empty(cluster, 3)
        donors = [cluster.running[NodeId(n)]._rebuild._donor.state().blocked for n in (1, 2, 3)]
        assert any("have no place" in blocked for blocked in donors)
        await store.unstage([staged])
        await until(lambda: is_empty(cluster, 3), timeout_s=60)
