"""Answers about where things lie in one log on this node: by time, at its ends, by bytes.

The directory of the log leads to one partition. In that partition, a binary search over LSNs reads
one index entry in each step. No body is read. The cache is searched in memory.

A node that does not know its own blocks does not answer: because it lost records, because copies
that have rotted may lie where the answer is (`scrub.damage_book`), or because it has yet to drop
blocks that recoveries decided against without it.

Source: docs/sources/logdevice.md 2.13 ("findTime: binary search directory, then in-partition
search").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

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
from cordwood.layout.logs_db import DirectoryEntry
from cordwood.layout.scrub_rows import DamagedRange
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LSN_MAX
from cordwood.protocol.log_position import Part, bytes_between
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import CachedLog
from cordwood.storage.logs_db.index_search import last_counted, last_header, search
from cordwood.storage.logs_db.logs_read import is_covered
from cordwood.storage.logs_db.partition import Part as WantedPart
from cordwood.storage.logs_db.partition import Partition

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
        rotten = self._rotten(ask.log)  # before the cache: it has blocks that are mended meanwhile
        before, at = _in_cache(held, ask.time_us)
        tables, older = self._engine.logs.tables, []
        for partition, entry in await self._parts(ask.log):
            if entry.last_us < ask.time_us:
                older.append((partition, entry))
            elif not ask.is_exact:
                at = min(at, entry.first)
            elif entry.first < at:
                # A begin this late may still come from a bridge's time.
                below, later = await search(
                    tables, partition, ask.log, entry, held.counts,
                    lambda header: header.append_time_us < ask.time_us,
                )  # fmt: skip
                before, at = max(before, below), min(at, later)
        for partition, entry in _by_last(older):
            if entry.last <= max(before, held.gone):
                break
            # Trap: the last block may be the bridge of a recovery that another recovery overtook.
            # The block in its place on other nodes may be younger.
            counted = await last_counted(tables, partition, ask.log, entry, held.counts)
            before = max(before, counted)
        self._known(ask.log, ask.until)  # Race: see `extent`.
        before = max(held.gone, min(before, ask.until))
        at = max(at, held.gone + 1)
        self._check_between(ask.log, rotten, before, min(at, ask.until + 1))
        return TimeReply(held.trim, before, at if at <= ask.until else 0, held.tier)

    async def extent(self, ask: AskExtent) -> ExtentReply:
        """See `AskExtent`.

        Raises:
            Retryable: this node does not know all that it holds.
        """
        held = self._known(ask.log, ask.until)
        rotten = self._rotten(ask.log)
        start = max(held.gone, ask.above) + 1
        first = await self._first_record(ask.log, start, ask.until)
        if first is None:
            return ExtentReply(held.trim, 0, 0, 0, 0, held.tier)
        last = await self.last_record(ask.log, held, ask.until) or first
        # Race: an outdated sequencer stored a block meanwhile, in an epoch that was recovered
        # without this node.
        self._known(ask.log, ask.until)
        self._check_between(ask.log, rotten, last.last, ask.until + 1)
        return ExtentReply(
            held.trim,
            max(first.first, start),
            first.append_time_us,
            min(last.last, ask.until),
            last.append_time_us,
            held.tier,
        )

    async def size(self, ask: AskSize) -> SizeReply:
        """See `AskSize`."""
        held = self._engine.cache.get(ask.log)
        if held is None:  # not `if not held`: a log without blocks is false, but has a tier point
            held = CachedLog()
        parts = [
            Part(entry.bytes, entry.first_us, entry.last_us)
            for _, entry in await self._engine.logs.directory(ask.log)
            if entry.last > held.gone
        ]
        for block in held.blocks:
            time_us = block.header.append_time_us
            parts.append(Part(block.wire_bytes, time_us, time_us))
        return SizeReply(bytes_between(parts, ask.start_us, ask.stop_us), held.tier)

    def _known(self, log: int, until: int) -> CachedLog:
        """The blocks of a log that readers may see, up to `until`.

        So all epochs below the epoch of `until` are recovered. But this node may have slept or been
        isolated since, and hold blocks that none of those recoveries counted.
        """
        if self._engine.damage:
            raise Retryable(f"this node does not know what it holds: {self._engine.damage}")
        held = self._engine.cache.get(log)
        if held is None:
            return CachedLog()
        if held.is_behind or held.unclean_epochs(until >> 32):
            raise Retryable(f"this node has still to learn how epochs of log {log} ended")
        return held

    def _rotten(self, log: int) -> list[DamagedRange]:
        """The damaged ranges of a log, of which this node does not know the blocks."""
        damages = self._engine.logs.damages
        return [each for each in damages.of_log(log) if not damages.is_mended(each)]

    def _check_between(
        self, log: int, before: Sequence[DamagedRange], above: int, below: int
    ) -> None:
        """Check that no rotten range lies between two LSNs, because a record there would be the
        answer.

        Args:
            before: the ranges that were rotten before the search.
        Raises:
            Retryable: it does.
        """
        for each in (*before, *self._rotten(log)):
            if each.last > above and each.first < below:
                raise Retryable(f"this node cannot read log {log} at {each.first}")

    async def _parts(self, log: int) -> list[tuple[Partition, DirectoryEntry]]:
        """A log's parts of partitions, except parts that are rotten as a whole: no row there
        counts, and the table may not open, or may be an empty table in place of a lost table."""
        known = self._engine.logs.damages.of_log(log)
        return [
            (partition, entry)
            for partition, entry in await self._engine.logs.directory(log)
            if not is_covered(DamagedRange(partition.number, log, entry.first, entry.last), known)
        ]

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
            # Trap: the cache may have been searched further than LogsDB was read.
            read = (header for header in found if header.first < run.next)
            first = min(read, key=lambda header: header.first, default=None)
            if run.damaged:
                damaged = min(run.damaged)[0]
                if first is None or first.last >= damaged:
                    raise Retryable(f"this node cannot read log {log} at {damaged}")
            if first is not None:
                return first
            found.clear()
            start = max(run.next, start + 1)
        return None

    async def last_record(self, log: int, held: CachedLog, until: int) -> BlockHeader | None:
        """The last block with records up to `until`."""
        found: BlockHeader | None = None
        for block in reversed(held.blocks):
            if block.header.kind == BlockKind.DATA and block.header.first <= until:
                found = block.header
                break
        # Trap: a recovery stores the end of its epoch when later epochs may be in LogsDB already.
        for partition, entry in _by_last(await self._parts(log)):
            if found is not None and entry.last <= found.last:
                break
            if entry.first > until:
                continue
            header = await last_header(
                self._engine.logs.tables, partition, log, entry, held.counts, until
            )
            if header is not None and (found is None or header.last > found.last):
                found = header
        return found


def _by_last(
    parts: Sequence[tuple[Partition, DirectoryEntry]],
) -> list[tuple[Partition, DirectoryEntry]]:
    """A log's parts of partitions. The part with the highest last LSN comes first."""
    return sorted(parts, key=lambda each: each[1].last, reverse=True)


def _in_cache(held: CachedLog, time_us: int) -> tuple[int, int]:
    """The last LSN that is older than the time, 0 for none; and the first LSN that is not older, or
    an LSN above all if there is none."""
    headers = [b.header for b in held.blocks if b.header.kind == BlockKind.DATA]
    index = bisect_left(headers, time_us, key=lambda header: header.append_time_us)
    before = headers[index - 1].last if index else 0
    return before, headers[index].first if index < len(headers) else LSN_MAX + 1
