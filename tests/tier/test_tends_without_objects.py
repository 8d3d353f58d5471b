"""Trims and retention of a log whose first or last object in main storage is gone or damaged."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from test_tier_cluster import STORAGE, TENDED, objects, write

from cordwood.log_attributes import LogAttributes
from cordwood.tier.log_manifest import LogManifest

KEPT = LogAttributes(tier=True, local_retention=5, tier_after_s=1, backlog_s=120)


def damage(cluster: ClusterAtHand, name: str) -> None:
    content = bytes(byte ^ 0xFF for byte in cluster.bucket.content(name))
    cluster.bucket.damage(name, content)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("is_gone", [True, False])
def test_retention_and_trims_go_on_without_an_object(which: int, is_gone: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            await store.create_log("log", attributes=KEPT)
            await write(store, "log", 40, 0.5)
            await asyncio.sleep(30)
            name = objects(cluster)[which]
            if is_gone:
                cluster.bucket.delete(name)
            else:
                damage(cluster, name)
            manifest = LogManifest(bucket, 1, host, "operator")
            head = await manifest.load()
            assert head is not None
            trim = (1 << 32) + (1 if which == 0 else 20)  # the missing object stays, in part
            await store.trim("log", trim)
            await asyncio.sleep(10)
            trimmed = await manifest.load()
            assert trimmed is not None
            assert trimmed.start == trim + 1
            await asyncio.sleep(200)
            ended = await manifest.load()
            assert ended is not None
            assert ended.start == ended.end
            assert not objects(cluster)

    simulate(scenario, nodes=3, storage=STORAGE, tier=TENDED)
