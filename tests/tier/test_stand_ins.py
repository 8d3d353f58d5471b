"""Main storage while a log's first node cannot reach it, or is cut off from the metadata store."""

from __future__ import annotations

import asyncio

from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import Unreachable
from cordwood.host.seams import Host
from cordwood.layout.object_names import head_name
from cordwood.log_attributes import LogAttributes
from cordwood.protocol.upload_turns import STAND_IN_EVERY, TURN_S
from cordwood.settings import StorageSettings, TierSettings
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.uploading.tiered_logs import READ_ANEW_S

TIER = TierSettings(BUCKET, look_s=2.0, tend_s=5.0)
STORAGE = StorageSettings(flush_age_s=0.5, retention_every_s=5, deleted_keep_s=60)
LOGS = 8
ROUND_S = TURN_S * STAND_IN_EVERY


async def cannot_reach_it(host: Host, address: str) -> ObjectStore:
    raise Unreachable("this node does not reach the store")


async def put_records(cluster: ClusterAtHand) -> None:
    """Some logs of one record each. Node 1 is the first node of some of them."""
    async with cluster.client(timeout_s=30) as store:
        for n in range(LOGS):
            attributes = LogAttributes(tier=True, tier_after_s=20)
            await store.create_log(f"log{n}", attributes=attributes)
            await store.append(f"log{n}", b"x")
    assert any(cluster.sequencer_of(log) == 1 for log in range(1, LOGS + 1))


async def ends(cluster: ClusterAtHand) -> list[int]:
    """How many LSNs each log has in main storage."""
    host = cluster.client_host()
    objects = await cluster.open_objects(host, BUCKET)
    heads = [await LogManifest(objects, log, host, "test").load() for log in range(1, LOGS + 1)]
    return [head.end - head.start if head is not None else 0 for head in heads]


async def start_without_main_storage(cluster: ClusterAtHand, number: int) -> None:
    right = cluster._cluster.open_objects
    await cluster.stop(number)
    cluster._cluster.open_objects = cannot_reach_it
    await cluster.start(number)
    cluster._cluster.open_objects = right


@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_another_node_uploads_for_a_node_that_does_not_reach_main_storage(
    cluster: ClusterAtHand,
) -> None:
    """Each log waited for its first node, for ever, while all other nodes reached main storage."""
    await start_without_main_storage(cluster, 1)
    await put_records(cluster)
    await asyncio.sleep(ROUND_S + READ_ANEW_S)
    assert await ends(cluster) == [1] * LOGS


@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_another_node_uploads_for_a_node_that_is_cut_off_from_the_metadata_store(
    cluster: ClusterAtHand,
) -> None:
    own = await cluster.start_with_own_way(1)
    await put_records(cluster)
    own.is_out = True
    assert await ends(cluster) == [0] * LOGS
    await asyncio.sleep(ROUND_S + READ_ANEW_S)
    assert await ends(cluster) == [1] * LOGS


@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_a_deleted_log_is_retired_if_the_first_node_does_not_reach_main_storage(
    cluster: ClusterAtHand,
) -> None:
    """The living node with the lowest number alone looked for deleted logs."""
    await put_records(cluster)
    await asyncio.sleep(60)
    assert await ends(cluster) == [1] * LOGS
    await start_without_main_storage(cluster, 1)
    async with cluster.client(timeout_s=30) as store:
        await store.log_tree.delete("log3")
    await asyncio.sleep(60 + 60)
    assert await ends(cluster) == [1, 1, 1, 0, 1, 1, 1, 1]
    assert head_name(4) in cluster.bucket.names(), "no upload of it may be committed any more"
