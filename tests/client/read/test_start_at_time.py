"""Reads that start at a time, in the client with a loop and in the one without."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

import cordwood
from cordwood.block import Record
from cordwood.errors import BadSetting
from cordwood.lsn import make_lsn

STEP = datetime.timedelta(microseconds=1)
ERA = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NEW_YORK = datetime.timezone(datetime.timedelta(hours=-5))


def time_of(record: Record) -> datetime.datetime:
    """When it was appended, told in a zone that is not UTC."""
    return (ERA + record.append_time_us * STEP).astimezone(NEW_YORK)


async def filled(store) -> list[Record]:
    for number in range(6):
        await store.append("/log", b"%d" % number)
        await asyncio.sleep(0.5)
    return [item async for item in await store.read("/log")]


@as_scenario(simulate, nodes=5, copies=3)
async def test_a_read_starts_at_the_first_record_that_is_not_older(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        records = await filled(store)
        time = time_of(records[3])
        assert await values(store, "/log", start=time) == [b"3", b"4", b"5"]
        assert await values(store, "/log", start=time + STEP) == [b"4", b"5"]
        assert await values(store, "/log", start=time, until=records[4].lsn) == [b"3", b"4"]
        assert await values(store, "/log", start=ERA) == [b"%d" % n for n in range(6)]
        late = await store.read("/log", time + datetime.timedelta(days=1), until=None)
        assert late.next_lsn == make_lsn(1, 7)


@as_scenario(simulate)
async def test_a_reader_and_a_consumer_start_and_seek_there_too(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        records = await filled(store)
        reader = await store.reader("/log", start=time_of(records[4]))
        assert (await reader.read()).records == (records[4],)
        await reader.seek("/log", time_of(records[2]))
        assert (await reader.read()).records == (records[2],)
        await reader.start("/log", time_of(records[5]))
        assert (await reader.read()).records == (records[5],)
        async with await store.consumer("me", "/log", start=time_of(records[1])) as consumer:
            assert (await consumer.read()).records == (records[1],)
        # It has a position by now, which goes before the start.
        async with await store.consumer("me", "/log", start=ERA) as consumer:
            assert (await consumer.read()).records == (records[2],)


def test_a_time_without_a_zone_and_one_to_read_up_to_are_refused() -> None:
    naive = datetime.datetime(2026, 1, 31, 12)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await filled(store)
            with pytest.raises(BadSetting, match="2026-01-31 12:00:00 has no time zone"):
                await store.read("/log", naive)
            reader = await store.reader("/log")
            with pytest.raises(BadSetting, match="no time zone"):
                await reader.seek("/log", naive)
            assert reader.logs == ("/log",), "it is read on"
            for wrong in (ERA, 1.5):
                with pytest.raises(BadSetting, match="is no LSN"):
                    await store.read("/log", until=wrong)

    simulate(scenario)


def test_the_blocking_client_takes_times_as_well(tmp_path: Path) -> None:
    with cordwood.connect(tmp_path) as store:
        for value in (b"0", b"1", b"2"):
            store.append("log", value)
        records = [item for item in store.read("log") if isinstance(item, Record)]
        at = [time_of(record) for record in records]
        first = next(n for n, time in enumerate(at) if time >= at[1])
        assert [*store.read("log", at[1])] == records[first:]
        with store.reader("log", start=at[1]) as reader:
            assert reader.read().records[0] == records[first]
            reader.seek("log", ERA)
            assert reader.read().records[0] == records[0]
        with store.consumer("me", "log", start=at[1]) as consumer:
            assert consumer.read().records[0] == records[first]
        with pytest.raises(BadSetting, match="no time zone"):
            store.read("log", at[1].replace(tzinfo=None))
