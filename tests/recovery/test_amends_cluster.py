"""What a recovery writes on a whole cluster: envelopes where copies are, and bodies elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from crc32c import crc32c
from scenarios import as_scenario
from swaps import swap

from cordwood.block import BlockHeader, Envelope
from cordwood.client.store import Store
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.body import encode_body
from cordwood.layout.frame import Kind
from cordwood.layout.message import AskTail
from cordwood.layout.waves import StoredBlock, store_head
from cordwood.lsn import make_lsn
from cordwood.nodes import NodeId
from cordwood.sim.holdings import held_blocks
from cordwood.storage.engine import StorageEngine
from cordwood.wire.connection import Connection

LOG = 1
BODY = 64 << 10
BLOCKS = 12


class Written:
    """Bytes of STORE frames sent, and of what came into WALs, from `begin` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = 0
        self.kinds: Counter[str] = Counter()
        send, amend, store = (
            Connection.send,
            StorageEngine.append_amend,
            StorageEngine.append_store,
        )

        def counted(me, kind, request, parts, *rest):
            if kind == Kind.STORE:
                self.sent += sum(map(len, parts))
            return send(me, kind, request, parts, *rest)

        def amended(me, wave, blocks, *rest):
            self.kinds["amended"] += len(blocks)
            return amend(me, wave, blocks, *rest)

        def stored(me, wave, parts, taken, *rest, **named):
            self.kinds["wal bytes"] += sum(map(len, parts))
            return store(me, wave, parts, taken, *rest, **named)

        swap(monkeypatch, Connection.send, counted)
        swap(monkeypatch, StorageEngine.append_amend, amended)
        swap(monkeypatch, StorageEngine.append_store, stored)


async def plant_tail(cluster: ClusterAtHand, holders: Sequence[int]) -> list[bytes]:
    """Leave blocks on some nodes above all that was released, as waves that nobody waited for."""
    values = [bytes([n]) * BODY for n in range(BLOCKS)]
    parts = [store_head(BLOCKS)]
    for esn, value in enumerate(values, 2):
        body = encode_body([value], timestamps_us=0)
        crc = crc32c(body)
        header = BlockHeader(
            LOG, make_lsn(1, esn), 1, 0, stored_bytes=len(body), raw_bytes=len(body),
            stored_crc=crc, raw_crc=crc,
        )  # fmt: skip
        parts += (pack_header(header), pack_envelope(Envelope(tuple(holders))), body)
    payload = memoryview(b"".join(parts))
    settled: list[object] = []
    for number in holders:
        cluster.running[number].engine.store(1, payload, settled.append)
    await until(lambda: len(settled) == len(holders))
    assert settled == [()] * len(holders)
    return [b"first", *values]


async def taken_over(cluster: ClusterAtHand, store: Store) -> None:
    """Have a node that does not rule the log do so; it was read up to its end before."""
    node = next(n for n in cluster.running if n != cluster.sequencer_of(LOG))
    call = AskTail(LOG, True)
    await store._cluster.peers.call(NodeId(node), call, timeout_s=20)


async def mended(cluster: ClusterAtHand) -> list[StoredBlock]:
    engines = [node.engine for node in cluster.running.values()]
    blocks = [b for engine in engines for b in await held_blocks(engine, LOG)]
    return [b for b in blocks if b.header.stored_bytes >= BODY and b.envelope.seal_epoch]


@pytest.mark.parametrize("is_flushed", [False, True])
@as_scenario(simulate, nodes=5, wal_bytes=16 << 20)
async def test_a_mended_tail_of_64_kib_blocks_costs_a_small_part_of_its_bytes(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch, is_flushed: bool
) -> None:
    async with cluster.client() as store:
        await store.append("log", b"first")
        await plant_tail(cluster, (1, 3, 4))
        if is_flushed:
            await asyncio.gather(*(node.flush() for node in cluster.running.values()))
        written = Written(monkeypatch)
        await taken_over(cluster, store)
        assert written.kinds["amended"] == 3 * BLOCKS
        stored = 3 * BLOCKS * BODY
        assert 0 < written.sent < stored / 100
        assert 0 < written.kinds["wal bytes"] < stored / 100
        found = await mended(cluster)
        assert len(found) == 3 * BLOCKS
        assert {frozenset(block.envelope.copyset) for block in found} == {frozenset({1, 3, 4})}
        assert all(crc32c(block.body) == block.header.stored_crc for block in found)


@as_scenario(simulate, nodes=5, wal_bytes=16 << 20)
async def test_who_holds_no_copy_is_sent_the_whole(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as store:
        await store.append("log", b"first")
        records = await plant_tail(cluster, (2, 5))
        written = Written(monkeypatch)
        await taken_over(cluster, store)
        assert written.kinds["amended"] == 2 * BLOCKS
        assert BLOCKS * BODY < written.kinds["wal bytes"] < 1.1 * BLOCKS * BODY
        found = await mended(cluster)
        assert len(found) == 3 * BLOCKS
        assert await values(store, "log") == records


@as_scenario(simulate, nodes=5, wal_bytes=16 << 20)
async def test_who_does_not_find_what_it_told_of_is_sent_the_bodies(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as store:
        await store.append("log", b"first")
        records = await plant_tail(cluster, (1, 3, 4))
        with monkeypatch.context() as patch:
            patch.setattr("cordwood.storage.log_cache.CachedLog.copy_of", lambda *_: None)
            written = Written(patch)
            await taken_over(cluster, store)
        assert written.kinds["amended"] == 0
        assert written.kinds["wal bytes"] > 3 * BLOCKS * BODY
        assert len(await mended(cluster)) == 3 * BLOCKS
        assert await values(store, "log") == records


@pytest.mark.parametrize("is_flushed", [False, True])
@as_scenario(simulate, nodes=5, wal_bytes=16 << 20)
async def test_what_was_amended_is_read_after_every_node_was_killed(
    cluster: ClusterAtHand, *, is_flushed: bool
) -> None:
    async with cluster.client() as store:
        await store.append("log", b"first")
        records = await plant_tail(cluster, (1, 3, 4))
        if is_flushed:
            await asyncio.gather(*(node.flush() for node in cluster.running.values()))
        await taken_over(cluster, store)
        for number in list(cluster.running):
            cluster.kill(number)
        await cluster.start()
        assert len(await mended(cluster)) == 3 * BLOCKS
        assert await values(store, "log") == records
