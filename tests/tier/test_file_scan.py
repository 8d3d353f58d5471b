"""Which files hold a log, and the leases that keep them: as rules, and in the simulator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_objects import Made, logs, written
from scenarios import as_scenario
from swaps import swap
from test_compact_log import GRACE_S, MergedSwarm
from test_uploader import LOG, history, on_quiet_store, source

from cordwood.block import Buffer, Gap, GapKind
from cordwood.errors import BadSetting, Corrupt, NoObject, OutcomeUnknown, Retryable
from cordwood.host.seams import Host
from cordwood.layout.body import encode_body
from cordwood.layout.object_file import ObjectRun, entry_of
from cordwood.layout.object_names import LEASES, lease_name, lease_until_us, own_name, shared_name
from cordwood.sim.host import Simulation
from cordwood.tier import read_leases, table_notes
from cordwood.tier.collect import collect_log
from cordwood.tier.file_scan import FilePart, LogFiles, hold_files, needs_footer, plan_files
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_store import ObjectStore
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.read_leases import (
    CLOCKS_S,
    LEASE_S_MAX,
    drop_ended_leases,
    end_leases,
    hold_objects,
    load_leased,
)
from cordwood.tier.uploader import LogUploader
from cordwood.tiered import LOST, Entry

HELD = ("holder", 3600.0)

LONGEST_S = 2 * GRACE_S
"""Of a scan: longer than objects stay without a lease."""


def records(made: Made) -> list[int]:
    """The LSNs of all records."""
    return [
        lsn
        for item in made.items
        if not isinstance(item, Gap)
        for lsn in range(item[0].first, item[0].last + 1)
    ]


def cut_into(made: Made, cuts: set[int], is_shared: bool) -> tuple[list[Entry], dict[str, Made]]:
    """Entries of objects that each hold some items of a log, and the items by the object's name."""
    entries: list[Entry] = []
    held: dict[str, Made] = {}
    start = 0
    for stop in [*sorted(cut for cut in cuts if 0 < cut < len(made.items)), len(made.items)]:
        piece = Made(made.log, made.name)
        piece.items = made.items[start:stop]
        done = written([piece])
        (run,) = done.footer.index.runs
        name = (
            shared_name("20261124", start, 7) if is_shared
            else own_name(made.log, run.first, run.last, 1, 7)
        )  # fmt: skip
        entries.append(entry_of(run, name, len(done.content), done.footer.bytes, 7))
        held[name] = piece
        start = stop
    return entries, held


def runs_of(entries: list[Entry], held: dict[str, Made]) -> dict[str, ObjectRun]:
    wanted = [each.name for each in entries if each.name in held and needs_footer(each)]
    return {name: written([held[name]]).footer.index.runs[0] for name in wanted}


def read(part: FilePart, held: Made) -> list[int]:
    """What a scan gives of a file: all rows of the log, or those of the part."""
    rows = records(held)
    return rows if part.is_whole else [lsn for lsn in rows if part.first <= lsn <= part.last]


@pytest.mark.slow
@given(
    st.data(), logs(), st.sets(st.integers(1, 8), max_size=4), st.booleans()
)  # fmt: skip
def test_files_and_rest_are_the_whole_range(data, some, cuts, is_shared) -> None:
    """Against a list of LSNs: each record of the range is in one file, or in the rest."""
    made = some[0]
    entries, held = cut_into(made, cuts, is_shared)
    if len(entries) > 1 and data.draw(st.booleans()):
        # A repair found no object for one of the ranges.
        lost = data.draw(st.integers(0, len(entries) - 1))
        entries[lost] = entries[lost]._replace(name=LOST, rows=0)
    if data.draw(st.booleans()):
        # The log was trimmed inside of its first object.
        entries = entries[data.draw(st.integers(0, len(entries) - 1)) :]
    places = sorted({each.first for each in entries} | {*records(made), made.next})
    start = data.draw(st.sampled_from(places)) + data.draw(st.integers(-1, 1))
    stop = max(start + 1, data.draw(st.sampled_from(places)) + data.draw(st.integers(-1, 1)))
    found = plan_files(entries, runs_of(entries, held), start, stop)
    given_ = [lsn for part in found.parts for lsn in read(part, held[part.name])]
    assert given_ == sorted({*given_}), "twice, or out of order"
    assert all(start <= lsn < stop for lsn in given_)
    rest = {lsn for lsn in records(made) for low, high in found.rest if low <= lsn < high}
    assert rest.isdisjoint(given_)
    assert rest | {*given_} == {lsn for lsn in records(made) if start <= lsn < stop}
    for item in made.items:
        if isinstance(item, Gap) and item.kind in (GapKind.TRIM, GapKind.DATA_LOSS):
            for lsn in (item.first, item.last):
                assert not start <= lsn < stop or any(low <= lsn < high for low, high in found.rest)
    assert all(a[1] < b[0] for a, b in zip(found.rest, found.rest[1:], strict=False))


def test_an_object_without_gaps_needs_no_footer() -> None:
    made = Made(LOG).block(written_body(10)).block(written_body(5))
    ((entry,), _) = cut_into(made, set(), is_shared=False)
    assert not needs_footer(entry)
    assert needs_footer(entry._replace(first=entry.first + 1))
    assert needs_footer(entry._replace(name=shared_name("20261124", 1, 7)))
    made.gap(2, GapKind.HOLE)
    ((entry,), _) = cut_into(made, set(), is_shared=False)
    assert needs_footer(entry)


def written_body(count: int) -> bytes:
    return encode_body([b"v"] * count, timestamps_us=5)


def test_names_of_leases_say_when_they_end() -> None:
    assert lease_until_us(lease_name(1_790_000_000_000_000, 7)) == 1_790_000_000_000_000


class TestLeases:
    @as_scenario(on_quiet_store)
    async def test_thousands_of_them_are_read_side_by_side(
        self, store: ObjectStore, host: Host
    ) -> None:
        """A collection reads all leases: one after another, they took longer than its interval."""
        for number in range(400):
            await hold_objects(store, host, "holder", [f"{number}"], 3600.0, [])
        loop, now_us = asyncio.get_running_loop(), host.clock.now_us()
        began_s = loop.time()
        await store.head("a", timeout_s=60)
        call_s = loop.time() - began_s
        leased = await load_leased(store, now_us)
        assert leased == {f"{number}" for number in range(400)}
        assert loop.time() - began_s < 100 * call_s

    @as_scenario(on_quiet_store)
    async def test_they_hold_until_their_end(self, store: ObjectStore, host: Host) -> None:
        now_us = host.clock.now_us()
        leases: list[str] = []
        await hold_objects(store, host, "holder", ["a", "b"], 60.0, leases)
        await hold_objects(store, host, "other", ["c"], 30.0, [])
        assert await load_leased(store, now_us) == {"a", "b", "c"}
        assert await load_leased(store, now_us + 45_000_000) == {"a", "b"}
        assert await drop_ended_leases(store, now_us + 45_000_000) == 1
        assert await load_leased(store, now_us) == {"a", "b"}
        await end_leases(store, leases)
        await end_leases(store, leases)
        assert await load_leased(store, now_us) == set()
        nothing: list[str] = []
        await hold_objects(store, host, "nobody", [], 60.0, nothing)
        assert nothing == []

    @as_scenario(on_quiet_store)
    async def test_a_lease_that_cannot_be_read_keeps_all_until_it_ends(
        self, store: ObjectStore, host: Host
    ) -> None:
        leases: list[str] = []
        await hold_objects(store, host, "holder", ["a"], 60.0, leases)
        (lease,) = leases
        await store.delete([lease], timeout_s=5)
        await store.put(lease, [b"cordwood lease 1 00000000\n[]"], timeout_s=5)
        now_us = host.clock.now_us()
        with pytest.raises(Corrupt):
            await collect_nothing(store, host, now_us)
        await collect_nothing(store, host, now_us + 61_000_000)

    @as_scenario(on_quiet_store)
    async def test_no_lease_holds_for_ever_whatever_its_name_says(
        self, store: ObjectStore, host: Host
    ) -> None:
        """A name with a time in a thousand years, and a content of another program's, stopped the
        collection of all objects for as long."""
        now_us = host.clock.now_us()
        far = lease_name(now_us + 31_536_000_000_000_000, 7)
        await store.put(far, [b"another program's"], timeout_s=5)
        with pytest.raises(Corrupt):
            await collect_nothing(store, host, now_us)
        later_us = now_us + round((LEASE_S_MAX + CLOCKS_S + 60) * 1e6)
        await collect_nothing(store, host, later_us)
        assert await drop_ended_leases(store, later_us) == 1

    @as_scenario(on_quiet_store)
    async def test_a_lease_is_no_longer_than_others_believe(
        self, store: ObjectStore, host: Host
    ) -> None:
        with pytest.raises(BadSetting, match="at the latest"):
            await hold_objects(store, host, "holder", ["a"], LEASE_S_MAX + 1, [])

    @as_scenario(on_quiet_store)
    async def test_leases_before_an_error_are_told_and_can_be_ended(
        self, store: ObjectStore, host: Host, *, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second lease of a call failed, and nothing knew the first one. It kept its objects
        for hours."""
        monkeypatch.setattr(read_leases, "LEASE_NAMES_MAX", 1)
        failing = FailingPuts(store, after=1)
        leases: list[str] = []
        with pytest.raises(OutcomeUnknown):
            await hold_objects(failing, host, "holder", ["a", "b"], 60.0, leases)
        now_us = host.clock.now_us()
        assert await load_leased(store, now_us) == {"a"}
        await end_leases(store, leases)
        assert await load_leased(store, now_us) == set()


@as_scenario(on_quiet_store)
async def test_no_file_gives_records_below_a_trim_that_nodes_do_not_tell(
    store: PatientStore, host: Host
) -> None:
    """The node that knew of the trim moved the manifest's start, and is away now. Other nodes tell
    no trim point: the scan gave trimmed records, which the source takes for trimmed."""
    made = history()
    manifest = LogManifest(store, LOG, host, "uploader")
    uploader = LogUploader(store, manifest, host, LOG, "/orders", object_bytes=600)
    await uploader.run(source(made, made.first), made.first)
    lsns = records(made)
    kept_from = next(lsn for lsn in lsns if lsn > made.first + 40)
    head = await manifest.trim(kept_from)
    assert head is not None
    (straddling, *_) = await manifest.entries(kept_from)
    assert straddling.first < head.start == kept_from
    found = await hold_files(
        store, manifest, host, LOG, made.first, made.next, holder="test", lease_s=0, leases=[]
    )
    assert min(part.first for part in found.parts) == kept_from
    assert found.rest[0] == (made.first, kept_from)
    assert not any(part.is_whole for part in found.parts if part.name == straddling.name)
    below = await hold_files(
        store, manifest, host, LOG, made.first, kept_from, holder="test", lease_s=0, leases=[]
    )
    assert below == LogFiles([], [(made.first, kept_from)])


class FailingPuts(PatientStore):
    """A store of which puts fail from some put on."""

    def __init__(self, store: ObjectStore, after: int) -> None:
        super().__init__(store, random.Random(1))
        self.left = after

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        if not self.left:
            raise OutcomeUnknown(f"{name}: no answer")
        self.left -= 1
        await super().put(name, content, timeout_s=timeout_s)


async def collect_nothing(store: ObjectStore, host: Host, now_us: int) -> None:
    made = Made(LOG).block(written_body(10))

    async def items():
        for item in made.items:
            yield item

    manifest = LogManifest(store, LOG, host, "n")
    uploader = LogUploader(store, manifest, host, LOG, "/x")
    first = await uploader.next_lsn() or made.first
    if first == made.first:
        await uploader.run(items(), first)
    await collect_log(store, manifest, LOG, now_us, 0.0)


class ScannedSwarm(MergedSwarm):
    """As the swarm of merges: another machine plans scans, and reads the files long after that."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.scans = 0
        self.is_over = False

    async def _direct(self, simulation: Simulation) -> None:
        simulation.machine("scanner").start(self._scan)
        await super()._direct(simulation)

    async def _scan(self, host: Host) -> None:
        store = PatientStore(self.bucket.store(), host.random, try_s=2.0)
        while not self.is_over:
            await asyncio.sleep(host.random.random() * 5)
            manifest = LogManifest(store, LOG, host, "scanner", timeout_s=60)
            start, stop = self._range(host.random)
            leases: list[str] = []
            try:
                found = await hold_files(
                    store, manifest, host, LOG, start, stop,
                    holder=HELD[0], lease_s=HELD[1], leases=leases,
                )  # fmt: skip
                await asyncio.sleep(host.random.random() * LONGEST_S)
                await self._read_files(store, found, start, stop)
                await end_leases(store, leases)
            except (Retryable, OutcomeUnknown):
                continue

    async def _audit(self, host: Host) -> None:
        self.is_over = True
        await asyncio.sleep(LONGEST_S + 60)
        # Leases of scans that failed keep dead objects, and the audit counts objects.
        store = self.bucket.store()
        await end_leases(store, [name for name in self.bucket.names() if name.startswith(LEASES)])
        await super()._audit(host)

    def _range(self, chance: random.Random) -> tuple[int, int]:
        lsns = records(self.made)
        low, high = sorted(chance.sample(range(len(lsns)), 2))
        return lsns[low], lsns[high]

    async def _read_files(
        self, store: PatientStore, found: LogFiles, start: int, stop: int
    ) -> None:
        lsns: list[int] = []
        for part in found.parts:
            try:
                content, _ = await store.read(part.name, timeout_s=60)
            except NoObject:
                self.broken.append(f"{part.name} went during a scan")
                return
            rows = pq.read_table(pa.BufferReader(content), columns=["lsn"])["lsn"].to_pylist()
            lsns += [lsn for lsn in rows if part.is_whole or part.first <= lsn <= part.last]
        rest = [lsn for lsn in records(self.made) for a, b in found.rest if a <= lsn < b]
        wanted = [lsn for lsn in records(self.made) if start <= lsn < stop]
        if sorted([*lsns, *rest]) != wanted:
            self.broken.append("a scan has a record twice, or lacks one")
        self.scans += bool(found.parts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_files_stay_and_hold_each_record_once_whatever_goes_on(seed: int) -> None:
    ScannedSwarm(seed).run()


@pytest.mark.slow
def test_the_runs_scan() -> None:
    swarms = [ScannedSwarm(seed) for seed in range(2)]
    for swarm in swarms:
        swarm.run()
    assert sum(swarm.scans for swarm in swarms) > 5


@pytest.mark.slow
def test_a_collection_that_knows_no_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(store: ObjectStore, now_us: int) -> set[str]:
        return set()

    swap(monkeypatch, load_leased, none, within=table_notes)
    for seed in range(100):
        try:
            ScannedSwarm(seed).run()
        except AssertionError:
            return
    pytest.fail("no seed noticed that files went during a scan")
