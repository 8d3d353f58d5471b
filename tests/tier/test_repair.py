"""Manifests over real objects: repair from the objects alone, deletion, and what a commit costs."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from made_objects import NOW_US, Made, read_run
from scenarios import as_scenario
from swaps import swap_value

from cordwood.block import Gap, GapKind
from cordwood.client.admin.tier_positions import TierPositions
from cordwood.client.find.log_info import LogInfo
from cordwood.errors import BadSetting, Corrupt, Fenced, Malformed, Unreachable
from cordwood.host.seams import Host
from cordwood.layout.body import encode_body
from cordwood.layout.manifest import pack_head
from cordwood.layout.object_file import entry_of
from cordwood.layout.object_names import head_name, pages_prefix
from cordwood.layout.object_writer import FinishedObject, ObjectWriter
from cordwood.lsn import LogId, Lsn
from cordwood.nodes import Replication
from cordwood.protocol import manifest as rule
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket
from cordwood.tier import object_reader
from cordwood.tier.collect import collect_log, collect_shared, retire_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer, load_footer
from cordwood.tier.object_store import ObjectInfo
from cordwood.tier.repair import (
    Unrepairable,
    end_of_objects,
    find_logs,
    is_lost,
    repair_log,
    survey_log,
)
from cordwood.tiered import Entry

IN = {"timeout_s": 10.0}
DAY = "20261124"


def on_bucket(act) -> None:
    async def scenario(simulation: Simulation) -> None:
        bucket = Bucket(simulation.faults)

        async def main(host: Host) -> None:
            await act(Cloud(bucket, host))

        await simulation.machine("node").start(main)

    Simulation(1).run(scenario)


class Cloud:
    """A bucket with logs in it."""

    def __init__(self, bucket: Bucket, host: Host) -> None:
        self.bucket = bucket
        self.host = host
        self.store = bucket.store()
        self.made: dict[int, Made] = {}
        self.numbers = 0

    def manifest(self, log: int = 7) -> LogManifest:
        return LogManifest(self.store, log, self.host, "node")

    async def put(self, *logs: tuple[int, int], fence: int = 1) -> FinishedObject:
        """Put an object with so many blocks of each log, from where the log ended."""
        writer = ObjectWriter()
        for log, blocks in logs:
            before = self.made.get(log)
            made = Made(log, f"/log-{log}")
            if before is not None:
                made.next, made.append_us = before.next, before.append_us
            for number in range(blocks):
                made.block(encode_body([b"%d" % number] * 3, timestamps_us=NOW_US))
            made.gap(2, GapKind.HOLE)
            writer.begin_log(log, made.name, made.first, fence)
            for item in made.items:
                if isinstance(item, Gap):
                    writer.add_gap(item)
                else:
                    writer.add_block(*item)
            self.made[log] = made
        done = writer.finish()
        self.numbers += 1
        await self.store.put(done.name(DAY, self.numbers), [done.content], **IN)
        return done

    def entry(self, done: FinishedObject, log: int, after_us: int = 0) -> Entry:
        name = done.name(DAY, self.numbers)
        run = done.footer.index.run(log)
        assert run is not None
        return entry_of(run, name, len(done.content), done.footer_bytes, done.footer_crc, after_us)

    async def grow(self, count: int, log: int = 7) -> LogManifest:
        """Commit so many objects of a log."""
        manifest = self.manifest(log)
        head = await manifest.take_turn(Made(log).next)
        for _ in range(count):
            done = await self.put((log, 2), fence=head.fence)
            await manifest.commit(self.entry(done, log))
        return manifest


async def all_entries(manifest: LogManifest) -> list[Entry]:
    found: list[Entry] = []
    while page := await manifest.entries(found[-1].last + 1 if found else 0):
        found += page
    return found


class TestReading:
    @pytest.mark.slow
    @pytest.mark.parametrize("taken", [0, 1, 63, 64, 100, 129])
    @as_scenario(on_bucket)
    async def test_a_page_that_is_trimmed_in_part_counts_for_its_rest(
        self, cloud: Cloud, *, taken: int
    ) -> None:
        """It counted as a whole: 64 objects, or 4,096, of which a trim had left one."""
        manifest = await cloud.grow(130)
        entries = await all_entries(manifest)
        await manifest.trim(entries[taken].first)
        kept = await cloud.manifest().kept()
        assert kept[0].first == entries[taken].first
        assert sum(item.bytes for item in kept) == sum(entry.bytes for entry in entries[taken:])
        asked = cloud.manifest()
        await asked.load()
        info = LogInfo(LogId(7), "/log-7", Replication(1), 0)
        found = TierPositions(cast(Any, None), asked, info, entries[-1].last)
        assert await found.bytes_between(0, 1 << 62) == sum(item.bytes for item in kept)
        last = entries[taken]
        await manifest.trim(last.last)
        await asked.load()
        half = last.bytes / (last.last - last.first + 1)
        rest = sum(entry.bytes for entry in entries[taken + 1 :])
        assert await found.bytes_between(0, 1 << 62) == round(rest + half)

    @as_scenario(on_bucket)
    async def test_an_entry_leads_to_its_blocks_with_one_get_for_the_footer(
        self, cloud: Cloud
    ) -> None:
        manifest = await cloud.grow(3)
        made = cloud.made[7]
        entry = await manifest.find(made.first + 1)
        assert entry is not None
        before = cloud.bucket.calls["get"]
        footer = await entry_footer(cloud.store, entry, **IN)
        assert cloud.bucket.calls["get"] == before + 1
        content, _ = await cloud.store.read(entry.name, **IN)
        run = footer.index.runs[0]
        assert read_run(run, footer, content)[-1] == made.items[-1]
        assert [item.first for item in read_run(run, footer, content) if isinstance(item, Gap)]

    @as_scenario(on_bucket)
    async def test_a_footer_that_is_larger_than_the_guess_is_fetched_again(
        self, cloud: Cloud, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done = await cloud.put((7, 4))
        name, size = done.name(DAY, 1), len(done.content)
        for guess in (8, 100, size, 10 * size):
            swap_value(monkeypatch, lambda: object_reader.FOOTER_GUESS_BYTES, guess)
            footer = await load_footer(cloud.store, name, size, done.footer_crc, **IN)
            assert footer.index == done.footer.index
            assert footer.bytes == done.footer_bytes
        cloud.bucket.damage(name, b"x" * size)
        with pytest.raises(Corrupt):
            await load_footer(cloud.store, name, size, done.footer_crc, **IN)

    @as_scenario(on_bucket)
    async def test_times_lead_to_entries(self, cloud: Cloud) -> None:
        manifest = await cloud.grow(70)
        entries = await all_entries(manifest)
        assert len(entries) == 70
        for entry in entries[::7]:
            assert await manifest.find_append_time(entry.append_last_us) == entry
        assert await manifest.find_append_time(entries[-1].append_last_us + 1) is None
        assert await manifest.find_append_time(0) == entries[0]


class TestStrangers:
    """Names below Cordwood's prefix that somebody else put there, and names that are gone."""

    @pytest.mark.parametrize(
        "name",
        ["logs/my-backup-folder/x", "logs/0000000000000007/zip", "logs/0000000000000007/zip/x",
         "logs/x", "logs/000000000000000A/head"],
    )  # fmt: skip
    @as_scenario(on_bucket)
    async def test_logs_are_found_beside_them(self, cloud: Cloud, *, name: str) -> None:
        """One name ended the search with an error that no node expects, and another one never."""
        await cloud.grow(2)
        await cloud.grow(2, log=9)
        await cloud.store.put(name, [b"x"], **IN)
        async with asyncio.timeout(100):
            assert await find_logs(cloud.store) == [7, 9]

    @as_scenario(on_bucket)
    async def test_an_object_that_goes_during_a_survey_is_a_hole(
        self, cloud: Cloud, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest = await cloud.grow(3)
        entries = await all_entries(manifest)
        real = cloud.store.list_page

        async def stale(prefix: str, **asked) -> list[ObjectInfo]:
            page = await real(prefix, **asked)
            await cloud.store.delete([entries[1].name], **IN)
            return page

        monkeypatch.setattr(cloud.store, "list_page", stale)
        found = await survey_log(cloud.store, 7)
        assert found.holes == ((entries[1].first, entries[1].last),)
        assert found.damaged == ()

    @as_scenario(on_bucket)
    async def test_a_survey_ends_with_the_error_of_a_store_that_does_not_answer(
        self, cloud: Cloud, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await cloud.grow(3)

        async def silent(*_args, **_asked) -> bytes:
            raise Unreachable("no answer")

        monkeypatch.setattr(cloud.store, "get", silent)
        with pytest.raises(Unreachable, match="no answer"):
            await survey_log(cloud.store, 7)

    @pytest.mark.parametrize("is_gone", [True, False])
    @as_scenario(on_bucket)
    async def test_a_shared_object_that_cannot_be_read_keeps_no_other(
        self, cloud: Cloud, *, is_gone: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One damaged object ended each collection, so all dead ones behind it stayed for ever."""
        for log in (7, 8):
            await cloud.manifest(log).take_turn(Made(log).next)
        for _ in range(3):
            await cloud.put((7, 2), (8, 2))
        names = sorted(name for name in cloud.bucket.names() if name.startswith("shared/"))
        for log in (7, 8):
            await retire_log(cloud.manifest(log))
        real = cloud.store.list_page

        async def stale(prefix: str, **asked) -> list[ObjectInfo]:
            page = await real(prefix, **asked)
            await cloud.store.delete(names[:1], **IN)
            return page

        if is_gone:
            monkeypatch.setattr(cloud.store, "list_page", stale)
        else:
            cloud.bucket.damage(names[0], b"x" * 200)
        done = await collect_shared(cloud.store, cloud.manifest, 1 << 60, 0.0)
        assert (done.deleted, done.damaged) == (2, 0 if is_gone else 1)
        left = [name for name in cloud.bucket.names() if name.startswith("shared/")]
        assert left == ([] if is_gone else names[:1])


class TestRepair:
    @pytest.mark.parametrize("count", [1, 5, rule.FANOUT + 3])
    @as_scenario(on_bucket)
    async def test_a_lost_head_is_built_from_the_objects(self, cloud: Cloud, *, count) -> None:
        manifest = await cloud.grow(count)
        entries = await all_entries(manifest)
        await cloud.store.delete([head_name(7)], **IN)
        found = await repair_log(cloud.store, cloud.manifest(), 7)
        assert (found.holes, found.damaged) == ((), ())
        fresh = cloud.manifest()
        head = await fresh.load()
        assert head is not None
        assert [entry[:9] for entry in await all_entries(fresh)] == [e[:9] for e in entries]
        assert (head.start, head.end) == (entries[0].first, entries[-1].last + 1)
        await fresh.take_turn(0)
        done = await cloud.put((7, 1), fence=fresh.head.fence)
        await fresh.commit(cloud.entry(done, 7))
        with pytest.raises(Fenced):
            await manifest.commit(cloud.entry(done, 7)._replace(fence=1))

    @pytest.mark.parametrize("what", ["head", "page"])
    def test_a_damaged_manifest_is_replaced_and_a_sound_one_is_not(self, what: str):
        async def act(cloud: Cloud) -> None:
            manifest = await cloud.grow(rule.FANOUT + 3)
            entries = await all_entries(manifest)
            with pytest.raises(BadSetting, match="nothing to repair"):
                await repair_log(cloud.store, cloud.manifest(), 7)
            page = next(n for n in cloud.bucket.names() if n.startswith(pages_prefix(7)))
            if what == "head":
                cloud.bucket.damage(head_name(7), pack_head(manifest.head)[:-3])
            else:
                await cloud.store.delete([page], **IN)
            with pytest.raises(Corrupt):
                await all_entries_of_new(cloud)
            await repair_log(cloud.store, cloud.manifest(), 7)
            again = await all_entries_of_new(cloud)
            assert [entry.name for entry in again] == [entry.name for entry in entries]

        async def all_entries_of_new(cloud: Cloud) -> list[Entry]:
            manifest = cloud.manifest()
            await manifest.load()
            return await all_entries(manifest)

        on_bucket(act)

    @as_scenario(on_bucket)
    async def test_what_is_in_no_object_is_not_passed_over(self, cloud: Cloud) -> None:
        manifest = await cloud.grow(6)
        entries = await all_entries(manifest)
        await cloud.store.delete([head_name(7), entries[2].name], **IN)
        cloud.bucket.damage(entries[4].name, b"rotten" * 100)
        with pytest.raises(Unrepairable, match=f"2 ranges .*{Lsn(entries[2].first)}"):
            await repair_log(cloud.store, cloud.manifest(), 7)
        assert await cloud.manifest().load() is None
        found = await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
        assert [name for name, _ in found.damaged] == [entries[4].name]
        fresh = cloud.manifest()
        again = await all_entries(fresh)
        assert [is_lost(entry) for entry in again] == [False, False, True, False, True, False]
        assert [(e.first, e.last) for e in again] == [(e.first, e.last) for e in entries]
        assert await fresh.find(entries[2].first + 1) == again[2]

    @as_scenario(on_bucket)
    async def test_a_beginning_that_was_wanted_and_is_gone_is_a_hole(self, cloud: Cloud) -> None:
        entries = await all_entries(await cloud.grow(3))
        await cloud.store.delete([entries[0].name], **IN)
        found = await survey_log(cloud.store, 7, entries[0].first + 2)
        assert found.holes == ((entries[0].first + 2, entries[0].last),)
        assert (await survey_log(cloud.store, 7, entries[1].first + 1)).holes == ()
        assert (await survey_log(cloud.store, 7)).holes == ()

    @as_scenario(on_bucket)
    async def test_objects_of_several_logs_are_found_for_each(self, cloud: Cloud) -> None:
        one, two = cloud.manifest(7), cloud.manifest(9)
        for log, manifest in ((7, one), (9, two)):
            await manifest.take_turn(Made(log).next)
        for _ in range(3):
            done = await cloud.put((7, 2), (9, 3))
            await one.commit(cloud.entry(done, 7))
            await two.commit(cloud.entry(done, 9))
        await two.commit(cloud.entry(await cloud.put((9, 1)), 9))
        entries = {7: await all_entries(one), 9: await all_entries(two)}
        assert await find_logs(cloud.store) == [7, 9]
        for log in (7, 9):
            await cloud.store.delete([head_name(log)], **IN)
            await repair_log(cloud.store, cloud.manifest(log), log)
            names = [entry.name for entry in await all_entries(cloud.manifest(log))]
            assert names == [entry.name for entry in entries[log]]

    @as_scenario(on_bucket)
    async def test_an_orphan_that_tells_more_is_as_good_as_what_was_committed(
        self, cloud: Cloud
    ) -> None:
        manifest = await cloud.grow(1)
        end = manifest.head.end
        short = await cloud.put((7, 1))
        cloud.made[7].next = end
        await cloud.put((7, 5), fence=1)
        await manifest.commit(cloud.entry(short, 7)._replace(name=short.name(DAY, 2)))
        await cloud.store.delete([head_name(7)], **IN)
        found = await repair_log(cloud.store, cloud.manifest(), 7)
        assert found.holes == ()
        assert found.entries[-1].last == cloud.made[7].next - 1

    @as_scenario(on_bucket)
    async def test_a_log_of_which_nothing_is_left_is_told(self, cloud: Cloud) -> None:
        with pytest.raises(Unrepairable, match="no object"):
            await repair_log(cloud.store, cloud.manifest(), 7)
        assert await find_logs(cloud.store) == []
        start, end = Made(7).next, Made(7).next + 50
        with pytest.raises(Unrepairable, match=r"1 ranges .*say where the log begins"):
            await repair_log(cloud.store, cloud.manifest(), 7, start=start, end=end)
        await repair_log(cloud.store, cloud.manifest(), 7, start=start, end=end, accept=True)
        (entry,) = await all_entries(cloud.manifest())
        assert is_lost(entry)
        assert (entry.first, entry.last) == (start, end)

    @pytest.mark.parametrize("count", [6, 70])
    @as_scenario(on_bucket)
    async def test_a_manifest_that_ends_too_early_is_continued_up_to_where_nodes_let_go(
        self, cloud: Cloud, *, count: int
    ) -> None:
        """Whether it was repaired without the newest objects, or can be read no more."""
        entries = await all_entries(await cloud.grow(count))
        lost, end = entries[-2:], entries[-1].last

        async def check_end() -> None:
            again = await all_entries(cloud.manifest())
            assert [each._replace(replaced_us=0) for each in again[:-1]] == entries[:-2]
            assert is_lost(again[-1])
            assert (again[-1].first, again[-1].last) == (lost[0].first, end)

        await cloud.store.delete([head_name(7), *(entry.name for entry in lost)], **IN)
        await repair_log(cloud.store, cloud.manifest(), 7)
        with pytest.raises(BadSetting, match="nothing to repair"):
            await repair_log(cloud.store, cloud.manifest(), 7, accept=True)
        with pytest.raises(BadSetting, match=r"reaches .*nothing to repair up to"):
            await repair_log(cloud.store, cloud.manifest(), 7, end=lost[0].first - 1)
        uploader = cloud.manifest()
        await uploader.take_turn(0)
        with pytest.raises(Unrepairable, match=f"1 ranges .*{Lsn(lost[0].first)}"):
            await repair_log(cloud.store, cloud.manifest(), 7, end=end)
        await repair_log(cloud.store, cloud.manifest(), 7, end=end, accept=True)
        with pytest.raises(Fenced):
            await uploader.commit(lost[0]._replace(fence=uploader.head.fence))
        await check_end()
        await cloud.store.delete([head_name(7)], **IN)
        await repair_log(cloud.store, cloud.manifest(), 7, end=end, accept=True)
        await check_end()

    @pytest.mark.slow
    @pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 127, 130])
    @pytest.mark.parametrize("left", [0, 1, 10])
    @as_scenario(on_bucket)
    async def test_an_accepted_loss_that_reaches_past_the_log_is_taken_back(
        self, cloud: Cloud, *, count: int, left: int
    ) -> None:
        """Nothing that came up to there was ever uploaded. A second loss is joined to the first."""
        manifest = await cloud.grow(count)
        entries = await all_entries(cloud.manifest())
        assert manifest.head is not None
        tail = manifest.head.end - 1
        for far in (tail + 5, tail + 1000):
            await repair_log(cloud.store, cloud.manifest(), 7, end=far, accept=True)
        uploader = cloud.manifest()
        await uploader.take_turn(0)
        if count:
            with pytest.raises(BadSetting, match="nothing to repair"):
                await repair_log(cloud.store, cloud.manifest(), 7, end=tail - 1)
        with pytest.raises(BadSetting, match="nothing to repair"):
            await repair_log(cloud.store, cloud.manifest(), 7, end=tail + 1000)
        await repair_log(cloud.store, cloud.manifest(), 7, end=tail + left)
        again = cloud.manifest()
        head = await again.load_whole()
        assert head is not None
        assert head.end == tail + left + 1
        found = await all_entries(again)
        assert found[:count] == entries
        assert all(is_lost(entry) for entry in found[count:])
        assert sum(entry.last - entry.first + 1 for entry in found[count:]) == left
        assert await end_of_objects(again) == (tail + 1 if count else 0)
        await again.take_turn(0)
        done = await cloud.put((7, 2), fence=again.head.fence)
        entry = cloud.entry(done, 7)
        at, fence = uploader.head.end, uploader.head.fence
        with pytest.raises(Fenced):
            await uploader.commit(entry._replace(first=at, last=at, fence=fence))
        if not left:
            await again.commit(entry)
            assert (await all_entries(cloud.manifest()))[-1] == entry

    @as_scenario(on_bucket)
    async def test_a_loss_with_objects_behind_it_stays(self, cloud: Cloud) -> None:
        manifest = await cloud.grow(2)
        assert manifest.head is not None
        tail = manifest.head.end - 1
        await repair_log(cloud.store, cloud.manifest(), 7, end=tail + 9, accept=True)
        cloud.made[7].next = tail + 10
        again = cloud.manifest()
        await again.take_turn(0)
        done = await cloud.put((7, 2), fence=again.head.fence)
        await again.commit(cloud.entry(done, 7))
        with pytest.raises(BadSetting, match="nothing to repair"):
            await repair_log(cloud.store, cloud.manifest(), 7, end=tail)

    @as_scenario(on_bucket)
    async def test_a_manifest_that_went_back_is_continued_with_the_objects_that_are_there(
        self, cloud: Cloud
    ) -> None:
        """The pointer was put back from an older copy, the objects were not."""
        manifest = await cloud.grow(3)
        older, _ = await cloud.store.read(head_name(7), **IN)
        for _ in range(4):
            done = await cloud.put((7, 2), fence=1)
            await manifest.commit(cloud.entry(done, 7))
        entries = await all_entries(manifest)
        cloud.bucket.damage(head_name(7), older)
        await cloud.store.delete([entries[5].name], **IN)
        end = entries[-1].last + 9
        found = await repair_log(cloud.store, cloud.manifest(), 7, end=end, accept=True)
        assert found.holes == ((entries[5].first, entries[5].last), (entries[6].last + 1, end))
        again = await all_entries(cloud.manifest())
        assert [is_lost(entry) for entry in again] == [False] * 5 + [True, False, True]
        assert [e.name for e in again[:5]] == [e.name for e in entries[:5]]
        assert [e.append_last_us for e in again] == sorted(e.append_last_us for e in again)
        done = await collect_log(cloud.store, cloud.manifest(), 7, cloud.host.clock.now_us(), 0)
        assert done.deleted == 0

    @as_scenario(on_bucket)
    async def test_a_deleted_log_is_not_continued(self, cloud: Cloud) -> None:
        manifest = await cloud.grow(2)
        end = manifest.head.end + 5
        await retire_log(manifest)
        with pytest.raises(BadSetting, match="was deleted"):
            await repair_log(cloud.store, cloud.manifest(), 7, end=end, accept=True)


class TestWhatARepairLeavesOut:
    @pytest.mark.parametrize(("which", "count"), [(0, 5), (2, 5), (4, 5), (64, 65), (128, 129)])
    @as_scenario(on_bucket)
    async def test_it_stays_for_its_grace(self, cloud: Cloud, *, which: int, count: int) -> None:
        """A damaged object was deleted within a minute, though most of it could still be read. That
        of the newest one went on where the repaired head ends with a page."""
        manifest = await cloud.grow(count)
        entries = await all_entries(manifest)
        damaged = entries[which]
        content = cloud.bucket.content(damaged.name)
        cloud.bucket.damage(damaged.name, content[:-1] + b"x")
        await cloud.store.delete([head_name(7)], **IN)
        await asyncio.sleep(5000)
        start = int(entries[0].first)
        found = await repair_log(cloud.store, cloud.manifest(), 7, start=start, accept=True)
        assert [name for name, _ in found.damaged] == [damaged.name]
        for later_s, is_there in ((60, True), (3500, True), (3700, False)):
            now_us = cloud.host.clock.now_us() + later_s * 1_000_000
            done = await collect_log(cloud.store, cloud.manifest(), 7, now_us, 3600.0)
            assert (damaged.name in cloud.bucket.names()) is is_there
            assert done.waiting == (1 + count // 64 if is_there else 0), "and the old pages"
        kept = [entry.name for entry in entries if entry != damaged]
        assert set(kept) <= set(cloud.bucket.names())


class TestDeletion:
    @as_scenario(on_bucket)
    async def test_a_deleted_log_s_objects_go_after_their_grace_and_no_upload_comes_back(
        self, cloud: Cloud
    ) -> None:
        uploader = await cloud.grow(rule.FANOUT + 3)
        late = await cloud.put((7, 1), fence=uploader.head.fence)
        await retire_log(cloud.manifest())
        await retire_log(cloud.manifest())  # again, after a crash
        with pytest.raises(Fenced):
            await uploader.commit(cloud.entry(late, 7))
        for fence in (rule.FENCE_MAX, 0):  # the same one, and whichever is next
            with pytest.raises(Fenced):
                await cloud.manifest().take_turn(0, fence)
        fresh = cloud.manifest()
        for wait_s, left in ((0, rule.FANOUT + 6), (3700, 1)):
            await asyncio.sleep(wait_s)
            await collect_log(cloud.store, fresh, 7, cloud.host.clock.now_us(), 3600)
            assert len(cloud.bucket.names()) == left
        assert cloud.bucket.names() == [head_name(7)]

    @as_scenario(on_bucket)
    async def test_an_object_of_several_logs_goes_when_none_needs_it(self, cloud: Cloud) -> None:
        one, two = cloud.manifest(7), cloud.manifest(9)
        for log, manifest in ((7, one), (9, two)):
            await manifest.take_turn(Made(log).next)
        done = await cloud.put((7, 2), (9, 3))
        name = done.name(DAY, 1)
        await one.commit(cloud.entry(done, 7))
        await asyncio.sleep(100)

        async def collect() -> bool:
            now_us = cloud.host.clock.now_us()
            await collect_shared(cloud.store, cloud.manifest, now_us, 60)
            return name not in cloud.bucket.names()

        assert not await collect()  # log 9 may commit it yet
        await two.take_turn(0)
        assert not await collect()  # log 7 has it
        await one.trim(one.head.end)
        assert not await collect()  # and readers may have its head
        await asyncio.sleep(100)
        assert await collect()

    @as_scenario(on_bucket)
    async def test_nothing_is_collected_of_a_log_whose_head_is_lost(self, cloud: Cloud) -> None:
        await cloud.grow(3)
        await cloud.put((8, 2), (9, 2))
        await cloud.store.delete([head_name(7)], **IN)
        await asyncio.sleep(10_000)
        now_us = cloud.host.clock.now_us()
        assert (await collect_log(cloud.store, cloud.manifest(), 7, now_us, 1)).deleted == 0
        assert (await collect_shared(cloud.store, cloud.manifest, now_us, 1)).deleted == 0
        assert len(cloud.bucket.names()) == 4

    @as_scenario(on_bucket)
    async def test_what_is_not_ours_is_left_alone(self, cloud: Cloud) -> None:
        manifest = await cloud.grow(1)
        strangers = ["logs/0000000000000007/objects/notes.txt", "shared/readme",
                     "logs/0000000000000007/pages/x"]  # fmt: skip
        for name in strangers:
            await cloud.store.put(name, [b"x"], **IN)
        await manifest.trim(manifest.head.end)
        await asyncio.sleep(1000)
        now_us = cloud.host.clock.now_us()
        done = await collect_log(cloud.store, manifest, 7, now_us, 1)
        assert (done.deleted, done.strangers) == (1, 2)
        assert (await collect_shared(cloud.store, cloud.manifest, now_us, 1)).strangers == 1
        assert set(strangers) < set(cloud.bucket.names())


class TestCosts:
    @as_scenario(on_bucket)
    async def test_a_look_at_shared_objects_reads_each_head_once(self, cloud: Cloud) -> None:
        """It read the heads of all logs of each object, one after another: 100 logs in 70 objects
        took six minutes."""
        logs, objects = range(1, 21), 10
        manifests = [cloud.manifest(log) for log in logs]
        for manifest, log in zip(manifests, logs, strict=True):
            await manifest.take_turn(Made(log).next)
        for _ in range(objects):
            done = await cloud.put(*((log, 1) for log in logs))
            for manifest, log in zip(manifests, logs, strict=True):
                await manifest.commit(cloud.entry(done, log))

        async def reads() -> int:
            before = cloud.bucket.calls["get"]
            now_us = cloud.host.clock.now_us()
            await collect_shared(cloud.store, cloud.manifest, now_us, 3600.0)
            return cloud.bucket.calls["get"] - before

        assert await reads() == objects + 1, "a footer of each, and the head of the first log"
        for manifest in manifests:
            await manifest.trim(manifest.head.end)
        assert await reads() == objects + len(logs)

    @pytest.mark.slow
    @as_scenario(on_bucket)
    async def test_a_commit_puts_the_head_alone_but_for_one_in_fanout(self, cloud: Cloud) -> None:
        """Counted at the store: puts and bytes of the first thousands of commits."""
        manifest = cloud.manifest()
        head = await manifest.take_turn(1 << 33)
        costs: list[tuple[int, int, int]] = []
        for number in range(rule.FANOUT**2 + 200):
            before = (cloud.bucket.calls["put"], cloud.bucket.put_bytes,
                      cloud.bucket.calls.get("get", 0))  # fmt: skip
            first = head.end
            entry = Entry(first, first + 99, head.fence, f"shared/x/{number}", 1, 10**8, 9999,
                          100, 10**8, number, number, number, number)  # fmt: skip
            head = await manifest.commit(entry)
            costs.append((cloud.bucket.calls["put"] - before[0],
                          cloud.bucket.put_bytes - before[1],
                          cloud.bucket.calls.get("get", 0) - before[2]))  # fmt: skip
        puts = [cost[0] for cost in costs]
        assert puts.count(1) == len(costs) - len(costs) // rule.FANOUT
        assert max(puts) == 3
        # The dearest head is full on two levels; it never gets larger than a level more.
        early, late = costs[: rule.FANOUT], costs[-rule.FANOUT :]
        assert max(cost[1] for cost in late) < 4 * max(cost[1] for cost in early)
        assert {cost[2] for cost in costs} == {0}

    @as_scenario(on_bucket)
    async def test_opening_and_finding_read_the_head_and_a_page_a_level(self, cloud: Cloud) -> None:
        entries = [
            Entry((1 << 33) + 10 * n, (1 << 33) + 10 * n + 9, 1, f"shared/x/{n}", 1, 10**8, 99,
                  10, 10**8, n, n, n, n)
            for n in range(rule.FANOUT**2 * 2 + 5)
        ]  # fmt: skip
        await cloud.manifest().write_anew(entries, 2)
        for lsn in (entries[0].first, entries[5000].last, entries[-1].last):
            fresh = cloud.manifest()
            before = cloud.bucket.calls["get"]
            assert await fresh.find(lsn) is not None
            assert cloud.bucket.calls["get"] - before <= 1 + 2

    @as_scenario(on_bucket)
    async def test_a_head_of_another_log_is_refused(self, cloud: Cloud) -> None:
        manifest = await cloud.grow(1)
        data = pack_head(manifest.head)
        await cloud.store.put(head_name(9), [data], **IN)
        with pytest.raises(Malformed, match="log 7"):
            await cloud.manifest(9).load()
