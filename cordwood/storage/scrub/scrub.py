"""Reads LogsDB in the background, a little at a time, to find rotten copies before they are needed.

A pass goes over every partition, oldest first, log by log. Of each block it reads index entry
and body: the checksums of the store below, those of header and envelope, that of the body, and
whether each of the two has the other. Damaged rows stay as they are (`damage_book`): reads of them
get the answer "not known", never "absent"; `cordwood nodes scrub` shows it, and the log of the node
says it as an error.

How far it came is remembered when a partition is done, and now and then within one: a start goes on
with the log that it was at. Files that are in the system's page cache are read from there, so
scrubbing finds rot on the disk below only in a later pass. If both the index entry and the body of
a block vanish between the directory's first and last LSN, the scrub does not notice it. This
happens only if the store below loses rows without an error.

Source: docs/design.md §5; docs/sources/logdevice.md 2.10 (CHECKSUM_FAIL).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from crc32c import crc32c

from cordwood.errors import CordwoodError, Corrupt
from cordwood.host.seams import Clock
from cordwood.layout import logs_db
from cordwood.layout.logs_db import DirectoryEntry, IndexKey
from cordwood.layout.scrub_rows import DamagedRange, Progress
from cordwood.layout.scrub_state import DamagedCopy, ScrubState
from cordwood.lsn import format_lsn
from cordwood.protocol.scrub_pace import BUSY_WAIT_MAX_S, LOOK_S, ScrubPace
from cordwood.settings import StorageSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.partition import Partition
from cordwood.storage.logs_db.tables import TablesFailed
from cordwood.storage.scrub.rotten_rows import Rot, find_rot

logger = logging.getLogger(__name__)

STEP_BYTES = 1 << 20
STEP_ROWS = 512
"""The rows read in one step, about a millisecond of the loop."""

SAVE_EVERY_S = 300.0
"""The time between saves of progress within a partition: one small file of metadata each time."""

IDLE_S = 10.0
"""The time between checks for a partition to scrub, or for the time to begin again."""

SHOWN_MAX = 100
"""The most damaged ranges that a node lists in an answer."""

Key = tuple[int, int]
"""Last and first LSN of a block, as its keys are ordered."""


class _Stopped(Exception):
    """Scrubbing is to end: out of all loops."""


class Scrub:
    """See the module; `run` does the work.

    Attributes:
        progress: of the present pass; its `passes` counts ended passes.
        whole_passes: passes that began and ended since the start.
    """

    def __init__(
        self,
        engine: StorageEngine,
        clock: Clock,
        settings: StorageSettings,
        activity: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Args:
            activity: returns a number that rises with each piece of work that the node does for
                others.
        """
        self.progress = Progress()
        self.whole_passes = 0
        self._engine = engine
        self._logs = engine.logs
        self._clock = clock
        self._bytes_s = settings.scrub_bytes_s
        self._every_us = int(settings.scrub_every_s * 1e6)
        self._idle_s = min(IDLE_S, settings.scrub_every_s)
        self._activity = activity
        self._pace = ScrubPace(settings.scrub_bytes_s or 1)
        self._saved_s = 0.0
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self) -> None:
        """Scrub until `close`. Returns at once if the budget is 0."""
        if self._stopping.is_set():
            return
        self._ended.clear()
        try:
            if self._bytes_s:
                await self._go_on()
        except _Stopped:
            pass
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Let the present step end. Trap: if a step were cancelled during a write to LogsDB, that
        write would go on beside the next one."""
        self._stopping.set()
        await self._ended.wait()

    async def _go_on(self) -> None:
        is_known = False
        while not self._engine.failed:
            try:
                if not is_known:
                    self.progress, is_known = await self._progress_of_before(), True
                if self._logs.partitions and self._is_due():
                    is_whole = not self._is_under_way
                    await self._pass()
                    self.whole_passes += is_whole
            except CordwoodError as error:
                logger.warning("scrubbing has to wait: %s", error)
            await self._sleep(self._idle_s)

    async def _progress_of_before(self) -> Progress:
        try:
            return await self._logs.progress()
        except Corrupt as error:
            logger.error("scrubbing begins anew, since how far it had come is lost: %s", error)
            return Progress()

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        if self._stopping.is_set():
            raise _Stopped

    def state(self) -> ScrubState:
        """For people."""
        progress, damages = self.progress, self._logs.damages.all()
        some = [
            DamagedCopy(each.log, each.first, each.last, each.partition, why)
            for each, why in damages[:SHOWN_MAX]
        ]
        return ScrubState(
            self._bytes_s, progress.passes, progress.began_us, progress.bytes,
            progress.partition, len(damages), some, self._logs.damages.mended,
        )  # fmt: skip

    @property
    def _is_under_way(self) -> bool:
        return bool(self.progress.partition or self.progress.log)

    def _is_due(self) -> bool:
        """Whether a pass is under way, or may begin."""
        now_us, progress = self._clock.now_us(), self.progress
        # A clock that was set back makes a pass early, never late.
        since_us = abs(now_us - progress.began_us)
        return self._is_under_way or since_us >= self._every_us

    async def _pass(self) -> None:
        """Go on with a pass, or begin one, and end it."""
        at = self.progress
        if not self._is_under_way:
            at = self.progress = at._replace(began_us=self._clock.now_us())
        for partition in sorted(self._logs.partitions, key=lambda each: each.number):
            if partition.number >= at.partition and partition in self._logs.partitions:
                first_log = at.log if partition.number == at.partition else 0
                await self._scrub_partition(partition, first_log)
        self.progress = self.progress._replace(passes=self.progress.passes + 1, partition=0, log=0)
        await self._save()
        logger.info(
            "scrubbed all of LogsDB, pass %d: %d damaged ranges are known",
            self.progress.passes, len(self._logs.damages.all()),
        )  # fmt: skip

    async def _save(self) -> None:
        self._saved_s = asyncio.get_running_loop().time()
        await self._logs.note_progress(self.progress)

    async def _scrub_partition(self, partition: Partition, first_log: int) -> None:
        parts = await self._logs.parts(partition)
        for log in sorted(parts):
            if log < first_log or parts[log].last <= self._engine.gone_of(log):
                continue
            self.progress = self.progress._replace(partition=partition.number, log=log)
            forgotten = self._logs.forgotten
            try:
                await self._scrub_part(partition, log, parts[log])
            except TablesFailed:
                if forgotten == self._logs.forgotten or partition in self._logs.partitions:
                    raise
                return  # Race: the partition was dropped meanwhile
            if asyncio.get_running_loop().time() >= self._saved_s + SAVE_EVERY_S:
                await self._save()
        self.progress = self.progress._replace(partition=partition.number + 1, log=0)
        await self._save()

    async def _scrub_part(self, partition: Partition, log: int, entry: DirectoryEntry) -> None:
        """Look at all that a partition has of a log above its trim point.

        Rows after the directory's end come from an unfinished flush, and have no owner.
        """
        start = self._engine.gone_of(log) + 1
        stop = logs_db.index_start(log, entry.last + 1)
        # The next keys of index and bodies to read, and the index's first LSN; bodies of trimmed
        # blocks count too.
        lsn, at = max(start, entry.first), logs_db.index_start(log, start)
        bodies_at = logs_db.body_key(log, start, 0)
        lowest, highest = entry.last + 1, 0
        is_end = False
        while not is_end:
            rot: Rot | None = None
            try:
                rows, is_end = await self._logs.tables.scan(
                    partition.table, at, stop,
                    rows_max=STEP_ROWS, bytes_max=STEP_BYTES, is_once=True,
                )  # fmt: skip
            except Corrupt as error:
                rot = await find_rot(
                    self._logs.tables, partition.table, log, lsn, entry.last, rows_max=STEP_ROWS
                )
                rows, is_end = rot.rows, rot.last >= entry.last
                if rot.first <= rot.last:
                    await self.report_damage(
                        partition, log, rot.first, rot.last, f"its index: {error}"
                    )
            heads = await self._check_heads(partition, log, rows)
            if heads:
                lowest = min(lowest, *(first for _, first in heads))
                highest = max(highest, *(last for last, _ in heads))
            if rot is not None:
                lowest, highest = min(lowest, rot.first), max(highest, rot.last)
                lsn = rot.last + 1
                at = logs_db.index_start(log, lsn)
                bodies_stop = logs_db.body_key(log, rot.first, 0)
                next_bodies = logs_db.body_key(log, lsn, 0)
            elif is_end:
                bodies_stop = next_bodies = logs_db.body_key(log, entry.last + 1, 0)
            else:
                at = rows[-1][0] + b"\0"
                lsn, first = max(heads)
                bodies_stop = next_bodies = logs_db.body_key(log, lsn, first) + b"\0"
            if bodies_at < bodies_stop:
                await self.check_bodies(partition, log, heads, bodies_at, bodies_stop)
            bodies_at = next_bodies
        await self._check_ends(partition, log, entry, lowest, highest)

    async def _check_heads(
        self, partition: Partition, log: int, rows: Sequence[tuple[bytes, bytes]]
    ) -> dict[Key, tuple[int, int]]:
        """Check index entries; bytes and checksum of the body by key, (-1, 0) if not known."""
        heads: dict[Key, tuple[int, int]] = {}
        for key, wire in rows:
            named = logs_db.read_index_key(key)
            place = (named.last, named.first)
            wrong = ""
            try:
                block = logs_db.read_head(wire)
                if not _fits(named, logs_db.read_index_key(logs_db.index_key(block))):
                    wrong = "its index entry is another block's"
            except Corrupt as error:
                wrong = f"its index entry: {error}"
            if wrong:
                heads.setdefault(place, (-1, 0))
                await self.report_damage(partition, log, named.first, named.last, wrong)
            else:
                heads[place] = (block.header.stored_bytes, block.header.stored_crc)
        await self._wait(sum(len(wire) for _, wire in rows), len(rows))
        return heads

    async def check_bodies(
        self,
        partition: Partition,
        log: int,
        heads: Mapping[Key, tuple[int, int]],
        at: bytes,
        stop: bytes,
    ) -> None:
        """Check the bodies from `at` on below `stop` against the index entries of their blocks."""
        missing = {
            place
            for place, (size, _) in heads.items()
            if size > 0 and logs_db.body_key(log, *place) >= at  # else it was seen before
        }
        while True:
            try:
                rows, is_end = await self._logs.tables.scan(
                    partition.table, at, stop,
                    rows_max=STEP_ROWS, bytes_max=STEP_BYTES, is_once=True,
                )  # fmt: skip
            except Corrupt:
                await self._check_one_by_one(partition, log, heads, missing)
                return
            for key, body in rows:
                place = logs_db.read_body_key(key)
                missing.discard(place)
                if place not in heads:
                    await self._check_orphan(partition, log, place)
                elif wrong := _wrong_body(body, *heads[place]):
                    await self.report_damage(partition, log, place[1], place[0], wrong)
            await self._wait(sum(len(body) for _, body in rows), len(rows))
            if is_end:
                break
            at = rows[-1][0] + b"\0"
        for last, first in sorted(missing):
            await self.report_damage(partition, log, first, last, "its body is gone")

    async def _check_one_by_one(
        self,
        partition: Partition,
        log: int,
        heads: Mapping[Key, tuple[int, int]],
        missing: set[Key],
    ) -> None:
        """Find unreadable bodies among those not seen yet."""
        for last, first in sorted(missing):
            try:
                (body,) = await self._logs.tables.get(
                    partition.table, [logs_db.body_key(log, last, first)]
                )
                wrong = _wrong_body(body or b"", *heads[last, first])
            except Corrupt as error:
                wrong = f"its body: {error}"
            if wrong:
                await self.report_damage(partition, log, first, last, wrong)
            await self._wait(heads[last, first][0], 1)

    async def _check_orphan(self, partition: Partition, log: int, place: Key) -> None:
        """A body without an index entry: of a flush under way, or its entry is gone."""
        last, first = place
        async with self._logs.at_rest():
            rows, _ = await self._logs.tables.scan(
                partition.table, logs_db.index_start(log, last), logs_db.index_stop(log),
                rows_max=STEP_ROWS, bytes_max=STEP_BYTES,
            )  # fmt: skip
            for key, _ in rows:
                named = logs_db.read_index_key(key)
                if (named.last, named.first) == place:
                    return
            directory = await self._logs.directory(log)
        for other, entry in directory:
            # Race: an interrupted flush may have left the body; the next one stored it elsewhere.
            if other is not partition and entry.first <= first and last <= entry.last:
                return
        await self.report_damage(partition, log, first, last, "its index entry is gone")

    async def _check_ends(
        self, partition: Partition, log: int, entry: DirectoryEntry, lowest: int, highest: int
    ) -> None:
        """Check that the index begins and ends at the LSNs that the directory names for a log's
        part."""
        if highest < entry.last:
            first = max(highest + 1, entry.first)
            await self.report_damage(
                partition, log, first, entry.last, "the end of its index is gone"
            )
        if lowest > entry.first > self._engine.gone_of(log) and highest:
            last = lowest - 1
            await self.report_damage(partition, log, entry.first, last, "its index's begin is gone")

    async def report_damage(
        self, partition: Partition, log: int, first: int, last: int, why: str
    ) -> None:
        """Note a range as damaged, unless its partition is gone meanwhile."""
        if last <= self._engine.gone_of(log) or partition not in self._logs.partitions:
            return
        damaged = DamagedRange(partition.number, log, first, last)
        if self._logs.damages.joined(damaged) is not None:
            logger.error(
                "log %d: this node's copy of %s to %s in partition %d is damaged: %s; it is kept, "
                "and answered as not known",
                log, format_lsn(first), format_lsn(last), partition.number, why,
            )  # fmt: skip
            await self._logs.note_damage(damaged, why)

    async def _wait(self, size: int, blocks: int) -> None:
        """Keep to the budget, and let others go first."""
        self.progress = self.progress._replace(bytes=self.progress.bytes + size)
        await self._sleep(self._pace.pause_s(size, blocks))
        waited_s = 0.0
        while self._pace.is_busy(self._activity()) and waited_s < BUSY_WAIT_MAX_S:
            await self._sleep(LOOK_S)
            waited_s += LOOK_S


def _fits(named: IndexKey, found: IndexKey) -> bool:
    """Whether a key belongs to the entry under it; amends may have raised the key's last part."""
    return named.place == found.place and named.log == found.log


def _wrong_body(body: bytes, size: int, crc: int) -> str:
    """The damage of a body, "" for none; a size of -1 is unknown."""
    if size < 0:
        return ""
    if len(body) != size:
        return f"its body has {len(body)} bytes, not {size}"
    return "" if crc32c(body) == crc else "its body fails its checksum"
