"""Main storage while the first node cannot reach it, or is cut off from the metadata store."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import AccessDenied, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.object_names import LEDGERS, head_name
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


async def cannot_reach_it(host: Host, address: str, **_: object) -> ObjectStore:
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


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_another_node_uploads_for_a_node_that_does_not_reach_main_storage(
    cluster: ClusterAtHand,
) -> None:
    """Each log waited for its first node, for ever, while all other nodes reached main storage."""
    await start_without_main_storage(cluster, 1)
    await put_records(cluster)
    await asyncio.sleep(ROUND_S + READ_ANEW_S)
    assert await ends(cluster) == [1] * LOGS


@pytest.mark.slow
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


@pytest.mark.slow
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


LEDGERS_MADE = 3


async def closed_ledgers(cluster: ClusterAtHand) -> list[int]:
    """Ledgers that ask for main storage and are closed."""
    made = []
    async with cluster.client(timeout_s=30) as store:
        for _ in range(LEDGERS_MADE):
            ledger = await store.ledgers.create(ensemble=3, write=3, ack=2, tier=True)
            await ledger.append(b"x")
            await ledger.close()
            made.append(ledger.ledger_id)
    return made


async def leave_main_storage_to_node_4(cluster: ClusterAtHand) -> None:
    """Nodes 1 to 3 do not reach it. Each node has its own way to the metadata store: with one way
    for all, a lease of one node would be a lease of all of them."""
    right = cluster.open_objects
    for number in cluster.numbers:
        cluster.open_objects = right if number == 4 else cannot_reach_it
        await cluster.start_with_own_way(number)
    cluster.open_objects = right


async def tiered(cluster: ClusterAtHand, ledgers: list[int]) -> list[bool]:
    """Which ledgers are committed in main storage."""
    async with cluster.client(timeout_s=30) as store:
        return [(await store.ledgers.metadata(ledger)).is_tiered for ledger in ledgers]


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_the_only_node_that_reaches_main_storage_uploads_ledgers_for_the_others(
    cluster: ClusterAtHand,
) -> None:
    """One node held the lease on this work for ever, and no other node could do it."""
    await leave_main_storage_to_node_4(cluster)
    made = await closed_ledgers(cluster)
    await asyncio.sleep(3 * ROUND_S)
    assert await tiered(cluster, made) == [True] * LEDGERS_MADE


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=TIER, storage=STORAGE)
async def test_another_node_uploads_ledgers_for_a_node_that_is_cut_off_from_the_metadata_store(
    cluster: ClusterAtHand,
) -> None:
    own = await cluster.start_with_own_way(1)
    made = await closed_ledgers(cluster)
    own.is_out = True
    await asyncio.sleep(ROUND_S)
    assert await tiered(cluster, made) == [True] * LEDGERS_MADE


QUICK = TierSettings(BUCKET, look_s=2.0, tend_s=5.0, grace_s=20.0)


@pytest.mark.slow
@as_scenario(simulate, nodes=4, tier=QUICK, storage=STORAGE)
async def test_a_deleted_ledger_goes_if_one_node_alone_reaches_main_storage(
    cluster: ClusterAtHand,
) -> None:
    """One node held the lease on this work for ever, and no other node could do it."""
    made = await closed_ledgers(cluster)
    await asyncio.sleep(ROUND_S)
    assert await tiered(cluster, made) == [True] * LEDGERS_MADE
    await leave_main_storage_to_node_4(cluster)
    async with cluster.client(timeout_s=30) as store:
        await store.ledgers.delete(made[0])
    # It finds that the ledger is deleted, and deletes the objects after the grace.
    await asyncio.sleep(3 * ROUND_S)
    held = {
        int(name.split("/")[1], 16) for name in cluster.bucket.names() if name.startswith(LEDGERS)
    }
    assert held == set(made[1:])


async def may_not_use_it(host: Host, address: str, **_: object) -> ObjectStore:
    raise AccessDenied("this node has no right to the store")


@as_scenario(simulate, nodes=4, tier=TierSettings(BUCKET, look_s=600.0))
async def test_a_client_moves_a_ledger_if_one_node_has_no_right_to_main_storage(
    cluster: ClusterAtHand,
) -> None:
    """The client asked one node to open main storage, and gave up if that node could not."""
    right = cluster._cluster.open_objects
    for number in (1, 2, 3):
        await cluster.stop(number)
        cluster._cluster.open_objects = may_not_use_it
        await cluster.start(number)
        cluster._cluster.open_objects = right
    made = await closed_ledgers(cluster)
    async with cluster.client(timeout_s=30) as store:
        assert (await store.ledgers.tier(made[0])).metadata.is_tiered
