"""Objects that main storage lost while nodes still have their records."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from test_tier_cluster import STORAGE, TIER, gone, objects, write

from cordwood.log_attributes import LogAttributes
from cordwood.sim.planted import find_bug, planted

KEPT = LogAttributes(tier=True, local_retention=60, tier_after_s=1)


async def an_object_that_the_store_lost(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=KEPT)
        written = await write(store, "log", 20, 0.5)
        await asyncio.sleep(10)
        assert max(gone(cluster)) == 0
        assert len(objects(cluster)) > 4
        name = objects(cluster)[2]
        content = cluster.bucket.content(name)
        cluster.bucket.delete(name)
        await asyncio.sleep(150)
        let_go = max(gone(cluster))
        assert 0 < let_go < await store.tail("log"), "what is before the lost object goes"
        assert await values(store, "log") == written
        cluster.bucket.put(name, content, lambda etag: True)
        await asyncio.sleep(30)
        assert min(gone(cluster)) > let_go
        assert await values(store, "log") == written


def test_nodes_keep_records_whose_object_is_gone() -> None:
    scenario = an_object_that_the_store_lost
    simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
    with (
        planted(find_bug("tier-drops-without-an-object")),
        pytest.raises((AssertionError, TimeoutError)),
    ):
        simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
