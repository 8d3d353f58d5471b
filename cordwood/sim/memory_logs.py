"""LogsDB's tables for the simulator: RocksDB's promises, over the disk seam, in memory.

As in RocksDB, writes that are not flushed are in the process alone: a kill takes them, table by
table. A flush is one file, replaced atomically and durably. So the states that a crash may leave
follow from the disk below, and crash states are enumerated over them as over the WAL. Now and then
a table is flushed by itself, as RocksDB may do.

Each row has a checksum. If a row's value has rotted on the disk, a read of the row reports this, as
RocksDB does by blocks. A start does not fail because of a rotten row, and the row never reads as
absent.

Files are `{table}.{number}`; the first of a table makes it, and `{table}.{number}.dropped`
ends it with all that is below. Nothing leaves the directory: the seam has no removal.

Source: docs/design.md §10 ("RocksDB's twin in the simulator loses unflushed writes at a crash,
per column family").
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from cordwood.errors import ChecksumMismatch
from cordwood.host.seams import Host
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.tables import Row, Rows, TablesFailed

FLUSH_BY_ITSELF = 0.1
"""Share of the writes after which a table is flushed by itself."""

CALL_S = 0.001
"""Longest time of a call: long enough for other calls to come between."""

DROPPED = ".dropped"

_Stored = list[tuple[bytes, bytes | None]]
_Head = list[tuple[bytes, int | None, int]]


class _Table:
    """One table: its rows, its rows that are not flushed yet, and the number of its next file."""

    def __init__(self, first: int) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.rotten: set[bytes] = set()
        self.unflushed: _Stored = []
        self.files = first
        self.bytes = 0
        self._keys: list[bytes] | None = None

    def put(self, rows: Sequence[Row]) -> None:
        for key, value in rows:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
            self.rotten.discard(key)
        self._keys = None

    def check(self, key: bytes) -> None:
        if key in self.rotten:
            raise ChecksumMismatch(f"the value of {key.hex()} has rotted")

    def keys(self) -> list[bytes]:
        if self._keys is None:
            self._keys = sorted(self.rows)
        return self._keys


class FileRow(NamedTuple):
    """A row of a file: the place of its value; None if the key is deleted."""

    key: bytes
    start: int | None
    stop: int
    is_rotten: bool


def pack_file(rows: Sequence[Row]) -> bytes:
    """A file: u32 CRC32C of the head, u32 its length; the head, in msgpack: key, length of the
    value (None for no value) and CRC32C of it for each row; the values back to back."""
    head = msgspec.msgpack.encode(
        [(k, None, 0) if v is None else (k, len(v), crc32c(v)) for k, v in rows]
    )
    fixed = crc32c(head).to_bytes(4, "little") + len(head).to_bytes(4, "little")
    return b"".join([fixed, head, *(value for _, value in rows if value is not None)])


def read_file(data: bytes, path: str) -> list[FileRow]:
    """The rows of a file.

    Raises:
        ChecksumMismatch: its head is damaged.
    """
    at = 8 + int.from_bytes(data[4:8], "little")
    if crc32c(data[8:at]) != int.from_bytes(data[:4], "little"):
        raise ChecksumMismatch(f"{path}: its checksum is wrong")
    rows: list[FileRow] = []
    for key, length, crc in msgspec.msgpack.decode(data[8:at], type=_Head):
        if length is None:
            rows.append(FileRow(key, None, at, False))
        else:
            rows.append(FileRow(key, at, at + length, crc32c(data[at : at + length]) != crc))
            at += length
    return rows


def files_of_tables(names: Sequence[str]) -> dict[str, list[str]]:
    """The files of each table that is there, from the sorted names of a directory."""
    files: dict[str, list[str]] = {}
    for name in names:
        table, _, number = name.partition(".")
        if number.endswith(DROPPED):
            files.pop(table, None)
        elif number:
            files.setdefault(table, []).append(name)
    return files


class MemoryTables:
    """See `storage.logs_db.tables.Tables`."""

    def __init__(self, directory: str, settings: StorageSettings, host: Host) -> None:
        self._path = directory
        self._host = host
        self._tables: dict[str, _Table] = {}
        # For each dropped table, the number of its next file.
        self._dropped: dict[str, int] = {}
        self._is_open = False

    async def open(self) -> list[str]:
        disk = self._host.disk
        try:
            await disk.make_dir(self._path)
            names = await disk.list_dir(self._path)
            # Make the names durable that an interrupted start left half made.
            await disk.write_file(f"{self._path}/CURRENT", b"")
            for name in names:  # sorted: each table's in the order of their numbers
                table, _, number = name.partition(".")
                if number.endswith(DROPPED):
                    self._dropped[table] = int(number.removesuffix(DROPPED)) + 1
                    self._tables.pop(table, None)
                elif number:
                    await self._load(table, name)
        except OSError as error:
            raise TablesFailed(f"{self._path}: {error}") from error
        self._is_open = True
        return sorted(self._tables)

    async def _load(self, table: str, name: str) -> None:
        path = f"{self._path}/{name}"
        data = await self._host.disk.read_file(path)
        assert data is not None, f"{path} was listed"
        held = self._tables.setdefault(table, _Table(self._dropped.get(table, 0)))
        for row in read_file(data, path):
            held.put([(row.key, None if row.start is None else data[row.start : row.stop])])
            if row.is_rotten:
                held.rotten.add(row.key)
        held.files += 1
        held.bytes += len(data)

    async def create(self, table: str) -> None:
        assert table not in self._tables, f"{table} is there"
        self._tables[table] = _Table(self._dropped.get(table, 0))
        await self.flush(table)

    async def drop(self, table: str) -> None:
        number = self._held(table).files
        await self._write_file(f"{table}.{number:08}{DROPPED}", b"")
        self._dropped[table] = number + 1
        del self._tables[table]

    async def cut(self, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        held = self._held(table)
        for start, stop in ranges:
            keys = held.keys()
            gone = keys[bisect_left(keys, start) : bisect_left(keys, stop)]
            await self.write(table, [(key, None) for key in gone])
        await self.flush(table)
        held.bytes = sum(len(key) + len(value) for key, value in held.rows.items())

    async def write(self, table: str, rows: Sequence[Row]) -> None:
        held = self._held(table)
        await self._pass_time()
        held.put(rows)
        held.unflushed += rows
        if self._host.random.random() < FLUSH_BY_ITSELF:
            await self.flush(table)

    async def flush(self, table: str) -> None:
        held = self._held(table)
        data = pack_file(held.unflushed)
        held.unflushed = []
        await self._write_file(f"{table}.{held.files:08}", data)
        held.files += 1
        held.bytes += len(data)

    async def _write_file(self, name: str, data: bytes) -> None:
        try:
            await self._host.disk.write_file(f"{self._path}/{name}", data)
        except OSError as error:
            raise TablesFailed(f"{self._path}: {error}") from error

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
        held = self._held(table)
        await self._pass_time()
        keys = held.keys()
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for key in keys[bisect_left(keys, start) : bisect_left(keys, stop)]:
            if rows and (len(rows) >= rows_max or size >= bytes_max):
                return Rows(rows, False)
            held.check(key)
            rows.append((key, held.rows[key]))
            size += len(held.rows[key])
        return Rows(rows, True)

    async def get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._held(table)
        await self._pass_time()
        for key in keys:
            held.check(key)
        return [held.rows.get(key) for key in keys]

    def rotten(self) -> list[tuple[str, bytes]]:
        """Table and key of every row whose value has rotted."""
        tables = sorted(self._tables.items())
        return [(table, key) for table, held in tables for key in sorted(held.rotten)]

    async def disk_bytes(self) -> int:
        return sum(table.bytes for table in self._tables.values())

    async def close(self) -> None:
        self._is_open = False

    def _held(self, table: str) -> _Table:
        if not self._is_open:
            raise TablesFailed(f"{self._path} is not open")
        if table not in self._tables:
            raise TablesFailed(f"{self._path} has no table {table}")
        return self._tables[table]

    async def _pass_time(self) -> None:
        await asyncio.sleep(CALL_S * self._host.random.random())


def memory_tables(directory: str, settings: StorageSettings, host: Host) -> MemoryTables:
    """Tables of the simulator at `directory`; see `storage.logs_db.tables.MakeTables`."""
    return MemoryTables(directory, settings, host)
