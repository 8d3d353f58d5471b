"""A sector that the device cannot read is as good as rotten; an error that passes is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_blocks import LOG, OWNER, at, block
from strace_at_hand import find_strace, run_traced
from swaps import swap_value

from cordwood.errors import Corrupt
from cordwood.host.real import real_host
from cordwood.layout import logs_db
from cordwood.layout.logs_db import LogState
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db import rocks_logs
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.rocks_logs import RocksTables, rocks_tables
from cordwood.storage.logs_db.tables import DeviceFailed

SETTINGS = StorageSettings(flush_bytes=1 << 20, cache_bytes=1 << 22)
WORDS = "IO error: While pread offset 4096 len 4096: 000008.sst: Input/output error"
"""As RocksDB has them from Linux."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: rocks_logs.READ_PAUSE_S, 0.01)


class BadDevice:
    """A database on a device that fails reads of some keys, so many times each."""

    def __init__(self, db: Any, bad: dict[bytes, float]) -> None:
        self._db = db
        self.bad = bad
        self.failed = 0

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        for key in keys:
            if self.bad.get(key, 0) > 0:
                self.bad[key] -= 1
                self.failed += 1
                raise Exception(WORDS)
        return list(self._db.get(keys))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def play(path: Path, scenario: Callable[[RocksTables], Awaitable[None]]) -> None:
    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            tables = rocks_tables(str(path), SETTINGS, host)
            try:
                await scenario(tables)
            finally:
                await tables.close()

    asyncio.run(main())


def on_bad_device(tables: RocksTables, table: str, bad: dict[bytes, float]) -> BadDevice:
    database = tables._databases[table]
    database._db = device = BadDevice(database._db, bad)
    return device


@pytest.mark.parametrize(("times", "is_damaged"), [(2, False), (float("inf"), True)])
def test_one_block_is_not_known_and_the_others_are_read(
    tmp_path: Path, *, times: float, is_damaged: bool
) -> None:
    """No read, scrub or donor got past it: each ended there, again and again, for ever."""

    async def scenario(tables: RocksTables) -> None:
        store, _ = await LogsStore.open(tables, SETTINGS, OWNER)
        blocks = [block(at(esn), b"%d" % esn) for esn in (1, 2, 3)]
        await store.flush(blocks, {LOG: LogState()}, 1, 1)
        (partition,) = store.partitions
        on_bad_device(tables, partition.table, {logs_db.body_key(LOG, at(2), at(2)): times})
        run = await store.read(LOG, 1, at(9), lambda *_: True, bytes_max=1 << 20, blocks_max=9)
        found = [bytes(each.body) for each in run.blocks]
        assert found == ([b"1", b"3"] if is_damaged else [b"1", b"2", b"3"])
        assert run.damaged == ([(at(2), at(2))] if is_damaged else [])

    play(tmp_path, scenario)


def test_a_bad_region_is_not_tried_again_block_by_block(tmp_path: Path) -> None:
    async def scenario(tables: RocksTables) -> None:
        await tables.open()
        await tables.create("a")
        await tables.write("a", [(b"key", b"value"), (b"key2", b"value")])
        await tables.flush("a")
        device = on_bad_device(tables, "a", {b"key": 9, b"key2": 9})
        for key in (b"key", b"key2"):
            with pytest.raises(Corrupt, match="Input/output error"):
                await tables.get("a", [key])
        assert device.failed == rocks_logs.READ_TRIES + 1

    play(tmp_path, scenario)


def test_an_error_of_the_metadata_is_no_rot(tmp_path: Path) -> None:
    async def scenario(tables: RocksTables) -> None:
        await tables.open()
        await tables.create("meta")
        tables._handles["meta"] = BadDevice(tables._handles["meta"], {b"key": 9})
        with pytest.raises(DeviceFailed):
            await tables.get("meta", [b"key"])

    play(tmp_path, scenario)


READER = """
import asyncio, sys
from pathlib import Path
from cordwood.errors import Corrupt
from cordwood.host.real import real_host
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.rocks_logs import rocks_tables

async def main():
    async with real_host() as host:
        tables = rocks_tables(sys.argv[1], StorageSettings(), host)
        await tables.open()
        try:
            await tables.get("a", [b"key"])
        except Corrupt as error:
            print("unreadable")
        await tables.close()

asyncio.run(main())
"""


def test_the_machine_says_it_in_these_words(
    tmp_path: Path, require: Callable[[str, str], None]
) -> None:
    strace = find_strace(require)

    async def scenario(tables: RocksTables) -> None:
        await tables.open()
        await tables.create("a")
        await tables.write("a", [(b"key", b"value")])
        await tables.flush("a")

    play(tmp_path / "db", scenario)
    (file,) = (tmp_path / "db" / "partitions" / "a").glob("*.sst")
    done = run_traced(
        strace,
        ["-c", READER, str(tmp_path / "db")],
        tmp_path / "calls",
        trace="pread64",
        inject=["pread64:error=EIO"],
        only_path=file,
    )
    assert done.lines == ["unreadable"], done.errors
    assert done.calls.count("EIO") == rocks_logs.READ_TRIES
