"""Tables in RocksDB, through rocksdict, its calls in the host's threads.

Metadata, staged blocks and ledgers are column families of one database. Every other table, which is
a partition, is a database of its own, open while it is used: of thousands a few take memory and
files, and making one costs the same whether there are ten or ten thousand. With a column family for
each partition, as in docs/design.md §5, this was not so. At each creation RocksDB wrote the options
of all column families again, and read them back to compare. This took 180 ms with 100 column
families and 380 ms with 200, and each kept 280 KB of memory.

RocksDB's own log is off: memtable data is in our WAL too, which is trimmed only after a flush. A
flush writes one sorted file, and a partition is never compacted, even with many files. The metadata
table is compacted: it is small, rewritten constantly and read at each start. So are the tables of
staged blocks and of ledgers, whose rows come and go.

rocksdict holds the GIL during `write`, for a few milliseconds a MiB. So rows are written in small
batches, each in a call of its own. rocksdict releases the GIL during `flush`. For this reason
Cordwood fills a memtable and flushes it, and does not write a sorted file and ingest it as in
docs/design.md §5. With 32 MiB of 1 KB rows on two busy cores, another thread stood still for 24 ms
at most while the memtable was written, and for 10 ms during its flush. It stood still for 34 ms
while a sorted file was written, and for 228 ms during the whole of `ingest_external_file`.

It also holds the GIL during each step of an iterator, which may wait for the disk, and releases it
during a `get` of many keys. So bodies are read by `get`. Cold bodies of 64 KiB came at 690 MB/s by
`get` and at 320 to 470 MB/s by iterators. The loop of the process was held up by 0.1 ms on average
with `get`, and by 0.5 to 1 ms with iterators.

Partitions are read past the page cache where the file system allows it. Page cache for data that is
read once costs a core more than the read itself, and readers of cold data displaced everyone else's
pages. Data that is read again is in the block cache, which has a set size. Then `read_ahead` reads
ahead, and a scan does so only if all is read once. Otherwise RocksDB learns by itself how far an
iterator goes, and index entries of a few blocks do not cost a MiB of disk reads. With page cache
(no direct reads), the machine reads ahead in the files; RocksDB tells it not to, unless told
otherwise. `cordwood bench logsdb`, `read` and `cold` show the effect.

Source: docs/sources/hotpath.md §2 (rocksdict's traps: only a column family's own
handle flushes it; the lower bound of a read sets the upper one; every handle must be closed).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import rocksdict

from cordwood.errors import ChecksumMismatch
from cordwood.host import forked_child
from cordwood.host.seams import Host
from cordwood.layout.ledger_records import LEDGERS_TABLE
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.staged import STAGED_TABLE
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.rocks_calls import LOOK_S, RocksCalls, finds_no_space
from cordwood.storage.logs_db.rocks_database import RocksDatabase
from cordwood.storage.logs_db.tables import (
    DeviceFailed,
    Row,
    Rows,
    TablesFailed,
    TablesNoSpace,
)

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

BATCH_BYTES = 1 << 20
"""The most bytes written in one call, during which rocksdict holds the GIL: about a millisecond."""

FAMILIES = (META_TABLE, STAGED_TABLE, LEDGERS_TABLE)
"""Tables in column families of the database that is always open."""

PARTITIONS = "partitions"
"""The directory of the others' databases."""

OPEN_PARTITIONS = 16
"""Partitions that stay open: two that take blocks, and those with readers. Each takes some 200 KB
and up to 36 files, and opening one again takes some 10 ms."""

FILES_MAX = 30
"""Files of one partition that stay open, and ten that RocksDB keeps for itself: as many as it
has by default. Open files of all together, at most 550: many systems allow 1,024 for a process."""

OPEN_FILES = 64
"""The open files of the database of metadata, which is compacted and so has few files."""

BLOCK_BYTES = 16 << 10
"""Bytes read and checked at once: some hundred index entries, or a part of a body."""

META_FILES = 4
"""Number of metadata files that are compacted into one: RocksDB's own default."""

LOCKED = "No locks available"
"""RocksDB's message if this process already has the database open."""

READ_TRIES = 3
READ_PAUSE_S = 0.5
"""The number of tries of a read that the device failed, and the pause between them. A reset of the
device's link takes less than a second. A disk tries a bad sector by itself for seconds before it
reports an error, so more tries do not help."""

ROOM_BYTES = 2 << 20
"""The free disk space that is needed to open the metadata's database anew. Opening writes files of
some KB, and a database that does not open again could not even be read."""

REOPENS_MAX = 5
"""The most tries to open the database anew: another thread may hold its last handle for a
moment."""

BAD_S = 10.0
"""After an unreadable sector in a partition, further unreadable sectors get only one try for this
time. Otherwise a bad region of ten MiB would take minutes."""

NEVER = 1 << 30
"""Files of one level at which RocksDB would slow down or stop writes until it compacted."""


class RocksTables:
    """See `tables.Tables`."""

    def __init__(self, directory: str, settings: StorageSettings, host: Host) -> None:
        self._path = directory
        self._host = host
        self._cache = rocksdict.Cache(settings.block_cache_bytes)
        self._cache_bytes = settings.cache_bytes
        self._calls = RocksCalls(host, directory)
        self._db: Any = None
        self._is_direct = False
        self._handles: dict[str, Any] = {}
        self._families: dict[str, Any] = {}
        self._databases: dict[str, RocksDatabase] = {}
        # The open databases, the least recently used first. There may be a few more than may stay
        # open.
        self._used: OrderedDict[str, RocksDatabase] = OrderedDict()
        # RocksDB takes no write any more once a flush found no space, however much is free later.
        self._is_stuck = False
        self._moving = asyncio.Lock()
        # Rows of column families that no flush has taken, for a database that is opened anew.
        self._unflushed: dict[str, list[Row]] = {}
        # Partitions with unreadable sectors, and until when a first error counts.
        self._bad: dict[str, float] = {}
        unlogged: Any = rocksdict.WriteOptions()
        unlogged.disable_wal = True
        unlogged.no_slowdown = True
        self._unlogged = unlogged

    async def open(self) -> list[str]:
        await self._host.disk.make_dir(f"{self._path}/{PARTITIONS}")
        self._is_direct = await self._host.disk.takes_direct(self._path)
        is_made = "CURRENT" in await self._host.disk.list_dir(self._path)
        await self._calls.make(functools.partial(self._open, is_made))
        for table in await self._host.disk.list_dir(f"{self._path}/{PARTITIONS}"):
            self._databases[table] = self._database(table)
        return sorted([*self._handles, *self._databases])

    def _open(self, is_made: bool) -> None:
        options = self._options(OPEN_FILES)
        names = rocksdict.Rdict.list_cf(self._path, options) if is_made else []
        tables = sorted(set(names) - {"default"})
        families = {name: self._options(OPEN_FILES, name) for name in tables}
        forked_child.note(self)  # before the threads of RocksDB begin
        self._db = rocksdict.Rdict(self._path, options, column_families=families)
        for table in tables:
            self._take(table)

    def handles(self) -> list[Any]:
        """See `forked_child.Owner`."""
        opened = [] if self._db is None else [self._db]
        return [*opened, *self._handles.values(), *self._families.values()]

    def _take(self, table: str) -> None:
        self._handles[table] = self._db.get_column_family(table)
        self._families[table] = self._db.get_column_family_handle(table)

    def _database(self, table: str) -> RocksDatabase:
        def make_options(may_make: bool) -> Any:
            options = self._options(FILES_MAX)
            options.create_if_missing(may_make)
            return options

        return RocksDatabase(f"{self._path}/{PARTITIONS}/{table}", self._host, make_options)

    def _options(self, open_files: int, table: str = "") -> Any:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        if table in FAMILIES:
            options.set_level_zero_file_num_compaction_trigger(META_FILES)
        else:
            options.set_disable_auto_compactions(True)
            options.set_advise_random_on_open(False)
            options.set_use_direct_reads(self._is_direct)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        # A memtable has all of a flush: RocksDB's own flush would only make more files.
        options.set_write_buffer_size(2 * self._cache_bytes)
        options.set_max_write_buffer_number(4)
        options.set_level_zero_slowdown_writes_trigger(NEVER)
        options.set_level_zero_stop_writes_trigger(NEVER)
        options.set_max_open_files(open_files)
        options.set_max_file_opening_threads(1)
        options.set_max_background_jobs(2)
        options.set_use_direct_io_for_flush_and_compaction(self._is_direct)
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
        if table in FAMILIES:
            if self._is_stuck:
                await self._unstick()
            if table not in self._handles:  # an earlier try may have made it
                await self._make_family(table)
            return
        # Its name is durable first: RocksDB removes the contents.
        await self._host.disk.make_dir(f"{self._path}/{PARTITIONS}/{table}")
        database = self._databases.setdefault(table, self._database(table))
        await database.make()
        await self._note_used(table, database)

    async def _make_family(self, table: str) -> None:
        try:
            await self._calls.make(functools.partial(self._create, table))
        except TablesNoSpace:
            self._is_stuck = True
            raise

    def _create(self, table: str) -> None:
        self._db.create_column_family(table, self._options(OPEN_FILES, table))
        self._take(table)

    async def drop(self, table: str) -> None:
        if table in self._handles:
            await self._calls.make(functools.partial(self._drop, table))
            return
        self._used.pop(table, None)
        self._bad.pop(table, None)
        await self._databases[table].destroy()
        del self._databases[table]  # not before: a try that failed is repeated

    def _drop(self, table: str) -> None:
        self._families.pop(table)
        self._handles.pop(table).close()
        self._db.drop_column_family(table)

    async def cut(self, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        def cut(handle: Any) -> None:
            for start, stop in ranges:
                handle.delete_range(start, stop, self._unlogged)
            handle.flush(True)
            # By hand, for this partition alone: by itself RocksDB never compacts one.
            handle.compact_range(None, None)

        if table in self._databases:
            await self._on(table, cut)
            return
        if self._is_stuck:
            await self._unstick()
        await self._in_family(table, cut)

    async def _on(self, table: str, function: Callable[[Any], Result]) -> Result:
        """Call `function` with the handle of a table, in a thread, and return its result."""
        if table not in self._databases:
            async with self._moving:
                pass  # it may be opened anew just now
        handle = self._handles.get(table)
        if handle is not None:
            return await self._calls.make(lambda: function(handle))
        database = self._databases.get(table)
        if self._is_stuck and database is None:
            raise TablesNoSpace(f"{self._path}: it opens once there is space")
        if self._db is None or database is None:
            raise TablesFailed(f"{self._path} has no table {table}, or is not open")
        try:
            return await database.call(function)
        finally:
            await self._note_used(table, database)

    async def _unstick(self) -> None:
        """Open the database of the metadata anew, if RocksDB is stuck and there is space again.

        Rows that were written and not flushed are written again: readers may have seen them, and a
        retry of the caller may only flush them.

        Raises:
            TablesNoSpace: there is no space yet.
            TablesFailed: it does not open.
        """
        async with self._moving:
            if not self._is_stuck:
                return
            free_bytes, _ = await self._host.disk.space(self._path)
            if self._db is not None and free_bytes < ROOM_BYTES:
                raise TablesNoSpace(f"{self._path}: no space left on the disk")
            await self._calls.ended()
            await self._calls.make(self._close_handles)
            for left in range(REOPENS_MAX - 1, -1, -1):
                try:
                    await self._calls.make(self._open_anew)
                    break
                except TablesFailed as error:
                    if LOCKED not in str(error) or not left:
                        raise
                await asyncio.sleep(LOOK_S)
            self._is_stuck = False
        logger.warning("%s: there is space again, and the metadata can be written", self._path)

    def _open_anew(self) -> None:
        gc.collect()  # what failed may hold a handle, and with it the lock of the database
        self._open(is_made=True)
        for table, rows in self._unflushed.items():
            self._write(self._db, self._families[table], rows)

    def _write(self, handle: Any, family: Any, rows: Sequence[Row]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in rows:
            if value is None:
                batch.delete(key, family)
            else:
                batch.put(key, value, family)
        handle.write(batch, self._unlogged)

    async def _note_used(self, table: str, database: RocksDatabase) -> None:
        """A database was used: keep it open, and close the least recently used one."""
        if self._databases.get(table) is not database or not database.is_open:
            return
        self._used[table] = database
        self._used.move_to_end(table)
        over = len(self._used) - OPEN_PARTITIONS
        for each in [name for name, one in self._used.items() if one.is_unused][: max(0, over)]:
            await self._used.pop(each).close()

    async def write(self, table: str, rows: Sequence[Row]) -> None:
        database = self._databases.get(table)
        if database is not None:
            database.holds_unflushed = True
            await self._on(table, lambda handle: self._write(handle, None, rows))
            return
        if self._is_stuck:
            await self._unstick()

        # For a column family, the writes go to the database.
        def write(_: object) -> None:
            self._write(self._db, self._families[table], rows)

        await self._in_family(table, write)
        self._unflushed.setdefault(table, []).extend(rows)

    async def flush(self, table: str) -> None:
        database = self._databases.get(table)
        if database is None:
            if self._is_stuck:
                await self._unstick()
            await self._in_family(table, lambda handle: handle.flush(True))
            self._unflushed.pop(table, None)
            return
        try:
            await self._on(table, lambda handle: handle.flush(True))
        except TablesNoSpace:
            # A retry writes all of it again: first drop the memtable's rows.
            await database.close()
            raise
        database.holds_unflushed = False

    async def _in_family(self, table: str, function: Callable[[Any], Result]) -> Result:
        """As `_on`, for calls that change a table of the metadata's database."""
        try:
            return await self._on(table, function)
        except TablesNoSpace:
            self._is_stuck = True
            raise

    async def scan(
        self,
        table: str,
        start: bytes,
        stop: bytes,
        *,
        rows_max: int,
        bytes_max: int,
        is_once: bool = False,
    ) -> Rows:
        options: Any = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(stop)
        if is_once:
            options.set_readahead_size(min(bytes_max, BATCH_BYTES))
        options.fill_cache(not is_once)
        return await self._read(
            table, lambda handle: _scan(handle, options, start, rows_max, bytes_max)
        )

    async def get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._read(table, lambda handle: list(handle.get(list(keys))))

    async def _read(self, table: str, function: Callable[[Any], Result]) -> Result:
        """As `_on`, for calls that only read.

        A sector of a partition that the device cannot read in any try counts as rotten: reads
        report its copies as unknown, and other nodes send them. Otherwise no read, scrub or donor
        would ever get past it. An error that passes is no rot. If the whole device is gone, the
        note of the damage cannot be written either, so a later start knows of no damage.

        Raises:
            ChecksumMismatch: it cannot be read.
        """
        loop = asyncio.get_running_loop()
        for left in range(READ_TRIES - 1, -1, -1):
            try:
                return await self._on(table, function)
            except DeviceFailed as error:
                if table in FAMILIES:
                    raise
                if not left or loop.time() < self._bad.get(table, 0.0):
                    self._bad[table] = loop.time() + BAD_S
                    raise ChecksumMismatch(str(error)) from error
            await asyncio.sleep(READ_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def disk_bytes(self) -> int:
        async with self._moving:
            pass
        return await self._calls.make(self._disk_bytes)

    def _disk_bytes(self) -> int:
        handles = list(self._handles.values())
        size = sum(each.property_int_value("rocksdb.total-sst-files-size") or 0 for each in handles)
        for file in Path(self._path, PARTITIONS).glob("*/*.sst"):
            with contextlib.suppress(FileNotFoundError):  # its partition was dropped meanwhile
                size += file.stat().st_size
        return int(size)

    async def close(self) -> None:
        for database in self._databases.values():
            await database.close()
        async with self._moving:
            await self._calls.ended()
            await self._calls.make(self._close)

    def _close(self) -> None:
        self._used.clear()
        self._close_handles()
        if self._is_stuck:
            gc.collect()  # as in `_open_anew`, for later code in this process that opens it

    def _close_handles(self) -> None:
        # One handle left open keeps the directory locked for as long as the process lives.
        self._families.clear()
        db, self._db = self._db, None
        for handle in [*self._handles.values(), *([] if db is None else [db])]:
            try:
                handle.close()
            except Exception as error:
                if not finds_no_space(error):
                    raise
                logger.info("%s: closed, and unflushed data is lost", self._path)
        self._handles.clear()


def _scan(handle: Any, options: Any, start: bytes, rows_max: int, bytes_max: int) -> Rows:
    iterator = handle.iter(options)
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


def rocks_tables(directory: str, settings: StorageSettings, host: Host) -> RocksTables:
    """Tables in RocksDB at `directory`; see `tables.MakeTables`."""
    return RocksTables(directory, settings, host)
