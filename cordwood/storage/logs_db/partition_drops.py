"""Frees the space of LogsDB. It drops whole partitions, and rarely cuts one.

A partition is dropped when all of it is trimmed, whether or not it is the oldest. A partition that
a log keeps alive is cut once half of it is trimmed: fully trimmed logs' parts are taken out, and
the store below rewrites the rest. There is no other compaction. Each byte is kept at most twice as
long as its log demands, and rewritten at most once for each halving of its partition.

Metadata first, durably, and then the data: a start drops a table that no metadata names, and rows
that no directory names lie below a trim point, where no reader reads.

Source: docs/sources/logdevice.md 2.13 ("Drop when all logs are past trim", partial compaction);
docs/sources/bookkeeper.md (c), "GC" (compaction that waits for one entry never frees a full disk).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cordwood.decisions import PartitionCut, PartitionDropped, tell
from cordwood.layout import logs_db
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.lsn import NO_LOG
from cordwood.storage.logs_db.partition import Partition, StoredLog
from cordwood.storage.logs_db.tables import Row, Tables, scan_all

if TYPE_CHECKING:
    from cordwood.storage.logs_db.logs_store import LogsStore

logger = logging.getLogger(__name__)

META = logs_db.META_TABLE

CUT_SHARE = 1 / 2
"""Share of a partition that has to be trimmed before it is cut: then the rewritten bytes do not
exceed the freed bytes."""

TrimOf = Callable[[int], int]
"""The trim point of a log, durable in the WAL or in LogsDB."""


class PartitionDrops:
    """See the module; not at the same time as a flush: the store's lock is held."""

    def __init__(self, store: LogsStore, tables: Tables) -> None:
        self._store = store
        self._tables = tables
        self._next_look = 0
        # Tables that no metadata names any more, and that must still be deleted from the disk.
        self._unnamed: list[str] = []

    async def parts(self, partition: Partition) -> dict[int, DirectoryEntry]:
        """What each log has in a partition.

        Raises:
            TablesFailed, Corrupt: the metadata cannot be read.
        """
        number = partition.number
        members = await scan_all(self._tables, META, *logs_db.member_range(number))
        logs = [logs_db.read_member_key(key)[1] for key, _ in members]
        keys = [logs_db.directory_key(log, number) for log in logs]
        found = await self._tables.get(META, keys) if keys else []
        return {
            log: logs_db.read_entry(value)
            for log, value in zip(logs, found, strict=True)
            if value is not None
        }

    async def drop_trimmed(self, trim_of: TrimOf, *, with_newest: bool) -> list[Partition]:
        """Drop fully trimmed partitions; returns them.

        Args:
            with_newest: the newest too; otherwise it stays, because it takes the next blocks.
        """
        await self._drop_unnamed()
        dropped: list[Partition] = []
        for partition in self._store.partitions[: None if with_newest else -1]:
            kept = partition.kept_by
            if kept is not None and kept[1] > trim_of(kept[0]):
                continue  # unchanged since the last look, so nothing has to be read
            parts = await self.parts(partition)
            partition.kept_by = next(
                ((log, each.last) for log, each in parts.items() if each.last > trim_of(log)), None
            )
            if partition.kept_by is None:
                await self.drop_partition(partition, parts)
                dropped.append(partition)
        return dropped

    async def cut_trimmed(self, trim_of: TrimOf) -> Partition | None:
        """Look at one more partition, and cut it if most of it is trimmed; returns it if cut."""
        store = self._store
        settled = store.partitions[: -store.open_partitions]
        if not settled:
            return None
        self._next_look = (self._next_look + 1) % len(settled)
        partition = settled[self._next_look]
        parts = await self.parts(partition)
        gone = {log: entry for log, entry in parts.items() if entry.last <= trim_of(log)}
        size = sum(entry.bytes for entry in gone.values())
        if not gone or len(gone) == len(parts) or size < partition.bytes * CUT_SHARE:
            return None
        if store.damages.holds(partition.number):
            return None  # rewriting it would lose blocks that a repair may still find there
        left = partition.bytes - size
        row = logs_db.pack_partition(partition.row()._replace(bytes=left))

        def take() -> None:
            partition.bytes = left

        await self._forget(partition, gone, row, take)
        ranges = [each for log in sorted(gone) for each in logs_db.log_ranges(log)]
        await self._tables.cut(partition.table, ranges)
        tell(PartitionCut(NO_LOG, partition.number))
        logger.info("partition %d was cut by %d bytes to %d", partition.number, size, left)
        return partition

    async def drop_partition(
        self, partition: Partition, parts: Mapping[int, DirectoryEntry]
    ) -> None:
        def take() -> None:
            self._store.partitions.remove(partition)
            self._store.drops += 1
            self._unnamed.append(partition.table)
            tell(PartitionDropped(NO_LOG, partition.number))

        await self._forget(partition, parts, None, take)
        await self._drop_unnamed()
        logger.info("partition %d with %d bytes was dropped", partition.number, partition.bytes)

    async def _drop_unnamed(self) -> None:
        while self._unnamed:
            await self._tables.drop(self._unnamed[0])
            del self._unnamed[0]

    async def _forget(
        self,
        partition: Partition,
        parts: Mapping[int, DirectoryEntry],
        row: bytes | None,
        take: Callable[[], None],
    ) -> None:
        """Forget what logs have in a partition, durably.

        Args:
            row: the partition's own from now on; None forgets it too.
            take: called once it is durable.
        """
        number, logs = partition.number, sorted(parts)
        states = await self._tables.get(META, [logs_db.state_key(log) for log in logs])
        rows: list[Row] = [(logs_db.partition_key(number), row)]
        if row is None:
            rows += self._store.damages.forget(number)
        left: dict[int, StoredLog] = {}
        for log, state in zip(logs, states, strict=True):
            rows += [(logs_db.directory_key(log, number), None)]
            rows += [(logs_db.member_key(number, log), None)]
            if state is None:
                continue
            gone, held = parts[log], self._store.logs.get(log) or StoredLog()
            # Trap: versions that counted a repeated flush twice left more in a part than in a log.
            blocks, size = max(0, held.blocks - gone.blocks), max(0, held.bytes - gone.bytes)
            left[log] = StoredLog(held.last, blocks, size)
            whole = logs_db.read_state(state)._replace(
                blocks=left[log].blocks, bytes=left[log].bytes
            )
            rows.append((logs_db.state_key(log), logs_db.pack_state(whole)))

        def forgotten() -> None:
            self._store.on_forgotten(partition, left, logs)
            take()

        await self._store.write_metadata(rows, forgotten)
