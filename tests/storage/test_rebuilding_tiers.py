"""A node is rebuilt while others let go of what main storage holds."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate, until, values
from rebuild_scene import call_lost, copies, healed, lose_disk

from cordwood.errors import Corrupt
from cordwood.layout.object_names import head_name
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings, TierSettings


def test_a_node_that_let_go_into_main_storage_holds_no_rebuilding_up() -> None:
    """It said that it had no copy. The donor took its own for left over, and came to no end for as
    long as nodes keep what main storage holds."""
    kept_long = LogAttributes(tier=True, local_retention=6 * 3600, tier_after_s=1)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            await store.create_log("log", attributes=kept_long)
            written = [b"%d" % number for number in range(20)]
            for value in written:
                await store.append("log", value)
                await asyncio.sleep(0.3)
            await asyncio.sleep(6)  # uploaded by then
            before = await copies(cluster)
            _, pressed, dead = sorted(next(iter(before.values())))
            disk = cluster.machine(pressed).disk
            free, disk.free_bytes = disk.free_bytes, 1  # so it lets go of all that it may
            await asyncio.sleep(3)
            disk.free_bytes = free
            gone = {n: node.engine.gone_of(1) for n, node in cluster.running.items()}
            assert gone[pressed] > 0 == sum(gone.values()) - gone[pressed]
            lose_disk(cluster, dead)
            await call_lost(cluster, dead)
            cluster.keep_starting(dead)
            await healed(cluster, timeout_s=60)
            assert await values(store, "log") == written

    storage = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
    simulate(scenario, nodes=5, storage=storage, tier=TierSettings(BUCKET, look_s=1.0))


def test_an_empty_node_that_cannot_read_a_manifest_names_the_log_and_the_repair() -> None:
    """It may not start: it would report what other nodes let go of as never stored."""
    tiered = LogAttributes(tier=True, tier_after_s=1)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            for log in ("whole", "damaged"):
                await store.create_log(log, attributes=tiered)
                for number in range(5):
                    await store.append(log, b"%d" % number)
        await asyncio.sleep(10)  # uploaded by then
        head = cluster.bucket.content(head_name(2))
        cluster.bucket.damage(head_name(2), head[:-1] + bytes([head[-1] ^ 1]))
        lose_disk(cluster, 3)
        await call_lost(cluster, 3)
        await until(lambda: all(n._rebuild.set.entry(3).is_empty for n in cluster.running.values()))
        starting = cluster.start_once(3)
        with pytest.raises(Corrupt, match=r"log 2 \(/damaged\): .*`cordwood tier repair 2"):
            await starting
        cluster.machine(3).kill()
        cluster.bucket.damage(head_name(2), head)
        await cluster.start(3)
        assert all(cluster.running[NodeId(3)].engine.gone_of(log) > 0 for log in (1, 2))

    storage = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
    simulate(scenario, nodes=5, storage=storage, tier=TierSettings(BUCKET, look_s=1.0))
