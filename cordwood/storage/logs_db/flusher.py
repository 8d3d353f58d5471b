"""Writes the gathered changes of the log cache to LogsDB. Each flush takes a prefix of the WAL.

A flush begins when enough has gathered and no record arrives just now, when the cache or the WAL is
half full, when the oldest block is old, or when a caller asks. (Small records fill the WAL sooner
than the cache: each record that arrives alone takes 4 KiB there.) So a burst of appends has the
cores and the disk for itself while there is space, and its bytes are written a second time after
it. A flush takes all that has gathered. Once LogsDB has the batch durably, its blocks leave the
cache, the WAL is trimmed, fully trimmed partitions are dropped, and callers that wait for space are
woken. A start trims the WAL first, up to what LogsDB has.

If the disk has no space for a flush, the batch is kept and tried again, without records trimmed
meanwhile. The cache and the WAL then fill, and appends are refused with this reason. If the node
stops meanwhile, the next start replays these records from the WAL. Any other failure ends the
node's storing for good.

Source: docs/design.md §5; docs/sources/s3stream.md (b), "Upload", and (f) 3 (padding fills the WAL
before the cache); docs/sources/bookkeeper.md (c), "Checkpoint".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from cordwood.errors import CordwoodError, Overloaded, Retryable
from cordwood.host.seams import Clock, DirLock
from cordwood.layout.waves import StoredBlock
from cordwood.settings import StorageSettings
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import FlushSet
from cordwood.storage.said_once import SaidOnce

logger = logging.getLogger(__name__)

WAL_SHARE = 1 / 2
"""Share of the ring in use at which a flush begins. Appends fill the other half during the
flush."""

CACHE_SHARE = 1 / 2
"""Share of the cache in use at which a flush begins, for the same reason."""

RETRY_S = 1.0
"""Pause before a flush is tried again that found no space or no free thread."""


class Flusher:
    """See the module; `run` does the work, one flush at a time.

    Attributes:
        flushes: since the start.
        flushed_bytes: of blocks, by them.
    """

    def __init__(
        self,
        engine: StorageEngine,
        settings: StorageSettings,
        clock: Clock,
        on_space: Callable[[], None],
        lock: DirLock | None = None,
    ) -> None:
        """
        Args:
            on_space: called when a flush has made room.
            lock: of the data directory.
        """
        self._lock = lock
        self.flushes = 0
        self.flushed_bytes = 0
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._on_space = on_space
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._last_s = self._now()
        self._is_idle = False
        self._awaits_end_of_burst = False
        self._is_stopping = self._is_asked_for_space = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._said = SaidOnce(logger)
        self._asked: list[asyncio.Future[None]] = []
        engine.watch(self._on_gathered)

    async def flush(self) -> None:
        """Return once all records that are durable in the WAL now are in LogsDB too.

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
                self._is_asked_for_space = False
                batch = self._engine.cut()
                if batch is not None:
                    await self.take_batch(batch)
                stops = "it stops" if self._is_stopping and self._engine.is_out_of_space else ""
                _settle(asked, self._engine.failed or stops)
        finally:
            _settle(self._asked, self._engine.failed or "it stops")
            self._ended.set()

    async def _trim_behind(self) -> None:
        """Trim the WAL up to the offset of LogsDB. A crash between a flush and its trim makes this
        necessary.

        Otherwise a ring full of flushed records stays full: nothing new gathers for another flush,
        because no store finds space.
        """
        engine = self._engine
        if engine.logs.offset <= engine.wal.trim_offset:
            return
        try:
            if engine.has_lost:
                await engine.logs.keep_lost()  # the trim may delete the records that show the loss
            await engine.wal.trim(engine.logs.offset)
        except Overloaded as error:
            logger.warning("the WAL is trimmed with the next flush, not now: %s", error)
        except CordwoodError as error:
            engine.fail(error)

    def give_space(self) -> None:
        """The disk is nearly full: flush the gathered records, because a flush also deletes trimmed
        data."""
        if self._engine.cache.batch is not None:
            self._is_asked_for_space = True
            self._changed.set()

    async def close(self) -> None:
        """Let a running flush end; the next start replays the records that it did not take."""
        self._is_stopping = True
        self._stopping.set()
        self._changed.set()
        await self._ended.wait()

    def _on_gathered(self) -> None:
        self._last_s = self._now()
        awaits_end = self._awaits_end_of_burst
        if self._is_idle or self._must() or (not awaits_end and self._has_enough()):
            self._changed.set()

    def _has_enough(self) -> bool:
        batch = self._engine.cache.batch
        return batch is not None and batch.bytes >= self._settings.flush_bytes

    def _must(self) -> bool:
        """Whether space becomes scarce, so that a flush must begin even during a burst."""
        batch, wal = self._engine.cache.batch, self._engine.wal
        return batch is not None and (
            batch.bytes >= self._settings.cache_bytes * CACHE_SHARE
            or self._is_asked_for_space
            or self._engine.wants_flush
            or wal.used_bytes >= wal.capacity_bytes * WAL_SHARE
        )

    def flush_due_s(self) -> float | None:
        """The time at which the next flush begins if no record arrives before; None if there are no
        changes."""
        batch = self._engine.cache.batch
        if batch is None:
            return None
        aged_s = batch.since_s + self._settings.flush_age_s
        if self._has_enough():
            return min(aged_s, self._last_s + self._settings.flush_quiet_s)
        return aged_s

    async def _wait_until_due(self) -> bool:
        """Wait until there is a reason to flush. Returns False if the flusher closes before."""
        while not (self._is_stopping or self._engine.failed):
            due_s = self.flush_due_s()
            if self._asked or self._must() or (due_s is not None and self._now() >= due_s):
                return True
            self._changed.clear()
            self._is_idle = due_s is None
            self._awaits_end_of_burst = self._has_enough()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._changed.wait()
        return False

    async def take_batch(self, batch: FlushSet) -> None:
        """Write one batch to LogsDB, however long that takes. Then drop it from the cache and trim
        the WAL."""
        engine = self._engine
        try:
            if not await self._flush(batch):
                return
            engine.evict(batch)
            await engine.wal.trim(batch.offset)
            await engine.logs.drop_trimmed(engine.gone_of, self._clock.now_us())
        except Overloaded as error:  # after the flush: trimmed data is deleted a little later
            self._said.warning(f"what is trimmed cannot be dropped yet: {error}")
        except CordwoodError as error:
            engine.fail(error)
            return
        self.flushes += 1
        self.flushed_bytes += batch.bytes
        self._on_space()

    async def _flush(self, batch: FlushSet) -> bool:
        """Try until the disk has space for the batch. Returns False if the node stops before.

        It leaves out records that were trimmed since. The trim is durable, so they have no readers,
        and on a full disk they would take the space that the trim frees.
        """
        engine = self._engine
        while True:
            blocks = untrimmed(batch, engine.gone_of)
            size = sum(block.wire_bytes for block in blocks) + batch.staged_bytes
            try:
                if not engine.disk.flush_fits(size):
                    # A donor moves many blocks, and a nearly full disk takes their envelopes.
                    size -= await self._bodies_there(blocks)
                if not engine.disk.flush_fits(size):
                    raise Overloaded(f"its {size} bytes do not fit on the disk: trim logs")
                if self._lock is not None:
                    # The WAL is an open file, and LogsDB makes files by path.
                    self._lock.check()
                now_us = self._clock.now_us()
                await engine.logs.flush(
                    blocks, batch.states, batch.offset, now_us, batch.staged, batch.ledgers
                )
            except Overloaded as error:
                engine.is_out_of_space = True
                if self._is_stopping:
                    logger.info("the records of the WAL stay there for the next start: %s", error)
                    return False
                self._said.warning(f"a flush has to wait: {error}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._stopping.wait()
            else:
                engine.disk.on_flushed(size)
                engine.is_out_of_space = False
                self._said.over("flushes go on")
                return True

    async def _bodies_there(self, blocks: Sequence[StoredBlock]) -> int:
        """Bytes of the bodies that the flush does not write, because a partition has them."""
        homes = await self._engine.logs.homes_of(blocks)
        return sum(len(block.body) for block in blocks if id(block) in homes)


def untrimmed(batch: FlushSet, trim_of: Callable[[int], int]) -> list[StoredBlock]:
    """The blocks of a batch that are not trimmed, so that readers may still ask for them."""
    trims = {log: trim_of(log) for log in batch.logs}
    return [block for block in batch.blocks if block.header.last > trims[block.header.log]]


def _settle(asked: list[asyncio.Future[None]], failed: str) -> None:
    for done in asked:
        if done.done():
            continue
        if failed:
            done.set_exception(Retryable(f"this node's store does not flush: {failed}"))
        else:
            done.set_result(None)
