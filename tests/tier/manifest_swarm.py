"""Uploaders, merges, trims, collections and readers of a log, on a bad object store, under kills.

The log is only numbers: an object's content says which range it holds. What must be true: a commit
that was told stays, entries tile the range, every object that the manifest names is there whole, a
reader finds what is not trimmed, and in the end nothing else is left.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from crc32c import crc32c

from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Fenced,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Retryable,
)
from cordwood.host.seams import Host
from cordwood.layout.object_names import head_name, log_prefix, own_name
from cordwood.protocol import manifest as rule
from cordwood.sim.host import Simulation
from cordwood.sim.object_store import Bucket, BucketFaults
from cordwood.sim.streams import stream
from cordwood.tier import collect
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore
from cordwood.tiered import MERGED, Entry

LOG = 7
FIRST = 3 << 32 | 1
RUN_S = 900.0
GRACE_S = 120.0
"""Longer than a reader works with one head."""
MERGE_S = 90.0
"""A turn at merging: shorter than some take."""


@dataclass
class Seen:
    """What was told to somebody.

    Attributes:
        committed: first LSN to entry.
        trimmed: the highest trim that was asked for.
        turns: fences of the turns that were taken.
        merges: entries that took the place of others, as was told.
        merge_turns: numbers of the turns at merging that were taken.
    """

    committed: dict[int, Entry] = field(default_factory=dict)
    trimmed: int = FIRST
    turns: list[int] = field(default_factory=lambda: [0])
    merges: list[Entry] = field(default_factory=list)
    merge_turns: list[int] = field(default_factory=lambda: [0])
    collected: int = 0
    reads: int = 0


def content_of(first: int, last: int) -> bytes:
    return b"%d-%d " % (first, last) * 3


def entry_of(first: int, last: int, fence: int) -> Entry:
    content = content_of(first, last)
    crc = crc32c(content)
    name = own_name(LOG, first, last, fence, crc)
    return Entry(first, last, fence, name, crc, len(content), 8, last - first + 1, 100, first, last,
                 first, last)  # fmt: skip


def merged_of(run: list[Entry], number: int) -> Entry:
    """An entry in the place of others."""
    first, last = run[0].first, run[-1].last
    return entry_of(first, last, MERGED | number)._replace(
        rows=sum(each.rows for each in run), bytes=sum(each.bytes for each in run),
        append_first_us=run[0].append_first_us, append_last_us=run[-1].append_last_us,
    )  # fmt: skip


class Swarm:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.chance = stream(seed, "swarm")
        self.bucket = Bucket(stream(seed, "bucket"), BucketFaults.bad())
        self.seen = Seen()
        self.released = FIRST
        self.failures: list[Exception] = []

    def run(self) -> Seen:
        self.simulation.run(self._direct)
        assert not self.failures, self.failures
        assert self.simulation.loop.unhandled == []
        return self.seen

    async def _direct(self, simulation: Simulation) -> None:
        machines = [simulation.machine(f"node-{number}") for number in (1, 2, 3)]
        for machine in machines:
            machine.start(self._node)
        loop = asyncio.get_running_loop()
        while loop.time() < RUN_S:
            await asyncio.sleep(self.chance.random() * 30)
            self.released += self.chance.randrange(400)
            machine = self.chance.choice(machines)
            what = self.chance.random()
            if what < 0.35 and machine.is_up:
                machine.kill()
            elif what < 0.45 and machine.is_up:
                machine.pause()
                await asyncio.sleep(self.chance.random() * 60)
                machine.resume()
            for each in machines:
                if not each.is_up and self.chance.random() < 0.7:
                    each.start(self._node)
            assert not self.failures, self.failures
        for machine in machines:
            machine.kill()
        self.bucket.faults = BucketFaults()
        await asyncio.sleep(self.bucket.faults.late_s + 200)
        await simulation.machine("auditor").start(self._audit)

    async def _node(self, host: Host) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for role in (self._upload, self._merge, self._trim, self._collect, self._read):
                    tasks.create_task(role(host, host.random))
        except* (AssertionError, CordwoodError) as failed:
            self.failures += failed.exceptions

    def _manifest(self, host: Host) -> LogManifest:
        store = PatientStore(self.bucket.store(), host.random, try_s=2.0)
        return LogManifest(store, LOG, host, "node", timeout_s=60)

    async def _upload(self, host: Host, chance: random.Random) -> None:
        """Take a turn now and then, whoever has it; upload and commit until it is over."""
        store = PatientStore(self.bucket.store(), chance, try_s=2.0)
        while True:
            await asyncio.sleep(chance.random() * 60)
            manifest = self._manifest(host)
            try:
                await manifest.load()
                head = await manifest.take_turn(FIRST)
                assert head.fence not in self.seen.turns, f"two have turn {head.fence}"
                self.seen.turns.append(head.fence)
                for _ in range(chance.randrange(1, 200)):
                    await self._wait_released(head.end, chance)
                    last = min(head.end + chance.randrange(4), self.released - 1)
                    entry = entry_of(head.end, last, head.fence)
                    content = content_of(entry.first, last)
                    await store.put(entry.name, [content], timeout_s=60)
                    await asyncio.sleep(chance.random() * chance.choice((*[0.01] * 20, 20, 300)))
                    head = await self._commit(manifest, entry)
            except (Fenced, Retryable, OutcomeUnknown):
                continue
            except BadSetting:
                continue  # somebody's bug: what it led to is looked for, and not how it ended here

    async def _wait_released(self, end: int, chance: random.Random) -> None:
        for _ in iter(lambda: self.released > end, True):
            await asyncio.sleep(1 + chance.random())

    async def _commit(self, manifest: LogManifest, entry: Entry):
        while True:
            turn = max(self.seen.turns)
            try:
                head = await manifest.commit(entry)
            except (Retryable, OutcomeUnknown):
                continue
            assert entry.fence >= turn, f"turn {entry.fence} committed after {turn} had begun"
            self.seen.committed[entry.first] = entry
            return head

    async def _merge(self, host: Host, chance: random.Random) -> None:
        """Take a turn at merging now and then; put and replace until something goes wrong."""
        store = PatientStore(self.bucket.store(), chance, try_s=2.0)
        while True:
            await asyncio.sleep(chance.random() * 100)
            manifest = self._manifest(host)
            try:
                head = await manifest.take_merging(host.clock.now_us() + int(MERGE_S * 1e6))
                self.seen.merge_turns.append(head.merging.number)
                for _ in range(chance.randrange(1, 6)):
                    await self._merge_one(store, manifest, head.merging.number, chance)
                if chance.random() < 0.7:
                    await manifest.end_merging()
            except (Fenced, ObjectChanged, Retryable, OutcomeUnknown, BadSetting):
                continue

    async def _merge_one(
        self, store: PatientStore, manifest: LogManifest, number: int, chance: random.Random
    ) -> None:
        head = await manifest.load()
        assert head is not None
        if head.start == head.end:
            return
        run = await manifest.entries(chance.randrange(head.start, head.end), chance.choice((2, 9)))
        if len(run) < 2:
            return
        for entry in run:
            await self._read_object(store, entry)
        merged = merged_of(run, number)
        await store.put(merged.name, [content_of(merged.first, merged.last)], timeout_s=60)
        await asyncio.sleep(chance.random() * chance.choice((0.01, 0.01, 20, 400)))
        turn = max(self.seen.merge_turns)
        for tries in range(30):
            try:
                await manifest.replace(run, merged)
            except (Retryable, OutcomeUnknown):
                continue
            # A try without an answer may have been in time.
            assert tries or number >= turn, f"turn {number} merged after {turn} had begun"
            self.seen.merges.append(merged)
            return

    async def _trim(self, host: Host, chance: random.Random) -> None:
        manifest = self._manifest(host)
        while True:
            await asyncio.sleep(chance.random() * 200)
            try:
                head = await manifest.load()
                if head is not None and head.end > head.start:
                    start = head.start + chance.randrange((head.end - head.start) // 2 + 1)
                    self.seen.trimmed = max(self.seen.trimmed, start)
                    await manifest.trim(start)
            except (Retryable, OutcomeUnknown):
                continue

    async def _collect(self, host: Host, chance: random.Random) -> None:
        store = PatientStore(self.bucket.store(), chance, try_s=2.0)
        manifest = self._manifest(host)
        while True:
            await asyncio.sleep(chance.random() * 100)
            try:
                done = await collect.collect_log(store, manifest, LOG, host.clock.now_us(), GRACE_S)
                self.seen.collected += done.deleted
            except (Retryable, OutcomeUnknown):
                continue

    async def _read(self, host: Host, chance: random.Random) -> None:
        store = PatientStore(self.bucket.store(), chance, try_s=2.0)
        manifest = self._manifest(host)
        while True:
            await asyncio.sleep(chance.random() * 10)
            try:
                head = await manifest.load()
                if head is None or head.start == head.end:
                    continue
                lsn = chance.randrange(head.start, head.end)
                await asyncio.sleep(chance.random() * 5)
                entry = await manifest.find(lsn)
                if entry is None:
                    head = await manifest.load()
                    assert head is not None
                    assert lsn < head.start, f"{lsn} is neither there nor trimmed"
                    continue
                await self._read_object(store, entry)
                self.seen.reads += 1
            except (Retryable, OutcomeUnknown):
                continue

    async def _read_object(self, store: PatientStore, entry: Entry) -> None:
        try:
            data = await store.get(entry.name, 0, entry.size, timeout_s=60)
        except NoObject:
            raise AssertionError(f"{entry.name} was deleted, and a reader had it") from None
        assert data == content_of(entry.first, entry.last)

    async def _audit(self, host: Host) -> None:
        """All is quiet: what is left is what must be."""
        manifest = self._manifest(host)
        head = await manifest.load()
        assert head is not None
        assert head.start <= self.seen.trimmed
        expected = head.start
        named = {head_name(LOG)}
        while True:
            page = await manifest.entries(expected)
            for entry in page:
                assert entry.first == expected or entry.first < head.start
                assert self.bucket.content(entry.name) == content_of(entry.first, entry.last)
                named.add(entry.name)
                expected = entry.last + 1
            if len(page) < rule.FANOUT:
                break
        assert expected == head.end
        for entry in self.seen.committed.values():
            if entry.last >= head.start:
                found = await manifest.find(entry.last)
                assert found is not None, f"{entry.first} was committed"
                assert found == entry or (
                    rule.is_merged(found.fence) and found.first <= entry.first
                )
        for merged in self.seen.merges:
            found = await manifest.find(merged.last)
            assert found is None or found.last >= merged.last, f"{merged.first} was merged"
        await manifest.take_turn(FIRST)
        await manifest.take_merging(host.clock.now_us())
        await asyncio.sleep(GRACE_S)
        await collect.collect_log(
            self.bucket.store(), manifest, LOG, host.clock.now_us(), GRACE_S / 2
        )
        pages = await self._pages_of(manifest)
        assert set(self.bucket.names()) == named | pages, "orphans are left"

    async def _pages_of(self, manifest: LogManifest) -> set[str]:
        prefix = f"{log_prefix(LOG)}pages/"
        names = [name for name in self.bucket.names() if name.startswith(prefix)]
        kept = set()
        for name in names:
            _, ref = collect.parse_page_name(name)
            found = await manifest.find_page(ref.level, ref.last)
            assert found is not None, f"{name} is in no manifest"
            assert found.crc == ref.crc
            kept.add(name)
        return kept
