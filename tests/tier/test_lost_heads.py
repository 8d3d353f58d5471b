"""A log's manifest or origin is gone from main storage, and nodes come in with empty disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate, until, values
from test_tier_cluster import STORAGE, TIER, TIERED, gone, write

from cordwood.client.store import Store
from cordwood.errors import Corrupt
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.layout.object_names import head_name, origin_name
from cordwood.lsn import OLDEST
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.stored_tree import StoredTree
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log
from cordwood.tier.uploader import Item, LogUploader

Mend = Callable[[ClusterAtHand, Store], Awaitable[None]]


async def repair(cluster: ClusterAtHand, store: Store) -> None:
    """`cordwood tier repair 1`"""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    manifest = LogManifest(bucket, 1, host, "operator")
    await repair_log(bucket, manifest, 1, start=int(OLDEST))


async def upload(cluster: ClusterAtHand, store: Store) -> None:
    """`cordwood tier upload log`, where all is uploaded"""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    manifest = LogManifest(bucket, 1, host, "operator")
    made_us = (await store.log("log")).created_us
    uploader = LogUploader(bucket, manifest, host, 1, "/log", created_us=made_us)

    async def nothing() -> AsyncIterator[Item]:
        for item in ():
            yield item

    await uploader.run(nothing(), await uploader.next_lsn())


async def new_disk(cluster: ClusterAtHand, number: NodeId) -> None:
    """A node loses its disk, the others rebuild it, and it starts with an empty disk."""
    cluster.kill(number)
    cluster.machine(number).disk.tree = StoredTree()
    via = next(iter(cluster.running.values()))
    await via._rebuild.answer(SayRebuild(number, RebuildOrder.START))
    cluster.keep_starting(number)


async def comes_in(cluster: ClusterAtHand, number: NodeId) -> None:
    await until(lambda: number in cluster.running)


async def all_disks_are_replaced(
    cluster: ClusterAtHand, lost: Callable[[int], str], mend: Mend
) -> None:
    """Nodes came in without the log's tier point. Once no node knew it, readers were told that
    records of main storage are lost."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        written = await write(store, "log", 30)
        await asyncio.sleep(20)
        assert max(gone(cluster)) == await store.tail("log")
        cluster.bucket.delete(lost(1))
        for number in cluster.numbers:
            await new_disk(cluster, number)
            try:
                await comes_in(cluster, number)
            except TimeoutError:
                with pytest.raises(Corrupt, match=r"this node has an empty disk.*is gone"):
                    await next(iter(cluster.running.values()))._tiering.learn()
                await mend(cluster, store)
                await comes_in(cluster, number)
            await asyncio.sleep(10)
        assert await values(store, "log") == written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "mend"), [(head_name, repair), (origin_name, upload)], ids=["manifest", "origin"]
)
def test_empty_nodes_wait_for_what_says_what_main_storage_has_of_a_log(
    lost: Callable[[int], str], mend: Mend
) -> None:
    scenario = partial(all_disks_are_replaced, lost=lost, mend=mend)
    simulate(scenario, nodes=4, storage=STORAGE, tier=TIER)
    with planted(find_bug("tier-lost-head-passed")), pytest.raises(AssertionError):
        simulate(scenario, nodes=4, storage=STORAGE, tier=TIER)
