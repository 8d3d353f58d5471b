"""Finds the unreadable bytes in a log's index entries, as narrowly as possible.

RocksDB reports that a part of a scan has rotted, but not which part. If the whole scan counted as
lost, every good copy after one bad row would become unknown, even copies stored later. So the scan
is repeated in smaller pieces up to the bad bytes. Then it goes on after them, in growing steps and
back by halves: some dozens of calls for each failed scan.

Source: docs/design.md §2 ("a corrupt copy makes its node UNKNOWN", and not its neighbours).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.errors import Corrupt
from cordwood.layout import logs_db
from cordwood.storage.logs_db.tables import Tables

BYTES_MAX = 1 << 30
"""Rows are what bounds a scan here: an entry has some hundred bytes."""


class Rot(NamedTuple):
    """See `find_rot`.

    Attributes:
        rows: the index entries below `first`, all of them.
        first, last: LSNs of which nothing is known; `last` below `first` where all can be read
            by now.
    """

    rows: Sequence[tuple[bytes, bytes]]
    first: int
    last: int


async def find_rot(
    tables: Tables, table: str, log: int, start: int, last: int, *, rows_max: int
) -> Rot:
    """Find the first rot among the entries of the blocks that end in `[start, last]`.

    Args:
        rows_max: of the scan from `start` on that failed.
    Raises:
        TablesFailed: the store below does not answer.
    """
    rows, is_all = await _rows_before(tables, table, log, start, last, rows_max)
    if is_all:
        return Rot(rows, last + 1, last)
    first = start
    if rows:
        seen = logs_db.read_index_key(rows[-1][0])
        first = seen.last + 1
        if not await _is_readable(tables, table, rows[-1][0] + b"\0", log, first):
            # The bad row may be another copy of that place; which copy counts is then unknown.
            first = seen.first
            rows = [row for row in rows if logs_db.read_index_key(row[0]).last < seen.last]
        start = seen.last + 1
    behind = await _readable_from(tables, table, log, start, last)
    return Rot(rows, first, behind - 1)


async def _rows_before(
    tables: Tables, table: str, log: int, start: int, last: int, rows_max: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The rows up to the first unreadable one, and whether all were readable."""
    rows: list[tuple[bytes, bytes]] = []
    at, stop = logs_db.index_start(log, start), logs_db.index_start(log, last + 1)
    while rows_max:
        try:
            some, is_end = await tables.scan(
                table, at, stop, rows_max=rows_max, bytes_max=BYTES_MAX, is_once=True
            )
        except Corrupt:
            rows_max //= 2
            continue
        rows += some
        if is_end:
            return rows, True
        at = some[-1][0] + b"\0"
    return rows, False


async def _readable_from(tables: Tables, table: str, log: int, start: int, last: int) -> int:
    """The lowest LSN from `start` on, as far as steps find it, from which rows can be read."""

    async def is_readable(lsn: int) -> bool:
        return await _is_readable(tables, table, logs_db.index_start(log, lsn), log, last + 1)

    bad, good, step = start - 1, start, 1
    while good <= last and not await is_readable(good):
        bad, good, step = good, good + step, 2 * step
    good = min(good, last + 1)
    while good - bad > 1:
        middle = (bad + good) // 2
        if await is_readable(middle):
            good = middle
        else:
            bad = middle
    return good


async def _is_readable(tables: Tables, table: str, at: bytes, log: int, stop: int) -> bool:
    """Whether the row at or after a key can be read, if one stands below the LSN `stop`."""
    try:
        await tables.scan(
            table, at, logs_db.index_start(log, stop),
            rows_max=1, bytes_max=BYTES_MAX, is_once=True,
        )  # fmt: skip
    except Corrupt:
        return False
    return True
