"""A flush or a drop that came as far as its metadata, and is repeated: nothing counts twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from made_blocks import LOG, OWNER, at, block

from cordwood.errors import Overloaded
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.layout.logs_db import META_TABLE, DirectoryEntry, LogState
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.logs_db.logs_store import LogsStore, StoredLog
from cordwood.storage.logs_db.rocks_logs import RocksTables
from cordwood.storage.logs_db.tables import TablesNoSpace

SETTINGS = StorageSettings()
OTHER = LOG + 1

Scenario = Callable[[LogsStore, "FullTables"], Awaitable[None]]


class FullTables(RocksTables):
    """Tables on a disk that is full now and then.

    Attributes:
        fail_flush: the next flush of the metadata finds no space. fail_drop: no table is dropped.
    """

    fail_flush = fail_drop = False

    async def flush(self, table: str) -> None:
        if table == META_TABLE and self.fail_flush:
            self.fail_flush = False
            raise TablesNoSpace("no space left")
        await super().flush(table)

    async def drop(self, table: str) -> None:
        if self.fail_drop:
            self.fail_drop = False
            raise Overloaded("no thread is free")
        await super().drop(table)


async def opened(path: Path, host: Host) -> tuple[LogsStore, FullTables]:
    tables = FullTables(str(path), SETTINGS, host)
    store, _ = await LogsStore.open(tables, SETTINGS, OWNER)
    return store, tables


def play(path: Path, scenario: Scenario) -> None:
    """A store with one block of LOG."""

    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            store, tables = await opened(path, host)
            await store.flush([block(at(1), time_us=1)], {LOG: LogState(append_time_us=1)}, 1, 1)
            await scenario(store, tables)
            await tables.close()

    asyncio.run(main())


async def flush_twice(store: LogsStore, tables: FullTables, second: int = 1) -> None:
    """Flush a block of OTHER, which fails; `second` blocks are left for the next try."""
    blocks = [block(at(1), log=OTHER, time_us=2)]
    states = {OTHER: LogState(append_time_us=2)}
    tables.fail_flush = True
    with pytest.raises(TablesNoSpace):
        await store.flush(blocks, states, 2, 2)
    await store.flush(blocks[:second], states, 2, 2)


async def parts_of(store: LogsStore, log: int) -> list[DirectoryEntry]:
    return [entry for _, entry in await store.directory(log)]


async def drop_all(store: LogsStore) -> list[int]:
    return [each.number for each in await store.drop_trimmed(lambda log: at(9), 1 << 60)]


def names(path: Path) -> list[str]:
    return [each.name for each in (path / "partitions").iterdir()]


@pytest.mark.parametrize("second", [0, 1], ids=["trimmed meanwhile", "as it was"])
def test_a_repeated_flush_counts_a_log_once_and_its_partition_can_be_dropped(
    tmp_path: Path, second: int
) -> None:
    async def scenario(store: LogsStore, tables: FullTables) -> None:
        await flush_twice(store, tables, second)
        assert store.offset == 2
        (entry,), (first,) = await parts_of(store, OTHER), await parts_of(store, LOG)
        assert (entry.blocks, entry.bytes) == (1, first.bytes)
        assert store.logs[OTHER] == StoredLog(at(1), 1, entry.bytes)
        await tables.close()
        again, tables_again = await opened(tmp_path, tables._host)
        assert again.offset == 2
        assert again.logs[OTHER] == StoredLog(at(1), 1, entry.bytes)
        assert await parts_of(again, OTHER) == [entry]
        assert await drop_all(again) == [1]
        await tables_again.close()

    play(tmp_path, scenario)


def test_a_repeated_flush_that_begins_anew_is_caught(tmp_path: Path) -> None:
    with planted(find_bug("flush-counted-twice")), pytest.raises(AssertionError):
        test_a_repeated_flush_counts_a_log_once_and_its_partition_can_be_dropped(tmp_path, 1)


def test_a_partition_whose_log_counts_too_little_can_be_dropped(tmp_path: Path) -> None:
    """As versions left it that counted a repeated flush twice."""

    async def scenario(store: LogsStore, tables: FullTables) -> None:
        store.logs[LOG] = StoredLog(at(1), 0, 0)
        assert await drop_all(store) == [1]

    play(tmp_path, scenario)


@pytest.mark.parametrize("is_table", [False, True], ids=["metadata", "table"])
def test_a_drop_that_failed_halfway_is_finished_later(tmp_path: Path, is_table: bool) -> None:
    async def scenario(store: LogsStore, tables: FullTables) -> None:
        tables.fail_flush, tables.fail_drop = not is_table, is_table
        with pytest.raises(Overloaded):
            await drop_all(store)
        assert names(tmp_path)
        await drop_all(store)
        assert names(tmp_path) == store.partitions == []
        assert store.drops == 1
        assert store.logs[LOG] == StoredLog(at(1), 0, 0)
        await store.flush([block(at(2), time_us=3)], {LOG: LogState(append_time_us=3)}, 3, 3)
        (entry,) = await parts_of(store, LOG)
        assert store.logs[LOG] == StoredLog(at(2), 1, entry.bytes)

    play(tmp_path, scenario)
