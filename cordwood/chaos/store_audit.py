"""The states of consumers in the metadata store of a chaos run, from change to change.

The simulator's metadata store records each change as it takes effect. The real store is SQLite; its
trigger does the same there: it copies each value of a consumer within the transaction that stores
it, no matter which node wrote it and whether that node lived to answer. So the changes are complete
and in their order, as `sim.checkers.consumers` needs them.

SQLite takes the time from the machine's wall clock in milliseconds, before the transaction is on
disk. The history has another clock. While the wall clock is corrected, the two drift apart by a
fraction of a millisecond a second. So a change is recorded EARLIER_US before its time, and never
after its answer. A save may be compared with states up to `SAVE_EARLIER_US` before it.

Source: sqlite.org, "CREATE TRIGGER"; docs/sources/reliability.md §3 (S24).
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

from cordwood.metadata.consumers import read_group
from cordwood.sim.history import GroupChanged

EARLIER_US = 250_000
SAVE_EARLIER_US = 1_000_000

BUSY_S = 10.0
"""Nodes use the file all the time, each for milliseconds."""

_CONSUMERS = "consumers/"

# A value that replaces another is an insertion, too: the store writes INSERT OR REPLACE.
_MADE = (
    "CREATE TABLE chaos_audit (at_ms INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL)",
    f"""
    CREATE TRIGGER chaos_audit_consumers AFTER INSERT ON entry
    WHEN NEW.key GLOB '{_CONSUMERS}*'
    BEGIN
      INSERT INTO chaos_audit VALUES (
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), NEW.key, NEW.value
      );
    END
    """,
)


def begin_audit(path: str) -> None:
    """Record every change of a consumer from now on, in the file itself.

    Args:
        path: of a metadata store that was opened before, so that its tables are there.
    """
    with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as db:
        for statement in _MADE:
            db.execute(statement)


def audited(path: str) -> list[GroupChanged]:
    """The recorded changes, in the order in which they took effect, by the machine's monotonic
    clock.

    Raises:
        Malformed: an entry cannot be read.
    """
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as db:
        rows = db.execute("SELECT at_ms, key, value FROM chaos_audit ORDER BY rowid").fetchall()
    offset_us = (time.monotonic_ns() - time.time_ns()) // 1000
    changes: list[GroupChanged] = []
    last_us = 0
    for at_ms, key, value in rows:
        consumer = key.removeprefix(_CONSUMERS)
        group = read_group(consumer, bytes(value))
        last_us = max(last_us, at_ms * 1000 + offset_us - EARLIER_US)
        owners = {log: (own.member, own.since) for log, own in group.owners.items()}
        positions = {log: int(lsn) for log, lsn in group.positions.items()}
        changes.append(GroupChanged(last_us, consumer, group.generation, owners, positions))
    return changes
