"""Readers at ranges that main storage lost: what they tell, and what nodes still give."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, until
from test_tier_cluster import KEEPS, STORAGE, TENDED, TIER, TIERED, gone, objects, write

from cordwood.block import BlockKind, Gap, GapKind, Record
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import Malformed
from cordwood.layout.object_names import OWNER, head_name
from cordwood.log_attributes import LogAttributes
from cordwood.sim.holdings import held_blocks
from cordwood.sim.links import LinkSettings
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import find_bug, planted
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log


def told(items: list[Record | Gap]) -> list[tuple[int, int]]:
    """The losses."""
    return [
        (int(item.first), int(item.last))
        for item in items
        if isinstance(item, Gap) and item.kind is GapKind.DATA_LOSS
    ]


def missed_by(
    bug: str, scenario: Callable[[ClusterAtHand], Awaitable[None]], **options: Any
) -> None:
    """A scenario holds, and does not hold with a planted bug."""
    simulate(scenario, storage=STORAGE, **options)
    with planted(find_bug(bug)), pytest.raises(AssertionError):
        simulate(scenario, storage=STORAGE, **options)


async def some(stream: ReadStream, count: int) -> list[Record | Gap]:
    """The next items of a stream."""
    items = aiter(stream)
    return [await anext(items) for _ in range(count)]


async def write_much(store: Store, seed: int = 3) -> None:
    """More than a reader fetches ahead."""
    chance = random.Random(seed)
    for _ in range(60):
        await store.append("log", chance.randbytes(400_000))
        await asyncio.sleep(0.5)


def rot_bodies(cluster: ClusterAtHand, node: int) -> None:
    """All bodies that a running node has flushed rot."""
    tables = cluster.running[node].engine.logs.tables
    assert isinstance(tables, MemoryTables)
    for table in tables._tables.values():
        table.rotten.update(key for key in table.rows if key[:1] == b"b")


async def repaired(cluster: ClusterAtHand) -> list[tuple[int, int]]:
    """The ranges of log 1 that an operator's repair calls lost. The manifest is there."""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    found = await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, accept=True)
    return list(found.holes)


async def a_loss_over_two_epochs(cluster: ClusterAtHand) -> None:
    """A node of the second epoch alone has records of it, and answers later than the others."""
    attributes = LogAttributes(
        tier=True, local_retention=5, tier_after_s=12, nodeset_size=3, sticky_copysets=False
    )
    async with cluster.client() as store:
        await store.create_log("log", attributes=attributes)
        await write(store, "log", 60)
        await asyncio.sleep(1)
        await write(store, "log", 20)
        await store.log_tree.set_attributes("log", LogAttributes(nodeset_size=5))
        await asyncio.sleep(2)
        await write(store, "log", 120)
        await asyncio.sleep(60)
        tail = await store.tail("log")
    lost = next(name for name in objects(cluster) if f"{1 << 32 | 61:016x}-" in name)
    held = await held_blocks(cluster.running[1].engine, 1)
    cluster.bucket.delete(lost)
    ((first, last),) = await repaired(cluster)
    assert (first >> 32, last >> 32) == (1, 2)
    here = [b.header.first for b in held if first <= b.header.first <= last]
    assert here
    assert here[0] >> 32 == 2
    async with cluster.client() as store:
        await store.tail("log")
        await asyncio.sleep(1)
        late = LinkSettings(delay_min_s=0.1, slow_chance=0, split_chance=0)
        name = f"client-{next(cluster._names) - 1}"
        cluster.simulation.network.links.change(["node-1"], [name], late)
        items = await read_all(store, "log", until=tail)
    losses = told(items)
    assert losses
    assert [lsn for lsn in here if any(a <= lsn <= b for a, b in losses)] == []


@pytest.mark.slow
def test_a_loss_ends_with_its_epoch() -> None:
    def run() -> None:
        simulate(
            a_loss_over_two_epochs, nodes=5, copies=2, storage=STORAGE, tier=TIER, seed=1,
            storages={1: KEEPS},
        )  # fmt: skip

    run()
    with planted(find_bug("tier-loss-over-epochs")), pytest.raises(AssertionError):
        run()


def test_a_client_that_knows_an_older_epoch_gets_a_loss() -> None:
    """It waited for ever: nodes of an epoch that it does not know prove nothing."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as old, cluster.client() as writer:
            await old.create_log("log", attributes=TIERED)
            await write(writer, "log", 20)
            assert len(await read_all(old, "log", until=await old.tail("log"))) >= 20
            cluster.kill(first := cluster.sequencer_of(1))
            await asyncio.sleep(3)
            await cluster.start(first)
            await write(writer, "log", 60)
            await asyncio.sleep(30)
            tail = await writer.tail("log")
            assert tail.epoch == 2
            cluster.bucket.delete(objects(cluster)[-3])
            ((first_lost, last_lost),) = await repaired(cluster)
            async with asyncio.timeout(60):
                items = [item async for item in await old.read("log", first_lost - 3, until=tail)]
            assert told(items) == [(first_lost, last_lost)]

    simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)


def test_the_maker_of_a_log_gets_the_loss_of_all_of_it() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 60)
            await asyncio.sleep(20)
            upto = max(gone(cluster))
            for name in list(cluster.bucket.names()):
                if name != OWNER:
                    cluster.bucket.delete(name)
            manifest = LogManifest(bucket, 1, host, "operator")
            await repair_log(bucket, manifest, 1, start=1 << 32 | 1, end=upto, accept=True)
            async with asyncio.timeout(60):
                items = await read_all(store, "log", until=upto)
            assert told(items) == [(1 << 32 | 1, upto)]

    simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)


@pytest.mark.slow
def test_a_reader_that_waits_at_a_loss_sees_that_it_was_taken_back() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as reader:
            await store.create_log("log", attributes=TIERED)
            await write(store, "log", 60)
            await asyncio.sleep(30)
            tail = await store.tail("log")
            name = objects(cluster)[-3]
            content = cluster.bucket.content(name)
            cluster.bucket.delete(name)
            assert await repaired(cluster)
            away = [number for number in cluster.running if number != cluster.sequencer_of(1)]
            for number in away:
                cluster.kill(number)
            await asyncio.sleep(1)
            reading = asyncio.create_task(read_all(reader, "log", until=tail))
            await asyncio.sleep(40)
            assert not reading.done()
            cluster.bucket.put(name, content, lambda etag: True)
            assert await repaired(cluster) == []
            await asyncio.sleep(15)
            await cluster.start(*away)
            async with asyncio.timeout(60):
                items = await reading
            assert told(items) == []
            assert len([item for item in items if isinstance(item, Record)]) == 60

    simulate(scenario, nodes=3, copies=2, storage=STORAGE, tier=TIER)


class TestObjectsThatAreMissing:
    @pytest.mark.slow
    def test_a_reader_whose_nodes_all_restarted_gets_the_error(self) -> None:
        """It stood for good: it counted on no node, and no node's answer was taken."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store, cluster.client() as reader:
                await store.create_log("log", attributes=TIERED)
                await write(store, "log", 60)
                await asyncio.sleep(30)
                cluster.bucket.delete(objects(cluster)[-2])
                stream = await reader.read("log", until=min(gone(cluster)))
                await some(stream, 3)
                for number in sorted(cluster.running):
                    await cluster.stop(number)
                    await asyncio.sleep(2)
                    await cluster.start(number)
                    await asyncio.sleep(15)
                async with asyncio.timeout(30):
                    with pytest.raises(Malformed, match="there is no object"):
                        await some(stream, 60)

        simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)

    @pytest.mark.slow
    def test_a_reader_without_nodes_goes_on_when_the_object_is_put_back(self) -> None:
        async def scenario(cluster: ClusterAtHand) -> None:
            attributes = LogAttributes(tier=True, local_retention=5, tier_after_s=1, nodeset_size=3)
            async with cluster.client() as store:
                await store.create_log("log", attributes=attributes)
                await write(store, "log", 60)
                await asyncio.sleep(30)
                stream = await store.read("log")
                old = [int(node) for node in stream.info.nodes_of(1)]
                stream.close()
                for number in old:
                    await store.set_storage(number, read_only=True)
                await asyncio.sleep(5)
                await write(store, "log", 20)
                tail = await store.tail("log")
                await asyncio.sleep(40)
                for number in old:
                    await cluster.stop(number)
                await asyncio.sleep(20)
            name = next(name for name in objects(cluster) if f"{1 << 32 | 21:016x}-" in name)
            content = cluster.bucket.content(name)
            cluster.bucket.delete(name)
            async with cluster.client() as store:
                await store.tail("log")
                reading = asyncio.create_task(read_all(store, "log", until=tail))
                await asyncio.sleep(60)
                assert not reading.done()
                cluster.bucket.put(name, content, lambda etag: True)
                async with asyncio.timeout(30):
                    items = await reading
                assert len([item for item in items if isinstance(item, Record)]) == 80

        simulate(scenario, nodes=6, copies=2, storage=STORAGE, tier=TIER)


async def a_loss_taken_back_before_the_reader_comes_to_it(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, cluster.client() as reader:
        await store.create_log("log", attributes=TIERED)
        await write(store, "log", 100)
        await asyncio.sleep(30)
        tail = await store.tail("log")
        name = objects(cluster)[-3]
        content = cluster.bucket.content(name)
        cluster.bucket.delete(name)
        assert await repaired(cluster)
        stream = await reader.read("log", until=tail)
        items = await some(stream, 3)
        await asyncio.sleep(5)
        cluster.bucket.put(name, content, lambda etag: True)
        assert await repaired(cluster) == []
        await asyncio.sleep(600)
        items += [item async for item in stream]
        assert told(items) == []
        assert len([item for item in items if isinstance(item, Record)]) == 100


@pytest.mark.slow
def test_a_loss_that_waited_behind_records_is_looked_up_again() -> None:
    missed_by(
        "tier-tells-old-losses", a_loss_taken_back_before_the_reader_comes_to_it,
        nodes=3, tier=TIER,
    )  # fmt: skip


async def records_before_the_start(cluster: ClusterAtHand) -> None:
    """A repair was told too late a beginning, and a node keeps records before it."""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, "log", 60)
        await asyncio.sleep(30)
        tail = await store.tail("log")
    start = int(tail) - 10
    cluster.bucket.delete(head_name(1))
    manifest = LogManifest(bucket, 1, host, "operator")
    await repair_log(bucket, manifest, 1, start=start, accept=True)
    await asyncio.sleep(30)
    held = await held_blocks(cluster.running[1].engine, 1)
    kept = {block.header.first for block in held if block.header.kind is BlockKind.DATA}
    assert min(kept) < start
    async with cluster.client() as store:
        async with asyncio.timeout(60):
            items = await read_all(store, "log", until=tail)
    given = {int(item.lsn) for item in items if isinstance(item, Record)}
    assert kept - given == set()


@pytest.mark.slow
def test_nodes_are_asked_for_records_before_the_manifests_start() -> None:
    missed_by(
        "tier-tells-the-start", records_before_the_start,
        nodes=3, tier=TIER, storages={1: KEEPS}, seed=1,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("single", [True, False])
def test_a_trim_that_objects_show_first_is_told_at_once(single: bool) -> None:
    """The nodes know it, and the reader, which is amid objects, has not heard of it."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client(scd_enabled=single) as reader:
            await store.create_log("log", attributes=TIERED)
            await write_much(store)
            await asyncio.sleep(40)
            end = max(gone(cluster))
            stream = await reader.read("log", until=end)
            items = await some(stream, 3)
            await asyncio.sleep(20)
            trim = end - 5
            await store.trim("log", trim)
            await until(lambda: len(objects(cluster)) < 3, timeout_s=200)
            cluster.kill(next(iter(set(cluster.running) - {cluster.sequencer_of(1)})))
            await asyncio.sleep(5)
            clock = asyncio.get_running_loop().time
            began = clock()
            async with asyncio.timeout(60):
                items += [item async for item in stream]
            gaps = [item for item in items if isinstance(item, Gap)]
            assert [(gap.last, gap.kind) for gap in gaps] == [(trim, GapKind.TRIM)]
            assert clock() - began < 1

    simulate(scenario, nodes=3, copies=2, storage=STORAGE, tier=TENDED)


async def rotten_copies_where_main_storage_lost(cluster: ClusterAtHand) -> None:
    """The other node with copies is away for longer than the grace period."""
    attributes = LogAttributes(tier=True, local_retention=5, tier_after_s=1, sticky_copysets=False)
    async with cluster.client() as store, cluster.client() as reader:
        await store.create_log("log", attributes=attributes)
        await write(store, "log", 60)
        await asyncio.sleep(30)
        tail = await store.tail("log")
        firsts = [
            {block.header.first for block in await held_blocks(cluster.running[number].engine, 1)}
            for number in (1, 2)
        ]
        cluster.bucket.delete(objects(cluster)[4])
        ((first, last),) = await repaired(cluster)
        both = {lsn for lsn in firsts[0] & firsts[1] if first <= lsn <= last}
        assert both
        cluster.kill(1)
        await asyncio.sleep(1)
        await cluster.start(1)
        await asyncio.sleep(5)
        cluster.kill(2)
        rot_bodies(cluster, 1)
        await asyncio.sleep(1)
        reading = asyncio.create_task(read_all(reader, "log", until=tail))
        await asyncio.sleep(30)
        await cluster.start(2)
        async with asyncio.timeout(300):
            items = await reading
    losses = told(items)
    assert [lsn for lsn in sorted(both) if any(a <= lsn <= b for a, b in losses)] == []


@pytest.mark.slow
def test_a_rotten_copy_is_no_proof_of_a_loss() -> None:
    missed_by(
        "tier-counts-rotten-copies", rotten_copies_where_main_storage_lost,
        nodes=3, copies=2, tier=TIER, storages={1: KEEPS, 2: KEEPS}, seed=3,
    )  # fmt: skip
