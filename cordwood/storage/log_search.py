"""Answers about where things lie in one log on this node: by time, at its ends, by bytes.

The directory narrows it down to one partition; inside it, a binary search over LSNs looks at
one index entry a step. No body is read. What is in the cache is searched in memory.

Who does not know what it holds does not answer: one that lost records, or has still to drop
what recoveries decided without it.

Source: docs/sources/logdevice.md 2.13 ("findTime: binary search directory, then in-partition
search").
"""

from __future__ import annotations

from bisect import bisect_left

from cordwood.block import BlockHeader, BlockKind
from cordwood.errors import Retryable
from cordwood.layout.log_questions import (
    AskExtent,
    AskSize,
    AskTime,
    ExtentReply,
    SizeReply,
    TimeReply,
)
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.protocol.log_position import Part, bytes_between
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.index_search import last_header, search
from cordwood.storage.logs_db.partition import Part as WantedPart

HEADS_AT_ONCE = 64
"""Blocks looked at in one read for the first record: recovery's marks come in small numbers."""


class LogSearch:
    """See the module. Every call may also raise TablesFailed or Corrupt: LogsDB cannot be read."""

    def __init__(self, engine: StorageEngine) -> None:
        self._engine = engine

    async def find_time(self, ask: AskTime) -> TimeReply:
        """See `AskTime`.

        Raises:
            Retryable: this node does not know all that it holds.
        """
        held = self._known(ask.log, ask.until)
        before, at = _in_cache(held, ask.time_us)
        for partition, entry in await self._engine.logs.directory(ask.log):
            if entry.last_us < ask.time_us:
                before = max(before, entry.last)
            elif not ask.is_exact:
                at = min(at, entry.first)
            elif entry.first < at:
                # Where it begins as late as that it may still be by a bridge's time.
                older, later = await search(
                    self._engine.logs.tables,
                    partition,
                    ask.log,
                    entry,
                    held.counts,
                    lambda header: header.append_time_us < ask.time_us,
                )
                before, at = max(before, older), min(at, later)
        before = max(held.gone, min(before, ask.until))
        at = max(at, held.gone + 1)
        return TimeReply(held.trim, before, at if at <= ask.until else 0)

    async def extent(self, ask: AskExtent) -> ExtentReply:
        """See `AskExtent`.

        Raises:
            Retryable: this node does not know all that it holds.
        """
        held = self._known(ask.log, ask.until)
        start = max(held.gone, ask.above) + 1
        first = await self._first_record(ask.log, start, ask.until)
        if first is None:
            return ExtentReply(held.trim, 0, 0, 0, 0)
        last = await self._last_record(ask.log, held, ask.until) or first
        return ExtentReply(
            held.trim,
            max(first.first, start),
            first.append_time_us,
            min(last.last, ask.until),
            last.append_time_us,
        )

    async def size(self, ask: AskSize) -> SizeReply:
        """See `AskSize`."""
        held = self._engine.cache.get(ask.log) or CachedLog()
        parts = [
            Part(entry.bytes, entry.first_us, entry.last_us)
            for _, entry in await self._engine.logs.directory(ask.log)
            if entry.last > held.gone
        ]
        for block in held.blocks:
            time_us = block.header.append_time_us
            parts.append(Part(block.wire_bytes, time_us, time_us))
        return SizeReply(bytes_between(parts, ask.start_us, ask.stop_us))

    def _known(self, log: int, until: int) -> CachedLog:
        """What is held of a log of which readers may see all up to `until`.

        So all epochs below that of `until` are recovered, though this node may have slept since,
        or been cut off, and hold what none of those recoveries counted.
        """
        if self._engine.damage:
            raise Retryable(f"this node does not know what it holds: {self._engine.damage}")
        held = self._engine.cache.get(log)
        if held is None:
            return CachedLog()
        if held.is_behind or held.unclean_epochs(until >> 32):
            raise Retryable(f"this node has still to learn how epochs of log {log} ended")
        return held

    async def _first_record(self, log: int, start: int, until: int) -> BlockHeader | None:
        """The first block with records of [start, until]."""
        found: list[BlockHeader] = []

        def note(block: StoredBlock) -> WantedPart:
            if block.header.kind == BlockKind.DATA:
                found.append(block.header)
            return WantedPart.NOTHING

        while start <= until:
            run = await self._engine.reader.read(
                log, start, until, note, bytes_max=1 << 20, blocks_max=HEADS_AT_ONCE
            )
            if run.damaged and not (found and found[0].last < run.damaged[0][0]):
                raise Retryable(f"this node cannot read log {log} at {run.damaged[0][0]}")
            if found:
                return min(found, key=lambda header: header.first)
            start = max(run.next, start + 1)
        return None

    async def _last_record(self, log: int, held: CachedLog, until: int) -> BlockHeader | None:
        """The last block with records up to `until`."""
        for block in reversed(held.blocks):
            if block.header.kind == BlockKind.DATA and block.header.first <= until:
                return block.header
        for partition, entry in reversed(await self._engine.logs.directory(log)):
            if entry.first > until:
                continue
            header = await last_header(
                self._engine.logs.tables, partition, log, entry, held.counts, until
            )
            if header is not None:
                return header
        return None


def _in_cache(held: CachedLog, time_us: int) -> tuple[int, int]:
    """The last LSN that is older, and the first that is not; 0 and past all for none."""
    headers = [b.header for b in held.blocks if b.header.kind == BlockKind.DATA]
    index = bisect_left(headers, time_us, key=lambda header: header.append_time_us)
    before = headers[index - 1].last if index else 0
    return before, headers[index].first if index < len(headers) else LSN_MAX + 1
