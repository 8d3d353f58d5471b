"""Ranges that a repair of a manifest called lost, and what nodes do about them afterwards."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, values
from test_tier_cluster import STORAGE, TENDED, TIER, TIERED, gone, objects, write

from cordwood.block import Record
from cordwood.layout.object_names import head_name
from cordwood.log_attributes import LogAttributes
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log


async def a_loss_that_reaches_past_the_tail(
    cluster: ClusterAtHand,
) -> None:
    """Nodes that were let in empty took it for their tier point: they acknowledged the records
    that came there, and kept none. Nothing was ever uploaded there."""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        written = await write(store, "log", 40)
        await asyncio.sleep(20)
        tail = int(await store.tail("log"))
        manifest = LogManifest(bucket, 1, host, "operator")
        await repair_log(bucket, manifest, 1, end=tail + 1000, accept=True)
        for node in cluster.running.values():
            await node._tiering.learn()  # as a node does that was let in empty
        written += await write(store, "log", 40)
        await asyncio.sleep(20)
        assert max(gone(cluster)) == tail
        assert await values(store, "log") == written
        await repair_log(bucket, manifest, 1, end=tail)
        await asyncio.sleep(40)
        assert min(gone(cluster)) == await store.tail("log")
        assert await values(store, "log") == written


async def retention_of_a_range_that_main_storage_lost(
    cluster: ClusterAtHand,
) -> None:
    """A lost range has the time of the object before it. Nodes held all of its records."""
    kept = LogAttributes(local_retention=1000, backlog_s=60).over(TIERED)
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    async with cluster.client() as store:
        await store.create_log("log", attributes=kept)
        await write(store, "log", 40, 1.0)
        await store.log_tree.set_attributes("log", LogAttributes(tier=False))
        await asyncio.sleep(3)
        for name in objects(cluster)[2:-1]:
            cluster.bucket.delete(name)
        cluster.bucket.delete(head_name(1))
        await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, accept=True)
        await store.log_tree.set_attributes("log", LogAttributes(tier=True))
        records = [each for each in await read_all(store, "log") if isinstance(each, Record)]
        assert len(records) == 40
        while records[-1].append_time_us > host.clock.now_us() - 58_000_000:
            left = await values(store, "log")
            young = [
                each.value
                for each in records
                if each.append_time_us > host.clock.now_us() - 58_000_000
            ]
            assert set(young) <= set(left)
            await asyncio.sleep(2)
        await asyncio.sleep(20)
        assert not await values(store, "log")


def test_a_loss_that_reaches_past_the_tail_loses_nothing_and_is_taken_back() -> None:
    simulate(a_loss_that_reaches_past_the_tail, nodes=3, storage=STORAGE, tier=TIER)
    with planted(find_bug("tier-point-of-losses")), pytest.raises(AssertionError):
        simulate(a_loss_that_reaches_past_the_tail, nodes=3, storage=STORAGE, tier=TIER)


def test_retention_keeps_young_records_of_a_range_that_main_storage_lost() -> None:
    scenario = retention_of_a_range_that_main_storage_lost
    simulate(scenario, nodes=3, storage=STORAGE, tier=TENDED)
    with planted(find_bug("tier-dates-losses")), pytest.raises(AssertionError):
        simulate(scenario, nodes=3, storage=STORAGE, tier=TENDED)
