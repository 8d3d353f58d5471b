"""Drops the blocks of logs from a node's old directory, and keeps its ledgers.

The logs of the node were rebuilt on other nodes while it was away: its copies have envelopes that
count no more. Entries of ledgers are not rebuilt, only repaired, and a repair needs one readable
copy. So this directory may have the only copies of acknowledged entries, with their fences and
LACs. For ledgers the node is as one that was down: it has all that it ever acknowledged.

The WAL has records of both. Those of ledgers go to LogsDB first, and the offset of LogsDB then
passes the whole WAL, so that no start replays its records of logs.

Source: docs/protocol/rebuilding.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from cordwood.settings import NodeSettings
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.engine import StorageEngine
from cordwood.storage.ledgers.ledger_cut import LedgerCut
from cordwood.storage.log_cache import FlushSet
from cordwood.storage.logs_db.log_drops import drop_logs
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.tables import Tables

logger = logging.getLogger(__name__)


async def keep_only_ledgers(
    directory: DataDirectory,
    tables: Tables,
    settings: NodeSettings,
    now_us: int,
    note: Callable[[], Awaitable[None]],
) -> None:
    """See the module. The directory and its tables are closed when it returns.

    Args:
        directory, tables: not opened yet.
        note: notes durably that blocks of logs begin to go.
    Raises:
        NotOurCluster: the directory is another node's, or another one has been in use since.
        CordwoodError: it cannot be read or written; the next start tries again.
    """
    storage = settings.storage
    wal = await directory.open_wal()
    try:
        await note()
        logs, states = await LogsStore.open(tables, storage, settings.node)
        engine = await StorageEngine.open(
            wal, logs, states, storage, lambda log: None,
            promised=directory.reached, is_older=directory.is_older,
        )  # fmt: skip
        batch = engine.cut()
        if batch is not None:
            await logs.flush([], {}, batch.offset, now_us, ledgers=_ledgers_of(batch))
        # Once the offset is past the WAL, the WAL does not show its losses any more.
        await logs.keep_lost()
        await drop_logs(logs)
    finally:
        await tables.close()
        await wal.close()
    logger.warning(
        "the blocks of logs in %s are dropped, as they lie on other nodes; %d ledgers are kept",
        settings.directory, len(engine.ledgers.held),
    )  # fmt: skip


def _ledgers_of(batch: FlushSet) -> LedgerCut:
    """What the WAL has of ledgers, and LogsDB does not have yet."""
    return batch.ledgers
