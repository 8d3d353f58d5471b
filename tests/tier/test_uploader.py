"""The uploader on a bad store, killed and paused at any step: all is there once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from made_objects import NOW_US, Made, written
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Codec, Gap, GapKind
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    CordwoodError,
    Corrupt,
    Fenced,
    Malformed,
    OutcomeUnknown,
    Retryable,
)
from cordwood.host.seams import Host
from cordwood.layout.body import encode_body, open_body
from cordwood.layout.object_names import head_name
from cordwood.layout.object_writer import FinishedObject, ObjectWriter
from cordwood.lsn import Lsn
from cordwood.protocol import manifest as rule
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.streams import stream
from cordwood.tier.collect import collect_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.uploader import UNCOMMITTED_MAX, Item, LogUploader, Uploaded, put_checked
from cordwood.tier.verify import all_entries, entry_items, verify_log

LOG = 7
HUNT_SEEDS = 100


def history(blocks: int = 40) -> Made:
    """A log with blocks of all sizes, holes and an epoch's end."""
    made = Made(LOG)
    for number in range(blocks):
        values = [b"%d-%d" % (number, each) for each in range(1 + number % 20)]
        made.block(encode_body(values, timestamps_us=NOW_US + number),
                   Codec.ZSTD if number % 3 else Codec.NONE)  # fmt: skip
        if number % 7 == 3:
            made.gap(1 + number, GapKind.HOLE)
        if number == blocks // 2:
            made.bridge()
            made.next += 1
            gap = made.items[-1]
            assert isinstance(gap, Gap)
            made.items[-1] = Gap(gap.first, Lsn(made.next - 1), gap.kind)
    return made


def expected(made: Made) -> list[object]:
    return [
        item if isinstance(item, Gap) else (item[0], bytes(open_body(*item).raw))
        for item in made.items
    ]


async def source(made: Made, first: int) -> AsyncIterator[Item]:
    for item in made.items:
        if (item.first if isinstance(item, Gap) else item[0].first) >= first:
            await asyncio.sleep(0.01)
            yield item


async def stored(store, host: Host) -> list[object]:
    """All that main storage has of the log, through its manifest."""
    manifest = LogManifest(store, LOG, host, "reader")
    found: list[object] = []
    async for entry in all_entries(manifest):
        async for item in entry_items(store, entry, host, LOG):
            found.append(item if isinstance(item, Gap) else (item[0], bytes(item[1])))
    return found


class Swarm:
    """Two nodes upload one log, and are killed and paused, on a bad store."""

    def __init__(self, seed: int) -> None:
        self.made = history()
        self.simulation = Simulation(seed)
        self.chance = stream(seed, "kills")
        self.bucket = Bucket(stream(seed, "bucket"), BucketFaults.bad())
        self.ends = 0

    def run(self) -> None:
        self.simulation.run(self._direct)
        assert self.simulation.loop.unhandled == []

    async def _direct(self, simulation: Simulation) -> None:
        machines = [simulation.machine(f"node-{number}") for number in (1, 2)]
        for _ in range(12):
            machine = self.chance.choice(machines)
            if machine.is_up:
                machine.kill()
            machine.start(self._upload)
            await asyncio.sleep(self.chance.random() * self.chance.choice((0.5, 5, 30)))
            if self.chance.random() < 0.3:
                machine.pause()
                await asyncio.sleep(self.chance.random() * 10)
                machine.resume()
        for machine in machines:
            machine.kill()
        self.bucket.faults = BucketFaults()
        await asyncio.sleep(300)
        await simulation.machine("auditor").start(self._audit)

    async def _upload(self, host: Host) -> None:
        store = PatientStore(self.bucket.store(), host.random, try_s=2.0)
        while True:
            await asyncio.sleep(host.random.random() * 5)
            try:
                await self.once(store, host)
                self.ends += 1
            except (Fenced, Retryable, OutcomeUnknown, BadSetting):
                continue

    async def once(self, store, host: Host) -> Uploaded:
        manifest = LogManifest(store, LOG, host, "node", timeout_s=60)
        uploader = LogUploader(store, manifest, host, LOG, "/orders", object_bytes=600)
        first = await uploader.next_lsn() or self.made.first
        return await uploader.run(source(self.made, first), first)

    async def _audit(self, host: Host) -> None:
        store = self.bucket.store()
        before = await stored(store, host)
        assert before == expected(self.made)[: len(before)]
        await self.once(store, host)
        assert await stored(store, host) == expected(self.made)
        manifest = LogManifest(store, LOG, host, "auditor")
        done = await verify_log(store, manifest, host, LOG)
        assert (done.faults, done.lost) == ([], [])
        await manifest.load()
        await manifest.take_turn(0)
        await collect_log(store, manifest, LOG, host.clock.now_us(), 0)
        names = {entry.name async for entry in all_entries(manifest)}
        left = {name for name in self.bucket.names() if "/objects/" in name}
        assert left == names, "orphans are left"


@pytest.mark.parametrize("seed", range(25))
def test_all_is_there_once_whatever_is_killed(seed):
    Swarm(seed).run()


def commit_before_the_put(patch):
    """An object is committed before it is durable."""
    commit = LogUploader._commit
    put = PatientStore.put

    async def early(self, done, name):
        await commit(self, done, name)
        await put(self._store, name, [done.content], timeout_s=60)

    async def nothing(self, name, content, *, timeout_s):
        if "/objects/" not in name:
            await put(self, name, content, timeout_s=timeout_s)

    patch.setattr(LogUploader, "_commit", early)
    patch.setattr(PatientStore, "put", nothing)


def objects_need_not_follow(patch):
    """An object is forgotten now and then, and the next one is committed behind the hole."""
    close, append = LogUploader._close_object, rule.append

    async def careless(self, *what):
        if self._host.random.random() >= 0.2:
            await close(self, *what)

    def behind(head, entry, fence, seal):
        return append(head._replace(end=entry.first), entry, fence, seal)

    patch.setattr(LogUploader, "_close_object", careless)
    patch.setattr(rule, "append", behind)
    patch.setattr(rule, "check_head", lambda head: None)


def leaves_out_gaps(patch):
    """Holes are not kept."""
    add = ObjectWriter.add_gap

    def skip(self, gap):
        if gap.kind is GapKind.HOLE:
            log = self._following(int(gap.first), int(gap.last))
            log.end_piece(len(self._groups))
            log.gaps.append((int(gap.first), int(gap.last), "bridge"))
        else:
            add(self, gap)

    patch.setattr(ObjectWriter, "add_gap", skip)


@pytest.mark.parametrize("plant", [commit_before_the_put, objects_need_not_follow, leaves_out_gaps])
def test_a_planted_bug_is_caught(plant, monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    for seed in range(HUNT_SEEDS):
        try:
            Swarm(seed).run()
        except (AssertionError, CordwoodError):
            return
    pytest.fail(f"{plant.__doc__} Nothing noticed within {HUNT_SEEDS} seeds.")


def on_quiet_store(act) -> None:
    async def scenario(simulation: Simulation) -> None:
        async def main(host: Host) -> None:
            await act(Bucket(simulation.faults).store(), host)

        await simulation.machine("node").start(main)

    Simulation(1).run(scenario)


def uploader_of(store, host: Host) -> LogUploader:
    return LogUploader(store, LogManifest(store, LOG, host, "n"), host, LOG, "/x", object_bytes=300)


class TestReadingBack:
    def test_an_object_that_does_not_read_as_it_was_written_is_not_committed(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """Memory is damaged while the object is on its way."""
        write_out = ObjectWriter.write_out

        def damaged(self):
            done = write_out(self)
            content = bytearray(done.content)
            content[done.footer.index.groups[0].start + 20] ^= 4
            return replace(done, content=content)

        swap(monkeypatch, ObjectWriter.write_out, damaged)

        async def act(store, host: Host) -> None:
            made = history(10)
            with pytest.raises(Corrupt):
                await uploader_of(store, host).run(source(made, made.first), made.first)
            assert await stored(store, host) == []

        on_quiet_store(act)

    @as_scenario(on_quiet_store)
    async def test_an_object_is_put_while_it_is_read_back(self, store, host: Host) -> None:
        checks, puts = asyncio.Event(), asyncio.Event()

        class Slow:
            async def put(self, name, content, *, timeout_s):
                puts.set()
                await checks.wait()

        async def check() -> None:
            checks.set()
            await puts.wait()

        made = written([history(2)])
        async with asyncio.timeout(10):
            await put_checked(Slow(), "a/b", made, check())


class Gate:
    """A bucket's store that acts before each put of an object.

    Args:
        before: gets the number of the put, from 0; the put is made after it.
    """

    def __init__(self, store, before: Callable[[int], Awaitable[None]]) -> None:
        self._store = store
        self._before = before
        self.puts = 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def put(self, name, content, *, timeout_s: float) -> None:
        number, self.puts = self.puts, self.puts + 1
        await self._before(number)
        await self._store.put(name, content, timeout_s=timeout_s)


@as_scenario(on_quiet_store)
async def test_a_manifest_that_is_lost_before_a_turn_is_not_begun_anew(store, host: Host) -> None:
    """The new manifest began where the lost one ended, and all records below counted as trimmed."""

    async def upload() -> None:
        manifest = LogManifest(store, LOG, host, "node")
        uploader = LogUploader(store, manifest, host, LOG, "/orders", object_bytes=600)
        end = await uploader.next_lsn()
        await store.delete([head_name(LOG)], timeout_s=60)
        await uploader.run(source(made, end), end)

    made = history(5)
    await uploader_of(store, host).run(source(made, made.first), made.first)
    content, _ = await store.read(head_name(LOG), timeout_s=60)
    made.block(encode_body([b"more"], timestamps_us=NOW_US))
    with pytest.raises(Malformed, match="repair"):
        await upload()
    assert await LogManifest(store, LOG, host, "reader").load() is None
    await store.put_if(head_name(LOG), content, None, timeout_s=60)
    with planted(find_bug("tier-manifest-begun-anew")):
        await upload()
    head = await LogManifest(store, LOG, host, "reader").load()
    assert head is not None
    assert head.start > made.first


class TestObjectsUnderWay:
    @as_scenario(on_quiet_store)
    async def test_the_next_objects_are_written_while_the_first_travel(
        self, store, host: Host
    ) -> None:
        """The store takes no object before UNCOMMITTED_MAX wait, and never gets more."""
        full = asyncio.Event()

        async def before(number: int) -> None:
            if number == UNCOMMITTED_MAX - 1:
                await asyncio.sleep(60)  # time for a further object, if it were not held back
                assert gate.puts == UNCOMMITTED_MAX
                full.set()
            await full.wait()

        gate = Gate(store, before)
        made = history(40)
        async with asyncio.timeout(300):
            done = await uploader_of(gate, host).run(source(made, made.first), made.first)
        assert done.objects > UNCOMMITTED_MAX
        assert await stored(store, host) == expected(made)

    @as_scenario(on_quiet_store)
    async def test_neither_the_cores_nor_the_store_wait_for_the_other(
        self, store, host: Host
    ) -> None:
        """Two cores write an object in 1 s each, and the disk takes one object in 0.5 s."""
        disk, cores = asyncio.Lock(), asyncio.Semaphore(2)

        async def before(number: int) -> None:
            async with disk:
                await asyncio.sleep(0.5)

        async def run_blocking(function, *, timeout_s: float):
            done = function()
            if isinstance(done, FinishedObject):
                async with cores:
                    await asyncio.sleep(1)
            return done

        async def at_once() -> AsyncIterator[Item]:
            for item in made.items:
                yield item

        gate, made = Gate(store, before), history(40)
        busy = replace(host, run_blocking=run_blocking)
        began = asyncio.get_running_loop().time()
        done = await uploader_of(gate, busy).run(at_once(), made.first)
        took = asyncio.get_running_loop().time() - began
        assert done.objects > 2 * UNCOMMITTED_MAX
        assert took < 1 + done.objects * 0.5 + 1

    @as_scenario(on_quiet_store)
    async def test_an_object_waits_for_the_commit_of_the_object_before_it(
        self, store, host: Host
    ) -> None:
        """The first object arrives last."""
        heads: list[int] = []

        async def before(number: int) -> None:
            if number == 0:
                await asyncio.sleep(60)
                head = await LogManifest(store, LOG, host, "reader").load()
                heads.append(head.end if head is not None else 0)

        gate = Gate(store, before)
        made = history(40)
        await uploader_of(gate, host).run(source(made, made.first), made.first)
        assert gate.puts >= UNCOMMITTED_MAX
        assert heads == [made.first]
        assert await stored(store, host) == expected(made)

    @as_scenario(on_quiet_store)
    async def test_closed_objects_are_committed_before_an_error_of_the_records(
        self, store, host: Host
    ) -> None:
        """All objects under way were given up, again with each try: the log came no further."""
        made = history(40)

        async def before(number: int) -> None:
            await asyncio.sleep(60)

        async def broken(first: int) -> AsyncIterator[Item]:
            async for item in source(made, first):
                if item is made.items[20]:
                    raise Corrupt("no copy of this block is readable")
                yield item

        gate = Gate(store, before)
        uploader = uploader_of(gate, host)
        with pytest.raises(Corrupt):
            await uploader.run(broken(made.first), made.first)
        entries = [each async for each in all_entries(LogManifest(store, LOG, host, "reader"))]
        assert len(entries) == gate.puts > 0
        found = await stored(store, host)
        assert found == expected(made)[: len(found)]
        # The same uploader goes on.
        after = await uploader.next_lsn()
        async with asyncio.timeout(3600):
            await uploader.run(source(made, after), after)
        assert await stored(store, host) == expected(made)

    @pytest.mark.parametrize("failing", [0, 1, 3])
    def test_nothing_is_committed_behind_an_object_that_was_not_put(self, failing: int):
        async def act(store, host: Host) -> None:
            async def before(number: int) -> None:
                if number == failing:
                    await asyncio.sleep(60)  # the objects after it are in the store by then
                    raise AccessDenied("the store takes no more objects")

            gate = Gate(store, before)
            made = history(40)
            with pytest.raises(AccessDenied):
                await uploader_of(gate, host).run(source(made, made.first), made.first)
            assert gate.puts > failing + 1
            entries = [each async for each in all_entries(LogManifest(store, LOG, host, "reader"))]
            assert len(entries) == failing
            found = await stored(store, host)
            assert found == expected(made)[: len(found)]
            after = entries[-1].last + 1 if entries else made.first
            await uploader_of(store, host).run(source(made, after), after)
            assert await stored(store, host) == expected(made)

        on_quiet_store(act)


class TestBarriers:
    @as_scenario(on_quiet_store)
    async def test_nothing_goes_past_records_that_are_lost(self, store, host: Host) -> None:
        made = history(10)
        whole = len(made.items)
        lost = made.next
        made.gap(5, GapKind.DATA_LOSS)
        made.block(encode_body([b"behind"], timestamps_us=1))
        for _ in range(2):
            first = await uploader_of(store, host).next_lsn() or made.first
            done = await uploader_of(store, host).run(source(made, first), first)
            assert (done.blocked, done.end) == (lost, lost)
        assert await stored(store, host) == expected(made)[:whole]

    @as_scenario(on_quiet_store)
    async def test_a_damaged_block_ends_it_and_what_came_before_stays(
        self, store, host: Host
    ) -> None:
        made = history(10)
        header, body = made.items[-1]
        made.items[-1] = (header, bytes(len(body)))
        with pytest.raises(CordwoodError):
            await uploader_of(store, host).run(source(made, made.first), made.first)
        before = await stored(store, host)
        assert 0 < len(before) < len(made.items)

    @as_scenario(on_quiet_store)
    async def test_gaps_at_the_end_wait_for_the_records_behind_them(
        self, store, host: Host
    ) -> None:
        made = history(3)
        ended = made.next
        made.bridge()
        first = made.first
        done = await uploader_of(store, host).run(source(made, first), first)
        assert done.end <= made.next
        made.next += 1
        gap = made.items[-1]
        made.items[-1] = Gap(gap.first, Lsn(made.next - 1), gap.kind)
        only_gaps = Made(LOG)
        only_gaps.items = [made.items[-1]]
        if done.end == ended:
            again = await uploader_of(store, host).run(source(only_gaps, ended), ended)
            assert (again.objects, again.end) == (0, ended)

    @as_scenario(on_quiet_store)
    async def test_an_upload_that_others_overtook_before_it_began_does_nothing(
        self, store, host: Host
    ) -> None:
        made = history(10)
        late = uploader_of(store, host)
        assert await late.next_lsn() == 0
        await uploader_of(store, host).run(source(made, made.first), made.first)
        done = await late.run(source(made, made.first), made.first)
        assert (done.objects, done.end) == (0, made.next)
        assert await stored(store, host) == expected(made)

    @as_scenario(on_quiet_store)
    async def test_a_log_that_was_trimmed_before_its_first_upload_gets_no_manifest(
        self, store, host: Host
    ) -> None:
        """Tier seed 9600019: a manifest was written that begins at no LSN, and could not be read
        from then on, so nothing of the log was ever uploaded."""
        nothing = Made(LOG)
        done = await uploader_of(store, host).run(source(nothing, 1), 0)
        assert (done.objects, done.end) == (0, 0)
        assert await LogManifest(store, LOG, host, "reader").load() is None
        made = history(10)
        await uploader_of(store, host).run(source(made, made.first), made.first)
        assert await stored(store, host) == expected(made)
