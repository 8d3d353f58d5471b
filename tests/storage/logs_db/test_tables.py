"""What LogsDB asks of its tables, of RocksDB and of the simulator's twin alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from made_blocks import made_host
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.host.real import real_host
from cordwood.settings import StorageSettings
from cordwood.sim.loop import SimLoop
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.logs_db.rocks_logs import rocks_tables
from cordwood.storage.logs_db.tables import Tables, TablesFailed

Start = Callable[[], Tables]
"""The tables of one directory, as a new process would find them."""

Scenario = Callable[[Start], Awaitable[None]]
SETTINGS = StorageSettings(flush_bytes=1 << 20, cache_bytes=1 << 22)


def on_rocks(scenario: Scenario, path: Path) -> None:
    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            await scenario(lambda: rocks_tables(str(path / "logsdb"), SETTINGS, host))

    asyncio.run(main())


def on_the_twin(scenario: Scenario, path: Path) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        await scenario(lambda: memory_tables("logsdb", SETTINGS, made_host(disk)))

    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        runner.run(main())


@pytest.fixture(params=[on_rocks, on_the_twin])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    return lambda scenario: request.param(scenario, tmp_path)


Play = Callable[[Scenario], None]


async def scan(
    tables: Tables, table: str, start: bytes = b"", stop: bytes = b"\xff", **limits: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    limits = {"rows_max": 100, "bytes_max": 1 << 20, **limits}
    rows, is_end = await tables.scan(table, start, stop, **limits)
    return list(rows), is_end


@as_scenario("play")
async def test_a_new_directory_has_no_tables_and_those_made_stay(start: Start) -> None:
    tables = start()
    assert await tables.open() == []
    await tables.create("b")
    await tables.create("a")
    await tables.close()
    tables = start()
    assert await tables.open() == ["a", "b"]
    await tables.drop("a")
    await tables.close()
    tables = start()
    assert await tables.open() == ["b"]
    await tables.create("a")
    assert await scan(tables, "a") == ([], True)
    await tables.close()


@as_scenario("play")
async def test_what_was_written_is_read_at_once_in_the_order_of_keys(start: Start) -> None:
    tables = start()
    await tables.open()
    await tables.create("t")
    await tables.create("u")
    await tables.write("t", [(b"b", b"2"), (b"a", b"1"), (b"d", b"4")])
    await tables.write("t", [(b"c", b"3"), (b"a", None), (b"d", b"5")])
    await tables.write("u", [(b"b", b"of another table")])
    assert await scan(tables, "t") == ([(b"b", b"2"), (b"c", b"3"), (b"d", b"5")], True)
    assert await scan(tables, "t", b"b\0", b"d") == ([(b"c", b"3")], True)
    assert await tables.get("t", [b"a", b"d", b"b"]) == [None, b"5", b"2"]
    await tables.close()


@as_scenario("play")
async def test_a_scan_ends_at_either_limit_and_says_so(start: Start) -> None:
    tables = start()
    await tables.open()
    await tables.create("t")
    rows = [(b"%02d" % n, bytes(100)) for n in range(10)]
    await tables.write("t", rows)
    assert await scan(tables, "t", rows_max=4) == (rows[:4], False)
    assert await scan(tables, "t", bytes_max=250) == (rows[:3], False)
    assert await scan(tables, "t", bytes_max=0) == (rows[:1], False)
    assert await scan(tables, "t", rows[3][0], rows[6][0], rows_max=3) == (rows[3:6], True)
    await tables.close()


@as_scenario("play")
async def test_what_was_flushed_outlives_the_process(start: Start) -> None:
    tables = start()
    await tables.open()
    for table in ("t", "u"):
        await tables.create(table)
        await tables.write(table, [(b"a", b"flushed")])
    await tables.flush("t")
    await tables.write("t", [(b"b", b"not flushed")])
    await tables.close()
    tables = start()
    await tables.open()
    found = dict((await scan(tables, "t"))[0])
    assert found.pop(b"b", b"not flushed") == b"not flushed"
    assert found == {b"a": b"flushed"}
    assert dict((await scan(tables, "u"))[0]).items() <= {b"a": b"flushed"}.items()
    assert await tables.disk_bytes() > 0
    await tables.close()


@as_scenario("play")
async def test_what_is_cut_out_is_gone_and_gives_its_space_back(start: Start) -> None:
    tables = start()
    await tables.open()
    await tables.create("t")
    for _ in range(3):  # a file each, with rows that stand in all of them
        rows = [
            (b"%c%03d" % (kind, n), random.randbytes(1000)) for kind in b"abc" for n in range(50)
        ]
        await tables.write("t", rows)
        await tables.flush("t")
    before = await tables.disk_bytes()
    await tables.cut("t", [(b"a", b"b"), (b"c", b"d")])
    found, _ = await scan(tables, "t", rows_max=1000)
    assert [key for key, _ in found] == [b"b%03d" % n for n in range(50)]
    assert await tables.disk_bytes() < before / 4
    await tables.close()
    tables = start()
    await tables.open()
    assert (await scan(tables, "t", rows_max=1000))[0] == found
    await tables.close()


@as_scenario("play")
async def test_large_values_and_many_rows_come_back(start: Start) -> None:
    chance = random.Random(7)
    rows = [
        (chance.randbytes(12), chance.randbytes(chance.choice((0, 9, 70_000)))) for _ in range(60)
    ]
    tables = start()
    await tables.open()
    await tables.create("t")
    await tables.write("t", rows)
    await tables.flush("t")
    await tables.close()
    tables = start()
    await tables.open()
    found, is_end = await scan(tables, "t", b"", b"\xff" * 13, bytes_max=1 << 30)
    assert (found, is_end) == (sorted(rows), True)
    await tables.close()


@as_scenario("play")
async def test_closed_twice_is_closed_and_takes_nothing(start: Start) -> None:
    tables = start()
    await tables.open()
    await tables.create("t")
    await tables.close()
    await tables.close()
    with pytest.raises(TablesFailed):
        await tables.write("t", [(b"a", b"1")])
    with pytest.raises(TablesFailed):
        await scan(tables, "t")
