"""Staged blocks of a drained node: it takes no more, and is not done before they are gone."""

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
async def test_a_drain_waits_for_what_is_staged_and_what_comes_later_goes_elsewhere(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"0")
        first = await store.stage("log", [b"1"])
        node = first.blocks[0].nodes[-1]
        if node == 1:
            node = first.blocks[0].nodes[0]
        await order(cluster, node, RebuildOrder.DRAIN)
        await asyncio.sleep(20)
        assert not is_empty(cluster, node)
        blocked = cluster.running[NodeId(node)]._rebuild._donor.state().blocked
        assert "staged blocks" in blocked
        later = await store.stage("log", [b"2"])
        assert all(node not in block.nodes for block in later.blocks)
        await store.unstage([first])
        await until(lambda: is_empty(cluster, node), timeout_s=60)
        assert not await missing(cluster)
        assert await values(store, "log") == [b"0"]
