"""Removes from main storage the records that a log no longer keeps, and deleted logs.

A trim of the log is followed: the manifest's start moves up to the trim point. Retention by time
and by size reaches into main storage as a trim of the whole log, nodes first, so that one trim
point holds for both. A log that was deleted is retired after `deleted_keep_s`: no upload of it is
committed any more, and all of it is trimmed. Objects that no manifest names go after their grace.

Each node tends the logs that it uploads. One node at a time tends deleted logs, logs that have
`tier=off` by now, and the objects that several logs share.

Trap: a log that the tree does not list may have been made after the list was read. So a log is
retired only if it was missing for all of `deleted_keep_s`, and its own entry says that it was
deleted, or is not there either. The logs of another cluster would be missing here as well. So a
store belongs to one cluster (`tier.owner`), and in a store that names no owner nothing is retired.
A log of another cluster with the same number is not followed (`tier.origin`).

Source: docs/objects.md, "Deletion"; docs/protocol/main-storage.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from cordwood.client.main_storage import let_go
from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.lsn import format_lsn
from cordwood.metadata.log_info import LogInfo
from cordwood.metadata.log_tree import LogTree
from cordwood.protocol.manifest import in_order
from cordwood.storage.said_once import SaidOnce
from cordwood.tier.collect import Collected, collect_log, collect_shared, retire_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.origin import check_origin
from cordwood.tier.read_leases import drop_ended_leases
from cordwood.tier.repair import find_logs
from cordwood.tier.table_notes import Tabled, load_tabled
from cordwood.tiered import Head, is_lost
from cordwood.uploading.objects_at_hand import ObjectsAtHand
from cordwood.uploading.tiered_logs import TieredLogs

logger = logging.getLogger(__name__)


class Tend:
    """See the module.

    Args:
        grace_s: how long objects stay that nothing names.
        deleted_keep_s: how long a deleted log stays.
    """

    def __init__(
        self,
        tree: LogTree,
        logs: TieredLogs,
        objects: ObjectsAtHand,
        *,
        grace_s: float,
        deleted_keep_s: float,
    ) -> None:
        self._tree = tree
        self._logs = logs
        self._objects = objects
        self._grace_s = grace_s
        self._deleted_keep_s = deleted_keep_s
        # By log that is in the store but missing in the tree: the time since when, on the loop's
        # clock.
        self._missing: dict[int, float] = {}
        self._said = SaidOnce(logger)
        self._said_of: dict[int, SaidOnce] = {}
        self._said_unowned = SaidOnce(logger)
        self._said_damaged = SaidOnce(logger)
        self._said_kept = SaidOnce(logger)

    async def look(self, client: Store, mine: Mapping[int, LogInfo]) -> None:
        """One pass over the logs of this node."""
        # Race: a pass over many logs may take longer than the grace, and a lease written meanwhile
        # is not known here. So the grace is counted up to this time: objects that are let go of
        # after it stay.
        now_us = self._now_us()
        try:
            if mine:
                await self._objects.check()
            tabled = await self._tabled(now_us) if mine else None
        except CordwoodError as error:
            self._said.warning(f"nothing of main storage is collected: {error}")
            return
        for log, info in mine.items():
            try:
                await self._follow(client, info, tabled, now_us)
            except CordwoodError as error:
                self._said.warning(f"log {log}: main storage keeps more than it has to: {error}")

    async def _tabled(self, now_us: int) -> Tabled:
        return await load_tabled(await self._objects.store(), now_us)

    async def look_at_the_rest(
        self, connect: Callable[[], AbstractAsyncContextManager[Store]]
    ) -> None:
        """One pass over objects of no particular node: deleted logs, logs that were uploaded once
        and ask for main storage no more, and shared objects."""
        try:
            await self._logs.refresh()
            found = await find_logs(await self._objects.store())
            if await self._is_ours():
                await self._retire_deleted(found)
                await self._follow_untiered(found, connect)
            await self._collect_shared()
        except CordwoodError as error:
            self._said.warning(f"main storage keeps what it does not have to: {error}")

    async def _follow_untiered(
        self, found: list[int], connect: Callable[[], AbstractAsyncContextManager[Store]]
    ) -> None:
        """Follow trims and retention of logs with `tier=off`: their records in main storage still
        belong to them, and readers read these records."""
        infos = [self._logs.all[log] for log in found if log in self._logs.all]
        left = {int(each.log_id): each for each in infos if not each.attributes.tier}
        if left:
            async with connect() as client:
                await self.look(client, left)

    async def _follow(
        self, client: Store, info: LogInfo, tabled: Tabled | None, now_us: int
    ) -> None:
        """Follow the trims and the retention of a log, and collect its objects.

        Args:
            tabled: what tables name and leases keep, read at `now_us` or later.
            now_us: up to when the grace of objects is counted.
        """
        log = int(info.log_id)
        manifest = await self._objects.manifest(log)
        head = await manifest.load()
        if head is None:
            return
        if info.created_us:
            await check_origin(await self._objects.store(), log, info.created_us)
        # The nodes alone are asked: the extent of a log reads its first and its last object. One of
        # these may be gone, and a trim would mend that.
        trim = int((await let_go(client, log))[0])
        for why, wanted in (
            ("time", await self._too_old(manifest, head, info.attributes.backlog_s or 0.0)),
            ("space", self._too_much(head, info.attributes.backlog_bytes or 0)),
        ):
            if wanted > trim:
                trim = await self._trim(client, info, wanted, why)
        if trim >= head.start:
            await manifest.trim(trim + 1)
        await self._collect_log(manifest, log, now_us, tabled)

    async def _trim(self, client: Store, info: LogInfo, lsn: int, why: str) -> int:
        """Trim the whole log for its retention; the LSN up to which it is trimmed.

        Args:
            why: `time` or `space`.
        """
        logger.info(
            "%s is trimmed up to %s by its retention by %s", info.name, format_lsn(lsn), why
        )
        return int((await client.trim(int(info.log_id), lsn)).lsn)

    async def _too_old(self, manifest: LogManifest, head: Head, backlog_s: float) -> int:
        """The last LSN of the objects past a log's retention by time; 0 for none."""
        if not backlog_s:
            return 0
        kept = await manifest.find_append_time(self._now_us() - round(backlog_s * 1e6))
        last = (kept.first if kept is not None else head.end) - 1
        # Trap: nobody knows how old the records of a lost range are. It has the time of what stands
        # before it, and nodes may hold younger records of it. What follows it bounds their age.
        while (before := await manifest.find(last)) is not None and is_lost(before):
            last = before.first - 1
        return last

    def _too_much(self, head: Head, backlog_bytes: int) -> int:
        """The last LSN above which objects keep `backlog_bytes` of records as nodes stored them;
        0 for none.

        Whole objects go, or whole pages of them. Sizes of uncompressed bodies would be wrong: a log
        of records that compress well would keep only a small part of `backlog_bytes`.
        """
        left = 0
        for item in reversed(in_order(head)) if backlog_bytes else ():
            if left >= backlog_bytes:
                return item.last
            left += item.payload
        return 0

    async def _is_ours(self) -> bool:
        if not await self._objects.is_ours():
            self._said_unowned.warning(
                "main storage does not name its cluster, and holds records of logs that may be "
                "another cluster's: the objects of deleted logs stay, and of logs with tier=off"
            )
            return False
        self._said_unowned.over("main storage says that it is this cluster's")
        return True

    async def _retire_deleted(self, found: list[int]) -> None:
        now = asyncio.get_running_loop().time()
        known = self._logs.all.keys() | self._logs.unread
        self._missing = {log: self._missing.get(log, now) for log in found if log not in known}
        for log, since_s in self._missing.items():
            if now < since_s + self._deleted_keep_s:
                continue
            said = self._said_of.setdefault(log, SaidOnce(logger))
            try:
                await self._retire(log)
                said.over(f"log {log}: main storage lets go of it")
            except CordwoodError as error:
                # A bad entry or manifest of one log keeps no other deleted log.
                said.warning(f"log {log}: its objects stay: {error}")
        self._said_of = {log: self._said_of[log] for log in self._missing if log in self._said_of}

    async def _retire(self, log: int) -> None:
        """Delete the objects of a log that was missing for long enough, unless the tree has it.

        Raises:
            CordwoodError: its entry or its manifest cannot be read, or a store does not answer.
        """
        if not await self._tree.is_deleted(log):
            # It was just made, or it has no name: only its own entry says that it was deleted.
            return
        manifest = await self._objects.manifest(log)
        head = await manifest.load()
        if head is not None and head.start < head.end:
            logger.info("log %d was deleted: its objects are deleted too", log)
            await retire_log(manifest)
        await self._collect_log(manifest, log, self._now_us())

    async def _collect_log(
        self, manifest: LogManifest, log: int, now_us: int, tabled: Tabled | None = None
    ) -> None:
        store = await self._objects.store()
        done = await collect_log(store, manifest, log, now_us, self._grace_s, tabled)
        _tell(f"log {log}", done)
        if done.kept:
            self._said_kept.warning(
                f"log {log}: the manifest names objects that are gone, or calls records lost, and "
                f"{done.kept} objects that it does not name have their range: these stay. Was an "
                f"older copy of it, or a lost object, put back? `cordwood tier repair {log}` "
                "writes the manifest anew"
            )

    async def _collect_shared(self) -> None:
        store = await self._objects.store()
        await drop_ended_leases(store, self._now_us())
        host, name = self._objects.host, self._objects.name

        def manifest_of(log: int) -> LogManifest:
            return LogManifest(store, log, host, name)

        done = await collect_shared(store, manifest_of, self._now_us(), self._grace_s)
        _tell("several logs", done)
        if done.damaged:
            self._said_damaged.warning(
                f"main storage has damaged objects of several logs: {done.damaged}. They stay, "
                "because it is not known whose records they hold (`cordwood tier verify`)"
            )

    def _now_us(self) -> int:
        return self._objects.host.clock.now_us()


def _tell(whose: str, done: Collected) -> None:
    if done.deleted:
        logger.info("%s: %d objects deleted, %d bytes", whose, done.deleted, done.deleted_bytes)
