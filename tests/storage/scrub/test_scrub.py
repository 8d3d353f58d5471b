"""Scrubbing: every kind of rot is found in the time that the budget allows, and kept as it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import pytest
from made_blocks import LOG, Made, at, block, made_host, packed, run, turns
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.errors import ChecksumMismatch
from cordwood.layout import logs_db
from cordwood.layout.logs_db import LogState
from cordwood.layout.scrub_rows import PROGRESS_KEY, DamagedRange, Progress
from cordwood.protocol.scrub_pace import BLOCK_COST_BYTES, BUSY_WAIT_MAX_S, ScrubPace
from cordwood.settings import StorageSettings
from cordwood.sim.memory_logs import MemoryTables
from cordwood.storage.logs_db.tables import TablesFailed
from cordwood.storage.scrub import scrub as scrub_module
from cordwood.storage.scrub.damage_book import RANGES_MAX, DamageBook
from cordwood.storage.scrub.scrub import Scrub

BLOCKS = 40
BODY_BYTES = 3000
BUDGET = 50_000
SETTINGS = StorageSettings(scrub_bytes_s=BUDGET, scrub_every_s=3600.0)

Rot = Callable[[MemoryTables, str], DamagedRange]
"""Spoils something in a table; the range that is not to be trusted then."""


def place(n: int, log: int = LOG) -> DamagedRange:
    return DamagedRange(1, log, at(n), at(n))


def rows_of(tables: MemoryTables, table: str) -> dict[bytes, bytes]:
    return tables._tables[table].rows


def index_key_of(tables: MemoryTables, table: str, n: int) -> bytes:
    keys = [key for key in rows_of(tables, table) if key[:1] == b"i"]
    return next(k for k in keys if logs_db.read_index_key(k)[:2] == (LOG, at(n)))


def forget(tables: MemoryTables, table: str, key: bytes) -> None:
    tables._tables[table].put([(key, None)])


def unreadable_body(tables: MemoryTables, table: str) -> DamagedRange:
    tables._tables[table].rotten.add(logs_db.body_key(LOG, at(7), at(7)))
    return place(7)


def wrong_body(tables: MemoryTables, table: str) -> DamagedRange:
    rows_of(tables, table)[logs_db.body_key(LOG, at(9), at(9))] = bytes(BODY_BYTES)
    return place(9)


def short_body(tables: MemoryTables, table: str) -> DamagedRange:
    rows_of(tables, table)[logs_db.body_key(LOG, at(9), at(9))] = b"short"
    return place(9)


def lost_body(tables: MemoryTables, table: str) -> DamagedRange:
    forget(tables, table, logs_db.body_key(LOG, at(11), at(11)))
    return place(11)


def unreadable_index(tables: MemoryTables, table: str) -> DamagedRange:
    tables._tables[table].rotten.add(index_key_of(tables, table, 5))
    return place(5)


def wrong_index(tables: MemoryTables, table: str) -> DamagedRange:
    key = index_key_of(tables, table, 13)
    rows_of(tables, table)[key] = rows_of(tables, table)[key][:-1] + b"\xff"
    return place(13)


def another_index(tables: MemoryTables, table: str) -> DamagedRange:
    rows = rows_of(tables, table)
    rows[index_key_of(tables, table, 15)] = rows[index_key_of(tables, table, 16)]
    return place(15)


def lost_index(tables: MemoryTables, table: str) -> DamagedRange:
    forget(tables, table, index_key_of(tables, table, 17))
    return place(17)


def lost_end(tables: MemoryTables, table: str) -> DamagedRange:
    forget(tables, table, index_key_of(tables, table, BLOCKS))
    forget(tables, table, logs_db.body_key(LOG, at(BLOCKS), at(BLOCKS)))
    return place(BLOCKS)


def lost_begin(tables: MemoryTables, table: str) -> DamagedRange:
    forget(tables, table, index_key_of(tables, table, 1))
    forget(tables, table, logs_db.body_key(LOG, at(1), at(1)))
    return place(1)


KINDS = (
    unreadable_body, wrong_body, short_body, lost_body, unreadable_index, wrong_index,
    another_index, lost_index, lost_end, lost_begin,
)  # fmt: skip


async def filled() -> Made:
    """A storage engine whose LogsDB has blocks of two logs in one partition."""
    made = await Made.new()
    made.store(packed(at(1), log=LOG + 2))  # a record whose offset LogsDB may say that it has
    await turns(20)
    blocks = [
        block(at(n), bytes([n % 256]) * BODY_BYTES, log=log)
        for n in range(1, BLOCKS + 1)
        for log in (LOG, LOG + 1)
    ]
    states = {log: LogState(released=at(BLOCKS)) for log in (LOG, LOG + 1)}
    for log, state in states.items():
        made.engine.cache.log(log).release(state.released)
    await made.engine.logs.flush(blocks, states, 0, 1)
    return made


async def scrub_for(made: Made, seconds: float, **more: Callable[[], int]) -> Scrub:
    """Scrub for some (virtual) seconds."""
    scrub = Scrub(made.engine, made_host(made.disk).clock, SETTINGS, **more)
    task = asyncio.create_task(scrub.run())
    await asyncio.sleep(seconds)
    await scrub.close()
    await task
    return scrub


PASS_S = 1.1 * 2 * BLOCKS * (BODY_BYTES + BLOCK_COST_BYTES) / BUDGET + 1
"""What a pass over `filled` takes on an idle node, by the budget."""


def damages(made: Made) -> list[DamagedRange]:
    return [each for each, _ in made.engine.logs.damages.all()]


@pytest.mark.parametrize("rot", KINDS, ids=[rot.__name__ for rot in KINDS])
@as_scenario(run)
async def test_all_that_rots_is_found_in_one_pass_and_answered_as_not_known(
    *, rot: Rot, caplog: pytest.LogCaptureFixture
) -> None:
    made = await filled()
    partition = made.engine.logs.partitions[0]
    tables = made.engine.logs.tables
    assert isinstance(tables, MemoryTables)
    bad = rot(tables, partition.table)
    with caplog.at_level(logging.ERROR):
        scrub = await scrub_for(made, PASS_S)
    assert scrub.whole_passes == 1
    assert damages(made) == [bad], "that range, and no other"
    assert f"log {LOG}" in caplog.text
    state = scrub.state()
    assert (state.damaged, state.some[0].first, state.some[0].last) == (1, bad.first, bad.last)
    await check_read(made, bad)


@as_scenario(run)
async def test_of_many_entries_that_rot_each_is_told_and_what_stands_between_is_served() -> None:
    """Seed 2114003313. One bad row made all that its log had in the partition unknown, what was
    stored there afterwards too; and scrubbing around two of them went in a circle."""
    made = await filled()
    (partition,) = made.engine.logs.partitions
    tables = made.engine.logs.tables
    assert isinstance(tables, MemoryTables)
    for number in (5, 20, 21, BLOCKS):
        tables._tables[partition.table].rotten.add(index_key_of(tables, partition.table, number))
    bad = [(at(5), at(5)), (at(20), at(21)), (at(BLOCKS), at(BLOCKS))]
    scrub = await scrub_for(made, 2 * PASS_S)
    assert scrub.whole_passes == 1
    assert [(each.first, each.last) for each in damages(made)] == bad
    covered, damaged = await read_all_of(made)
    assert damaged == {*bad}
    assert len(covered) == BLOCKS - 4


@as_scenario(run)
async def test_who_cannot_read_how_far_it_came_scrubs_all_the_same(
    *, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await filled()
    tables = made.engine.logs.tables
    assert isinstance(tables, MemoryTables)
    await tables.write(logs_db.META_TABLE, [(PROGRESS_KEY, b"short")])
    get, failures = tables.get, [TablesFailed("a read failed")]

    async def failing_once(table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if failures and PROGRESS_KEY in keys:
            raise failures.pop()
        return await get(table, keys)

    monkeypatch.setattr(tables, "get", failing_once)
    scrub = await scrub_for(made, scrub_module.IDLE_S + PASS_S)
    assert scrub.whole_passes == 1
    assert "has to wait: a read failed" in caplog.text
    assert "begins anew" in caplog.text


@as_scenario(run)
async def test_who_is_closed_before_it_ran_does_not_run() -> None:
    made = await filled()
    scrub = Scrub(made.engine, made_host(made.disk).clock, SETTINGS)
    async with asyncio.timeout(1):
        await scrub.close()
        await scrub.run()
    assert scrub.progress == Progress()


async def read_all_of(made: Made) -> tuple[set[int], set[tuple[int, int]]]:
    """Where blocks begin that are served of LOG, and the ranges of which nothing is known."""
    covered: set[int] = set()
    damaged: list[tuple[int, int]] = []
    start = 0
    while start <= at(BLOCKS):
        got = await made.engine.reader.read(
            LOG, start, at(BLOCKS), bytes_max=1 << 30, blocks_max=1000
        )
        covered |= {each.header.first for each in got.blocks}
        damaged += got.damaged
        start = got.next
    return covered, {(max(first, at(1)), last) for first, last in damaged}


async def check_read(made: Made, bad: DamagedRange) -> None:
    """Blocks and damage tile the log: nothing is absent in silence."""
    covered, damaged = await read_all_of(made)
    assert damaged == {(bad.first, bad.last)}
    assert not [first for first in covered if bad.first <= first <= bad.last]
    told = {lsn for first, last in damaged for lsn in range(first, last + 1)}
    assert covered | told >= {at(n) for n in range(1, BLOCKS + 1)}
    other = await made.engine.reader.read(
        LOG + 1, 0, at(BLOCKS), bytes_max=1 << 30, blocks_max=1000
    )
    assert (len(other.blocks), other.damaged) == (BLOCKS, [])


@as_scenario(run)
async def test_good_blocks_are_never_reported_while_flushes_trims_and_drops_go_on() -> None:
    made = await filled()
    logs = made.engine.logs
    scrub = Scrub(
        made.engine, made_host(made.disk).clock,
        StorageSettings(scrub_bytes_s=500_000, scrub_every_s=0.01),
    )  # fmt: skip
    task = asyncio.create_task(scrub.run())
    for turn in range(1, 60):
        n = BLOCKS + turn
        more = [block(at(n), bytes(500), log=log, time_us=turn) for log in (LOG, LOG + 1)]
        states = {log: LogState(released=at(n), append_time_us=turn) for log in (LOG, LOG + 1)}
        await logs.flush(more, states, turn, turn * 1_000_000)
        await asyncio.sleep(0.01)
        if turn % 20 == 0:
            for log in (LOG, LOG + 1):
                made.engine.cache.log(log).release(at(n))
                await made.engine.trim(log, at(n - 5), at(n))
            await logs.drop_trimmed(made.engine.trim_of)
    await scrub.close()
    await task
    assert scrub.whole_passes > 2
    assert damages(made) == []


@as_scenario(run)
async def test_what_rots_of_a_flush_that_came_to_no_end_is_no_damage() -> None:
    """Seed 9001490. A crash left rows of a bridge in a partition whose directory did not name it
    yet. One of them rotted, and the whole part before it, which was well, was called damaged."""
    made = await filled()
    (partition,) = made.engine.logs.partitions
    tables = made.engine.logs.tables
    assert isinstance(tables, MemoryTables)
    unnamed = block(at(BLOCKS + 1), b"unnamed")
    for key, value in (
        (logs_db.index_key(unnamed), bytes(unnamed.wire)),
        (logs_db.body_key(LOG, at(BLOCKS + 1), at(BLOCKS + 1)), b"unnamed"),
    ):
        tables._tables[partition.table].put([(key, value)])
        tables._tables[partition.table].rotten.add(key)
    scrub = await scrub_for(made, PASS_S)
    assert scrub.whole_passes == 1
    assert damages(made) == []


@as_scenario(run)
async def test_what_was_found_and_how_far_it_came_outlives_a_restart() -> None:
    made = await filled()
    tables = made.engine.logs.tables
    assert isinstance(tables, MemoryTables)
    bad = wrong_body(tables, made.engine.logs.partitions[0].table)
    await scrub_for(made, PASS_S)
    await made.open()
    assert damages(made) == [bad]
    await check_read(made, bad)
    progress = await made.engine.logs.progress()
    assert (progress.passes, progress.partition, progress.log) == (1, 0, 0)
    assert progress.bytes >= 2 * BLOCKS * BODY_BYTES
    again = await scrub_for(made, PASS_S)
    assert again.progress.passes == 1, "the next pass begins an hour after the first"
    await made.engine.logs.note_progress(Progress(1, progress.began_us, 1, LOG + 1, 0))
    resumed = await scrub_for(made, PASS_S)
    assert resumed.progress.passes == 2
    assert resumed.whole_passes == 0
    assert resumed.progress.bytes < 1.5 * BLOCKS * BODY_BYTES, "of one log of two"


@as_scenario(run)
async def test_the_budget_is_kept_and_a_busy_node_goes_first() -> None:
    made = await filled()
    scrub = await scrub_for(made, 1.0)
    assert scrub.progress.bytes <= scrub_module.STEP_BYTES + BUDGET
    assert scrub.progress.passes == 0
    count = iter(range(1_000_000))
    made = await filled()
    busy = await scrub_for(made, PASS_S, activity=lambda: next(count))
    assert busy.progress.passes == 0, "somebody else did something whenever it looked"
    made = await filled()
    later = await scrub_for(made, PASS_S + 20 * BUSY_WAIT_MAX_S, activity=lambda: next(count))
    assert later.progress.passes == 1, "it waits, but not for ever"


@as_scenario(run)
async def test_nothing_is_read_where_the_budget_is_nothing() -> None:
    made = await filled()
    off = Scrub(made.engine, made_host(made.disk).clock, StorageSettings(scrub_bytes_s=0))
    await asyncio.wait_for(off.run(), 1)
    assert off.state().bytes_s == off.progress.bytes == 0


@as_scenario(run)
async def test_what_is_damaged_is_not_cut_and_is_forgotten_with_its_partition() -> None:
    made = await filled()
    logs = made.engine.logs
    tables = logs.tables
    assert isinstance(tables, MemoryTables)
    bad = lost_body(tables, logs.partitions[0].table)
    await scrub_for(made, PASS_S)
    for turn in (1, 2):  # so that it does not take blocks any more
        logs.partitions[-1].bytes = 1 << 50
        later = block(at(BLOCKS + turn), log=LOG, time_us=turn)
        await logs.flush([later], {LOG: LogState()}, turn, turn)
    trims = {LOG: 0, LOG + 1: at(BLOCKS)}
    assert await logs.cut_trimmed(trims.__getitem__) is None
    assert damages(made) == [bad]
    trims[LOG] = at(BLOCKS)
    dropped = await logs.drop_trimmed(trims.__getitem__)
    assert [each.number for each in dropped] == [1]
    assert damages(made) == []
    book = DamageBook(tables)
    await book.open()
    assert not book.all()


@as_scenario(run)
async def test_a_copy_that_was_stored_again_is_served_though_the_old_one_is_damaged() -> None:
    made = await filled()
    logs = made.engine.logs
    tables = logs.tables
    assert isinstance(tables, MemoryTables)
    wrong_body(tables, logs.partitions[0].table)
    await scrub_for(made, PASS_S)
    logs.partitions[-1].bytes = 1 << 50
    mended = block(at(9), bytes([9]) * BODY_BYTES, wave=2, time_us=1)
    await logs.flush([mended], {LOG: LogState(released=at(BLOCKS))}, 1, 1)
    got = await made.engine.reader.read(LOG, 0, at(BLOCKS), bytes_max=1 << 30, blocks_max=1000)
    assert got.damaged == []
    assert len(got.blocks) == BLOCKS
    assert bytes(got.blocks[8].body) == bytes([9]) * BODY_BYTES


@as_scenario(run)
async def test_a_disk_that_is_rotten_all_over_does_not_fill_the_book() -> None:
    made = await filled()
    book = made.engine.logs.damages
    for n in range(1, 500, 2):
        await made.engine.logs.note_damage(place(n), "why")
    assert len(book.all()) == RANGES_MAX + 1 or len(book.all()) < RANGES_MAX
    assert not await made.engine.logs.note_damage(place(251), "why")
    again = DamageBook(made.engine.logs.tables)
    await again.open()
    assert again.all() == book.all()


def test_a_small_block_costs_its_share_of_a_core() -> None:
    pace = ScrubPace(1024.0)
    assert pace.pause_s(1024, 1) == pace.pause_s(10, 1) == 1.0
    assert pace.pause_s(0, 10) == 10.0
    assert pace.pause_s(0, 0) == 0.0
    assert [pace.is_busy(count) for count in (0, 5, 5, 6)] == [False, True, False, True]


@as_scenario(run)
async def test_the_twin_tells_rot_of_a_value_when_it_is_read_and_not_at_its_start() -> None:
    disk = MemoryDisk()
    tables = MemoryTables("logsdb", SETTINGS, made_host(disk))
    await tables.open()
    await tables.create("p1")
    await tables.write("p1", [(b"a", b"good"), (b"b", b"rots"), (b"c", b"good")])
    await tables.flush("p1")
    name = next(each for each, data in disk.small.items() if b"rots" in data)
    disk.small[name] = disk.small[name].replace(b"rots", b"rotS")
    again = MemoryTables("logsdb", SETTINGS, made_host(disk))
    await again.open()
    assert again.rotten() == [("p1", b"b")]
    assert await again.get("p1", [b"a", b"c"]) == [b"good", b"good"]
    for reading in (again.get("p1", [b"b"]), _scan_all(again)):
        with pytest.raises(ChecksumMismatch):
            await reading
    await again.write("p1", [(b"b", b"anew")])
    assert await again.get("p1", [b"b"]) == [b"anew"]


def _scan_all(tables: MemoryTables) -> Awaitable[object]:
    return tables.scan("p1", b"", b"\xff", rows_max=10, bytes_max=1000)
