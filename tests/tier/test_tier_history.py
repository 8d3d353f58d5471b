"""Reading history from objects: it tiles what was asked for, whatever goes on meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_objects import NOW_US, Made
from scenarios import as_scenario
from test_uploader import LOG, history, source, uploader_of

from cordwood.block import Gap, GapKind
from cordwood.errors import CordwoodError, Malformed, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.body import encode_body
from cordwood.layout.object_file import MAGIC, Group
from cordwood.layout.object_names import head_name
from cordwood.layout.object_writer import ObjectWriter
from cordwood.lsn import LSN_MAX, Lsn
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.streams import stream
from cordwood.tier import history as history_module
from cordwood.tier import uploader as uploader_module
from cordwood.tier.block_cache import BlockCache
from cordwood.tier.collect import collect_log
from cordwood.tier.history import HistoryBlock, HistoryReader, get_stop
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.repair import repair_log
from cordwood.tier.verify import all_entries

HUNT_SEEDS = 100

PAGED_BLOCKS = 500
"""More than two pages of objects."""


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch):
    """Several row groups in an object of some hundred bytes."""
    monkeypatch.setattr(uploader_module, "ObjectWriter", lambda: ObjectWriter(120, 60))


def on_history(act, *, blocks: int = 40, seed: int = 1, faults: BucketFaults | None = None) -> None:
    """Run `act(made, bucket, host)` once a log is uploaded."""

    async def scenario(simulation: Simulation) -> None:
        bucket = Bucket(stream(seed, "bucket"))

        async def main(host: Host) -> None:
            made = history(blocks)
            uploader = uploader_of(bucket.store(), host)
            await uploader.run(source(made, made.first), made.first)
            if faults is not None:
                bucket.faults = faults
            await act(made, bucket, host)

        await simulation.machine("node").start(main)

    simulation = Simulation(seed)
    simulation.run(scenario)
    assert simulation.loop.unhandled == []


def reader_of(
    bucket: Bucket, host: Host, start: int, until: int = LSN_MAX, **more
) -> HistoryReader:
    store = PatientStore(bucket.store(), host.random, try_s=2.0)
    manifest = LogManifest(store, LOG, host, "reader")
    return HistoryReader(store, manifest, host, LOG, start, until, **more)


async def group_bytes(bucket: Bucket, host: Host) -> int:
    """Bytes of all row groups of the log's objects."""
    manifest = LogManifest(PatientStore(bucket.store(), host.random), LOG, host, "reader")
    footers = [
        await entry_footer(bucket.store(), entry, timeout_s=5)
        async for entry in all_entries(manifest)
    ]
    return sum(group.stop - group.start for each in footers for group in each.index.groups)


async def read_all(reader: HistoryReader) -> list[object]:
    async with reader:
        return [item async for item in reader]


def tiles(items, start: int, until: int) -> None:
    expected = start
    for item in items:
        assert item.first == expected
        expected = item.last + 1
    assert expected == until + 1


def wanted(made: Made, start: int, until: int) -> list[tuple]:
    """What a reader must be given: the slow, obvious twin."""
    found = []
    for item in made.items:
        span = item if isinstance(item, Gap) else item[0]
        first, last = max(int(span.first), start), min(int(span.last), until)
        if first <= last:
            found.append((first, last, item.kind if isinstance(item, Gap) else item[0].raw_crc))
    return found


def seen(items) -> list[tuple]:
    return [
        (int(item.first), int(item.last),
         item.kind if isinstance(item, Gap) else item.header.raw_crc)
        for item in items
    ]  # fmt: skip


class TestSharedBlocks:
    @as_scenario(on_history)
    async def test_a_second_reader_fetches_no_row_group(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        cache, got = BlockCache(1 << 20), []
        for _ in range(2):
            before = bucket.got_bytes
            items = await read_all(reader_of(bucket, host, made.first, cache=cache))
            assert seen(items) == wanted(made, made.first, made.next - 1)
            got.append(bucket.got_bytes - before)
        assert cache.hits >= 10
        assert got[0] - got[1] >= await group_bytes(bucket, host) > 0, "only what is no row group"

    @as_scenario(on_history)
    async def test_readers_at_the_same_time_fetch_a_row_group_once(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        cache, before = BlockCache(1 << 20), bucket.got_bytes
        await read_all(reader_of(bucket, host, made.first))
        alone, before = bucket.got_bytes - before, bucket.got_bytes
        readers = (reader_of(bucket, host, made.first, cache=cache) for _ in range(3))
        found = await asyncio.gather(*map(read_all, readers))
        assert all(seen(each) == wanted(made, made.first, made.next - 1) for each in found)
        assert cache.hits >= 20
        together, before = bucket.got_bytes - before, bucket.got_bytes
        await read_all(reader_of(bucket, host, made.first, cache=cache))
        without_groups = bucket.got_bytes - before
        assert together == alone + 2 * without_groups

    @pytest.mark.parametrize("start", [0, 3, 11, 200])
    @as_scenario(on_history)
    async def test_what_one_reader_clips_another_gets_whole(
        self, made: Made, bucket: Bucket, host: Host, *, start: int
    ) -> None:
        cache = BlockCache(1 << 20)
        low, high = made.first + start, made.first + start + 2
        few = await read_all(reader_of(bucket, host, low, high, cache=cache))
        assert seen(few) == wanted(made, low, high)
        items = await read_all(reader_of(bucket, host, made.first, cache=cache))
        assert seen(items) == wanted(made, made.first, made.next - 1)


class TestRanges:
    @as_scenario(on_history)
    async def test_all_of_it(self, made: Made, bucket: Bucket, host: Host) -> None:
        reader = reader_of(bucket, host, made.first)
        items = await read_all(reader)
        assert seen(items) == wanted(made, made.first, made.next - 1)
        assert reader.next_lsn == made.next

    @pytest.mark.slow
    @settings(max_examples=15)
    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=8, max_size=8),
           st.sampled_from([1, 300, 1 << 20]))  # fmt: skip
    def test_any_range_is_tiled(self, cuts, ahead):
        async def act(made: Made, bucket: Bucket, host: Host) -> None:
            marks = sorted({m for item in made.items for m in (
                int((item if isinstance(item, Gap) else item[0]).first),
                int((item if isinstance(item, Gap) else item[0]).last))})  # fmt: skip
            for one, other in cuts:
                low, high = sorted((one, other))
                start = marks[int(low * (len(marks) - 1))] + (1 if low > 0.5 else 0)
                until = max(start, marks[int(high * (len(marks) - 1))] - (1 if high < 0.7 else 0))
                until = min(until, made.next - 1)
                start = min(start, until)
                items = await read_all(reader_of(bucket, host, start, until, ahead_bytes_max=ahead))
                tiles(items, start, until)
                assert seen(items) == wanted(made, start, until)

        on_history(act)

    @as_scenario(on_history)
    async def test_behind_the_end_and_of_a_log_without_a_manifest_there_is_nothing(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        for start in (made.next, made.next + 100):
            reader = reader_of(bucket, host, start)
            assert await read_all(reader) == []
            assert reader.next_lsn == start
        assert await read_all(reader_of(bucket, host, 10, 9)) == []
        await bucket.store().delete([head_name(LOG)], timeout_s=5)
        assert await read_all(reader_of(bucket, host, made.first)) == []

    @as_scenario(on_history)
    async def test_blocks_come_with_their_bodies(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        items = await read_all(reader_of(bucket, host, made.first + 1, made.first + 2))
        (block,) = items
        assert isinstance(block, HistoryBlock)
        assert (block.first, block.last) == (made.first + 1, made.first + 2)
        assert bytes(block.raw)[-3:] in bytes(made.items[1][1])


class TestCosts:
    @as_scenario(on_history)
    async def test_the_first_record_is_a_head_a_footer_and_a_row_group_away(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        before = bucket.calls["get"]
        async with reader_of(bucket, host, made.first + 30) as reader:
            assert await reader.next() is not None
            assert bucket.calls["get"] - before <= 3

    @as_scenario(on_history)
    async def test_what_is_fetched_ahead_grows_and_is_bounded(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        bucket.faults = BucketFaults(latency_s=(0.1, 0.1))
        loop = asyncio.get_running_loop()
        took = {}
        for ahead in (1, 1 << 20):
            began = loop.time()
            await read_all(reader_of(bucket, host, made.first, ahead_bytes_max=ahead))
            took[ahead] = loop.time() - began
        # Objects are tiny here, and each has a footer, of which one is fetched ahead.
        assert took[1 << 20] < took[1] / 2
        async with reader_of(bucket, host, made.first, ahead_bytes_max=5000) as reader:
            while await reader.next() is not None:
                sizes = [step.stored for step in reader._steps]
                assert sum(sizes[:-1]) < 5000

    @as_scenario(on_history)
    async def test_a_sequential_reader_fetches_several_row_groups_by_one_get(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        gets = {}
        for ahead in (1, 1 << 20):
            before = bucket.calls["get"]
            items = await read_all(reader_of(bucket, host, made.first, ahead_bytes_max=ahead))
            assert seen(items) == wanted(made, made.first, made.next - 1)
            gets[ahead] = bucket.calls["get"] - before
        assert gets[1 << 20] <= gets[1] - 10

    @as_scenario(on_history)
    async def test_a_reader_that_is_left_leaves_nothing_running(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        before = asyncio.all_tasks()
        for count in (0, 1, 5, 20):
            reader = reader_of(bucket, host, made.first)
            for _ in range(count):
                await reader.next()
            await reader.close()
            await reader.close()
            assert asyncio.all_tasks() == before
        calls = bucket.calls["get"]
        await asyncio.sleep(60)
        assert bucket.calls["get"] == calls

    @pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5, 3.5])
    def test_a_reader_that_is_left_before_its_first_record_leaves_nothing_running(self, after_s):
        async def act(made: Made, bucket: Bucket, host: Host) -> None:
            bucket.faults = BucketFaults(latency_s=(1.0, 1.0))
            reader = reader_of(bucket, host, made.first)
            before = asyncio.all_tasks()
            # The row group that is asked for beside its footer answers last.
            get = reader._store.get

            async def slow(name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
                if start == len(MAGIC):
                    await asyncio.sleep(10)
                return await get(name, start, stop, timeout_s=timeout_s)

            reader._store.get = slow
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after_s):
                    await reader.next()
            await reader.close()
            assert asyncio.all_tasks() == before

        on_history(act)

    @pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5, 3.5])
    def test_a_reader_that_was_cancelled_goes_on(self, after_s):
        """It said that the history ended there."""

        async def act(made: Made, bucket: Bucket, host: Host) -> None:
            bucket.faults = BucketFaults(latency_s=(1.0, 1.0))
            found = []
            async with reader_of(bucket, host, made.first) as reader:
                for wait_s in (after_s, after_s, 60.0):
                    try:
                        async with asyncio.timeout(wait_s):
                            while (item := await reader.next()) is not None:
                                found.append(item)
                    except TimeoutError:
                        assert wait_s < 60.0
            assert seen(found) == wanted(made, made.first, made.next - 1)

        on_history(act)

    @pytest.mark.parametrize("failing", [1, 2, 3, 9])
    def test_a_reader_goes_on_behind_a_failure(self, failing):
        """It said that the history ended there, or told of the failure again and again."""

        async def act(made: Made, bucket: Bucket, host: Host) -> None:
            found, gets = [], 0
            async with reader_of(bucket, host, made.first) as reader:
                get = reader._store.get

                async def fails_once(*args: Any, timeout_s: float) -> bytes:
                    nonlocal gets
                    gets += 1
                    if gets == failing:
                        raise Unreachable("the store does not answer")
                    return await get(*args, timeout_s=timeout_s)

                reader._store.get = fails_once
                failures = 0
                while True:
                    try:
                        if (item := await reader.next()) is None:
                            break
                        found.append(item)
                    except Unreachable:
                        failures += 1
            assert failures == 1
            assert seen(found) == wanted(made, made.first, made.next - 1)

        on_history(act)


def read_meanwhile(seed: int) -> None:
    """Read all of a log, while it is trimmed and collected."""

    async def act(made: Made, bucket: Bucket, host: Host) -> None:
        chance = stream(seed, "meanwhile")
        store = PatientStore(bucket.store(), host.random, try_s=2.0)
        manifest = LogManifest(store, LOG, host, "trimmer")
        reader = reader_of(bucket, host, made.first, ahead_bytes_max=chance.choice((1, 5000)))
        items, trimmed = [], made.first
        async with reader:
            while (item := await reader.next()) is not None:
                items.append(item)
                if chance.random() < 0.1:
                    trimmed = chance.randrange(trimmed, made.next)
                    await manifest.load()
                    await manifest.trim(trimmed)
                    await collect_log(store, manifest, LOG, host.clock.now_us(), 0)
        tiles(items, made.first, made.next - 1)
        twin = {first: (last, what) for first, last, what in
                wanted(made, made.first, made.next - 1)}  # fmt: skip
        for first, last, what in seen(items):
            if what is GapKind.TRIM:
                assert last < trimmed
            elif first in twin:
                assert twin[first] == (last, what)

    on_history(act, seed=seed, faults=BucketFaults.bad() if seed % 2 else None)


def tiles_across_a_page_that_is_gone() -> bool:
    """A slow reader took all of a page's objects; then a trim and a collection take the next page.

    Returns:
        Whether what it gives has no hole.
    """
    told: list[bool] = []

    async def act(made: Made, bucket: Bucket, host: Host) -> None:
        manifest = LogManifest(bucket.store(), LOG, host, "trimmer")
        head = await manifest.load()
        first, second = (item for item in head.levels[1][:2])
        start = second.last + 10
        items = []
        async with reader_of(bucket, host, made.first, ahead_bytes_max=1) as reader:
            while reader.next_lsn <= first.last:
                items.append(await reader.next())
            await manifest.trim(start)
            await collect_log(bucket.store(), manifest, LOG, host.clock.now_us(), 0)
            items += [item async for item in reader]
        gaps = [item for item in items if isinstance(item, Gap) and item.kind is GapKind.TRIM]
        try:
            tiles(items, made.first, made.next - 1)
            assert gaps == [Gap(Lsn(first.last + 1), Lsn(start - 1), GapKind.TRIM)]
            told.append(True)
        except AssertionError:
            told.append(False)

    on_history(act, blocks=PAGED_BLOCKS)
    return told == [True]


def skips_what_is_gone(patch):
    """A reader goes on behind a trim and does not say so."""
    begin = HistoryReader._begin_anew

    async def silent(self, error):
        await begin(self, error)
        if self._out:
            self.next_lsn = self._out.pop().last + 1

    patch.setattr(HistoryReader, "_begin_anew", silent)


def one_trimmed_too_many(patch):
    """The first record that is kept is told as trimmed."""
    begin = HistoryReader._begin_anew

    async def greedy(self, error):
        await begin(self, error)
        if self._out:
            gap = self._out.pop()
            self._out.append(Gap(gap.first, Lsn(gap.last + 1), gap.kind))

    patch.setattr(HistoryReader, "_begin_anew", greedy)


def begins_one_behind(patch):
    """A row group begins one record late."""
    clipped = history_module.clipped
    patch.setattr(
        history_module, "clipped", lambda items, start, until: clipped(items, start + 1, until)
    )


def believes_its_first_head(patch):
    """A reader never looks at the manifest again."""
    load = LogManifest.load

    async def once(self):
        return self.head if self.head is not None else await load(self)

    patch.setattr(LogManifest, "load", once)


class TestMeanwhile:
    @pytest.mark.parametrize("seed", range(25))
    def test_trims_collections_and_uploads_go_on_under_a_reader(self, seed):
        read_meanwhile(seed)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "plant",
        [skips_what_is_gone, one_trimmed_too_many, begins_one_behind, believes_its_first_head],
    )
    def test_a_planted_bug_is_caught(self, plant, monkeypatch: pytest.MonkeyPatch):
        plant(monkeypatch)
        for seed in range(HUNT_SEEDS):
            try:
                read_meanwhile(seed)
            except (AssertionError, CordwoodError):
                return
        pytest.fail(f"{plant.__doc__} Nothing noticed within {HUNT_SEEDS} seeds.")

    @as_scenario(on_history)
    async def test_a_trimmed_beginning_is_one_gap(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        manifest = LogManifest(bucket.store(), LOG, host, "trimmer")
        start = next(int(i[0].first) + 1 for i in made.items[20:] if not isinstance(i, Gap))
        await manifest.trim(start)
        items = await read_all(reader_of(bucket, host, made.first))
        assert items[0] == Gap(Lsn(made.first), Lsn(start - 1), GapKind.TRIM)
        tiles(items, made.first, made.next - 1)
        (only,) = await read_all(reader_of(bucket, host, made.first, made.first + 3))
        assert only == Gap(Lsn(made.first), Lsn(made.first + 3), GapKind.TRIM)

    def test_a_page_that_is_gone_with_what_it_named_is_a_gap(self):
        assert tiles_across_a_page_that_is_gone()

    @pytest.mark.slow
    def test_a_hole_behind_a_page_that_is_gone_shows(self):
        with planted(find_bug("tier-hole-behind-a-page")):
            assert not tiles_across_a_page_that_is_gone()

    @as_scenario(on_history)
    async def test_an_object_that_is_gone_though_it_is_named_is_told(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        manifest = LogManifest(bucket.store(), LOG, host, "x")
        entries = [entry async for entry in all_entries(manifest)]
        await bucket.store().delete([entries[2].name], timeout_s=5)
        with pytest.raises(Malformed, match="repair"):
            await read_all(reader_of(bucket, host, made.first))

    @as_scenario(on_history)
    async def test_what_a_repair_accepted_as_lost_is_told_as_loss(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        store = bucket.store()
        manifest = LogManifest(store, LOG, host, "x")
        entries = [entry async for entry in all_entries(manifest)]
        await store.delete([entries[2].name, head_name(LOG)], timeout_s=5)
        await repair_log(store, LogManifest(store, LOG, host, "r"), LOG, accept=True)
        items = await read_all(reader_of(bucket, host, made.first))
        tiles(items, made.first, made.next - 1)
        assert Gap(Lsn(entries[2].first), Lsn(entries[2].last), GapKind.DATA_LOSS) in items

    @as_scenario(on_history)
    async def test_what_is_uploaded_later_is_there_for_the_next_reader(
        self, made: Made, bucket: Bucket, host: Host
    ) -> None:
        end = made.next
        made.block(encode_body([b"later"], timestamps_us=NOW_US))
        await uploader_of(bucket.store(), host).run(source(made, end), end)
        items = await read_all(reader_of(bucket, host, end))
        assert seen(items) == wanted(made, end, made.next - 1)


@pytest.mark.parametrize(
    ("bytes_max", "others", "stop"),
    [
        (0, [(10, 14)], 10),
        (9, [(10, 14)], 10),
        (10, [(10, 14)], 14),
        (100, [(10, 14), (14, 20)], 20),
        (15, [(10, 14), (14, 20)], 14),
        (100, [(11, 14), (14, 20)], 10),
        (100, [], 10),
    ],
    ids=["none", "one byte short", "just", "two", "one of two", "another's between", "last"],
)
def test_a_get_ends_with_its_bytes_or_where_groups_do_not_follow_one_another(
    bytes_max: int, others: list[tuple[int, int]], stop: int
) -> None:
    def group(start: int, stop: int) -> Group:
        return Group(start, stop, *([0] * (len(Group._fields) - 2)))

    found = get_stop(group(4, 10), [group(*each) for each in others], bytes_max)
    assert found == stop
