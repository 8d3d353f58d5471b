"""Append time never falls along a log, whatever a sequencer's clock said, and in which order
epochs are recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from crc32c import crc32c
from scenarios import as_scenario

from cordwood.block import BlockHeader, Envelope, Record
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, NoSequencer, Unreachable
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.body import encode_body
from cordwood.layout.message import AskTail
from cordwood.layout.waves import store_head
from cordwood.lsn import Lsn, make_lsn
from cordwood.metadata.epoch_store import EpochStore
from cordwood.nodes import NodeId
from cordwood.recovery import recover_log
from cordwood.sim.planted import find_bug, planted

LOG = 1
HOUR_US = 3600 * 1_000_000


async def stored_by(cluster: ClusterAtHand, number: int, first: int, time_us: int) -> None:
    """A node has a block of a sequencer whose clock says `time_us`; nobody else does."""
    body = encode_body([b"of another time"], timestamps_us=0)
    crc = crc32c(body)
    header = BlockHeader(
        LOG, first, 1, time_us, stored_bytes=len(body), raw_bytes=len(body), stored_crc=crc,
        raw_crc=crc,
    )  # fmt: skip
    envelope = pack_envelope(Envelope((3, 4, 5)))
    block = store_head(1) + pack_header(header) + envelope + body
    settled: list[Sequence[Any]] = []
    cluster.running[number].engine.store(1, memoryview(block), settled.append)
    await until(lambda: bool(settled))
    assert list(settled[0]) == []


async def appended(store: Store, value: bytes) -> Lsn:
    while True:
        try:
            return await store.append("log", value)
        except CordwoodError:
            await asyncio.sleep(0.5)


async def sequenced_by(store: Store, number: int) -> None:
    """Have a node sequence the log, whichever answer it gives."""
    await store._cluster.peers.call(NodeId(number), AskTail(LOG, True), timeout_s=20)


@as_scenario(simulate, nodes=5)
async def test_a_record_of_a_clock_ahead_does_not_come_back_behind_an_epoch_that_did_not_see_it(
    cluster: ClusterAtHand,
) -> None:
    """Epoch 1's last block came to one node only, an hour ahead. That node is away while epoch 2
    begins, and there while a later one recovers both."""
    network = cluster.simulation.network
    right = recover_log.collect_digest

    async def held_up(log: int, *rest: Any, **named: Any) -> Any:
        raise NoSequencer("held up")

    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        await asyncio.sleep(0.2)
        first = cluster.sequencer_of(LOG)
        now_us = cluster.running[first].host.clock.now_us()
        away = next(n for n in reversed(cluster.numbers) if n != first)
        await stored_by(cluster, away, make_lsn(1, 2), now_us + HOUR_US)
        cluster.kill(first)
        others = [f"node-{n}" for n in cluster.numbers if n != away]
        network.partition([f"node-{away}"], others)
        await asyncio.sleep(0.1)
        with mock.patch.object(recover_log, "collect_digest", held_up):
            placed = await appended(store, b"2")
            cluster.kill(cluster.sequencer_of(LOG))
            network.mend_all()
            await cluster.start(first)
        assert recover_log.collect_digest is right
        await asyncio.sleep(4)
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"3")
        items = [each for each in await read_all(store, "log") if isinstance(each, Record)]
        times = [each.append_time_us for each in items]
        assert times == sorted(times)
        assert placed in [each.lsn for each in items]
        place = await store.find_time("log", now_us + 60_000_000)
        assert place.lsn > placed, "what is older stands before it"


@as_scenario(simulate, nodes=5)
async def test_a_bound_that_is_told_late_takes_back_no_end_that_nodes_were_told(
    cluster: ClusterAtHand,
) -> None:
    """Seed 54036. Epoch 2 was sealed without the node that held epoch 1's last block, and was slow
    to say where it begins. Epoch 3 kept that block and told nodes so, and its sequencer died
    before the epoch store knew. Epoch 4 went by the bound that epoch 2 had told meanwhile, left
    the block out, and readers of one log were told of two ends."""
    network = cluster.simulation.network
    note, set_clean = EpochStore.note_begun, EpochStore.set_clean
    go_on, waits, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def noted_late(self: EpochStore, log: int, epoch: int, time_us: int | None) -> Any:
        if epoch == 2:
            waits.set()
            await go_on.wait()
        return await note(self, log, epoch, time_us)

    async def not_recorded(self: EpochStore, *rest: Any) -> Any:
        if not go_on.is_set():
            told.set()
            raise Unreachable("the metadata store does not answer")
        return await set_clean(self, *rest)

    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        await asyncio.sleep(1)
        first = cluster.sequencer_of(LOG)
        now_us = cluster.running[first].host.clock.now_us()
        holder, slow, quick = [n for n in reversed(cluster.numbers) if n != first][:3]
        await stored_by(cluster, holder, make_lsn(1, 2), now_us)
        cluster.kill(first)
        others = [f"node-{n}" for n in cluster.numbers if n != holder]
        with (
            mock.patch.object(EpochStore, "note_begun", noted_late),
            mock.patch.object(EpochStore, "set_clean", not_recorded),
        ):
            network.partition([f"node-{holder}"], others)
            asked = [asyncio.ensure_future(sequenced_by(store, slow))]
            await waits.wait()
            network.mend_all()
            await asyncio.sleep(2)  # epoch 3 is sealed with the holder: it is connected again
            asked.append(asyncio.ensure_future(sequenced_by(store, quick)))
            await told.wait()
            cluster.kill(quick)
            ends = [n.engine.cache.log(LOG).ends.get(1) for n in cluster.running.values()]
            assert any(end is not None and end.seal == 3 for end in ends)
            go_on.set()
            await asyncio.gather(*asked, return_exceptions=True)
        await appended(store, b"2")
        items = [each for each in await read_all(store, "log") if isinstance(each, Record)]
        assert [str(each.lsn) for each in items][:2] == ["e1n1", "e1n2"]


@pytest.mark.parametrize("name", ["begins-below-a-seal"])
def test_a_bound_that_comes_too_late_is_noticed(name: str):
    with planted(find_bug(name)), pytest.raises(AssertionError):
        test_a_bound_that_is_told_late_takes_back_no_end_that_nodes_were_told()


@pytest.mark.parametrize("name", ["bound-of-own-epoch", "beginnings-untold"])
def test_a_bound_that_is_too_late_is_noticed(name: str):
    with planted(find_bug(name)), pytest.raises(AssertionError):
        test_a_record_of_a_clock_ahead_does_not_come_back_behind_an_epoch_that_did_not_see_it()
