"""The copies that nodes keep of a range that main storage lost, while other nodes let go of it."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, until
from rebuild_scene import order
from test_repairs import ranges, rot

from cordwood.block import Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.layout.object_names import head_name
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.holdings import held_blocks, is_set_aside
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log

TIERED = LogAttributes(tier=True, local_retention=60, tier_after_s=1)
STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
TIER = TierSettings(BUCKET, look_s=1.0)


def losses(items: list[Record | Gap]) -> list[Gap]:
    """The losses that a reader was told."""
    return [each for each in items if isinstance(each, Gap) and each.kind is GapKind.DATA_LOSS]


async def holders(cluster: ClusterAtHand, first: int, last: int) -> dict[NodeId, list[int]]:
    """The nodes that hold copies in a range, and where these begin."""
    found = {}
    for number, node in sorted(cluster.running.items()):
        blocks = await held_blocks(node.engine, 1)
        here = [b.header.first for b in blocks if not is_set_aside(b)]
        found[number] = [lsn for lsn in here if first <= lsn <= last]
    return {number: here for number, here in found.items() if here}


async def write(store: Store, count: int) -> None:
    """Append records for some seconds."""
    for number in range(count):
        await store.append("log", b"log %d " % number + bytes(400))
        await asyncio.sleep(0.2)


async def lost_and_let_go(cluster: ClusterAtHand) -> tuple[int, int]:
    """A log whose second object is lost. All nodes without copies of it let go of what follows."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 40)
        await store.log_tree.set_attributes("log", LogAttributes(sticky_copysets=False))
        old = cluster.sequencer_of(1)
        cluster.kill(old)
        await asyncio.sleep(3)
        await cluster.start(old)
        await write(store, 60)
        await asyncio.sleep(10)
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    cluster.bucket.delete(names[1])
    cluster.bucket.delete(head_name(1))
    manifest = LogManifest(bucket, 1, host, "operator")
    ((first, last),) = (await repair_log(bucket, manifest, 1, accept=True)).holes
    held = await holders(cluster, first, last)
    assert held
    await asyncio.sleep(150)
    assert await holders(cluster, first, last) == held
    gone = {number: node.engine.gone_of(1) for number, node in cluster.running.items()}
    assert all((number in held) == (at < last) for number, at in gone.items()), (gone, held)
    return first, last


async def a_holder_is_drained(cluster: ClusterAtHand) -> None:
    """No other node can take its copies, so it is not called empty before the log is trimmed."""
    first, last = await lost_and_let_go(cluster)
    held = await holders(cluster, first, last)
    leaving, *others = held
    await order(cluster, leaving, RebuildOrder.DRAIN)
    await asyncio.sleep(40)

    def entry():
        return cluster.running[others[0]]._rebuild.set.entry(leaving)

    assert entry() is not None
    assert not entry().is_empty
    assert await holders(cluster, first, last) == held
    donors = (node._rebuild._donor.state().blocked for node in cluster.running.values())
    assert any("main storage lost" in blocked for blocked in donors)
    async with cluster.client() as store:
        tail = await store.tail("log")
        assert losses(await read_all(store, "log", until=tail)) == []
        await store.trim("log", last)
    await until(lambda: entry().is_empty)


def test_a_drained_node_keeps_the_copies_that_main_storage_lost() -> None:
    """The other nodes acknowledged new copies, and kept none."""

    def run() -> None:
        simulate(a_holder_is_drained, nodes=6, copies=2, storage=STORAGE, tier=TIER, seed=1)

    run()
    with planted(find_bug("rebuild-believes-let-go")), pytest.raises(AssertionError):
        run()


async def a_copy_rots(cluster: ClusterAtHand) -> None:
    """One of two nodes that hold the range finds its copies rotten."""
    first, last = await lost_and_let_go(cluster)
    rotten = min(await holders(cluster, first, last))
    cluster.kill(rotten)
    await asyncio.sleep(1)
    await cluster.start(rotten)
    await asyncio.sleep(3)
    assert rot(cluster, rotten, 1, most=1000)
    async with cluster.client(scd_enabled=False) as store:
        assert losses(await read_all(store, "log", until=await store.tail("log"))) == []
    await asyncio.sleep(60)
    damaged = [(each.first, each.last) for each in ranges(cluster, rotten)]
    assert [each for each in damaged if first <= each[1] and each[0] <= last] == []


@pytest.mark.slow
def test_a_rotten_copy_that_main_storage_lost_is_mended() -> None:
    """It stayed rotten, because other nodes let go of its place."""

    def run() -> None:
        simulate(a_copy_rots, nodes=5, copies=2, storage=STORAGE, tier=TIER, seed=2)

    run()
    with planted(find_bug("repair-takes-let-go-for-trim")), pytest.raises(AssertionError):
        run()
