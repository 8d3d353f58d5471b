"""Atomic groups on a whole cluster: all of a call or none of it, whatever happens meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.client.append.producer import Producer
from cordwood.errors import OutcomeUnknown, RecordTooLarge
from cordwood.layout.limits import GROUP_BYTES_MAX
from cordwood.settings import MIB, SequencerSettings

SMALL_RUNS = SequencerSettings(run_bytes=1024)
"""A run for each few blocks, so that a group has many."""


def records(count: int, size: int = 40) -> list[bytes]:
    return [b"%05d" % at + bytes(size) for at in range(count)]


@as_scenario(simulate, sequencer=SMALL_RUNS)
async def test_a_call_over_many_blocks_and_runs_gets_lsns_that_follow_one_another(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(block_records=3) as store:
        wanted = records(200)
        others = [asyncio.ensure_future(store.append("log", b"x")) for _ in range(5)]
        lsns = await store.append_many("log", wanted, atomic=True)
        await asyncio.gather(*others)
        assert lsns == list(range(lsns[0], lsns[0] + 200))
        held = cluster.running[1].engine.cache.log(1)
        groups = {
            held.at(at).header.group
            for at in range(len(held))
            if held.at(at).header.first in range(lsns[0], lsns[-1] + 1)
        }
        assert groups == {(lsns[0], lsns[-1])}
        items = await read_all(store, "log")
        found = [i.value for i in items if isinstance(i, Record) and lsns[0] <= i.lsn <= lsns[-1]]
        assert found == wanted


@pytest.mark.parametrize("seed", range(1, 6))
def test_of_a_group_cut_short_by_its_sequencers_death_all_or_nothing_is_read(seed: int) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(block_records=3, timeout_s=10) as store:
            await store.append("log", b"before")
            wanted = records(300)
            call = asyncio.ensure_future(store.append_many("log", wanted, atomic=True))
            await asyncio.sleep(0.00025 * seed)
            cluster.kill(cluster.sequencer_of(1))
            try:
                lsns = await call
            except OutcomeUnknown:
                lsns = None
            await store.append("log", b"after", producer=Producer(9))
            items = await read_all(store, "log")
            found = [item.value for item in items if isinstance(item, Record)]
            assert found in ([b"before", b"after"], [b"before", *wanted, b"after"])
            assert lsns is None or len(found) == 302
            kinds = {item.kind for item in items if isinstance(item, Gap)}
            assert kinds <= {GapKind.HOLE, GapKind.BRIDGE}

    simulate(scenario, nodes=5, copies=3, sequencer=SMALL_RUNS, seed=seed)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_producers_group_is_stored_once_whoever_dies(seed: int) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(block_records=3, timeout_s=30) as store:
            await store.append("log", b"before")
            wanted = records(200)
            producer = Producer(7)
            call = asyncio.ensure_future(
                store.append_many("log", wanted, producer=producer, atomic=True)
            )
            await asyncio.sleep(0.0005 * seed)
            cluster.kill(cluster.sequencer_of(1))
            lsns = await call
            again = await store.append_many("log", wanted, producer=Producer(7), atomic=True)
            assert again == lsns, "a repeat is answered with the place that it has"
            await store.append("log", b"more", producer=producer)
            assert await values(store, "log") == [b"before", *wanted, b"more"]

    simulate(scenario, nodes=5, copies=3, sequencer=SMALL_RUNS, seed=seed)


@as_scenario(simulate, sequencer=SMALL_RUNS)
async def test_nothing_of_a_group_is_released_before_all_of_it_is_stored(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(block_records=3, timeout_s=20) as store:
        await store.append("log", b"before")
        victim = next(n for n in cluster.running if n != cluster.sequencer_of(1))
        call = asyncio.ensure_future(store.append_many("log", records(300), atomic=True))
        await asyncio.sleep(0.0006)
        cluster.machine(victim).pause()
        await asyncio.sleep(0.4)
        appender = cluster.running[cluster.sequencer_of(1)]._sequencer.sequencing()[1]
        assert appender.in_flight
        assert not call.done()
        assert appender.released & 0xFFFFFFFF == 1
        cluster.machine(victim).resume()
        await call
        assert len(await values(store, "log")) == 301


@as_scenario(simulate, wal_bytes=64 * MIB)
async def test_a_group_larger_than_what_nodes_said_they_had_room_for_is_stored(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(block_bytes=MIB) as store:
        wanted = [bytes([at]) * (MIB // 2) for at in range(40)]
        lsns = await store.append_many("log", wanted, atomic=True)
        assert lsns == list(range(lsns[0], lsns[0] + 40))
        assert await values(store, "log") == wanted


@as_scenario(simulate)
async def test_a_group_over_a_limit_is_refused_and_nothing_is_stored(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        await store.append("log", b"before")
        with pytest.raises(RecordTooLarge, match="half of the smallest WAL"):
            await store.append_many("log", [bytes(MIB // 2)] * 8, atomic=True)
        with pytest.raises(RecordTooLarge, match=str(GROUP_BYTES_MAX)):
            await store.append_many("log", [bytes(MIB)] * 65, atomic=True)
        assert await store.append_many("log", [], atomic=True) == []
        assert await values(store, "log") == [b"before"]
