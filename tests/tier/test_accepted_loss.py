"""Ranges that a repair of a manifest called lost, and what nodes do about them afterwards."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, values
from test_tier_cluster import STORAGE, TENDED, TIER, TIERED, gone, objects, write

from cordwood.block import BlockKind, Record
from cordwood.errors import CordwoodError
from cordwood.layout.object_names import head_name
from cordwood.log_attributes import LogAttributes
from cordwood.sim.holdings import held_blocks
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


@pytest.mark.slow
def test_a_loss_that_reaches_past_the_tail_loses_nothing_and_is_taken_back() -> None:
    simulate(a_loss_that_reaches_past_the_tail, nodes=3, storage=STORAGE, tier=TIER)
    with planted(find_bug("tier-point-of-losses")), pytest.raises(AssertionError):
        simulate(a_loss_that_reaches_past_the_tail, nodes=3, storage=STORAGE, tier=TIER)


@pytest.mark.slow
def test_retention_keeps_young_records_of_a_range_that_main_storage_lost() -> None:
    scenario = retention_of_a_range_that_main_storage_lost
    simulate(scenario, nodes=3, storage=STORAGE, tier=TENDED)
    with planted(find_bug("tier-dates-losses")), pytest.raises(AssertionError):
        simulate(scenario, nodes=3, storage=STORAGE, tier=TENDED)


async def a_start_that_is_too_high(cluster: ClusterAtHand) -> None:
    """An operator gave a beginning to the repair of a lost manifest that the log does not have."""
    kept = LogAttributes(local_retention=30).over(TIERED)
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    async with cluster.client() as store:
        await store.create_log("log", attributes=kept)
        written = await write(store, "log", 40)
        await asyncio.sleep(3)
        start = int(await store.tail("log")) - 10
        cluster.bucket.delete(head_name(1))
        manifest = LogManifest(bucket, 1, host, "operator")
        await repair_log(bucket, manifest, 1, start=start, accept=True)
        await asyncio.sleep(60)
        assert await values(store, "log") == written
        await store.trim("log", start - 1)
        await asyncio.sleep(60)
        assert min(gone(cluster)) >= start
        assert await values(store, "log") == written[-11:]


@pytest.mark.slow
def test_nodes_keep_what_a_repair_calls_trimmed() -> None:
    simulate(a_start_that_is_too_high, nodes=3, storage=STORAGE, tier=TENDED)
    with planted(find_bug("tier-believes-the-start")), pytest.raises(AssertionError):
        simulate(a_start_that_is_too_high, nodes=3, storage=STORAGE, tier=TENDED)


async def a_node_that_was_away_when_the_log_was_trimmed(cluster: ClusterAtHand) -> None:
    kept = LogAttributes(local_retention=30).over(TIERED)
    async with cluster.client() as store:
        await store.create_log("log", attributes=kept)
        written = await write(store, "log", 40)
        await asyncio.sleep(3)
        holders = [n for n, node in cluster.running.items() if await held_blocks(node.engine, 1)]
        # Not the sequencer: the trim is within its epoch.
        away = next(n for n in reversed(holders) if n != cluster.sequencer_of(1))
        await cluster.stop(away)
        await asyncio.sleep(5)
        trim = int(await store.tail("log")) - 10
        await store.trim("log", trim)
        await asyncio.sleep(10)
        await cluster.start(away)
        assert cluster.running[away].engine.trim_of(1) < trim
        await asyncio.sleep(60)
        assert cluster.running[away].engine.trim_of(1) < trim, "it asked, and took no trim"
        assert cluster.running[away].engine.gone_of(1) > trim
        assert await values(store, "log") == written[-10:]


@pytest.mark.slow
def test_a_node_that_missed_a_trim_asks_for_it() -> None:
    scenario = a_node_that_was_away_when_the_log_was_trimmed
    simulate(scenario, nodes=6, storage=STORAGE, tier=TENDED)


async def copies_that_do_not_count_stand_first(cluster: ClusterAtHand) -> None:
    """A node has the end of an epoch that was recovered without it, and records of the next
    epoch. Main storage lost both ranges."""
    attributes = LogAttributes(tier=True, local_retention=60, tier_after_s=5, sticky_copysets=False)
    async with cluster.client() as store:
        await store.create_log("log", attributes=attributes)
        await store.append("log", b"x")
        await write(store, "log", 40)
        await asyncio.sleep(15)
        first = cluster.sequencer_of(1)
        alone = next(number for number in cluster.running if number != first)
        here = [f"node-{number}" for number in (first, alone)]
        others = [f"node-{number}" for number in cluster.running if number not in (first, alone)]
        network = cluster.simulation.network
        network.partition(here, others)
    async with cluster.client(timeout_s=5.0) as inside:
        refused = [inside.append("log", b"%d " % number + bytes(400)) for number in range(4)]
        ended = await asyncio.gather(*refused, return_exceptions=True)
        assert all(isinstance(each, Exception) for each in ended)
    await asyncio.sleep(4)
    cluster.kill(first)
    clients = [f"client-{number}" for number in range(1, 40)]
    network.partition([f"node-{alone}"], clients)
    await asyncio.sleep(2)
    async with cluster.client() as store:
        async with asyncio.timeout(120):
            while True:
                with contextlib.suppress(CordwoodError):
                    await store.tail("log")
                    break
                await asyncio.sleep(5)
        await asyncio.sleep(5)
        network.mend(here, others)
        network.mend([f"node-{alone}"], clients)
        await cluster.start(first)
        await asyncio.sleep(8)
        await write(store, "log", 60, 0.05)
        await asyncio.sleep(15)
        await write(store, "log", 20)
        await asyncio.sleep(12)
        held = {number: await lsns(cluster, number) for number in cluster.running}
        await store.log_tree.set_attributes("log", LogAttributes(tier=False))
        await asyncio.sleep(3)
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        manifest = LogManifest(bucket, 1, host, "operator")
        await manifest.load()
        lost = next(each for each in await manifest.entries(0) if each.last >> 32 > 1)
        cluster.bucket.delete(lost.name)
        cluster.bucket.delete(head_name(1))
        found = await repair_log(bucket, manifest, 1, accept=True)
        ((low, high),) = found.holes
        looks = [
            await node.engine.reader.read(1, low, high, bytes_max=1 << 20, blocks_max=1)
            for node in cluster.running.values()
        ]
        assert any(not look.blocks and look.next <= high for look in looks)
        await asyncio.sleep(150)
        await store.log_tree.set_attributes("log", LogAttributes(tier=True))
        await asyncio.sleep(200)
    for number, before in held.items():
        wanted = {lsn for lsn in before if low <= lsn <= high}
        assert wanted <= await lsns(cluster, number)


async def lsns(cluster: ClusterAtHand, number: int) -> set[int]:
    """The first LSNs of the blocks with records that a node has of log 1."""
    held = await held_blocks(cluster.running[number].engine, 1)
    return {block.header.first for block in held if block.header.kind is BlockKind.DATA}


@pytest.mark.slow
def test_nodes_keep_lost_records_behind_copies_that_do_not_count() -> None:
    def run() -> None:
        simulate(
            copies_that_do_not_count_stand_first, nodes=5, copies=3, storage=STORAGE, tier=TIER,
            seed=4,
        )  # fmt: skip

    run()
    with planted(find_bug("tier-looks-at-one-copy")), pytest.raises(AssertionError):
        run()
