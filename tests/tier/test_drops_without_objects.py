"""Objects that main storage lost while nodes still have their records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate, values
from test_tier_cluster import STORAGE, TIER, gone, objects, write

from cordwood.layout.manifest import unpack_head
from cordwood.layout.object_names import head_name, parse_object_name
from cordwood.log_attributes import LogAttributes
from cordwood.sim.holdings import held_blocks
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.engine import StorageEngine
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log
from cordwood.tiered import Entry
from cordwood.uploading.local_drops import LocalDrops

KEPT = LogAttributes(tier=True, local_retention=60, tier_after_s=1)
BRIEFLY_KEPT = LogAttributes(tier=True, local_retention=25, tier_after_s=1)


async def an_object_that_the_store_lost(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=KEPT)
        written = await write(store, "log", 20, 0.5)
        await asyncio.sleep(10)
        assert max(gone(cluster)) == 0
        assert len(objects(cluster)) > 4
        name = objects(cluster)[2]
        content = cluster.bucket.content(name)
        cluster.bucket.delete(name)
        await asyncio.sleep(150)
        let_go = max(gone(cluster))
        assert 0 < let_go < await store.tail("log"), "what is before the lost object goes"
        assert await values(store, "log") == written
        cluster.bucket.put(name, content, lambda etag: True)
        await asyncio.sleep(30)
        assert min(gone(cluster)) > let_go
        assert await values(store, "log") == written


@pytest.mark.slow
def test_nodes_keep_records_whose_object_is_gone() -> None:
    scenario = an_object_that_the_store_lost
    simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
    with (
        planted(find_bug("tier-drops-without-an-object")),
        pytest.raises((AssertionError, TimeoutError)),
    ):
        simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)


async def a_disk_that_stands_still(cluster: ClusterAtHand, patch: pytest.MonkeyPatch) -> None:
    """A node's disk stands still as the node writes a tier record, for longer than a write
    waits."""
    begun = asyncio.Event()
    stalled: list[tuple[StorageEngine, int]] = []
    right = StorageEngine.tier

    async def tier(engine: StorageEngine, log: int, lsn: int, released: int) -> int:
        if not stalled:
            stalled.append((engine, lsn))
            begun.set()
            node = next(each for each, run in cluster.running.items() if run.engine is engine)
            cluster.machine(node).disk.stall(25)
        return await right(engine, log, lsn, released)

    patch.setattr(StorageEngine, "tier", tier)
    async with cluster.client() as store:
        await store.create_log("log", attributes=KEPT)
        await write(store, "log", 20, 0.5)
        await begun.wait()
        [(engine, lsn)] = stalled
        held = engine.cache.log(1)
        while held.tier < lsn:
            assert held.letting_go >= lsn, "the record may come into force yet"
            await asyncio.sleep(0.1)
        await asyncio.sleep(60)
        assert held.letting_go == 0, "copies are taken again"


def test_a_tier_record_without_an_answer_still_keeps_copies_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def play() -> None:
        with monkeypatch.context() as patch:
            scenario = partial(a_disk_that_stands_still, patch=patch)
            simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)

    play()
    with (
        planted(find_bug("tier-drops-unsettled")),
        pytest.raises(AssertionError, match="into force"),
    ):
        play()


async def accepts_the_loss(cluster: ClusterAtHand, older: bytes, start: int) -> None:
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    found = await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, accept=True)
    assert len(found.holes) == 1


async def says_a_late_start(cluster: ClusterAtHand, older: bytes, start: int) -> None:
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    manifest = LogManifest(bucket, 1, host, "operator")
    assert (await repair_log(bucket, manifest, 1, start=start)).holes == ()


async def loses_the_head(cluster: ClusterAtHand, older: bytes, start: int) -> None:
    cluster.bucket.delete(head_name(1))


async def puts_an_older_head_back(cluster: ClusterAtHand, older: bytes, start: int) -> None:
    cluster.bucket.put(head_name(1), older, lambda etag: True)


Deed = Callable[[ClusterAtHand, bytes, int], Awaitable[None]]

DEEDS = (accepts_the_loss, says_a_late_start, loses_the_head, puts_an_older_head_back)


async def heads_change_meanwhile(
    cluster: ClusterAtHand, deed: Deed, patch: pytest.MonkeyPatch
) -> None:
    """Main storage loses an object. While a node decides whether to let go of its records, the head
    changes."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=BRIEFLY_KEPT)
        await write(store, "log", 3, 0.5)
        await asyncio.sleep(5)
        older = cluster.bucket.content(head_name(1))
        await write(store, "log", 12, 0.5)
        await asyncio.sleep(5)
        assert max(gone(cluster)) == 0
    lost = objects(cluster)[3]
    name = parse_object_name(lost)
    assert unpack_head(older).end <= name.first, "the older head does not name it"
    cluster.bucket.delete(lost)
    done: list[LocalDrops] = []
    right = LocalDrops._missing

    async def before_objects_are_asked_for(
        self: LocalDrops, manifest: LogManifest, gone: int, through: int
    ) -> Entry | None:
        if not done and through >= name.last:
            done.append(self)
            await deed(cluster, older, name.last + 1)
        return await right(self, manifest, gone, through)

    patch.setattr(LocalDrops, "_missing", before_objects_are_asked_for)
    await asyncio.sleep(40)
    assert done
    for number, node in cluster.running.items():
        held = [block.header.first for block in await held_blocks(node.engine, 1)]
        here = [lsn for lsn in held if name.first <= lsn <= name.last]
        assert here, f"node {number} dropped what main storage lost"


@pytest.mark.slow
@pytest.mark.parametrize("deed", DEEDS)
def test_a_drop_is_decided_by_one_head(deed: Deed, monkeypatch: pytest.MonkeyPatch) -> None:
    def play() -> None:
        with monkeypatch.context() as patch:
            scenario = partial(heads_change_meanwhile, deed=deed, patch=patch)
            simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)

    play()
    with planted(find_bug("tier-drops-by-two-heads")), pytest.raises(AssertionError):
        play()
