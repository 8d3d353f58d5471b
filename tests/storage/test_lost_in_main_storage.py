"""The copies that nodes keep of a range that main storage lost, while other nodes let go of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, until
from made_blocks import payload
from rebuild_scene import order
from swaps import swap
from test_repairs import ranges, rot

from cordwood.block import Envelope, EnvelopeFlag, Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.errors import Retryable
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.layout.object_names import head_name, parse_object_name
from cordwood.layout.waves import StoreRefusal
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.holdings import held_blocks, is_set_aside
from cordwood.sim.object_store import BucketFaults
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.engine import StorageEngine
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.repair import repair_log
from cordwood.uploading.local_drops import LocalDrops

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


async def copyset_of(cluster: ClusterAtHand, log: int) -> list[NodeId]:
    """The one copyset of all blocks of a log."""
    found: set[tuple[int, ...]] = set()
    for node in cluster.running.values():
        found |= {tuple(b.envelope.copyset) for b in await held_blocks(node.engine, log)}
    (copyset,) = found
    return [NodeId(node) for node in copyset]


async def lose_objects(cluster: ClusterAtHand, which: slice) -> tuple[int, int]:
    """Main storage loses some objects of log 1 for ever. Returns the lost range."""
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
    for name in names[which]:
        cluster.bucket.delete(name)
    manifest = LogManifest(bucket, 1, host, "operator")
    (hole,) = (await repair_log(bucket, manifest, 1, accept=True)).holes
    return hole


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


@pytest.mark.slow
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


async def a_holder_is_drained_while_others_let_go(cluster: ClusterAtHand) -> None:
    """The store is slow: nodes find that they have nothing of the range, and wait for it. Meanwhile
    the only holder of a record gives it to them, and is called empty."""
    async with cluster.client() as store:
        attributes = LogAttributes(sticky_copysets=False).over(TIERED)
        await store.create_log("log", attributes=attributes)
        for number in range(100):
            await store.append("log", b"log %d " % number + bytes(400))
            await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        tail = await store.tail("log")
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    cluster.bucket.delete(names[len(names) // 2])
    manifest = LogManifest(bucket, 1, host, "operator")
    ((first, last),) = (await repair_log(bucket, manifest, 1, accept=True)).holes
    held = await holders(cluster, first, last)
    leaving = max(held, key=lambda node: len(held[node]))
    other = next(node for node in cluster.running if node != leaving)
    cluster.bucket.faults = replace(cluster.bucket.faults, latency_s=(1.0, 1.0))
    # Nodes let go at the same time, 60 s after the last record at the earliest.
    await asyncio.sleep(68.4)
    assert max(node.engine.gone_of(1) for node in cluster.running.values()) == 0
    await order(cluster, leaving, RebuildOrder.DRAIN)

    def is_empty() -> bool:
        entry = cluster.running[other]._rebuild.set.entry(leaving)
        return entry is not None and entry.is_empty

    await until(is_empty, timeout_s=200)
    await asyncio.sleep(60)
    cluster.kill(leaving)
    await asyncio.sleep(5)
    async with cluster.client() as store:
        items = await read_all(store, "log", until=tail)
    assert losses(items) == []
    assert len([each for each in items if isinstance(each, Record)]) == 100


@pytest.mark.slow
def test_a_node_that_is_about_to_let_go_takes_no_copies() -> None:
    """It acknowledged the only copy of a record, and dropped it."""
    storage = replace(STORAGE, retention_every_s=30)

    def run() -> None:
        scenario = a_holder_is_drained_while_others_let_go
        simulate(scenario, nodes=5, copies=1, storage=storage, tier=TIER, seed=2)

    run()
    with planted(find_bug("tier-lets-go-of-new-copies")), pytest.raises(AssertionError):
        run()


async def a_holder_is_drained_after_others_looked(
    cluster: ClusterAtHand, patched: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Nodes have looked for an object, and are about to let go of its records. Main storage loses
    it, and the only holder of some of these records is drained."""
    leaving = NodeId(3)
    cluster.storages[leaving] = replace(STORAGE, retention_every_s=900)
    await cluster.stop(leaving)
    await cluster.start(leaving)
    async with cluster.client() as store:
        attributes = LogAttributes(sticky_copysets=False).over(TIERED)
        await store.create_log("log", attributes=attributes)
        await write(store, 100)
        await asyncio.sleep(5)
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
    lost = parse_object_name(names[len(names) // 2])
    held = (await holders(cluster, lost.first, lost.last))[leaving]
    looked: list[StorageEngine] = []
    right = LocalDrops._missing

    async def missing(self: LocalDrops, manifest: LogManifest, gone: int, through: int) -> Any:
        found = await right(self, manifest, gone, through)
        if through >= lost.last and self._engine not in looked:
            looked.append(self._engine)
            await asyncio.sleep(30)
            if fails:
                raise Retryable("main storage does not answer")
        return found

    swap(patched, right, missing)
    others = [node for number, node in cluster.running.items() if number != leaving]
    await until(lambda: len(looked) == len(others), timeout_s=200)
    cluster.bucket.delete(names[len(names) // 2])
    await order(cluster, leaving, RebuildOrder.DRAIN)
    donor = cluster.running[leaving]._rebuild._donor
    await asyncio.sleep(20)
    assert "refuses: let_go" in donor.state().blocked
    await asyncio.sleep(60)
    await until(lambda: not any(each.engine.cache.log(1).letting_go for each in others))
    entry = others[0]._rebuild.set.entry(leaving)
    assert entry is not None
    if fails:  # they looked again, and kept what is lost
        assert entry.is_empty
        assert all(each.engine.gone_of(1) < lost.first for each in others)
        return
    assert all(each.engine.gone_of(1) > lost.last for each in others)
    assert not entry.is_empty
    assert "main storage lost" in donor.state().blocked
    assert (await holders(cluster, lost.first, lost.last))[leaving] == held


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_node_takes_no_copies_while_it_looks_for_objects(*, fails: bool) -> None:
    """It acknowledged the only copies of records whose object was lost since, and dropped them."""
    storage = replace(STORAGE, retention_every_s=30)

    def run() -> None:
        with pytest.MonkeyPatch.context() as patched:
            simulate(
                lambda cluster: a_holder_is_drained_after_others_looked(
                    cluster, patched, fails=fails
                ),
                nodes=5, copies=1, storage=storage, tier=TIER, seed=2,
            )  # fmt: skip

    run()
    with planted(find_bug("tier-looks-before-it-notes")), pytest.raises(AssertionError):
        run()


async def leftover_copies(cluster: ClusterAtHand) -> tuple[NodeId, set[int], str, list[NodeId]]:
    """A drained node dies between a new copy and its note, and its drain is called off. Returns the
    node that took copies, where these begin, an object with them, and the copyset that has them."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 100)
        await asyncio.sleep(5)
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
    name = names[len(names) // 2]
    there = parse_object_name(name)
    copyset = await copyset_of(cluster, 1)
    giver, rest = copyset[0], [node for node in cluster.running if node not in copyset]
    drain = asyncio.create_task(order(cluster, giver, RebuildOrder.DRAIN, forced=True))

    def has_new(node: NodeId) -> bool:
        log = cluster.running[node].engine.cache.get(1)
        blocks = log._blocks if log is not None else ()
        return any(there.first <= block.header.first <= there.last for block in blocks)

    while not any(map(has_new, rest)):  # noqa: ASYNC110
        await asyncio.sleep(0.0002)
    cluster.kill(giver)
    await drain
    await order(cluster, giver, RebuildOrder.UNDRAIN, forced=True)
    await asyncio.sleep(1)
    await cluster.start(giver)
    await asyncio.sleep(5)
    held = await holders(cluster, there.first, there.last)
    taker = max((node for node in rest if node in held), key=lambda node: len(held[node]))
    return taker, {*held[taker]}, name, copyset


async def a_leftover_copy_is_drained(
    cluster: ClusterAtHand, patched: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """All other holders of some blocks have looked for their object, and are about to let go. Main
    storage loses it, and a copy of these blocks is left over on a node that is drained.

    Args:
        fails: main storage fails before the holders let go, and they look again.
    """
    leaving, left, name, copyset = await leftover_copies(cluster)
    cluster.storages[leaving] = replace(STORAGE, retention_every_s=900)
    await cluster.stop(leaving)
    await cluster.start(leaving)
    others = [cluster.running[node] for node in copyset]
    looked: list[StorageEngine] = []
    right = LocalDrops._missing

    async def missing(self: LocalDrops, manifest: LogManifest, gone: int, through: int) -> Any:
        found = await right(self, manifest, gone, through)
        is_other = any(self._engine is node.engine for node in others)
        if is_other and through >= max(left) and self._engine not in looked:
            looked.append(self._engine)
            await asyncio.sleep(40)
            if fails:
                raise Retryable("main storage does not answer")
        return found

    swap(patched, right, missing)
    await until(lambda: len(looked) == len(others), timeout_s=300)
    cluster.bucket.delete(name)
    await order(cluster, leaving, RebuildOrder.DRAIN, forced=True)
    role = cluster.running[leaving]._rebuild
    await asyncio.sleep(20)
    entry = role.set.entry(leaving)
    assert entry is not None
    assert not entry.is_empty
    await asyncio.sleep(60)
    here = await holders(cluster, min(left), max(left))
    entry = role.set.entry(leaving)
    assert entry is not None
    assert entry.is_empty is fails
    if fails:  # they kept what is lost
        assert all({*here[node]} >= left for node in copyset)
    else:
        assert {*here[leaving]} == left
        assert "main storage lost" in role._donor.state().blocked


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_node_that_is_about_to_let_go_is_left_no_last_copies(*, fails: bool) -> None:
    """It said that it had the blocks. A drained node set its own copies aside for that, and then
    the other node let go of them."""
    storage = replace(STORAGE, retention_every_s=30)

    def run() -> None:
        with pytest.MonkeyPatch.context() as patched:
            simulate(
                lambda cluster: a_leftover_copy_is_drained(cluster, patched, fails=fails),
                nodes=5, copies=2, storage=storage, tier=TIER, seed=2,
            )  # fmt: skip

    run()
    with planted(find_bug("rebuild-trusts-who-lets-go")), pytest.raises(AssertionError):
        run()


async def a_copy_is_on_its_way(cluster: ClusterAtHand) -> None:
    """A node takes a donor's copy, and looks for it before the WAL has it."""
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 5)
    held = await holders(cluster, 1 << 32, 2 << 32)
    lsn = min(min(each) for each in held.values())
    giver = next(node for node, lsns in held.items() if lsn in lsns)
    taker = next(n for n in sorted(cluster.running) if lsn not in held.get(n, ()))
    run = await cluster.running[giver].engine.reader.read(
        1, lsn, lsn, bytes_max=1 << 20, blocks_max=1
    )
    (block,) = run.blocks
    envelope = Envelope((taker,), block.envelope.wave + 1, 0, 0, EnvelopeFlag.REBUILT)
    copy = pack_header(block.header) + pack_envelope(envelope) + bytes(block.body)
    node, settled = cluster.running[taker], list[Sequence[StoreRefusal]]()
    assert node._tiering is not None
    node.engine.store(1, payload(copy), settled.append)
    assert not settled
    assert not await node._tiering.drops._stays_without(1, lsn, lsn)
    assert settled == [()]


def test_a_node_waits_for_copies_that_it_has_taken() -> None:
    simulate(a_copy_is_on_its_way, nodes=5, copies=1, storage=STORAGE, tier=TIER)
    with planted(find_bug("tier-lets-go-of-new-copies")), pytest.raises(AssertionError):
        simulate(a_copy_is_on_its_way, nodes=5, copies=1, storage=STORAGE, tier=TIER)


async def a_holder_is_back(cluster: ClusterAtHand, *, is_accepted: bool) -> tuple[NodeId, int]:
    """A node was down while the member before it let go of a range that main storage lost since. It
    is back, and alone has copies of it; its first local drop is 30 s away.

    Args:
        is_accepted: the manifest says that the range is lost. Otherwise it names the object.
    """
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 40)
        tail = await store.tail("log")
    blocks = await held_blocks(cluster.running[NodeId(3)].engine, 1)
    copysets = [tuple(each.envelope.copyset) for each in blocks]
    assert set(copysets) == {(6, 3)}
    await asyncio.sleep(1)
    cluster.kill(NodeId(3))
    async with cluster.client() as store:
        await write(store, 30)
    await asyncio.sleep(200)
    assert cluster.running[NodeId(6)].engine.gone_of(1)
    host = cluster.client_host()
    bucket = await cluster.open_objects(host, BUCKET)
    names = [name for name in cluster.bucket.names() if name.endswith(".parquet")]
    cluster.bucket.delete(names[1])
    if is_accepted:
        cluster.bucket.delete(head_name(1))
        await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, accept=True)
    await cluster.start(NodeId(3))
    await asyncio.sleep(0.5)
    assert cluster.running[NodeId(3)].engine.gone_of(1) == 0
    return NodeId(3), tail


@pytest.mark.slow
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_node_that_is_drained_before_its_first_local_drop_gives_what_main_storage_lost(
    *, is_accepted: bool
) -> None:
    """It took the member before it for the donor, which had nothing: the only copies were gone."""

    async def scene(cluster: ClusterAtHand) -> None:
        leaving, tail = await a_holder_is_back(cluster, is_accepted=is_accepted)
        await order(cluster, leaving, RebuildOrder.DRAIN)
        role = cluster.running[NodeId(6)]._rebuild
        await until(lambda: (entry := role.set.entry(leaving)) is not None and entry.is_empty)
        await cluster.stop(leaving)
        host = cluster.client_host()
        bucket = await cluster.open_objects(host, BUCKET)
        if not is_accepted:  # a reader wants the object back
            await repair_log(bucket, LogManifest(bucket, 1, host, "operator"), 1, accept=True)
        await asyncio.sleep(5)
        async with cluster.client() as store:
            items = await read_all(store, "log", until=tail)
        assert losses(items) == []
        assert sum(isinstance(each, Record) for each in items) == 40

    def run() -> None:
        storage = replace(STORAGE, retention_every_s=30)
        simulate(scene, nodes=6, copies=2, storage=storage, tier=TIER, seed=1)

    run()
    if is_accepted:
        with planted(find_bug("rebuild-trusts-the-first")), pytest.raises(AssertionError):
            run()


@pytest.mark.slow
def test_a_drain_waits_for_main_storage_that_does_not_answer_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The member before the drained node let go: only main storage knows whether it has that."""

    async def scene(cluster: ClusterAtHand) -> None:
        leaving, _ = await a_holder_is_back(cluster, is_accepted=True)
        cluster.bucket.faults = BucketFaults(latency_s=(1000.0, 1000.0))
        await order(cluster, leaving, RebuildOrder.DRAIN)
        role = cluster.running[leaving]._rebuild
        await asyncio.sleep(200)
        assert "rebuilding waits: log 1: main storage does not say what it has" in caplog.text
        assert not role.set.entry(leaving).is_empty
        cluster.bucket.faults = BucketFaults()
        await until(lambda: role.set.entry(leaving).is_empty, timeout_s=200)

    storage = replace(STORAGE, retention_every_s=30)
    simulate(scene, nodes=6, copies=2, storage=storage, tier=TIER, seed=1)


@pytest.mark.slow
def test_main_storage_that_does_not_answer_holds_up_no_drain() -> None:
    """Nodes refused copies during passes of minutes that had no answer, one after the other."""

    async def scene(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            attributes = LogAttributes(sticky_copysets=False, local_retention=1).over(TIERED)
            await store.create_log("log", attributes=attributes)
            await asyncio.sleep(3)
            cluster.bucket.faults = BucketFaults(lost_request=1.0)
            await write(store, 150)
            await asyncio.sleep(120)
        leaving = max(node for node in cluster.running if node != cluster.sequencer_of(1))
        await order(cluster, leaving, RebuildOrder.DRAIN)
        role = cluster.running[leaving]._rebuild
        await until(lambda: (found := role.set.entry(leaving)) and found.is_empty, timeout_s=10)
        cluster.bucket.faults = BucketFaults()
        engines = [each.engine for node, each in cluster.running.items() if node != leaving]
        await until(lambda: all(engine.gone_of(1) for engine in engines), timeout_s=200)

    simulate(scene, nodes=5, copies=2, storage=STORAGE, tier=TIER, seed=3)
