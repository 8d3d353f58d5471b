"""Trims records past their log's retention, by this node's own clock, and frees the disk space.

At intervals it checks the partitions that may have records past their age, and the logs with a
bounded number of bytes. It moves trim points, each by a record in the WAL. It has partitions
dropped, and cuts one at a time. It trims only records that readers may see. A block that does not
count decides no trim, because it may be older than blocks below it. Each node trims on its own, so
for some time one node may have trimmed records that another still has; a reader skips records that
any node has trimmed. So a bound by size is compared with the bytes of the whole log. No node infers
these from its own part, because copies are spread unevenly (`kept_bytes`).

Deleted logs are trimmed whole, some time after they were first found missing. That time is kept in
LogsDB: a node that restarts often would otherwise never get there. The check takes this
node's logs first, then the list of the metadata store. Then it looks up each log outside the list
once more by itself, because a log may have been made in between. A log counts as deleted only if
its own entry says that it was deleted. An error ends the pass.

The event log is left out: it has no entry in the tree, nobody can delete it, and its attributes
have no bound. Only its writers trim it, below a snapshot (docs/protocol/event-log.md, rule 3).

Source: docs/sources/logdevice.md 2.13 (a loop every 30 s; deleted logs kept for days);
docs/sources/bookkeeper.md (c), "GC" (snapshot local ids first; only a definite "no such ledger"
deletes).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from cordwood.decisions import RetentionTrimmed, tell
from cordwood.errors import CordwoodError, Corrupt, Malformed
from cordwood.host.seams import Clock
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import EVENT_LOG, LogId
from cordwood.metadata.log_tree import LogTree
from cordwood.protocol.retention import (
    Part,
    even_share,
    expiry_us,
    fitting_trim,
    trim_candidates,
)
from cordwood.settings import StorageSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.index_search import last_counted
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.tables import TablesNoSpace

logger = logging.getLogger(__name__)

KEEPS_ALL = LogAttributes()
"""The attributes that are used for a log whose entry cannot be read, for example because a newer
version wrote it. None of its records may be trimmed."""

NEVER_US = 1 << 62

FIRST_PASS_S = 1.0
"""The first pass is made this long after the start. The sequencers of an embedded store are there
by then, and a start is not slowed down."""

LEARN_AGAIN_S = 300.0
"""As often the attributes are read although the tree tells of no change: the process that made a
change may have stopped before it told. A reading lists all logs."""

TRIMS_AT_ONCE = 256
"""Trim points written at once: they share the WAL's blocks, and leave it free space."""


class Kept(Protocol):
    """See `kept_bytes.KeptBytes`."""

    async def above(self, log: int, lsns: Sequence[int]) -> list[int]:
        """The least bytes that a whole log has above each LSN; `lsns` ascend."""


class Retention:
    """See the module; `run` does the work."""

    def __init__(
        self,
        engine: StorageEngine,
        tree: LogTree,
        clock: Clock,
        settings: StorageSettings,
        nodes: Callable[[], int],
        kept: Kept,
    ) -> None:
        """
        Args:
            nodes: the number of nodes, for logs spread over all of them.
            kept: the bytes of a whole log above some LSNs.
        """
        self._kept = kept
        self._engine = engine
        self._tree = tree
        self._clock = clock
        self._settings = settings
        self._nodes = nodes
        self._changes = -1
        self._learned_s = 0.0
        self._attributes: dict[int, LogAttributes] = {}
        # By log that this node holds but the tree lacks: the time since when (µs, wall clock). None
        # until it is read, because a restart does not begin the time anew.
        self._missing_us: dict[int, int] | None = None

    async def run(self) -> None:
        """Make a pass soon, and then at intervals, until cancelled."""
        # Number: an embedded store in a short program may be open for less than one interval each
        # time. It would never trim.
        pause_s = min(FIRST_PASS_S, self._settings.retention_every_s)
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._settings.retention_every_s
            if self._engine.failed:
                return
            try:
                await self.look()
            except CordwoodError as error:
                logger.warning("retention has to wait: %s", error)

    async def look(self) -> None:
        """One pass.

        Raises:
            Retryable: the metadata store or the WAL does not answer.
            TablesFailed, Corrupt: LogsDB cannot be read.
        """
        engine = self._engine
        await self._learn_attributes()
        for partition in list(engine.logs.partitions):
            await self._trim_expired(partition)
        for log, attributes in sorted(self._attributes.items()):
            if attributes.backlog_bytes:
                await self._trim_to_fit(log, attributes)
        await self._trim_deleted()
        await engine.logs.drop_trimmed(engine.gone_of, self._clock.now_us())
        await engine.logs.cut_trimmed(engine.gone_of)

    # Attributes of logs.

    async def _learn_attributes(self) -> None:
        """Learn the attributes of every log that this node holds, or that the log is gone."""
        # Not the event log: the list has never named it, so each change of the tree would ask for
        # it again.
        held = {*self._engine.cache.logs} - {EVENT_LOG}
        if self._missing_us is None:
            self._missing_us = await self._engine.logs.missing()
        before = self._missing_us
        changes = await self._tree.changes()
        loop = asyncio.get_running_loop()
        is_due = changes != self._changes or loop.time() >= self._learned_s + LEARN_AGAIN_S
        if not is_due and held <= self._attributes.keys() | before.keys():
            return
        listed = await self._tree.list(only_readable=True)
        found = {int(info.log_id): info.attributes for info in listed}
        # Numbers are never reused: once a log was missing and nothing of it is left here, do not
        # ask about it at every change.
        missing = [
            log for log in before if log in held and log not in found and not self._holds(log)
        ]
        for log in sorted(held - found.keys() - {*missing}):
            try:
                info = await self._tree.by_id(log)
                if info is None and not await self._tree.is_deleted(log):
                    # Trap: `by_id` also misses a log without a name. No crossing of renames leaves
                    # such a log, but an operator's hand in the metadata store may. Only the log's
                    # own entry tells; its records are kept.
                    info = await self._tree.of_one_moment(LogId(log))
            except Malformed as error:
                logger.warning("log %d: its records are kept, its entry cannot be read: %s",
                               log, error)  # fmt: skip
                found[log] = KEEPS_ALL
                continue
            if info is None:
                missing.append(log)
            else:
                found[log] = info.attributes
        now_us = self._clock.now_us()
        # Not later than now: a clock that was ahead does not keep records for as long as that.
        self._missing_us = {log: min(before.get(log, now_us), now_us) for log in missing}
        if self._missing_us != before:
            try:
                await self._engine.logs.note_missing(self._missing_us)
            except TablesNoSpace as error:
                # A full disk keeps no pass from trimming: only a restart begins the time anew.
                logger.warning("the times of deleted logs are not kept: %s", error)
        self._changes, self._learned_s = changes, loop.time()
        attributes = {log: each for log, each in found.items() if log in held}
        if attributes != self._attributes:
            self._attributes = attributes
            for partition in self._engine.logs.partitions:
                partition.expires_us = 0

    # By time.

    async def _trim_expired(self, partition: Partition) -> None:
        """Trim the parts of a partition past their logs' retention."""
        now_us = self._clock.now_us()
        if now_us < partition.expires_us:
            return
        parts = await self._engine.logs.parts(partition)
        due: list[tuple[int, DirectoryEntry]] = []
        next_us = NEVER_US
        for log, entry in parts.items():
            backlog_s = self._backlog_s(log)
            expires_us = expiry_us(Part(entry.last, entry.bytes, entry.last_us), backlog_s)
            if expires_us is None or entry.last <= self._engine.trim_of(log):
                continue
            if expires_us <= now_us:
                due.append((log, entry))
            next_us = min(next_us, expires_us)
        takers = self._engine.logs.partitions[-self._engine.logs.open_partitions :]
        # Race: a partition that still takes blocks may get older ones at any time.
        partition.expires_us = 0 if partition in takers else next_us
        for at in range(0, len(due), TRIMS_AT_ONCE):
            some = due[at : at + TRIMS_AT_ONCE]
            await asyncio.gather(*(self._trim_part(log, partition, entry) for log, entry in some))

    async def _trim_part(self, log: int, partition: Partition, entry: DirectoryEntry) -> None:
        await self._trim(log, await self._last_counted(log, partition, entry), "time")

    async def _last_counted(self, log: int, partition: Partition, entry: DirectoryEntry) -> int:
        """The last LSN of a part's last block that counts. A block that does not count decides no
        trim."""
        engine = self._engine
        try:
            return await last_counted(
                engine.logs.tables, partition, log, entry, engine.cache.log(log).counts
            )
        except Corrupt as error:
            logger.warning(
                "log %d: its part of partition %d stays until the records above are trimmed: %s",
                log, partition.number, error,
            )  # fmt: skip
            return 0

    def _backlog_s(self, log: int) -> float:
        attributes = self._attributes.get(log)
        return (attributes.backlog_s or 0.0) if attributes is not None else 0.0

    # By size.

    async def _trim_to_fit(self, log: int, attributes: LogAttributes) -> None:
        """Trim the oldest records of a log that has more bytes, over all nodes, than it keeps.

        If copies are spread evenly, each node holds an equal share. A node with no more than that
        share asks no other node: others may have to trim, and readers skip records that any node
        has trimmed.
        """
        nodes = min(attributes.nodeset_size or self._nodes(), self._nodes())
        bytes_max = attributes.backlog_bytes or 0
        held = self._engine.logs.logs.get(log)
        if held is None or held.bytes <= even_share(
            bytes_max, attributes.replication.copies, nodes
        ):
            return
        trim = self._engine.trim_of(log)
        held_here = [
            (partition, entry)
            for partition, entry in await self._engine.logs.directory(log)
            if entry.last > trim
        ]
        lsns = trim_candidates([entry.last for _, entry in held_here])
        if not lsns:
            return
        fits = fitting_trim(lsns, await self._kept.above(log, lsns), bytes_max)
        lasts = [
            await self._last_counted(log, partition, entry)
            for partition, entry in held_here
            if entry.last <= fits
        ]
        await self._trim(log, max(lasts, default=0), "space")

    # Deleted.

    async def _trim_deleted(self) -> None:
        keep_us = int(self._settings.deleted_keep_s * 1e6)
        now_us = self._clock.now_us()
        for log, since_us in sorted((self._missing_us or {}).items()):
            if now_us < since_us + keep_us or not self._holds(log):
                continue
            logger.info("log %d was deleted: its records go", log)
            last = self._last(log)
            await self._engine.trim(log, last, max(last, self._engine.cache.log(log).released))

    def _last(self, log: int) -> int:
        """The highest held or flushed LSN of a log; 0 for none."""
        return max(self._engine.logs.last(log), self._engine.cache.log(log).last)

    def _holds(self, log: int) -> bool:
        """Whether this node has records of a log that are not trimmed."""
        return self._last(log) > self._engine.trim_of(log)

    async def _trim(self, log: int, lsn: int, why: str) -> None:
        """Trim a log up to `lsn`, but no further than readers may see.

        Args:
            why: `time` or `space`.
        """
        readable = self._engine.cache.log(log).readable
        lsn = min(lsn, readable)
        if lsn > self._engine.trim_of(log):
            tell(RetentionTrimmed(LogId(log), lsn, why))
            await self._engine.trim(log, lsn, readable)
