"""All that a storage node holds of a log, in memory and on its disk."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.block import EnvelopeFlag
from cordwood.layout import logs_db
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.sim.memory_logs import MemoryTables
from cordwood.storage.engine import StorageEngine

BATCH_BYTES = 1 << 20
BATCH_BLOCKS = 1000


async def held_blocks(engine: StorageEngine, log: int) -> list[StoredBlock]:
    """All that a node holds of a log, in its cache and in LogsDB."""
    blocks, _ = await held_and_damaged(engine, log)
    return blocks


def is_set_aside(block: StoredBlock) -> bool:
    """Whether a copy does not count, because other nodes have all the copies that there should
    be."""
    return bool(block.envelope.flags & EnvelopeFlag.DRAINED)


async def held_and_damaged(
    engine: StorageEngine, log: int
) -> tuple[list[StoredBlock], list[tuple[int, int]]]:
    """All that a node holds of a log, and the ranges for which it reports "unknown"."""
    blocks: list[StoredBlock] = []
    damaged: list[tuple[int, int]] = []
    start = 0
    while start <= LSN_MAX:
        run = await engine.reader.read(
            log, start, LSN_MAX, bytes_max=BATCH_BYTES, blocks_max=BATCH_BLOCKS
        )
        blocks += run.blocks
        damaged += run.damaged
        start = run.next
    return blocks, damaged


async def rotten_ranges(engine: StorageEngine) -> dict[int, list[tuple[int, int]]]:
    """By log, the blocks in LogsDB that have rotted, including those that were trimmed since.

    Rows that the directory does not name belong to no log: their flush did not finish.
    """
    tables = engine.logs.tables
    assert isinstance(tables, MemoryTables), "the simulator has the simulator's tables"
    partitions = {partition.table: partition for partition in engine.logs.partitions}
    found: dict[int, list[tuple[int, int]]] = {}
    for table, key in tables.rotten():
        if table not in partitions:
            continue
        log, last, first = logs_db.read_place(key)
        part = (await engine.logs.parts(partitions[table])).get(log)
        if part is not None and last <= part.last:
            found.setdefault(log, []).append((first, last))
    return found


def split_trimmed(
    ranges: Sequence[tuple[int, int]], trim: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Ranges `(first, last)` that end above a trim point, and the other ranges."""
    above = [each for each in ranges if each[1] > trim]
    return above, [each for each in ranges if each[1] <= trim]


def meets(damaged: DamagedRange, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether a damaged range shares an LSN with one of `ranges`."""
    return any(first <= damaged.last and damaged.first <= last for first, last in ranges)
