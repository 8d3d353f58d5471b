"""A reader's way to a manifest: whose log it is is asked once, and beside the head."""

from __future__ import annotations

import asyncio

import pytest
from made_objects import Made
from scenarios import as_scenario
from swaps import swap_value
from test_tier_history import PAGED_BLOCKS, on_history, read_all, seen, wanted
from test_uploader import LOG

from cordwood.errors import BadSetting, Malformed
from cordwood.host.seams import Host
from cordwood.layout.manifest import pack_origin
from cordwood.layout.object_names import head_name, origin_name
from cordwood.lsn import LSN_MAX
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.tier import history as history_module
from cordwood.tier.history import HistoryReader
from cordwood.tier.known_logs import KnownLogs
from cordwood.tier.patient_store import PatientStore

MADE_US = 1_789_000_000_000_000
AWAY_S = 0.1


async def with_origin(bucket: Bucket, host: Host, made_us: int = MADE_US) -> KnownLogs:
    """A new reader's view of the store, whose answers take AWAY_S each from now on."""
    store = PatientStore(bucket.store(), host.random)
    await store.put(origin_name(LOG), [pack_origin(LOG, made_us)], timeout_s=5)
    bucket.faults = BucketFaults(latency_s=(AWAY_S, AWAY_S))
    bucket.calls.clear()
    return KnownLogs(store, host)


async def waited(known: KnownLogs, bucket: Bucket, host: Host, start: int) -> float:
    """Seconds until a reader's first record from an LSN on."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    manifest = await known.manifest(LOG, MADE_US)
    store = PatientStore(bucket.store(), host.random)
    async with HistoryReader(store, manifest, host, LOG, start, LSN_MAX) as reader:
        assert await reader.next() is not None
        return loop.time() - began


class TestTheOriginAndTheHead:
    @as_scenario(on_history)
    async def test_are_waited_for_at_the_same_time_and_the_origin_once(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known, loop = await with_origin(bucket, host), asyncio.get_running_loop()
        for gets in (2, 1):
            bucket.calls.clear()
            began = loop.time()
            manifest = await known.manifest(LOG, MADE_US)
            assert loop.time() - began == pytest.approx(AWAY_S)
            assert bucket.calls["get"] == gets
            assert manifest.head is not None
            assert manifest.head.end == made.next

    @pytest.mark.parametrize(("behind", "waits"), [(0, 2), (30, 3)])
    @as_scenario(on_history)
    async def test_the_first_record_is_one_get_later_or_amid_an_object_two(
        self, made: Made, bucket: Bucket, host: Host, *, behind: int, waits: int
    ) -> None:
        known = await with_origin(bucket, host)
        assert await waited(known, bucket, host, made.first + behind) == pytest.approx(
            waits * AWAY_S, rel=0.05
        )
        assert bucket.calls["get"] == 4

    @pytest.mark.slow
    @as_scenario(on_history, blocks=PAGED_BLOCKS)
    async def test_a_page_of_the_manifest_is_one_get_more(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known = await with_origin(bucket, host)
        head = (await known.manifest(LOG, MADE_US)).head
        assert head is not None
        assert len(head.levels) == 2
        known = await with_origin(bucket, host)
        took = await waited(known, bucket, host, made.first)
        assert took == pytest.approx(3 * AWAY_S, rel=0.05)
        assert bucket.calls["get"] == 5

    @as_scenario(on_history)
    async def test_what_a_first_row_group_has_beyond_its_share_is_fetched_behind_it(
        self, made: Made, bucket: Bucket, host: Host, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swap_value(monkeypatch, lambda: history_module.GROUP_BYTES, 30)
        known = await with_origin(bucket, host)
        took = await waited(known, bucket, host, made.first)
        assert took == pytest.approx(3 * AWAY_S, rel=0.05)
        assert bucket.calls["get"] == 5
        manifest = await known.manifest(LOG, MADE_US)
        store = PatientStore(bucket.store(), host.random)
        reader = HistoryReader(store, manifest, host, LOG, made.first)
        assert seen(await read_all(reader)) == wanted(made, made.first, made.next - 1)

    @as_scenario(on_history)
    async def test_a_log_without_an_origin_is_believed_and_asked_again(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known = await with_origin(bucket, host)
        bucket.delete(origin_name(LOG))
        for _ in range(2):
            bucket.calls.clear()
            assert (await known.manifest(LOG, MADE_US)).head is not None
            assert bucket.calls["get"] == 2

    @as_scenario(on_history)
    async def test_of_a_log_whose_making_nobody_knows_the_head_alone_is_read(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known = await with_origin(bucket, host)
        bucket.calls.clear()
        assert (await known.manifest(LOG, 0)).head is not None
        assert bucket.calls["get"] == 1


class TestAnotherClustersLog:
    @as_scenario(on_history)
    async def test_is_refused_each_time_though_its_head_cannot_be_read(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known = await with_origin(bucket, host, MADE_US + 1)
        bucket.damage(head_name(LOG), b"{}")
        before = asyncio.all_tasks()
        for _ in range(2):
            with pytest.raises(BadSetting, match="another log 7"):
                await known.manifest(LOG, MADE_US)
            assert asyncio.all_tasks() == before

    @as_scenario(on_history)
    async def test_our_own_unreadable_head_is_damage(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known = await with_origin(bucket, host)
        bucket.damage(head_name(LOG), b"{}")
        with pytest.raises(Malformed):
            await known.manifest(LOG, MADE_US)

    @as_scenario(on_history)
    async def test_a_reader_that_is_left_meanwhile_leaves_nothing_running(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        known = await with_origin(bucket, host)
        before = asyncio.all_tasks()
        for wait_s in (AWAY_S / 2, 0.0):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await known.manifest(LOG, MADE_US)
            assert asyncio.all_tasks() == before
