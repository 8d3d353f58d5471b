"""The metadata of LogsDB can be written again once a full disk has space, without a restart."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from made_blocks import LOG, OWNER, at, block
from strace_at_hand import find_strace, run_traced

from cordwood.host.real import real_host
from cordwood.layout.logs_db import META_TABLE, LogState
from cordwood.layout.staged import STAGED_TABLE
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.rocks_logs import RocksTables, rocks_tables
from cordwood.storage.logs_db.tables import TablesNoSpace

SETTINGS = StorageSettings(flush_bytes=1 << 20, cache_bytes=1 << 22)


@pytest.fixture
def small(tmp_path: Path, require: Callable[[str, str], None]) -> Iterator[Path]:
    """A file system of 32 MiB."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(tmp_path)],
        check=False, capture_output=True,
    )  # fmt: skip
    if made.returncode:
        require("mount", "no file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(path: Path, left: int) -> None:
    told = os.statvfs(path)
    with open(path / "fill", "wb") as file:
        file.write(bytes(told.f_bavail * told.f_frsize - left))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[RocksTables]:
    async with real_host() as host, asyncio.timeout(60):
        tables = rocks_tables(str(path / "db"), SETTINGS, host)
        await tables.open()
        try:
            yield tables
        finally:
            await tables.close()


def play(path: Path, scenario: Callable[[RocksTables], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(path) as tables:
            await scenario(tables)

    asyncio.run(main())


async def put(tables: RocksTables, table: str, key: bytes, size: int) -> None:
    await tables.write(table, [(key, os.urandom(size))])
    await tables.flush(table)


async def keys(tables: RocksTables, table: str) -> list[bytes]:
    rows, _ = await tables.scan(table, b"", b"\xff", rows_max=99, bytes_max=1 << 24)
    return [key for key, _ in rows]


@pytest.mark.slow
def test_a_full_disk_that_has_space_again_takes_metadata_and_loses_none(small: Path) -> None:
    """RocksDB refused each later write, however much was free, until the process began anew."""

    async def scenario(tables: RocksTables) -> None:
        for table in (META_TABLE, STAGED_TABLE, "p1"):
            await tables.create(table)
            await put(tables, table, b"0", 100)
        fill(small, 50_000)
        with pytest.raises(TablesNoSpace):
            await put(tables, META_TABLE, b"1", 200_000)
        for _ in range(2):
            with pytest.raises(TablesNoSpace):
                await tables.flush(META_TABLE)
        # What was written can be read as before: a retry may only flush it.
        assert await keys(tables, META_TABLE) == [b"0", b"1"]
        (small / "fill").unlink()
        readers = [asyncio.create_task(keys(tables, META_TABLE)) for _ in range(20)]
        await tables.flush(META_TABLE)
        assert [await each for each in readers] == [[b"0", b"1"]] * 20
        for table in (META_TABLE, STAGED_TABLE, "p1"):
            await put(tables, table, b"2", 100)
        assert await keys(tables, "p1") == [b"0", b"2"]

    play(small, scenario)

    async def again(tables: RocksTables) -> None:
        assert await keys(tables, META_TABLE) == [b"0", b"1", b"2"]
        assert await keys(tables, STAGED_TABLE) == [b"0", b"2"]

    play(small, again)


@pytest.mark.slow
def test_a_flush_whose_metadata_found_no_space_ends_once_there_is_some(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(tables: RocksTables) -> None:
        await tables.close()
        store, _ = await LogsStore.open(tables, SETTINGS, OWNER)
        right = RocksTables.flush

        async def flush(self: RocksTables, table: str) -> None:
            if table == META_TABLE and not (small / "fill").exists():
                fill(small, 0)  # another program takes all that is left
            await right(self, table)

        with monkeypatch.context() as patch:
            patch.setattr(RocksTables, "flush", flush)
            with pytest.raises(TablesNoSpace):
                await store.flush([block(at(1), bytes(9000))], {LOG: LogState()}, 1, 1)
        (small / "fill").unlink()
        await store.flush([block(at(1), bytes(9000))], {LOG: LogState()}, 1, 1)
        assert store.logs[LOG].blocks == 1

    play(small, scenario)

    async def again(tables: RocksTables) -> None:
        await tables.close()
        store, _ = await LogsStore.open(tables, SETTINGS, OWNER)
        assert store.logs[LOG].blocks == 1
        run = await store.read(LOG, 1, at(9), lambda *_: True, bytes_max=1 << 20, blocks_max=9)
        assert [each.header.first for each in run.blocks] == [at(1)]

    play(small, again)


WRITER = """
import asyncio, sys
from cordwood.host.real import real_host
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.rocks_logs import rocks_tables

async def main():
    async with real_host() as host:
        tables = rocks_tables(sys.argv[1], StorageSettings(), host)
        await tables.open()
        for table in ("a", "meta"):
            for key in (b"1", b"2", b"3", b"4", b"5", b"6"):
                try:
                    await tables.write(table, [(key, bytes(5000))])
                    await tables.flush(table)
                    print(table, "ok")
                except Exception as error:
                    print(table, type(error).__name__)
        await tables.close()

asyncio.run(main())
"""


def test_a_quota_that_is_used_up_is_a_full_disk(
    tmp_path: Path, require: Callable[[str, str], None]
) -> None:
    """The node stored nothing any more until it was started again."""
    strace = find_strace(require)

    async def scenario(tables: RocksTables) -> None:
        for table in ("a", META_TABLE):
            await tables.create(table)
            await put(tables, table, b"0", 100)

    play(tmp_path, scenario)
    # strace counts for each thread: the first writes are those of two flushes.
    done = run_traced(
        strace,
        ["-c", WRITER, str(tmp_path / "db")],
        tmp_path / "calls",
        trace="pwrite64",
        inject=["pwrite64:error=EDQUOT:when=1"],
    )
    assert done.calls.count("EDQUOT"), done.errors
    assert done.status == 0, done.errors
    said = done.lines
    assert set(said) <= {"a ok", "a TablesNoSpace", "meta ok", "meta TablesNoSpace"}
    assert "a TablesNoSpace" in said
    assert {"a ok", "meta ok"} <= set(said)

    async def again(tables: RocksTables) -> None:
        assert len(await keys(tables, META_TABLE)) >= 1 + said.count("meta ok")

    play(tmp_path, again)
