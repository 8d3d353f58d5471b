"""Where things lie in a log, asked of a whole cluster: by time, by key, at its ends, in bytes."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate
from scenarios import as_scenario
from swaps import swap_value

from cordwood.block import Record
from cordwood.client.admin import positions
from cordwood.errors import Rejected, UnknownLog, Unreachable
from cordwood.lsn import OLDEST, make_lsn
from cordwood.settings import StorageSettings

SMALL = StorageSettings(flush_age_s=0.5, partition_age_s=2)
"""Partitions of a few blocks each."""


async def filled(store, seconds: int, log: str = "log") -> list[Record]:
    """A record each half second, as they are read back."""
    for number in range(2 * seconds):
        await store.append(log, b"%03d" % number, key=b"%03d" % (2 * number))
        await asyncio.sleep(0.5)
    return [item for item in await read_all(store, log) if isinstance(item, Record)]


async def filled_beside_sequencer(cluster: ClusterAtHand, store) -> tuple[str, list[int]]:
    """A log with records whose sequencer holds none of them, so that it tells the tail when they
    are away; and the nodes that hold some."""
    for number in range(1, 21):
        log = f"log-{number}"
        log_id = (await store.create_log(log)).log_id
        await store.append(log, b"", key=b"")
        holders = [each for each in cluster.numbers if cluster.held(each, log_id)]
        if cluster.sequencer_of(log_id) not in holders:
            await filled(store, 5, log)
            holders = [each for each in cluster.numbers if cluster.held(each, log_id)]
            if cluster.sequencer_of(log_id) not in holders:
                return log, holders
    raise AssertionError("each sequencer holds records")


class TestTimes:
    @pytest.mark.slow
    @pytest.mark.parametrize("storage", [StorageSettings(), SMALL], ids=["cache", "partitions"])
    def test_every_record_is_found_by_its_own_time_and_by_those_beside_it(self, storage):
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                records = await filled(store, 10)
                for record in records:
                    time_us = record.append_time_us
                    for wanted_us, lsn in (
                        (time_us, record.lsn),
                        (time_us - 1, record.lsn),
                        (time_us + 1, record.lsn + 1),
                    ):
                        place = await store.find_time("log", wanted_us)
                        assert (place.lsn, place.is_partial, place.missing) == (lsn, False, {})
                    about = await store.find_time("log", time_us, approximate=True)
                    assert about.lsn <= record.lsn

        simulate(scenario, nodes=5, copies=3, storage=storage)

    @as_scenario(simulate, nodes=3)
    async def test_before_everything_after_everything_and_in_an_empty_log(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            await store.create_log("empty")
            assert (await store.find_time("empty", 0)).lsn == OLDEST
            records = await filled(store, 3)
            assert (await store.find_time("log", 0)).lsn == OLDEST
            late = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)
            assert (await store.find_time("log", late)).lsn == records[-1].lsn + 1
            await store.trim("log", records[1].lsn)
            assert (await store.find_time("log", 0)).lsn == records[2].lsn
            await store.trim("log", "tail")
            assert (await store.find_time("log", 0)).lsn == records[-1].lsn + 1

    @as_scenario(simulate, nodes=4, copies=2, storage=SMALL)
    async def test_over_the_ends_of_epochs_and_after_restarts(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for _ in range(3):
                await filled(store, 2)
                node = cluster.sequencer_of(1)
                cluster.kill(node)
                await cluster.start(node)
                await asyncio.sleep(1)
            records = await filled(store, 2)
            assert len({record.lsn.epoch for record in records}) > 2
            for before, record in zip([None, *records], records, strict=False):
                found = (await store.find_time("log", record.append_time_us)).lsn
                assert (before.lsn if before else 0) < found <= record.lsn

    @as_scenario(simulate, nodes=5, copies=2)
    async def test_with_too_few_nodes_it_says_so_and_errs_early(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            records = await filled(store, 5)
            away = [n for n in cluster.numbers if n != cluster.sequencer_of(1)][:3]
            for node in away:
                cluster.kill(node)
            place = await store.find_time("log", records[5].append_time_us)
            assert place.lsn <= records[5].lsn
            assert set(place.missing) == set(away)
            extent = await store.extent("log")
            assert extent.is_partial


class TestKeys:
    @as_scenario(simulate, nodes=3)
    async def test_the_last_below_and_the_first_not_below(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            records = await filled(store, 4)
            last = records[-1].lsn
            place = await store.find_key("log", b"006")
            assert (place.before, place.at) == (records[2].lsn, records[3].lsn)
            place = await store.find_key("log", b"005")
            assert (place.before, place.at) == (records[2].lsn, records[3].lsn)
            place = await store.find_key("log", b"")
            assert (place.before, place.at) == (None, records[0].lsn)
            place = await store.find_key("log", b"999")
            assert (place.before, place.at) == (last, None)

    @as_scenario(simulate, nodes=5, copies=2)
    async def test_where_records_do_not_come_it_ends_within_the_client_s_timeout(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=5) as store:
            log, holders = await filled_beside_sequencer(cluster, store)
            for node in holders:
                cluster.kill(node)
            start = asyncio.get_running_loop().time()
            with pytest.raises(Unreachable, match=r"within 5 s"):
                await store.find_key(log, b"005")
            assert asyncio.get_running_loop().time() - start < 12

    @as_scenario(simulate, nodes=5, copies=2)
    async def test_a_log_that_is_deleted_meanwhile_is_none_without_the_key(
        self, cluster: ClusterAtHand
    ) -> None:
        """It said that no record has the key, nor one above it."""
        async with cluster.client() as store:
            log, holders = await filled_beside_sequencer(cluster, store)
            for node in holders:
                cluster.kill(node)
            async with cluster.client() as other:  # of its own change the first one would know
                asking = asyncio.ensure_future(store.find_key(log, b"006"))
                await asyncio.sleep(0.03)
                await other.log_tree.delete(log)
            with pytest.raises(UnknownLog):
                await asking

    @as_scenario(simulate, nodes=3)
    async def test_lost_records_make_it_partial(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            records = await filled(store, 4)
            assert not (await store.find_key("log", b"006")).is_partial
            for node in cluster.running.values():
                blocks = node.engine.cache.log(1)._blocks
                blocks[:] = [each for each in blocks if each.header.first != records[3].lsn]
            place = await store.find_key("log", b"006")
            assert (place.before, place.at) == (records[2].lsn, records[4].lsn)
            assert place.is_partial

    def test_a_log_without_keys_is_not_searched_to_its_end(self, monkeypatch: pytest.MonkeyPatch):
        swap_value(monkeypatch, lambda: positions.KEYLESS_MAX, 10)

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                await store.append_many("log", [b""] * 50)
                with pytest.raises(Rejected, match="without a key"):
                    await store.find_key("log", b"k")

        simulate(scenario, nodes=3)


class TestEnds:
    @as_scenario(simulate, nodes=3, storage=SMALL)
    async def test_first_and_last_record_and_what_is_trimmed(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log")
            assert await store.is_empty("log")
            assert await store.tail_attributes("log") is None
            records = await filled(store, 6)
            first, last = records[0], records[-1]
            extent = await store.extent("log")
            assert (extent.first.lsn, extent.first.append_time_us) == (
                first.lsn,
                first.append_time_us,
            )
            assert (extent.last.lsn, extent.last.append_time_us) == (
                last.lsn,
                last.append_time_us,
            )
            await store.trim("log", records[3].lsn)
            trim, head = await store.head_attributes("log")
            assert (trim, head.lsn) == (records[3].lsn, records[4].lsn)
            assert not await store.is_empty("log")
            # In the next epoch nothing was appended: its tail is no record's.
            node = cluster.sequencer_of(1)
            cluster.kill(node)
            await cluster.start(node)
            await asyncio.sleep(1)
            assert (await store.tail("log")) == make_lsn(2, 0)
            assert (await store.tail_attributes("log")).lsn == last.lsn
            await store.trim("log", "tail")
            assert await store.is_empty("log")
            assert (await store.extent("log")).trim == make_lsn(2, 0)

    @as_scenario(simulate, nodes=5, copies=3)
    async def test_empty_is_not_said_where_too_few_answer(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.append("log", b"")
            await store.trim("log", "tail")
            for node in [n for n in cluster.numbers if n != cluster.sequencer_of(1)][:3]:
                cluster.kill(node)
            with pytest.raises(Unreachable, match="too few nodes"):
                await store.is_empty("log")

    def test_an_end_is_not_told_where_too_few_answer_to_know_it(self):
        """It was None, as in an empty log, or a record that others stand behind."""

        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                records = await filled(store, 10)
                away = [n for n in cluster.numbers if n != cluster.sequencer_of(1)][:3]
                left = [n for n in cluster.numbers if n not in away]
                for node in away:
                    cluster.kill(node)
                kept = {first for n in left for first, _, _ in cluster.held(n, 1)}
                extent = await store.extent("log")
                assert extent.is_partial
                for known, end, attributes in (
                    (extent.is_first_known, records[0].lsn, store.head_attributes),
                    (extent.is_last_known, records[-1].lsn, store.tail_attributes),
                ):
                    assert known == (end in kept)
                    if known:
                        assert await attributes("log")
                    else:
                        with pytest.raises(Unreachable, match=r"too few nodes answer .* node \d:"):
                            await attributes("log")
                await store.trim("log", records[-1].lsn)
                for attributes in (store.head_attributes, store.tail_attributes):
                    with pytest.raises(Unreachable, match="too few nodes"):
                        await attributes("log")

        for seed in range(1, 4):
            simulate(scenario, nodes=5, copies=2, seed=seed)


class TestSize:
    @pytest.mark.parametrize("storage", [StorageSettings(), SMALL], ids=["cache", "partitions"])
    def test_each_record_counts_once_and_a_part_by_its_time(self, storage):
        async def scenario(cluster: ClusterAtHand) -> None:
            async with cluster.client() as store:
                for _ in range(20):
                    await store.append("log", bytes(10_000))
                    await asyncio.sleep(0.5)
                size = await store.data_size("log")
                assert 200_000 <= size.bytes <= 206_000
                assert not size.is_partial
                extent = await store.extent("log")
                half_us = (extent.first.append_time_us + extent.last.append_time_us) // 2
                early = await store.data_size("log", None, half_us)
                late = await store.data_size("log", half_us)
                assert 80_000 < early.bytes < 125_000
                assert abs(early.bytes + late.bytes - size.bytes) <= 2

        simulate(scenario, nodes=5, copies=3, storage=storage)
