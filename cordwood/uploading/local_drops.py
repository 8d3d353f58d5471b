"""Moves this node's tier points, so that the node lets go of records that main storage has.

A node does not trust other nodes about uploads: before it drops anything, it reads the head of the
log's manifest itself, and the mark of the log's owner. Everything that the head names was put
before it. So neither a crash nor an outdated uploader leads to a drop without an object. The node
also asks the store for each of these objects, because a store may lose an object.

The tier point is not the trim point. The log keeps its extent, and readers are sent to objects.
Each node decides alone, by its own clock and by whole parts of partitions, as with retention.

Source: docs/protocol/main-storage.md; docs/sources/s3stream.md (b), trap 10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from cordwood.errors import BadSetting, CordwoodError, Corrupt, Malformed
from cordwood.host.seams import Host
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.lsn import format_lsn
from cordwood.metadata.log_info import LogInfo
from cordwood.protocol.retention import Part
from cordwood.protocol.tier_plan import Pressure, TierPolicy, droppable, pressure
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import Part as Reading
from cordwood.storage.said_once import SaidOfEach, SaidOnce
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.origin import check_origin
from cordwood.tier.presence import Presence, lost_entries
from cordwood.tier.repair import end_of_objects, find_logs
from cordwood.tiered import Entry
from cordwood.uploading.main_looks import MainLooks
from cordwood.uploading.objects_at_hand import ObjectsAtHand
from cordwood.uploading.tiered_logs import TieredLogs, policy_of

logger = logging.getLogger(__name__)

LOOK_BYTES = 1 << 20
"""The first head shows whether a node has a block of a range."""

BEFORE_ALL = 1 << 32
"""The place `e1n0`. No record has it or a lower one."""


class LocalDrops:
    """See the module; `run` does the work.

    Args:
        directory: a directory on the disk; the free space there counts.
        every_s: the time between two passes.
        ask_trim: asks the other nodes for a log's trim point.
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
        ask_trim: Callable[[int], Awaitable[int]],
    ) -> None:
        self.pressure = Pressure.NONE
        self._engine = engine
        self._logs = logs
        self._objects = objects
        self._host = host
        self._directory = directory
        self._every_s = every_s
        self._ask_trim = ask_trim
        self._said = SaidOnce(logger)
        self._said_of = SaidOfEach(logger)
        self._copies = MainLooks(logs, objects, ask_trim)
        self._is_unread = False
        # Whether main storage did not answer, or had a bad manifest, when it was last asked.
        self._has_failed = False
        # Logs whose tier record was handed to the WAL, and may come into force yet.
        self._unsettled: set[int] = set()

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
        self._said_of.keep(self._logs.tiered)
        held = self._engine.cache.logs
        for log, info in sorted(self._logs.tiered.items()):
            if log not in held:
                continue
            try:
                await self._let_go(log, info)
            except CordwoodError as error:
                # A bad manifest or mark of one log does not stop the other logs.
                self._has_failed = True
                words = f"log {log}: this node keeps what it might let go of: {error}"
                self._said_of.warning(log, words)
            # Not after a cancelled pass: the WAL may still raise its tier point.
            if log not in self._unsettled:
                self._take_again(log)
        await self._settle()

    async def _settle(self) -> None:
        """End the passes whose tier record got no answer, once the WAL has carried out all that it
        was handed; else leave them to the next pass.

        Race: a disk may stand still for longer than a write waits. The record still comes into
        force, and copies that were taken meanwhile would be dropped.
        """
        if not self._unsettled:
            return
        try:
            await self._engine.settle_stores()
        except CordwoodError as error:
            logger.info("this node may still let go of logs %s: %s", sorted(self._unsettled), error)
            return
        for log in self._unsettled:
            self._take_again(log)
        self._unsettled.clear()

    def _take_again(self, log: int) -> None:
        if (cached := self._engine.cache.get(log)) is not None:
            cached.letting_go = 0

    @property
    def is_used(self) -> bool:
        """See `MainCopies`."""
        return bool(self._objects.address)

    async def refresh(self, *, anew: bool) -> None:
        """See `MainCopies`."""
        if anew:
            self._copies.forget()
        self._is_unread = False
        if not self._objects.address:
            return
        try:
            await self._logs.refresh()
        except CordwoodError as error:
            logger.info("which logs are in main storage is not read: %s", error)
            self._is_unread = True

    def may_have(self, log: int) -> bool:
        """See `MainCopies`. A log with `tier=off` by now may have been in main storage: this node
        knows it if it let go of some of it."""
        if not self._objects.address:
            return False
        # Trap: a log may have got `tier=on` since the tree was read.
        if self._is_unread or log in self._logs.tiered or log not in self._logs.all:
            return True
        held = self._engine.cache.get(log)
        return held is not None and held.tier > 0

    async def lacks(self, log: int, first: int, last: int) -> Sequence[tuple[int, int]]:
        """See `MainCopies`."""
        return await self._copies.lacks(log, first, last)

    async def learn(self) -> None:
        """Take the tier point of every log from main storage, for a node that starts with an empty
        disk.

        Other nodes have rebuilt the blocks of this node. They have not rebuilt blocks that the node
        had dropped, so the node would report these as never stored. If all nodes of a nodeset
        started so, readers would report all records in main storage as lost.

        Raises:
            Corrupt: the manifest or the origin of a log is gone, or cannot be read.
            Malformed: the entry of a log that has objects cannot be read.
            CordwoodError: the metadata store or main storage does not answer.
        """
        await self._logs.refresh()
        store = await self._objects.store()
        for log in await find_logs(store):
            if log in self._logs.unread:
                # Not passed over: see below.
                raise Malformed(
                    f"this node has an empty disk, and the entry of log {log} in the metadata "
                    "store cannot be read, so it cannot learn what main storage has of that log. "
                    "Where a newer version wrote it, start this node with that version"
                )
            info = await self._logs.of(log)
            if info is None:
                continue  # a deleted log
            end = await self._held_of(log, info)
            if end >= 2:
                await self._engine.tier(log, end - 1, end - 1)

    async def _held_of(self, log: int, info: LogInfo) -> int:
        """The first LSN behind what main storage holds of a log; 0 if it holds nothing.

        Raises:
            Corrupt: the log's manifest or its origin is gone, or cannot be read. Neither is passed
                over: records that all other nodes let go of would be reported as lost.
        """
        why = (
            f"this node has an empty disk, and cannot learn what main storage has of log {log} "
            f"({info.name})"
        )
        manifest = await self._objects.manifest(log)
        try:
            # Trap: an accepted loss at the manifest's end may reach past the log's tail. This node
            # would acknowledge the records that come there, and keep none.
            end = await end_of_objects(manifest)
            if (head := manifest.head) is None:
                # It is put before all else of a log, and never deleted.
                raise Corrupt("its manifest is gone")
        except Corrupt as error:
            raise Corrupt(
                f"{why}: {error}. `cordwood tier repair {log}` writes the manifest anew; then the "
                "node starts"
            ) from error
        # A deleted log of the same number is another log, with another history.
        if await check_origin(await self._objects.store(), log, info.created_us):
            return max(end, head.start)
        # An upload that begins puts the head first. No node let go of a log without a creation
        # time: it has no origin.
        if info.created_us and head.end > head.start:
            raise Corrupt(
                f"{why}: its origin is gone, which says that the records are this log's. `cordwood "
                f"tier upload {info.name}` writes it anew while other nodes run; then the node "
                "starts"
            )
        return 0

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
        if parts and (most := self._would_drop(log, parts, policy, 1 << 63)):
            # Only released records: the end of an epoch that is not recovered may still change.
            readable = engine.cache.log(log).readable
            if self._has_failed:
                # A pass takes minutes if main storage does not answer. No donor waits for it then.
                await (await self._objects.manifest(log)).load()
                self._has_failed = False
            await self._take_no_more(log, min(most, readable))
            # Race: a repair, or an operator's older copy, may replace the head meanwhile. Each
            # range is judged by one head: what this one names is asked for, and what it calls lost
            # is kept. By two heads a range could be neither.
            manifest = await self._objects.manifest(log)
            head = await manifest.load()
            end = await self._end_of(log, info, manifest, gone, max(part.last for part in parts))
            # More may be due by now: nothing above `most` is let go of, as copies are taken there.
            through = self._would_drop(log, parts, policy, min(end, most + 1))
            missing: Entry | None = None
            if gone < through <= readable:
                missing = await self._missing(manifest, gone, through)
            if missing is not None:
                self._said_of.warning(
                    log,
                    f"log {log}: main storage lacks an object with {format_lsn(missing.first)} to "
                    f"{format_lsn(missing.last)}, which the manifest names ({missing.name}): this "
                    "node keeps its records from there on, until the object is put back, or "
                    f"`cordwood tier repair {log}` finds the records in other objects",
                )
                through = self._would_drop(log, parts, policy, min(missing.first, most + 1))
            if manifest.head is not head:
                return  # a page was gone, so a newer head was read on the way: the next pass
            if gone < through <= readable:
                logger.info("log %d: this node drops its copies up to %d", log, through)
                self._unsettled.add(log)
                await engine.tier(log, through, readable)
                self._unsettled.discard(log)

    async def _take_no_more(self, log: int, last: int) -> None:
        """Take no donor's copy up to `last` before this pass has ended; copies that were taken
        before are durable when this returns.

        Race: main storage may lose an object after this node has looked for it. A donor whose node
        is drained finds that, and would give this node its only copies: they would be acknowledged
        and then dropped.
        """
        held = self._engine.cache.log(log)
        held.letting_go = max(held.letting_go, last)
        # Without stores on the way no record is needed: a full WAL must not hold up a drop.
        if self._engine.has_stores_on_way:
            await self._engine.settle_stores()

    async def _missing(self, manifest: LogManifest, gone: int, through: int) -> Entry | None:
        """The first entry of what this node would let go of whose object is gone.

        A manifest is no proof of its objects: one may be lost in the store, or the manifest is an
        older copy. Each object is asked for once, just before its records go. The entry of a lost
        range has no object, so it counts as there: `_end_of` has judged it.
        """
        presence = Presence(await self._objects.store())
        return await presence.first_missing(manifest, gone + 1, through)

    def _would_drop(self, log: int, parts: list[Part], policy: TierPolicy, end: int) -> int:
        return droppable(parts, end, policy, self._host.clock.now_us(), self.pressure)

    async def _end_of(
        self, log: int, info: LogInfo, manifest: LogManifest, gone: int, last: int
    ) -> int:
        """The first LSN that main storage does not hold of a log, at most `last` + 1; 0 if nothing
        is committed.

        Args:
            manifest: read anew for this drop.

        Trap: it may fall. A repair writes the manifest from the remaining objects. This node may
        still have records that the manifest lacks at the log's end, or reports as lost.
        """
        head = manifest.head
        if head is None or head.end <= head.start:
            return 0  # a turn has begun without a commit
        if not await check_origin(await self._objects.store(), log, info.created_us):
            raise BadSetting(f"main storage has no origin for its history of log {log}")
        is_trimmed = await self._is_trimmed(log, gone + 1, head.start - 1)
        lost = await self._lost_but_here(log, manifest, gone + 1, min(last, head.end - 1))
        # Order matters: after all that was read from the store. It may have been emptied and given
        # to another cluster since it was opened, and another node may have uploaded the log there.
        await self._objects.check()
        if not is_trimmed:
            self._said_of.warning(
                log,
                f"log {log}: main storage begins at {format_lsn(head.start)}, and the log is not "
                "trimmed up to there: this node keeps its records from before, and all behind "
                f"them, until it is (`cordwood logs trim`). Was {format_lsn(head.start)} given to "
                "`cordwood tier repair --start`?",
            )
            return gone + 1
        if lost is None:
            return head.end
        self._said_of.warning(
            log,
            f"log {log}: main storage lost {format_lsn(lost.first)} to {format_lsn(lost.last)}, "
            "and this node has some of it: it keeps that, and all behind it, until it is trimmed",
        )
        return lost.first

    async def _is_trimmed(self, log: int, lsn: int, last: int) -> bool:
        """Whether the log is trimmed up to `last`, or this node has no record from `lsn` to there.

        A manifest begins at the trim point. A repair may have been told another beginning: then no
        object is named for what is before it.

        Raises:
            CordwoodError: no node tells the trim point.
        """
        if lsn > last or await self._stays_without(log, lsn, last):
            return True
        # This node may have been away when the log was trimmed.
        return await self._ask_trim(log) >= last

    async def _stays_without(self, log: int, first: int, last: int) -> bool:
        """Whether this node has no record in a range, and takes none before it has let go, or this
        pass has ended.

        Race: a donor may give this node the only copy of a record meanwhile. It would be
        acknowledged and then dropped.
        """
        held = self._engine.cache.log(log)
        before, held.letting_go = held.letting_go, max(held.letting_go, last)
        if not await self._holds(log, first, last):
            # Order matters: copies that were taken before the note may not have been readable yet.
            await self._engine.settle_stores()
            if not await self._holds(log, first, last):
                return True
        held.letting_go = before
        return False

    async def _holds(self, log: int, first: int, last: int) -> bool:
        """Whether this node has a record in a range. A damaged copy counts: it may be repaired, and
        may be the last one. A copy that its WAL lost counts too, until the node is healed.

        Trap: a read may end with copies that do not count, as of an epoch's end that was recovered
        without this node. Copies that count may follow.
        """
        if self._engine.damage and last > BEFORE_ALL:
            return True
        while first <= last:
            run = await self._engine.reader.read(
                log, first, last, lambda block: Reading.HEAD, bytes_max=LOOK_BYTES, blocks_max=1
            )
            if run.blocks or run.damaged:
                return True
            first = run.next
        return False

    async def _lost_but_here(
        self, log: int, manifest: LogManifest, lsn: int, last: int
    ) -> Entry | None:
        """The first range from `lsn` on that main storage lost and of which this node has
        records."""
        for entry in await lost_entries(manifest, lsn, last):
            if not await self._stays_without(log, max(lsn, entry.first), entry.last):
                return entry
        return None


def _part(entry: DirectoryEntry) -> Part:
    return Part(entry.last, entry.bytes, entry.last_us)
