"""A node is rebuilt while others let go of what main storage holds."""

from __future__ import annotations

import asyncio

from cluster_at_hand import BUCKET, ClusterAtHand, simulate, values
from rebuild_scene import call_lost, copies, healed, lose_disk

from cordwood.log_attributes import LogAttributes
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
