"""Tables in RocksDB, through rocksdict: a column family each, its calls in the host's threads.

RocksDB's own log is off: what is in a memtable is in our WAL too, which is trimmed only
after a flush. A flush writes one sorted file, and a partition is never compacted: one that
has many files is left alone. The table of metadata is small, written anew all the time and
read at each start, so that one is; so is that of staged blocks, which come and go.

rocksdict holds the GIL through `write`, a few milliseconds a MiB, so that rows go in by
small batches, each a call of its own; `flush` lets it go. That is why a memtable is filled
and flushed, and no sorted file is written apart and ingested as design.md §5 has it: for
32 MiB of 1 KB rows on two busy cores, the longest stop of another thread was 24 ms while
the memtable was written and 10 ms in its flush, 34 ms while a file was written, and 228 ms,
all of it, in `ingest_external_file`.

Source: research digest of the hot path, §2 (rocksdict's traps: only a column family's own
handle flushes it; the lower bound of a read sets the upper one; every handle must be closed).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import rocksdict

from cordwood.errors import ChecksumMismatch, Overloaded
from cordwood.host.seams import Host
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.staged import STAGED_TABLE
from cordwood.settings import StorageSettings
from cordwood.storage.tables import Row, Rows, TablesFailed, TablesNoSpace

Result = TypeVar("Result")

CALL_TIMEOUT_S = 60.0
"""A flush of 32 MiB takes a fifth of a second; a disk that needs a minute has failed."""

CLOSE_LOOK_S = 0.005
"""How often a close looks whether the calls under way have ended: they take milliseconds."""

BATCH_BYTES = 1 << 20
"""Bytes written in one call, and so with the GIL held: about a millisecond."""

OPEN_FILES = 512
"""Files that RocksDB keeps open: of thousands of partitions few are read, and a process may
open 1,024 on many systems."""

BLOCK_BYTES = 16 << 10
"""What is read and checked at once: some hundred index entries, or a part of a body."""

META_FILES = 4
"""Files of metadata that are compacted into one: RocksDB's own default."""

NEVER = 1 << 30
"""Files of one level at which RocksDB would slow down or stop writes until it compacted."""


class RocksTables:
    """See `tables.Tables`."""

    def __init__(self, directory: str, settings: StorageSettings, host: Host) -> None:
        self._path = directory
        self._host = host
        self._cache = rocksdict.Cache(settings.block_cache_bytes)
        self._cache_bytes = settings.cache_bytes
        self._inside: set[object] = set()
        self._db: Any = None
        self._handles: dict[str, Any] = {}
        self._families: dict[str, Any] = {}
        unlogged: Any = rocksdict.WriteOptions()
        unlogged.disable_wal = True
        unlogged.no_slowdown = True
        self._unlogged = unlogged

    async def open(self) -> list[str]:
        await self._host.disk.make_dir(self._path)
        is_made = "CURRENT" in await self._host.disk.list_dir(self._path)
        return await self._call(functools.partial(self._open, is_made))

    def _open(self, is_made: bool) -> list[str]:
        options = self._options()
        names = rocksdict.Rdict.list_cf(self._path, options) if is_made else []
        tables = sorted(set(names) - {"default"})
        self._db = rocksdict.Rdict(
            self._path, options, column_families={name: self._options(name) for name in tables}
        )
        for table in tables:
            self._take(table)
        return tables

    def _take(self, table: str) -> None:
        self._handles[table] = self._db.get_column_family(table)
        self._families[table] = self._db.get_column_family_handle(table)

    def _options(self, table: str = "") -> Any:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        if table in (META_TABLE, STAGED_TABLE):
            options.set_level_zero_file_num_compaction_trigger(META_FILES)
        else:
            options.set_disable_auto_compactions(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        # A memtable has all of a flush: RocksDB's own flush would only make more files.
        options.set_write_buffer_size(2 * self._cache_bytes)
        options.set_max_write_buffer_number(4)
        options.set_level_zero_slowdown_writes_trigger(NEVER)
        options.set_level_zero_stop_writes_trigger(NEVER)
        options.set_max_open_files(OPEN_FILES)
        options.set_max_background_jobs(2)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1 << 20)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(self._cache)
        blocks.set_block_size(BLOCK_BYTES)
        blocks.set_cache_index_and_filter_blocks(True)
        options.set_block_based_table_factory(blocks)
        return options

    async def create(self, table: str) -> None:
        await self._call(functools.partial(self._create, table))

    def _create(self, table: str) -> None:
        self._db.create_column_family(table, self._options(table))
        self._take(table)

    async def drop(self, table: str) -> None:
        await self._call(functools.partial(self._drop, table))

    def _drop(self, table: str) -> None:
        self._families.pop(table)
        self._handles.pop(table).close()
        self._db.drop_column_family(table)

    async def cut(self, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        await self._call(functools.partial(self._cut, table, ranges))

    def _cut(self, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        handle = self._handle(table)
        for start, stop in ranges:
            handle.delete_range(start, stop, self._unlogged)
        handle.flush(True)
        # By hand, for this partition alone: by itself RocksDB never compacts one.
        handle.compact_range(None, None)

    def _handle(self, table: str) -> Any:
        if self._db is None:
            raise TablesFailed(f"{self._path} is not open")
        if table not in self._handles:
            raise TablesFailed(f"{self._path} has no table {table}")
        return self._handles[table]

    async def write(self, table: str, rows: Sequence[Row]) -> None:
        await self._call(functools.partial(self._write, table, rows))

    def _write(self, table: str, rows: Sequence[Row]) -> None:
        self._handle(table)
        family = self._families[table]
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in rows:
            if value is None:
                batch.delete(key, family)
            else:
                batch.put(key, value, family)
        self._db.write(batch, self._unlogged)

    async def flush(self, table: str) -> None:
        await self._call(functools.partial(self._handle(table).flush, True))

    async def scan(
        self, table: str, start: bytes, stop: bytes, *, rows_max: int, bytes_max: int
    ) -> Rows:
        return await self._call(
            functools.partial(self._scan, table, start, stop, rows_max, bytes_max)
        )

    def _scan(self, table: str, start: bytes, stop: bytes, rows_max: int, bytes_max: int) -> Rows:
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(stop)
        options.set_readahead_size(min(bytes_max, BATCH_BYTES))
        iterator = self._handle(table).iter(options)
        iterator.seek(start)
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        while iterator.valid():
            if rows and (len(rows) >= rows_max or size >= bytes_max):
                return Rows(rows, False)
            value = iterator.value()
            rows.append((iterator.key(), value))
            size += len(value)
            iterator.next()
        iterator.status()
        return Rows(rows, True)

    async def get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        handle = self._handle(table)
        return await self._call(lambda: list(handle.get(list(keys))))

    async def disk_bytes(self) -> int:
        return await self._call(self._disk_bytes)

    def _disk_bytes(self) -> int:
        handles = list(self._handles.values())
        return sum(each.property_int_value("rocksdb.total-sst-files-size") or 0 for each in handles)

    async def close(self) -> None:
        # A call whose caller was cancelled goes on in its thread; threads tell no loop.
        while self._inside:  # noqa: ASYNC110
            await asyncio.sleep(CLOSE_LOOK_S)
        await self._call(self._close)

    def _close(self) -> None:
        # One handle left open keeps the directory locked for as long as the process lives.
        self._families.clear()
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()
        db, self._db = self._db, None
        if db is not None:
            db.close()

    async def _call(self, function: Callable[[], Result]) -> Result:
        call = object()

        def run() -> Result:
            self._inside.add(call)
            try:
                return function()
            finally:
                self._inside.discard(call)

        try:
            return await self._host.run_blocking(run, timeout_s=CALL_TIMEOUT_S)
        except Overloaded:
            raise
        except TimeoutError:
            raise TablesFailed(
                f"{self._path}: RocksDB did not answer within {CALL_TIMEOUT_S:g} s"
            ) from None
        except rocksdict.DbClosedError as error:
            raise TablesFailed(f"{self._path} was closed") from error
        except Exception as error:
            if type(error) is not Exception:  # which is what rocksdict raises
                raise
            if "No space left" in str(error):
                raise TablesNoSpace(f"{self._path}: {error}") from error
            if str(error).startswith("Corruption"):
                raise ChecksumMismatch(f"{self._path}: {error}") from error
            raise TablesFailed(f"{self._path}: {error}") from error


def rocks_tables(directory: str, settings: StorageSettings, host: Host) -> RocksTables:
    """Tables in RocksDB at `directory`; see `tables.MakeTables`."""
    return RocksTables(directory, settings, host)
