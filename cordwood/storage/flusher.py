"""Takes what gathers in the log cache to LogsDB, a prefix of the WAL at a time.

A flush begins when enough has gathered and nothing comes just now, when the cache or the WAL
is half full (small records fill it sooner than the cache: each lone one takes 4 KiB), when
the oldest of it is old, or when somebody asks. So a burst has the cores and the disk for
itself for as long as there is room, and its bytes are written a second time after it. A
flush takes all that has gathered. When LogsDB has it durably, the blocks leave
the cache, the WAL is trimmed, partitions that are trimmed as a whole are dropped, and those
that wait for room are told. A start trims the WAL first, up to what LogsDB has.

While the disk has no room for a flush, the batch is kept and tried again; the cache and
the WAL then fill, and appends are refused with that. Any other failure ends the node's
storing for good.

Source: design.md §5; AutoMQ S3Stream digest (b), "Upload", and (f) 3 (padding fills the WAL
before the cache); BookKeeper digest (c), "Checkpoint".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from cordwood.errors import CordwoodError, Overloaded, Retryable
from cordwood.host.seams import Clock
from cordwood.settings import StorageSettings
from cordwood.storage.log_cache import Batch
from cordwood.storage.shard import Shard

logger = logging.getLogger(__name__)

WAL_SHARE = 1 / 2
"""Share of the ring in use at which a flush begins: the other half is filled meanwhile."""

CACHE_SHARE = 1 / 2
"""The same of the cache."""

RETRY_S = 1.0
"""Pause before a flush is tried again that found no room or no thread."""


class Flusher:
    """See the module; `run` does the work, one flush at a time.

    Attributes:
        flushes: since the start.
        flushed_bytes: of blocks, by them.
    """

    def __init__(
        self, shard: Shard, settings: StorageSettings, clock: Clock, on_room: Callable[[], None]
    ) -> None:
        """
        Args:
            on_room: called when a flush has made room.
        """
        self.flushes = 0
        self.flushed_bytes = 0
        self._shard = shard
        self._settings = settings
        self._clock = clock
        self._on_room = on_room
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._last_s = self._now()
        self._is_idle = False
        self._awaits_end_of_burst = False
        self._is_stopping = False
        self._ended = asyncio.Event()
        self._asked: list[asyncio.Future[None]] = []
        shard.watch(self._on_gathered)

    async def flush(self) -> None:
        """Return once all that is durable in the WAL now is in LogsDB too.

        Only while `run` runs, and under a deadline: a full disk may make it wait.

        Raises:
            Retryable: the node stores nothing any more.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(done)
        self._changed.set()
        await done

    async def run(self) -> None:
        """Flush until `close`, or until LogsDB or the WAL fails."""
        try:
            await self._trim_behind()
            while await self._wait_until_due():
                asked, self._asked = self._asked, []
                batch = self._shard.cut()
                if batch is not None:
                    await self._take(batch)
                _settle(asked, self._shard.failed)
        finally:
            _settle(self._asked, self._shard.failed or "it stops")
            self._ended.set()

    async def _trim_behind(self) -> None:
        """Let the WAL go of what LogsDB has, where a crash came between the two.

        Otherwise a ring that is full of what was flushed stays full: nothing gathers that
        another flush would take, and no store finds room to gather.
        """
        shard = self._shard
        if shard.logs.offset <= shard.wal.trim_offset:
            return
        try:
            if shard.has_lost:
                await shard.logs.keep_lost()  # the trim may take away what shows the loss
            await shard.wal.trim(shard.logs.offset)
        except Overloaded as error:
            logger.warning("the WAL is trimmed with the next flush, not now: %s", error)
        except CordwoodError as error:
            shard.fail(error)

    async def close(self) -> None:
        """Let a flush that is under way end; the next start replays what it did not take."""
        self._is_stopping = True
        self._changed.set()
        await self._ended.wait()

    def _on_gathered(self) -> None:
        self._last_s = self._now()
        awaits_end = self._awaits_end_of_burst
        if self._is_idle or self._must() or (not awaits_end and self._has_enough()):
            self._changed.set()

    def _has_enough(self) -> bool:
        batch = self._shard.cache.batch
        return batch is not None and batch.bytes >= self._settings.flush_bytes

    def _must(self) -> bool:
        """Whether room becomes scarce, so that a burst that goes on is no excuse."""
        batch, wal = self._shard.cache.batch, self._shard.wal
        return batch is not None and (
            batch.bytes >= self._settings.cache_bytes * CACHE_SHARE
            or wal.used_bytes >= wal.capacity_bytes * WAL_SHARE
        )

    def _due_s(self) -> float | None:
        """When the next flush begins if nothing more comes; None where nothing has gathered."""
        batch = self._shard.cache.batch
        if batch is None:
            return None
        aged_s = batch.since_s + self._settings.flush_age_s
        if self._has_enough():
            return min(aged_s, self._last_s + self._settings.flush_quiet_s)
        return aged_s

    async def _wait_until_due(self) -> bool:
        """Wait until there is a reason to flush; False where there will be none."""
        while not (self._is_stopping or self._shard.failed):
            due_s = self._due_s()
            if self._asked or self._must() or (due_s is not None and self._now() >= due_s):
                return True
            self._changed.clear()
            self._is_idle = due_s is None
            self._awaits_end_of_burst = self._has_enough()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._changed.wait()
        return False

    async def _take(self, batch: Batch) -> None:
        """Take one batch to LogsDB, however long that takes, and let go of it elsewhere."""
        shard = self._shard
        try:
            await self._flush(batch)
            shard.evict(batch)
            await shard.wal.trim(batch.offset)
            await shard.logs.drop_trimmed(shard.trim_of, self._clock.now_us())
        except CordwoodError as error:
            shard.fail(error)
        else:
            self.flushes += 1
            self.flushed_bytes += batch.bytes
            self._on_room()

    async def _flush(self, batch: Batch) -> None:
        """Try until the machine has room for it."""
        while True:
            now_us = self._clock.now_us()
            try:
                await self._shard.logs.flush(
                    batch.blocks, batch.states, batch.offset, now_us, batch.staged
                )
            except Overloaded as error:
                if self._is_stopping:
                    raise
                self._shard.is_out_of_space = True
                logger.warning("a flush has to wait: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                self._shard.is_out_of_space = False
                return


def _settle(asked: list[asyncio.Future[None]], failed: str) -> None:
    for done in asked:
        if done.done():
            continue
        if failed:
            done.set_exception(Retryable(f"this node's store does not flush: {failed}"))
        else:
            done.set_result(None)
