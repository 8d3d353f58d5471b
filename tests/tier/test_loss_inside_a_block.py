"""A repair is told an end that lies inside a block: uploads wait, and name the way out."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate, values
from test_tier_cluster import STORAGE, TIER

from cordwood.log_attributes import LogAttributes
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log

KEPT = LogAttributes(tier=True, local_retention=3600, tier_after_s=1)


@pytest.mark.slow
def test_uploads_name_the_end_that_takes_the_loss_back(caplog: pytest.LogCaptureFixture) -> None:
    """They said "log 1 at e1n6: e1n23 comes next" for ever."""

    async def scenario(cluster: ClusterAtHand) -> None:
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        manifest = LogManifest(bucket, 1, host, "operator")
        async with cluster.client() as store:
            await store.create_log("log", attributes=KEPT)
            await store.append("log", b"first")
            await asyncio.sleep(20)
            await store.log_tree.set_attributes("log", LogAttributes(tier=False))
            await asyncio.sleep(5)
            await asyncio.gather(*(store.append("log", b"%d" % n) for n in range(20)))
            assert cluster.held(1, 1)[-1][:2] == (1 << 32 | 2, 1 << 32 | 21), "one block"
            tail = int(await store.tail("log"))
            await repair_log(bucket, manifest, 1, end=tail - 3, accept=True)
            await store.log_tree.set_attributes("log", LogAttributes(tier=True))
            await asyncio.sleep(20)
            assert "`cordwood tier repair 1 --end e1n1`" in caplog.text
            await repair_log(bucket, manifest, 1, end=1 << 32 | 1)
            await asyncio.sleep(200)
            head = await LogManifest(bucket, 1, host, "test").load()
            assert head is not None
            assert head.end == tail + 1
            assert await values(store, "log") == [b"first", *(b"%d" % n for n in range(20))]

    simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
