"""Main storage beside entries of logs in the metadata store that cannot be read."""

from __future__ import annotations

import asyncio
import random

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import Malformed
from cordwood.log_attributes import LogAttributes
from cordwood.metadata.log_tree import LogTree
from cordwood.metadata.memory import MemoryMetadata
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.log_manifest import LogManifest
from cordwood.uploading.tiered_logs import READ_ANEW_S

TIER = TierSettings(BUCKET, look_s=2.0, tend_s=5.0)
STORAGE = StorageSettings(flush_age_s=0.5, retention_every_s=5, deleted_keep_s=60)
LOGS = 4
UPLOADED_S = 90.0


async def put_records(cluster: ClusterAtHand) -> None:
    """Some logs, numbered from 1 on, of one record each."""
    async with cluster.client(timeout_s=30) as store:
        for n in range(1, LOGS + 1):
            await store.create_log(f"log{n}", attributes=LogAttributes(tier=True, tier_after_s=20))
            await store.append(f"log{n}", b"x")


async def ends(cluster: ClusterAtHand) -> list[int]:
    """How many LSNs each log has in main storage."""
    host = cluster.client_host()
    objects = await cluster.open_objects(host, BUCKET)
    heads = [await LogManifest(objects, log, host, "test").load() for log in range(1, LOGS + 1)]
    return [head.end - head.start if head is not None else 0 for head in heads]


async def spoil(cluster: ClusterAtHand, key: str) -> None:
    """Write an entry as a newer version may."""
    store = MemoryMetadata(random.Random(1), cluster.metadata.data)
    found = await store.get(key)
    assert found is not None
    assert await store.compare_and_set(key, b'{"newer":1}', found.version)


async def take_the_name_away(cluster: ClusterAtHand) -> None:
    store = MemoryMetadata(random.Random(1), cluster.metadata.data)
    name = await store.get("logs/log1")
    assert name is not None
    assert await store.compare_and_set("logs/log1", None, name.version)
    await LogTree(store).note_change()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["log_ids/1", "logs/log1"])
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_one_log_that_cannot_be_read_holds_up_no_other(
    cluster: ClusterAtHand, *, key: str
) -> None:
    """Nothing of any log was uploaded, let go of or deleted any more."""
    await put_records(cluster)
    await asyncio.sleep(UPLOADED_S)
    assert await ends(cluster) == [1] * LOGS
    await spoil(cluster, key)
    async with cluster.client(timeout_s=30) as store:
        await store.append("log2", b"y")
        await store.log_tree.delete("log3")
    await asyncio.sleep(UPLOADED_S + STORAGE.deleted_keep_s)
    assert await ends(cluster) == [1, 2, 0, 1], "the log that cannot be read was not deleted"


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_a_log_without_a_name_keeps_its_objects(cluster: ClusterAtHand) -> None:
    """An operator's hand in the metadata store took the name away. The log's entry says that it was
    not deleted, and nodes kept its records; its objects in main storage were gone a day later."""
    await put_records(cluster)
    await asyncio.sleep(UPLOADED_S)
    await take_the_name_away(cluster)
    await asyncio.sleep(UPLOADED_S + STORAGE.deleted_keep_s)
    assert await ends(cluster) == [1] * LOGS


async def donors_and_empty_nodes_ask(cluster: ClusterAtHand) -> None:
    """They took the log for deleted. A donor left its records to nodes that had let go of them, and
    an empty node reported them as never stored."""
    await put_records(cluster)
    await asyncio.sleep(UPLOADED_S)
    await take_the_name_away(cluster)
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    head = await LogManifest(bucket, 1, host, "look").load()
    assert head is not None
    lost = (head.end - 1, head.end - 1)
    for name in cluster.bucket.names():
        if name.endswith(".parquet"):
            cluster.bucket.delete(name)
    node = cluster.running[1]
    assert [*await node._tiering.drops.lacks(1, *lost)] == [lost]
    node.engine.cache.log(1).tier = 0
    await node._tiering.learn()
    assert node.engine.gone_of(1) == head.end - 1


@pytest.mark.slow
def test_a_log_without_a_name_is_not_deleted() -> None:
    simulate(donors_and_empty_nodes_ask, nodes=4, tier=TIER, storage=STORAGE)
    with planted(find_bug("tier-nameless-is-deleted")), pytest.raises(AssertionError):
        simulate(donors_and_empty_nodes_ask, nodes=4, tier=TIER, storage=STORAGE)


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_a_deleted_log_that_cannot_be_read_keeps_no_other_deleted_log(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await asyncio.sleep(UPLOADED_S)
    async with cluster.client(timeout_s=30) as store:
        await store.log_tree.delete("log1")
        await asyncio.sleep(TIER.tend_s * 2)  # it is missing in the tree from here on
        await spoil(cluster, "log_ids/1")
        await store.log_tree.delete("log3")
    await asyncio.sleep(READ_ANEW_S)
    assert await ends(cluster) == [1, 1, 0, 1]


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_a_node_with_an_empty_disk_does_not_guess_what_main_storage_has_of_it(
    cluster: ClusterAtHand,
) -> None:
    """It would report the records that all nodes let go of as lost."""
    await put_records(cluster)
    await asyncio.sleep(UPLOADED_S)
    await spoil(cluster, "log_ids/1")
    await asyncio.sleep(READ_ANEW_S)
    drops = cluster.running[1]._tiering.drops
    with pytest.raises(Malformed, match="the entry of log 1 in the metadata store cannot be read"):
        await drops.learn()
