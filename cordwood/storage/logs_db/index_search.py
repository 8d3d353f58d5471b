"""Binary search among a log's index entries in one partition: one entry a step.

Blocks lie in the order of their LSNs, and the search is for a property that a prefix of them has,
such as being older than a time. Only blocks with records count. Recovery's blocks at the end of an
epoch have times no earlier than the records below, but perhaps later than records of the next
epoch, which was under way by then.

Source: docs/sources/logdevice.md 2.13.
"""

from __future__ import annotations

from collections.abc import Callable

from cordwood.block import BlockHeader, BlockKind
from cordwood.layout import logs_db
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.lsn import LSN_MAX
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.tables import SCAN_ROWS_MAX, Tables

Counts = Callable[[int, int, int], bool]
"""Whether a block counts that ends at this LSN with this seal and wave: see `CachedLog.counts`."""


async def search(
    tables: Tables,
    partition: Partition,
    log: int,
    entry: DirectoryEntry,
    counts: Counts,
    is_before: Callable[[BlockHeader], bool],
) -> tuple[int, int]:
    """The place in a partition from which on `is_before` does not hold for a log's records.

    Returns:
        The last LSN for which it holds, and the first for which it does not; 0 and LSN_MAX + 1 for
            none.
    Raises:
        TablesFailed, Corrupt: as `read`.
    """
    before, after = 0, LSN_MAX + 1
    low, high = entry.first, entry.last
    while low <= high:
        middle = (low + high) // 2
        header = await _record_from(tables, partition, log, middle, counts)
        if header is None:
            high = middle - 1
        elif is_before(header):
            before = max(before, header.last)
            low = header.last + 1
        else:
            after = min(after, header.first)
            high = min(middle, header.first) - 1
    return before, after


async def last_header(
    tables: Tables,
    partition: Partition,
    log: int,
    entry: DirectoryEntry,
    counts: Counts,
    until: int,
) -> BlockHeader | None:
    """The last of a log's blocks with records in a partition that begins up to `until`.

    Raises:
        TablesFailed, Corrupt: as `read`.
    """
    last, _ = await search(
        tables, partition, log, entry, counts, lambda header: header.first <= until
    )
    return await _record_from(tables, partition, log, last, counts) if last else None


async def last_counted(
    tables: Tables, partition: Partition, log: int, entry: DirectoryEntry, counts: Counts
) -> int:
    """The last LSN of the last of a log's blocks in a partition that counts, 0 for none.

    The directory tells where the last block ends, even if an unfinished recovery wrote it: its
    bridge may cover records that another recovery kept, and is older than these.

    Raises:
        TablesFailed, Corrupt: as `read`.
    """
    last = entry.last
    while last:
        rows, _ = await tables.scan(
            partition.table,
            logs_db.index_start(log, last),
            logs_db.index_start(log, last + 1),
            rows_max=SCAN_ROWS_MAX,
            bytes_max=1 << 30,
        )
        keys = (logs_db.read_index_key(key) for key, _ in rows)
        if any(counts(key.last, key.seal_epoch, key.wave) for key in keys):
            return last
        last = await _last_below(tables, partition, log, entry.first, last)
    return 0


async def _last_below(tables: Tables, partition: Partition, log: int, low: int, stop: int) -> int:
    """The last LSN of the last of a log's blocks that ends in `[low, stop)`, 0 for none."""
    found, high = 0, stop - 1
    while low <= high:
        middle = (low + high) // 2
        rows, _ = await tables.scan(
            partition.table,
            logs_db.index_start(log, middle),
            logs_db.index_start(log, high + 1),
            rows_max=1,
            bytes_max=1,
        )
        if rows:
            found = logs_db.read_index_key(rows[0][0]).last
            low = found + 1
        else:
            high = middle - 1
    return found


async def _record_from(
    tables: Tables, partition: Partition, log: int, lsn: int, counts: Counts
) -> BlockHeader | None:
    """The first of a log's blocks with records in a partition that ends at or after `lsn`."""
    start = logs_db.index_start(log, lsn)
    while True:
        rows, _ = await tables.scan(
            partition.table, start, logs_db.index_stop(log), rows_max=1, bytes_max=1
        )
        if not rows:
            return None
        key, wire = rows[0]
        block = logs_db.read_head(wire)
        if block.header.kind == BlockKind.DATA and counts(
            block.header.last, block.envelope.seal_epoch, block.envelope.wave
        ):
            return block.header
        start = key + b"\0"
