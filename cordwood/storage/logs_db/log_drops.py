"""Takes everything of logs out of LogsDB, and leaves its ledgers.

For a node with logs that were rebuilt on other nodes while it was away. The directory is marked
before (`storage.rebuild.admission`), so a call that was cut short is made once more.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

from cordwood.layout import logs_db
from cordwood.layout.staged import STAGED_TABLE
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.tables import SCAN_BYTES, SCAN_ROWS_MAX

OF_THE_NODE = frozenset({
    logs_db.ORIGIN_KEY, logs_db.OFFSET_KEY, logs_db.LOST_KEY, logs_db.ACCEPTED_KEY,
    logs_db.ACCEPTED_RANGES_KEY, logs_db.NOTED_KEY,
})  # fmt: skip
"""Keys of metadata that say nothing of logs. Losses of the WAL concern ledgers too."""

END = b"\xff"
"""A key after all keys of metadata: they begin with a letter."""


async def drop_logs(store: LogsStore) -> None:
    """Drop all states and blocks of logs, and all staged blocks. Durable when it returns; the store
    is of no use after that, and is to be opened again.

    Raises:
        TablesFailed, TablesNoSpace, Corrupt: some of it may be left; call it again.
    """
    tables = store.tables
    start, is_end = b"", False
    while not is_end:
        rows, is_end = await tables.scan(
            logs_db.META_TABLE, start, END, rows_max=SCAN_ROWS_MAX, bytes_max=SCAN_BYTES
        )
        if rows:
            gone = [(key, None) for key, _ in rows if key not in OF_THE_NODE]
            await tables.write(logs_db.META_TABLE, gone)
            start = rows[-1][0] + b"\0"
    # Order matters: a partition that the metadata names and that has no table counts as rotten.
    await tables.flush(logs_db.META_TABLE)
    for partition in store.partitions:
        await tables.drop(partition.table)
    if store.staged.is_made:
        await tables.drop(STAGED_TABLE)
