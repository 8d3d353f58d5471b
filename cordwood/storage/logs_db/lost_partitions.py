"""Partitions of LogsDB with a table that is gone from the disk, or cannot be opened.

The metadata names the range of each log in each partition. So a lost partition becomes one or more
damaged ranges for each of its logs. The node starts, reports these ranges as unknown, and fetches
them from other nodes (`storage.repair`). Everything else that it holds is served meanwhile.

The order at a start is what makes a crash harmless::

    mark all ranges as damaged, durably, in one write ► put an empty table in the place of the lost
    table

Only the partitions that take blocks are opened at a start, because a flush into a table that does
not open would fail for ever. A read, or scrubbing, finds an older table that does not open.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cordwood.errors import Corrupt
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.storage.logs_db.logs_read import is_covered
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.tables import Tables

if TYPE_CHECKING:
    from cordwood.storage.logs_db.logs_store import LogsStore

logger = logging.getLogger(__name__)

WHY_LOST = "its partition is gone from the disk, or cannot be opened"

BLOCKS_OF_RANGE = 1 << 16
"""Blocks of one damaged range, about: one fetch of heads (`copy_fetch`), so that little has to be
done again after a failed try."""

RANGES_OF_LOG = 32
"""The most ranges for the part of one log; the book of damage keeps 64."""

PROBE_KEY = b"\0"
"""A key that no row has. A read of it opens the table, and reads little."""


async def can_be_read(tables: Tables, partition: Partition) -> bool:
    """Whether a partition's table opens.

    Raises:
        TablesFailed: the store below does not answer.
    """
    try:
        await tables.get(partition.table, [PROBE_KEY])
    except Corrupt as error:
        logger.error("partition %d cannot be opened: %s", partition.number, error)
        return False
    return True


async def take_for_rotten(store: LogsStore, partition: Partition) -> None:
    """Note all ranges of a partition as damaged, durably, but for ranges that are noted already.

    Raises:
        TablesFailed, TablesNoSpace, Corrupt: the metadata cannot be read or written.
    """
    parts = await store.parts(partition)
    ranges = [each for log, entry in parts.items() for each in _ranges(partition, log, entry)]
    # An earlier start may have noted them, and a repair may have mended a part of each since.
    new = [each for each in ranges if not is_covered(each, store.damages.of_log(each.log))]
    if not new:
        return
    logger.error(
        "partition %d of LogsDB is lost, with copies of %d logs (%d bytes): "
        "they are fetched from other nodes",
        partition.number, len(parts), partition.bytes,
    )  # fmt: skip
    await store.note_all_damage(new, WHY_LOST)


def _ranges(partition: Partition, log: int, entry: DirectoryEntry) -> list[DamagedRange]:
    """The part of a log, in ranges that are mended one by one.

    The last epoch has ranges of its own: it may be open, and then it is mended later than the rest.
    """
    last_epoch = entry.last >> 32 << 32
    bounds = [entry.first]
    if entry.first < last_epoch:
        bounds.append(last_epoch)
    start = bounds[-1]
    pieces = min(RANGES_OF_LOG, -(-entry.blocks // BLOCKS_OF_RANGE))
    step = max(1, -(-(entry.last + 1 - start) // pieces))
    bounds += range(start + step, entry.last + 1, step)
    ends = [*(each - 1 for each in bounds[1:]), entry.last]
    return [
        DamagedRange(partition.number, log, first, last)
        for first, last in zip(bounds, ends, strict=True)
    ]
