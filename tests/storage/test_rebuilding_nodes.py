"""Whole clusters that lose a disk, and make its copies anew."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate, values
from rebuild_scene import call_lost, copies, healed, keep_starting, lose_disk, missing, put_records


def test_a_lost_disk_is_made_anew_by_the_others_and_its_node_comes_in_empty() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        await asyncio.sleep(1)
        assert not await missing(cluster)
        before = await copies(cluster)
        held = sum(2 in nodes for nodes in before.values())
        assert held > 10
        lose_disk(cluster, 2)
        await call_lost(cluster, 2)
        keep_starting(cluster, 2)
        await healed(cluster)
        assert not await missing(cluster)
        after = await copies(cluster)
        assert after.keys() >= before.keys()
        assert not any(2 in nodes for place, nodes in after.items() if place in before)
        async with cluster.client() as store:
            for log in (1, 2, 3):
                assert await values(store, f"log-{log}") == [b"%d/%d" % (log, n) for n in range(20)]

    simulate(scenario, nodes=5)
