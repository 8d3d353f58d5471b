"""Compaction on a bad store, killed at any step, beside uploads, trims and readers."""

from __future__ import annotations

import asyncio

import pytest
from made_objects import NOW_US, Made
from test_uploader import LOG, Swarm, expected, history, source, stored

from cordwood.block import Gap
from cordwood.errors import (
    CordwoodError,
    Fenced,
    Malformed,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Retryable,
)
from cordwood.host.seams import Host
from cordwood.layout.body import encode_body
from cordwood.layout.object_names import SHARED
from cordwood.protocol import manifest as rule
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.sim.streams import stream
from cordwood.tier import collect, compact
from cordwood.tier.collect import collect_log, collect_shared
from cordwood.tier.compact import commit_merge, compact_log
from cordwood.tier.history import HistoryReader
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.merge import MergeTask, merge_run
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.repair import repair_log
from cordwood.tier.shared_upload import LogItems, upload_shared
from cordwood.tier.uploader import LogUploader
from cordwood.tier.verify import all_entries, verify_log
from cordwood.tiered import MERGED, Entry

POLICY = MergePolicy(object_bytes=8000)
HUNT_SEEDS = 100
SWARM_POLICY = MergePolicy(object_bytes=2000)
GRACE_S = 60.0
TURN_S = 30.0


class MergedSwarm(Swarm):
    """As the uploaders' swarm: two nodes merge as well, a third collects and reads."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made = history(120)
        self.merged = 0
        self.reads = 0
        self.broken: list[str] = []

    async def _direct(self, simulation: Simulation) -> None:
        reader = simulation.machine("reader")
        reader.start(self._read_and_collect)
        await super()._direct(simulation)

    async def _upload(self, host: Host) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super()._upload(host))
            tasks.create_task(self._compact(host))

    async def _compact(self, host: Host) -> None:
        store = PatientStore(self.bucket.store(), host.random, try_s=2.0)
        while True:
            await asyncio.sleep(host.random.random() * 2)
            try:
                manifest = LogManifest(store, LOG, host, "node", timeout_s=60)
                await compact_log(
                    store, manifest, host, LOG, SWARM_POLICY, merges_max=3, turn_s=TURN_S,
                    pace=self._count,
                )  # fmt: skip
            except (Fenced, Retryable, OutcomeUnknown):
                continue

    async def _count(self, size: int) -> None:
        self.merged += 1

    async def _read_and_collect(self, host: Host) -> None:
        store = PatientStore(self.bucket.store(), host.random, try_s=2.0)
        wanted = expected(self.made)
        while True:
            await asyncio.sleep(host.random.random() * 20)
            manifest = LogManifest(store, LOG, host, "reader", timeout_s=60)
            try:
                now_us = host.clock.now_us()
                await collect_log(store, manifest, LOG, now_us, GRACE_S)
                found = []
                async with HistoryReader(store, manifest, host, LOG, self.made.first) as reader:
                    async for item in reader:
                        found.append(
                            item if isinstance(item, Gap) else (item.header, bytes(item.raw))
                        )
                self.reads += 1
                if found != wanted[: len(found)]:
                    self.broken.append("a reader was given something else")
            except (Retryable, OutcomeUnknown):
                continue
            except CordwoodError as error:
                self.broken.append(str(error))

    async def _audit(self, host: Host) -> None:
        assert not self.broken, self.broken
        store = self.bucket.store()
        manifest = LogManifest(store, LOG, host, "auditor")
        before = await stored(store, host)
        assert before == expected(self.made)[: len(before)]
        await self.once(store, host)
        while True:
            done = await compact_log(store, manifest, host, LOG, POLICY)
            assert (done.left, done.damaged) == (0, 0)
            if not done.merged:
                break
        assert await stored(store, host) == expected(self.made)
        verified = await verify_log(store, manifest, host, LOG)
        assert (verified.faults, verified.lost) == ([], [])
        await manifest.take_turn(0)
        await manifest.end_overdue_merging()
        assert await manifest.load()
        await asyncio.sleep(1)
        await collect_log(store, manifest, LOG, host.clock.now_us(), 0)
        names = {entry.name async for entry in all_entries(manifest)}
        left = {name for name in self.bucket.names() if "/objects/" in name}
        assert left == names, "orphans are left"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "FANOUT", 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_all_is_there_once_whatever_is_killed(seed):
    MergedSwarm(seed).run()


@pytest.mark.slow
def test_the_runs_come_to_what_they_are_for():
    swarms = [MergedSwarm(seed) for seed in range(4)]
    for swarm in swarms:
        swarm.run()
    assert sum(swarm.merged for swarm in swarms) > 10
    assert sum(swarm.reads for swarm in swarms) > 20


def commit_before_the_put(patch):
    """A merge is committed before its object is durable."""
    put = PatientStore.put
    late = []

    async def noted(self, name, content, *, timeout_s):
        if f"-{MERGED >> 60:x}00" in name and "/objects/" in name:
            late.append((self, name, content))
        else:
            await put(self, name, content, timeout_s=timeout_s)

    async def no_check(store, entry):
        return None

    commit = compact.commit_merge

    async def early(manifest, host, run, entry, number):
        await commit(manifest, host, run, entry, number)
        while late:
            self, name, content = late.pop()
            await put(self, name, content, timeout_s=60)

    patch.setattr(PatientStore, "put", noted)
    patch.setattr("cordwood.tier.merge.check_stored", no_check)
    patch.setattr(compact, "commit_merge", early)


def the_last_object_is_left_out(patch):
    """A merge holds one object less than the entries that it replaces."""
    merge = compact.merge_run

    async def short(store, host, task):
        entry = await merge(
            store, host, MergeTask(task.log, task.number, task.run[:-1] or task.run)
        )
        last, sums = task.run[-1], [(each.rows, each.bytes) for each in task.run]
        rows, size = map(sum, zip(*sums, strict=True))
        return entry._replace(last=last.last, rows=rows, bytes=size,
                              append_last_us=last.append_last_us)  # fmt: skip

    patch.setattr(compact, "merge_run", short)


def replaced_goes_at_once(patch):
    """The collection knows no grace, and takes merges on their way for dead."""
    patch.setattr(rule, "is_merge_over", lambda head, fence: True)
    patch.setattr(collect, "_since_us", lambda head, found, last, info: 0)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(commit_before_the_put, marks=pytest.mark.slow),  # 20 s: `make prove` runs it
        the_last_object_is_left_out,
        pytest.param(replaced_goes_at_once, marks=pytest.mark.slow),
    ],
)
def test_a_planted_bug_is_caught(plant, monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    for seed in range(HUNT_SEEDS):
        try:
            MergedSwarm(seed).run()
        except (AssertionError, CordwoodError, ExceptionGroup):
            return
    pytest.fail(f"{plant.__doc__} Nothing noticed within {HUNT_SEEDS} seeds.")


# ---- one thing at a time ----


def simulate(scenario) -> Bucket:
    simulation = Simulation(1)
    bucket = Bucket(stream(1, "bucket"), BucketFaults())

    async def main(simulation: Simulation) -> None:
        await simulation.machine("one").start(lambda host: scenario(bucket, bucket.store(), host))

    simulation.run(main)
    assert simulation.loop.unhandled == []
    return bucket


async def upload(store, host: Host, made: Made, object_bytes: int = 300) -> LogManifest:
    manifest = LogManifest(store, made.log, host, "node")
    uploader = LogUploader(store, manifest, host, made.log, "/orders", object_bytes=object_bytes)
    first = await uploader.next_lsn() or made.first
    await uploader.run(source(made, first), first)
    return manifest


async def entries_of(manifest: LogManifest) -> list[Entry]:
    await manifest.load()
    return [entry async for entry in all_entries(manifest)]


class TestCompacting:
    def test_many_small_objects_become_few_and_all_is_read_back(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            made = history(59)
            manifest = await upload(store, host, made)
            before = await entries_of(manifest)
            done = await compact_log(store, manifest, host, LOG, POLICY)
            after = await entries_of(manifest)
            assert len(before) > 15
            assert len(after) <= 3
            assert (done.replaced, done.damaged) == (len(before), 0)
            assert sum(e.rows for e in before) == sum(e.rows for e in after) == done.rows
            assert await stored(store, host) == expected(made)
            assert (await compact_log(store, manifest, host, LOG, POLICY)).merged == 0
            head = await manifest.load()
            assert head is not None
            assert head.merging.holder == ""
            assert head.fence == 1

        simulate(scenario)

    def test_the_head_and_worn_pages_are_enough_for_a_node(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            manifest = await upload(store, host, history(59))
            bucket.calls.clear()
            runs = await compact.plan_log(manifest, POLICY, everything=False)
            assert bucket.calls["get"] == 1
            head = manifest.head
            assert head is not None
            assert all(entry in head.levels[0] for run in runs for entry in run)

        simulate(scenario)

    def test_objects_of_several_logs_become_objects_of_one_and_go_after_their_grace(self):
        policy = MergePolicy(object_bytes=8000, shared_bytes_min=100)

        async def scenario(bucket: Bucket, store, host: Host) -> None:
            logs = {log: Made(log) for log in (3, 7)}
            for round_ in range(6):
                shares = []
                for log, made in logs.items():
                    at = len(made.items)
                    made.block(encode_body([b"%d" % round_] * 5, timestamps_us=NOW_US + round_))
                    manifest = LogManifest(store, log, host, "node")
                    head = await manifest.load()
                    first = head.end if head is not None else made.first
                    shares.append(LogItems(log, f"/{log}", 0, manifest, first, made.items[at:]))
                await upload_shared(store, host, shares)

            def manifest_of(log: int) -> LogManifest:
                return LogManifest(store, log, host, "collect")

            def shared() -> int:
                return sum(name.startswith(SHARED) for name in bucket.names())

            assert shared() == 6
            for log in logs:
                done = await compact_log(store, manifest_of(log), host, log, policy)
                assert (done.merged, done.replaced) == (1, 6)
                merged_us = host.clock.now_us()
                for grace_s, at_us, left in ((50, merged_us, 6), (50, merged_us + 49_000_000, 6)):
                    await collect_shared(store, manifest_of, at_us, grace_s)
                    assert shared() == left
            await collect_shared(store, manifest_of, merged_us + 51_000_000, 50)
            assert shared() == 0
            for log in logs:
                verified = await verify_log(store, manifest_of(log), host, log)
                assert (verified.objects, verified.rows, verified.faults) == (1, 30, [])

        simulate(scenario)

    def test_a_reader_in_the_middle_goes_on_where_the_merged_objects_are(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            made = history(59)
            manifest = await upload(store, host, made)
            reading = LogManifest(store, LOG, host, "reader")
            found: list[object] = []
            async with HistoryReader(store, reading, host, LOG, made.first) as reader:
                async for item in reader:
                    found.append(item if isinstance(item, Gap) else (item.header, bytes(item.raw)))
                    if len(found) == 5:
                        await compact_log(store, manifest, host, LOG, POLICY)
                        await asyncio.sleep(1)
                        await collect_log(store, manifest, LOG, host.clock.now_us(), 0)
            assert found == expected(made)

        simulate(scenario)

    def test_a_reader_whose_head_is_newer_than_its_plan_goes_on(self):
        """The manifest was read anew for a page, and the object of an older plan is gone."""

        async def scenario(bucket: Bucket, store, host: Host) -> None:
            made = history(59)
            manifest = await upload(store, host, made)
            reading = LogManifest(store, LOG, host, "reader")
            found: list[object] = []
            async with HistoryReader(store, reading, host, LOG, made.first) as reader:
                async for item in reader:
                    found.append(item if isinstance(item, Gap) else (item.header, bytes(item.raw)))
                    if len(found) == 5:
                        await compact_log(store, manifest, host, LOG, POLICY)
                        await asyncio.sleep(1)
                        await collect_log(store, manifest, LOG, host.clock.now_us(), 0)
                        await reading.load()
            assert found == expected(made)

        simulate(scenario)

    def test_an_object_that_is_gone_for_good_ends_a_reader(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            made = history(59)
            manifest = await upload(store, host, made)
            bucket.delete((await entries_of(manifest))[4].name)
            async with HistoryReader(store, manifest, host, LOG, made.first) as reader:
                items = aiter(reader)
                with pytest.raises(Malformed, match="repair"):
                    [item async for item in items]

        simulate(scenario)

    def test_damage_is_left_where_it_is_and_the_rest_is_merged(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            manifest = await upload(store, host, history(59))
            before = await entries_of(manifest)
            broken = before[3]
            content = bytearray(bucket.content(broken.name))
            content[len(content) // 3] ^= 4
            bucket.damage(broken.name, bytes(content))
            done = await compact_log(store, manifest, host, LOG, MergePolicy(object_bytes=2000))
            assert (done.left, done.damaged) == (0, 1)
            assert done.merged >= 1
            assert broken in await entries_of(manifest)

        simulate(scenario)

    def test_a_commit_is_made_once_however_often_it_is_asked_for(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            manifest = await upload(store, host, history(59))
            run = tuple((await entries_of(manifest))[2:9])
            head = await manifest.take_merging(1 << 60)
            number = head.merging.number
            entry = await merge_run(store, host, MergeTask(LOG, number, run))
            again = await merge_run(store, host, MergeTask(LOG, number, run))
            assert entry == again
            other = LogManifest(store, LOG, host, "driver")
            await commit_merge(other, host, run, entry, number)
            head = await manifest.load()
            await commit_merge(manifest, host, run, entry, number)
            assert await manifest.load() == head
            await manifest.take_turn(0)  # an uploader goes on
            second = await manifest.take_merging(1 << 60)
            await commit_merge(other, host, run, entry, number)  # it is there
            bigger = await merge_run(
                store, host, MergeTask(LOG, second.merging.number,
                                       tuple((await entries_of(manifest))[1:5]))
            )  # fmt: skip
            await commit_merge(
                manifest, host, (await entries_of(manifest))[1:5], bigger, second.merging.number
            )
            with pytest.raises(Fenced):
                await commit_merge(other, host, run, entry, number)
            with pytest.raises(ObjectChanged):
                await commit_merge(
                    manifest, host, run,
                    entry._replace(fence=MERGED | second.merging.number), second.merging.number,
                )  # fmt: skip

        simulate(scenario)

    def test_an_upload_goes_on_whose_commit_was_merged_before_it_was_told(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            manifest = await upload(store, host, history(59))
            uploading = LogManifest(store, LOG, host, "node")
            head = await uploading.take_turn(0)
            last = (await entries_of(manifest))[-1]
            entry = last._replace(
                first=head.end, last=head.end + 9, fence=head.fence, name="logs/x", rows=10
            )
            await uploading.commit(entry)
            head = await manifest.take_merging(1 << 60)
            merged = entry._replace(fence=MERGED | head.merging.number, name="logs/y")
            await manifest.replace((entry,), merged)
            assert await uploading.commit(entry)  # asked again, as after a lost answer
            assert await uploading.trim(head.end) is not None
            assert await uploading.commit(entry)

        simulate(scenario)

    def test_what_was_merged_is_repaired_from_objects(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            made = history(59)
            manifest = await upload(store, host, made)
            await compact_log(store, manifest, host, LOG, POLICY)
            await asyncio.sleep(1)
            await collect_log(store, manifest, LOG, host.clock.now_us(), 0)
            bucket.delete(f"logs/{LOG:016x}/head")
            again = LogManifest(store, LOG, host, "repair")
            found = await repair_log(store, again, LOG)
            assert found.holes == ()
            assert await stored(store, host) == expected(made)
            head = await again.load()
            assert head is not None
            assert head.fence < MERGED, "uploads count on"
            assert head.merging.number > found.merges
            made.block(encode_body([b"more"] * 40, timestamps_us=NOW_US))
            await upload(store, host, made)
            assert await stored(store, host) == expected(made)

        simulate(scenario)

    def test_a_turn_that_nobody_ended_is_ended_and_its_orphans_go(self):
        async def scenario(bucket: Bucket, store, host: Host) -> None:
            manifest = await upload(store, host, history(59))
            run = tuple((await entries_of(manifest))[2:9])
            head = await manifest.take_merging(host.clock.now_us() + 10_000_000)
            entry = await merge_run(store, host, MergeTask(LOG, head.merging.number, run))
            other = LogManifest(store, LOG, host, "collect")
            await asyncio.sleep(9)
            done = await collect_log(store, other, LOG, host.clock.now_us(), 0)
            assert done.deleted == 0
            await asyncio.sleep(2)
            done = await collect_log(store, other, LOG, host.clock.now_us(), 0)
            assert done.deleted == 1
            with pytest.raises(Fenced):
                await commit_merge(manifest, host, run, entry, head.merging.number)
            with pytest.raises(NoObject):
                await store.get(entry.name, 0, 4, timeout_s=5)

        simulate(scenario)
