"""The index entries of a damaged range, as far as they can still be read: they tell which block a
copy belonged to, and so which node has to move or repair it.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from cordwood.errors import Corrupt
from cordwood.layout import logs_db
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.storage.logs_db.logs_store import LogsStore

LOOK_BYTES = 1 << 20
SCAN_ROWS = 64


async def rotten_heads(logs: LogsStore, damaged: DamagedRange) -> list[StoredBlock] | None:
    """All blocks of a damaged range, without their bodies; None where they are not known. Of a
    block that was stored in several waves there are several.

    Raises:
        TablesFailed: the partition cannot be read.
    """
    log = damaged.log
    partition = next((each for each in logs.partitions if each.number == damaged.partition), None)
    if partition is None:
        return None
    start, stop = (logs_db.index_start(log, at) for at in (damaged.first, damaged.last + 1))
    try:
        rows, is_end = await logs.tables.scan(
            partition.table, start, stop, rows_max=SCAN_ROWS, bytes_max=LOOK_BYTES
        )
        return [logs_db.read_head(wire) for _, wire in rows] if rows and is_end else None
    except Corrupt:
        return None
