"""Tables of sorted keys and values: the interface through which LogsDB uses the store below it.

`rocks_logs` implements it with RocksDB, mostly with a database for each table. The simulator has an
implementation of its own. One contract suite checks that both keep the promises below.

Each table is durable up to a write of its own. A crash may keep the writes since the table's last
flush, or lose some of them from the end, independently for each table. So to order two tables,
flush one before writing the other.

Source: docs/design.md §5, §10 ("loses unflushed writes at a crash, per column family").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from cordwood.errors import CordwoodError, Overloaded
from cordwood.host.seams import Host
from cordwood.settings import StorageSettings

Row = tuple[bytes, bytes | None]
"""Key and value; None takes the key away."""


class TablesFailed(CordwoodError):
    """The store below cannot write or read any more; its data stays on the disk."""


class DeviceFailed(TablesFailed):
    """The device below reports an error for what was written or read (EIO)."""


class TablesNoSpace(Overloaded):
    """The disk below has no space; the write may be repeated later."""


class Rows(NamedTuple):
    """The result of a scan.

    Attributes:
        rows: keys and values, ascending.
        is_end: nothing more is in the range.
    """

    rows: Sequence[tuple[bytes, bytes]]
    is_end: bool


class Tables(Protocol):
    """See the module. One caller writes at a time; any number read."""

    async def open(self) -> list[str]:
        """Open or create the database; returns the names of the tables, sorted.

        Raises:
            TablesFailed: it cannot be opened; the text says why.
        """

    async def create(self, table: str) -> None:
        """Make an empty table, durably.

        Raises:
            TablesFailed: see the module.
        """

    async def drop(self, table: str) -> None:
        """Take a table away, durably, and give its space back.

        Raises:
            TablesFailed: see the module.
        """

    async def cut(self, table: str, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Take all rows of some ranges (from, below) away, and give their space back.

        A crash on the way may leave any of them. The range must have no readers any more.

        Raises:
            TablesFailed, TablesNoSpace: see the module.
        """

    async def write(self, table: str, rows: Sequence[Row]) -> None:
        """Put rows into a table, all or none: at once for readers, durable by `flush`.

        Raises:
            TablesFailed, TablesNoSpace: see the module.
        """

    async def flush(self, table: str) -> None:
        """Return once all that was written to a table is on stable storage.

        Raises:
            TablesFailed, TablesNoSpace: see the module.
        """

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
        """Rows from `start` on and below `stop`, at least one if there is any.

        Args:
            rows_max, bytes_max: the scan ends once either is reached; bytes are of values.
            is_once: the rows are not read again soon, so they must not displace cached rows.
        Raises:
            TablesFailed: see the module.
            Corrupt: a part of it fails its checksum.
        """

    async def get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None for a missing key.

        Raises:
            TablesFailed, Corrupt: as `scan`.
        """

    async def disk_bytes(self) -> int:
        """The approximate bytes that all tables take on the disk.

        Raises:
            TablesFailed: see the module.
        """

    async def close(self) -> None:
        """Close everything; unflushed data is lost. Safe to call twice."""


SCAN_ROWS_MAX = 4096
"""Rows looked at in one call: half a megabyte of index entries."""

SCAN_BYTES = 1 << 20


async def scan_all(
    tables: Tables, table: str, start: bytes, stop: bytes, bytes_max: int = SCAN_BYTES
) -> list[tuple[bytes, bytes]]:
    """All rows from `start` on and below `stop`, a call for each `bytes_max`.

    Raises:
        TablesFailed, Corrupt: as `scan`.
    """
    found: list[tuple[bytes, bytes]] = []
    while True:
        rows, is_end = await tables.scan(
            table, start, stop, rows_max=SCAN_ROWS_MAX, bytes_max=bytes_max
        )
        found += rows
        if is_end:
            return found
        start = rows[-1][0] + b"\0"


WRITE_BYTES = 1 << 20
"""The most bytes of one write, as for blocks: the loop waits about a millisecond for the GIL."""


WRITE_ROWS = 1024
"""The most rows of one write: each small row takes about a microsecond."""


async def write_durably(tables: Tables, table: str, rows: Iterable[Row]) -> None:
    """Write rows, a call for each WRITE_BYTES or WRITE_ROWS; returns once they are durable.

    Raises:
        TablesFailed, TablesNoSpace: the same may be written again.
    """
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row[1] or b"")
        if size >= WRITE_BYTES or len(some) >= WRITE_ROWS:
            await tables.write(table, some)
            some, size = [], 0
    await tables.write(table, some)
    await tables.flush(table)


MakeTables = Callable[[str, StorageSettings, Host], Tables]
"""Makes the tables in a directory that is for them alone. The caller opens them."""
