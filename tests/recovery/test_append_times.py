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

from cordwood.block import BlockHeader, Envelope, Record
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, NoSequencer
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.body import encode_body
from cordwood.layout.waves import store_head
from cordwood.lsn import Lsn, make_lsn
from cordwood.recovery import recover_log
from cordwood.sim.zoo import find_bug, planted

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
    cluster.running[number].shard.store(1, memoryview(block), settled.append)
    await until(lambda: bool(settled))
    assert list(settled[0]) == []


async def appended(store: Store, value: bytes) -> Lsn:
    while True:
        try:
            return await store.append("log", value)
        except CordwoodError:
            await asyncio.sleep(0.5)


def test_a_record_of_a_clock_ahead_does_not_come_back_behind_an_epoch_that_did_not_see_it():
    """Epoch 1's last block came to one node only, an hour ahead. That node is away while epoch 2
    begins, and there while a later one recovers both."""

    async def scenario(cluster: ClusterAtHand) -> None:
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

    simulate(scenario, nodes=5)


@pytest.mark.parametrize("name", ["bound-of-own-epoch", "beginnings-untold"])
def test_a_bound_that_is_too_late_is_noticed(name):
    with planted(find_bug(name)), pytest.raises(AssertionError):
        test_a_record_of_a_clock_ahead_does_not_come_back_behind_an_epoch_that_did_not_see_it()
