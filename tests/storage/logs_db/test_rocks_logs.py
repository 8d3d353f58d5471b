"""RocksDB's tables: partitions are opened when they are wanted, and old layouts are read."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import rocksdict
from made_blocks import LOG, OWNER, at, block
from scenarios import as_scenario, awaited_by
from swaps import swap_value

from cordwood.errors import Corrupt
from cordwood.host.real import real_host
from cordwood.host.real_disk import RealDisk
from cordwood.host.seams import Host
from cordwood.layout.logs_db import LogState
from cordwood.layout.waves import AmendedBlock, StoredBlock
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db import rocks_logs
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.rocks_logs import RocksTables, rocks_tables
from cordwood.storage.logs_db.tables import TablesFailed

SETTINGS = StorageSettings(flush_bytes=1 << 20, cache_bytes=1 << 22)
ROW = (b"key", b"value")


def play(path: Path, scenario: Callable[[RocksTables, Host], Awaitable[None]]) -> None:
    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            tables = rocks_tables(str(path), SETTINGS, host)
            await tables.open()
            try:
                await scenario(tables, host)
            finally:
                await tables.close()

    asyncio.run(main())


async def fill(tables: RocksTables, *names: str) -> None:
    for name in names:
        await tables.create(name)
        await tables.write(name, [ROW])
        await tables.flush(name)


def open_ones(tables: RocksTables) -> list[str]:
    return [name for name, each in tables._databases.items() if each.is_open]


def test_few_partitions_stay_open_and_all_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: rocks_logs.OPEN_PARTITIONS, 2)
    names = [f"p{number}" for number in range(5)]

    async def scenario(tables: RocksTables, host: Host) -> None:
        await fill(tables, *names)
        assert open_ones(tables) == ["p3", "p4"]
        for name in names:
            assert await tables.get(name, [b"key"]) == [b"value"]
            assert name in open_ones(tables)
            assert len(open_ones(tables)) == 2
        # Side by side, several of one among them.
        found = await asyncio.gather(*(tables.get(name, [b"key"]) for name in names * 3))
        assert found == [[b"value"]] * 15
        await tables.close()
        assert open_ones(tables) == []
        again = rocks_tables(str(tmp_path), SETTINGS, host)
        assert await again.open() == names
        assert open_ones(again) == [], "a start opens none"
        await again.close()

    play(tmp_path, scenario)


def test_what_is_not_flushed_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: rocks_logs.OPEN_PARTITIONS, 1)

    async def scenario(tables: RocksTables, host: Host) -> None:
        await fill(tables, "a", "b", "c")
        await tables.write("a", [(b"more", b"1")])
        for name in ("b", "c", "b"):
            await tables.get(name, [b"key"])
        assert "a" in open_ones(tables)
        await tables.flush("a")
        await tables.get("c", [b"key"])
        await tables.get("b", [b"key"])
        assert open_ones(tables) == ["b"]
        assert await tables.get("a", [b"key", b"more"]) == [b"value", b"1"]

    play(tmp_path, scenario)


def test_who_is_cancelled_while_it_opens_leaves_a_partition_that_opens(tmp_path: Path) -> None:
    async def scenario(tables: RocksTables, host: Host) -> None:
        await fill(tables, "a")
        for wait_s in (0, 0.001, 0.005, 0.02):
            await tables._databases["a"].close()
            reading = asyncio.create_task(tables.get("a", [b"key"]))
            await asyncio.sleep(wait_s)
            was_opening = reading.cancel()
            assert await tables.get("a", [b"key"]) == [b"value"]
            assert was_opening or wait_s, "who asked a moment ago cannot have an answer"
            if was_opening:
                with pytest.raises(asyncio.CancelledError):
                    await reading

    play(tmp_path, scenario)


def test_a_drop_waits_for_who_reads_and_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(tables: RocksTables, host: Host) -> None:
        await fill(tables, "a", "b")
        reads = [asyncio.create_task(tables.get("a", [b"key"])) for _ in range(8)]
        await asyncio.sleep(0)
        await tables.drop("a")
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert all(each == [b"value"] or isinstance(each, TablesFailed) for each in outcomes)
        assert not (tmp_path / "partitions" / "a").exists()
        with pytest.raises(TablesFailed):
            await tables.get("a", [b"key"])
        assert await tables.get("b", [b"key"]) == [b"value"]

    play(tmp_path, scenario)


def test_one_that_was_half_made_or_half_dropped_is_listed_and_can_be_dropped(
    tmp_path: Path,
) -> None:
    async def scenario(tables: RocksTables, host: Host) -> None:
        await fill(tables, "a", "b", "c")
        await tables.close()
        (tmp_path / "partitions" / "a" / "CURRENT").unlink()
        for each in (tmp_path / "partitions" / "b").iterdir():
            each.unlink()
        again = rocks_tables(str(tmp_path), SETTINGS, host)
        assert await again.open() == ["a", "b", "c"]
        with pytest.raises(Corrupt):  # it is not taken for an empty one
            await again.get("a", [b"key"])
        with pytest.raises(Corrupt):
            await again.get("b", [b"key"])
        await again.drop("a")
        await again.drop("b")
        assert [each.name for each in (tmp_path / "partitions").iterdir()] == ["c"]
        await again.create("b")
        assert await again.get("b", [b"key"]) == [None]
        await again.close()

    play(tmp_path, scenario)


def test_partitions_that_are_column_families_are_read_and_dropped(tmp_path: Path) -> None:
    """As stores made before partitions had databases of their own have them."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    old = rocksdict.Rdict(str(tmp_path), options)
    for name in ("meta", "p0000000001", "p0000000002"):
        family = old.create_column_family(name, options)
        family[b"key"] = b"value"
        family.close()
    old.close()

    async def scenario(tables: RocksTables, host: Host) -> None:
        await fill(tables, "p0000000003")
        for name in ("meta", "p0000000001", "p0000000002", "p0000000003"):
            assert await tables.get(name, [b"key"]) == [b"value"]
        await tables.drop("p0000000001")
        await tables.write("p0000000002", [(b"more", b"1")])
        await tables.flush("p0000000002")
        await tables.close()
        again = rocks_tables(str(tmp_path), SETTINGS, host)
        assert await again.open() == ["meta", "p0000000002", "p0000000003"]
        assert await again.get("p0000000002", [b"key", b"more"]) == [b"value", b"1"]
        await again.close()

    play(tmp_path, scenario)


@as_scenario(awaited_by(asyncio.run))
async def test_without_direct_writes_tables_are_written_through_the_page_cache(
    *, tmp_path: Path
) -> None:
    async with real_host() as host, asyncio.timeout(60):
        host = dataclasses.replace(host, disk=RealDisk(use_direct=False))
        tables = rocks_tables(str(tmp_path), SETTINGS, host)
        await tables.open()
        await fill(tables, "p1")
        assert await tables.get("p1", [b"key"]) == [b"value"]
        await tables.close()


def test_an_amend_goes_into_the_partition_where_its_body_is(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, partition_files=1)

    async def flushed(store: LogsStore, offset: int, blocks: list[StoredBlock]) -> None:
        states = {LOG: LogState(append_time_us=blocks[-1].header.append_time_us)}
        await store.flush(blocks, states, offset, offset)

    async def scenario(tables: RocksTables, host: Host) -> None:
        await tables.close()
        store, _ = await LogsStore.open(tables, settings, OWNER)
        for esn in range(1, 5):
            await flushed(store, esn, [block(at(esn), bytes(9000), time_us=esn * 1_000_000)])
        assert len(store.partitions) == 4
        before = [each.files for each in store.partitions]
        new = block(at(1), bytes(9000), time_us=1_000_000, wave=2)
        await flushed(store, 9, [AmendedBlock(new.header, new.envelope, new.wire, new.body)])
        assert [each.files for each in store.partitions] == [before[0] + 1, *before[1:]]
        await tables.close()
        again, _ = await LogsStore.open(
            rocks_tables(str(tmp_path), settings, host), settings, OWNER
        )
        run = await again.read(LOG, at(1), at(1), lambda *_: True, bytes_max=1 << 20, blocks_max=9)
        assert [(each.envelope.wave, bytes(each.body)) for each in run.blocks] == [(2, bytes(9000))]
        await again.tables.close()

    play(tmp_path, scenario)
