"""Moves this node's tier points, so that the node lets go of records that main storage has.

A node does not trust other nodes about uploads: before it drops anything, it reads the head of the
log's manifest itself, and the mark of the log's owner. Everything that the head names is durable in
the store, because objects and pages are put before it. So neither a crash nor an outdated uploader
leads to a drop without an object.

The tier point is not the trim point. The log keeps its extent, and readers are sent to objects.
Each node decides alone, by its own clock and by whole parts of partitions, as with retention.

Source: docs/protocol/main-storage.md; docs/sources/s3stream.md (b), trap 10.
"""

from __future__ import annotations

import asyncio
import logging

from cordwood.errors import BadSetting, CordwoodError, Corrupt
from cordwood.host.seams import Host
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.lsn import format_lsn
from cordwood.metadata.log_info import LogInfo
from cordwood.protocol.retention import Part
from cordwood.protocol.tier_plan import Pressure, TierPolicy, droppable, pressure
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import Part as Reading
from cordwood.storage.said_once import SaidOnce
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.origin import check_origin
from cordwood.tier.repair import end_of_objects, find_logs, is_lost
from cordwood.tiered import Entry
from cordwood.uploading.objects_at_hand import ObjectsAtHand
from cordwood.uploading.tiered_logs import TieredLogs, policy_of

logger = logging.getLogger(__name__)

LOOK_BYTES = 1 << 20
"""The first head shows whether a node has a block of a range."""


class LocalDrops:
    """See the module; `run` does the work.

    Args:
        directory: a directory on the disk; the free space there counts.
        every_s: the time between two passes.
    Attributes:
        pressure: how full the disk is, as of the last pass.
    """

    def __init__(
        self,
        engine: StorageEngine,
        logs: TieredLogs,
        objects: ObjectsAtHand,
        host: Host,
        directory: str,
        every_s: float,
    ) -> None:
        self.pressure = Pressure.NONE
        self._engine = engine
        self._logs = logs
        self._objects = objects
        self._host = host
        self._directory = directory
        self._every_s = every_s
        self._said = SaidOnce(logger)
        self._said_of: dict[int, SaidOnce] = {}

    async def run(self) -> None:
        """Make a pass at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            if self._engine.failed:
                return
            try:
                await self.look()
                self._said.over("main storage answers again")
            except CordwoodError as error:
                self._said.warning(f"nothing is dropped that main storage holds: {error}")

    async def look(self) -> None:
        """One pass.

        Raises:
            Retryable: the metadata store does not answer.
        """
        await self._measure()
        await self._logs.refresh()
        held = self._engine.cache.logs
        for log, info in sorted(self._logs.tiered.items()):
            if log not in held:
                continue
            try:
                await self._let_go(log, info)
            except CordwoodError as error:
                # A bad manifest or mark of one log does not stop the other logs.
                said = self._said_of.setdefault(log, SaidOnce(logger))
                said.warning(f"log {log}: this node keeps what it might let go of: {error}")

    async def learn(self) -> None:
        """Take the tier point of every log from main storage, for a node that starts with an empty
        disk.

        Other nodes have rebuilt the blocks of this node. They have not rebuilt blocks that the node
        had dropped, so the node would report these as never stored. If all nodes of a nodeset
        started so, readers would report all records in main storage as lost.

        Raises:
            Corrupt: the manifest of a log cannot be read.
            CordwoodError: the metadata store or main storage does not answer.
        """
        await self._logs.refresh()
        store = await self._objects.store()
        for log in await find_logs(store):
            info = self._logs.all.get(log)
            manifest = await self._objects.manifest(log)
            try:
                # Trap: an accepted loss at the manifest's end may reach past the log's tail. This
                # node would acknowledge the records that come there, and keep none.
                end = await end_of_objects(manifest) if info is not None else 0
            except Corrupt as error:
                # Not passed over: its records that all other nodes let go of would be reported as
                # lost.
                raise Corrupt(
                    f"this node has an empty disk, and cannot learn what main storage has of log "
                    f"{log}: {error}. `cordwood tier repair {log}` writes the manifest anew; then "
                    "the node starts"
                ) from error
            if info is None or manifest.head is None:
                continue
            end = max(end, manifest.head.start)
            # A deleted log of the same number is another log, with another history.
            if end >= 2 and await check_origin(store, log, info.created_us):
                await self._engine.tier(log, end - 1, end - 1)

    async def _measure(self) -> None:
        try:
            self.pressure = pressure(*await self._host.disk.space(self._directory))
        except OSError as error:
            # The next write notices a disk that is gone.
            self._said.warning(f"the space on the disk is not known: {error}")

    async def _let_go(self, log: int, info: LogInfo) -> None:
        engine = self._engine
        gone = engine.gone_of(log)
        parts = [_part(entry) for _, entry in await engine.logs.directory(log) if entry.last > gone]
        policy = policy_of(info.attributes)
        if parts and self._would_drop(log, parts, policy, 1 << 63):
            end = await self._end_of(log, info, gone, max(part.last for part in parts))
            through = self._would_drop(log, parts, policy, end)
            readable = engine.cache.log(log).readable
            # Only released records: the end of an epoch that is not recovered may still change.
            if gone < through <= readable:
                logger.info("log %d: this node drops its copies up to %d", log, through)
                await engine.tier(log, through, readable)

    def _would_drop(self, log: int, parts: list[Part], policy: TierPolicy, end: int) -> int:
        return droppable(parts, end, policy, self._host.clock.now_us(), self.pressure)

    async def _end_of(self, log: int, info: LogInfo, gone: int, last: int) -> int:
        """The first LSN that main storage does not hold of a log, at most `last` + 1; 0 if nothing
        is committed. It is read anew for each drop.

        Trap: it may fall. A repair writes the manifest from the remaining objects. This node may
        still have records that the manifest lacks at the log's end, or reports as lost.
        """
        manifest = await self._objects.manifest(log)
        head = await manifest.load()
        if head is None or head.end <= head.start:
            return 0  # a turn has begun without a commit
        if not await check_origin(await self._objects.store(), log, info.created_us):
            raise BadSetting(f"main storage has no origin for its history of log {log}")
        lost = await self._lost_but_here(log, manifest, gone + 1, min(last, head.end - 1))
        if lost is None:
            return head.end
        said = self._said_of.setdefault(log, SaidOnce(logger))
        said.warning(
            f"log {log}: main storage lost {format_lsn(lost.first)} to {format_lsn(lost.last)}, "
            "and this node has some of it: it keeps that, and all behind it, until it is trimmed"
        )
        return lost.first

    async def _lost_but_here(
        self, log: int, manifest: LogManifest, lsn: int, last: int
    ) -> Entry | None:
        """The first range from `lsn` on that main storage lost and of which this node has
        records."""
        while lsn <= last and (page := await manifest.entries(lsn)):
            for entry in page:
                if is_lost(entry) and entry.first <= last:
                    first = max(lsn, entry.first)
                    run = await self._engine.reader.read(
                        log, first, entry.last, lambda block: Reading.HEAD,
                        bytes_max=LOOK_BYTES, blocks_max=1,
                    )  # fmt: skip
                    # A damaged copy counts as a copy: it may be repaired, and may be the last one.
                    if run.blocks or run.damaged:
                        return entry
            lsn = page[-1].last + 1
        return None


def _part(entry: DirectoryEntry) -> Part:
    return Part(entry.last, entry.bytes, entry.last_us)
