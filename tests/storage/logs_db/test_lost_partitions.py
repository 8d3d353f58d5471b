"""A partition of LogsDB that is gone from the disk costs its own copies, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_blocks import LOG, OWNER, at, block

from cordwood.host.real import real_host
from cordwood.layout.logs_db import LogState
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.lsn import LSN_MAX
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.partition import BlockRun
from cordwood.storage.logs_db.rocks_logs import rocks_tables

ONE_FLUSH = StorageSettings(
    flush_bytes=1 << 20, cache_bytes=1 << 22, partition_files=1, partition_bytes=1 << 30
)
"""Each flush fills a partition."""

FLUSHES = 4


def _gone(partition: Path) -> None:
    shutil.rmtree(partition)


def _empty(partition: Path) -> None:
    for each in partition.iterdir():
        each.unlink()


def _no_current(partition: Path) -> None:
    (partition / "CURRENT").unlink()


def _no_manifest(partition: Path) -> None:
    next(partition.glob("MANIFEST-*")).unlink()


def _no_file(partition: Path) -> None:
    next(partition.glob("*.sst")).unlink()


def _cut_file(partition: Path) -> None:
    with next(partition.glob("*.sst")).open("r+b") as file:
        file.truncate(100)


LOSSES = [_gone, _empty, _no_current, _no_manifest, _no_file, _cut_file]


async def _read(store: LogsStore) -> BlockRun:
    return await store.read(LOG, 0, LSN_MAX, _every, bytes_max=1 << 20, blocks_max=100)


def _every(last: int, seal_epoch: int, wave: int) -> bool:
    return True


@pytest.mark.slow
@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("number", range(1, FLUSHES + 1))
def test_a_store_without_one_partition_serves_the_others_and_takes_more(
    tmp_path: Path, number: int, lose: Callable[[Path], None]
) -> None:
    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            tables = rocks_tables(str(tmp_path), ONE_FLUSH, host)
            store, _ = await LogsStore.open(tables, ONE_FLUSH, OWNER)
            for turn in range(1, FLUSHES + 1):
                added = block(at(turn), time_us=turn)
                await store.flush([added], {LOG: LogState(append_time_us=turn)}, turn, turn)
            assert [each.number for each in store.partitions] == list(range(1, FLUSHES + 1))
            await tables.close()
            lose(tmp_path / "partitions" / f"p{number:010}")

            for start in range(2):
                tables = rocks_tables(str(tmp_path), ONE_FLUSH, host)
                store, _ = await LogsStore.open(tables, ONE_FLUSH, OWNER)
                run = await _read(store)
                expected = [at(turn) for turn in range(1, FLUSHES + 1) if turn != number]
                assert [each.header.first for each in run.blocks[: FLUSHES - 1]] == expected
                assert list(run.damaged) == [(at(number), at(number))]
                # It takes what comes, though the newest partition may be the lost one.
                turn = FLUSHES + 1 + start
                added = block(at(turn), time_us=turn)
                await store.flush([added], {LOG: LogState(append_time_us=turn)}, turn, turn)
                found = [each.header.first for each in (await _read(store)).blocks]
                assert found == [*expected, *range(at(FLUSHES + 1), at(turn) + 1)]
                await tables.close()

    asyncio.run(main())


def test_a_mended_range_of_a_table_that_does_not_open_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            tables = rocks_tables(str(tmp_path), ONE_FLUSH, host)
            store, _ = await LogsStore.open(tables, ONE_FLUSH, OWNER)
            for turn in (1, 2, 3):
                added = block(at(turn), time_us=turn)
                await store.flush([added], {LOG: LogState(append_time_us=turn)}, turn, turn)
            await tables.close()
            _no_file(tmp_path / "partitions" / "p0000000001")
            tables = rocks_tables(str(tmp_path), ONE_FLUSH, host)
            store, _ = await LogsStore.open(tables, ONE_FLUSH, OWNER)
            lost = DamagedRange(1, LOG, at(1), at(1))
            await store.note_damage(lost, "")
            await store.flush([block(at(1), time_us=1)], {}, 4, 4)
            assert await store.note_mended(lost, at(1))
            run = await _read(store)
            assert [each.header.first for each in run.blocks] == [at(1), at(2), at(3)]
            assert not run.damaged
            # The partition goes as any other does, once it is trimmed.
            assert [each.number for each in await store.drop_trimmed(lambda log: at(1))][:1] == [1]
            assert not (tmp_path / "partitions" / "p0000000001").exists()
            await tables.close()

    asyncio.run(main())


def test_a_part_that_was_mended_since_is_not_called_damaged_again(tmp_path: Path) -> None:
    """The newest partition does not open, and is found anew at each start."""

    async def main() -> None:
        async with real_host() as host, asyncio.timeout(60):
            tables = rocks_tables(str(tmp_path), ONE_FLUSH, host)
            store, _ = await LogsStore.open(tables, ONE_FLUSH, OWNER)
            both = [block(at(turn), time_us=turn) for turn in (1, 2)]
            await store.flush(both, {LOG: LogState(append_time_us=2)}, 1, 1)
            await tables.close()
            _no_file(tmp_path / "partitions" / "p0000000001")
            whole, first = DamagedRange(1, LOG, at(1), at(2)), DamagedRange(1, LOG, at(1), at(1))
            for damaged in (whole, first):
                tables = rocks_tables(str(tmp_path), ONE_FLUSH, host)
                store, _ = await LogsStore.open(tables, ONE_FLUSH, OWNER)
                assert [each for each, _ in store.damages.all()] == [damaged]
                await store.note_mended(whole, at(2))
                await tables.close()

    asyncio.run(main())
