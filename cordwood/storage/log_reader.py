"""Reads a log where its blocks are: in the cache, in LogsDB, or some here and some there.

Blocks in the cache, or in LogsDB and still in memory, are read at once (`is_at_hand`,
`read_cached`); all others come from the disk and are awaited (`read`). Both give a `Run`: the
blocks in `[start, next)`, each range once, and where to read on.

A block leaves the cache when it is durable in LogsDB, so a read that looks into the cache
first and into LogsDB second finds it in one of them at least.

Source: docs/design.md §5 ("cache first, then LogsDB"); docs/sources/logdevice.md 2.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cordwood.errors import Corrupt
from cordwood.layout.logs_db import read_head
from cordwood.layout.waves import StoredBlock
from cordwood.storage.log_cache import CachedLog, LogCache
from cordwood.storage.logs_db.heads_read import batches
from cordwood.storage.logs_db.logs_read import winners
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.partition import BlockRun, Part, StoredLog, Wanted
from cordwood.storage.logs_db.recent_blocks import RecentBlocks
from cordwood.storage.recent_room import RecentRoom


class LogReader:
    """See the module. Without LogsDB it reads from the cache only."""

    def __init__(
        self,
        cache: LogCache,
        logs: LogsStore | None = None,
        recent: RecentBlocks | None = None,
    ) -> None:
        self._cache = cache
        self._logs = logs
        self._recent = recent or RecentBlocks(RecentRoom(0))

    def get(self, log: int) -> CachedLog | None:
        """A log's state (released and readable LSNs, …), None for an unknown log."""
        return self._cache.get(log)

    def is_at_hand(self, log: int, start: int) -> bool:
        """Whether all blocks from `start` on are in memory, so that `read_cached` returns them."""
        if self._logs is None or start > self._logs.last(log):
            return True
        kept_from = self._recent.complete_from(log)
        return kept_from is not None and start >= kept_from

    def read_cached(
        self,
        log: int,
        start: int,
        bound: int,
        wanted: Wanted | None = None,
        *,
        bytes_max: int,
        blocks_max: int,
    ) -> BlockRun:
        """The blocks of [start, bound], if all of them are in memory. Arguments as in `read`, but
        with a `bytes_max` of 0 or less it may give no block."""
        held = self._cache.get(log)
        if held is None:
            return BlockRun([], bound + 1)
        gathered = _gathered(
            held.from_lsn(start), start, bound, wanted, bytes_max, blocks_max
        )  # fmt: skip
        if self._logs is None or start > self._logs.last(log):
            return gathered
        kept = (
            block
            for block in self._recent.from_lsn(log, max(start, held.gone + 1))
            if held.counts_block(block)
        )
        recent = _gathered(kept, start, bound, wanted, bytes_max, blocks_max)
        return _merged(held, recent, gathered, bound)

    def first_cached(self, log: int, start: int, bound: int) -> int:
        """As `first`, where all from `start` on is in memory."""
        return _first_of(
            self.read_cached(log, start, bound, _head, bytes_max=1, blocks_max=1), start
        )

    async def first(self, log: int, start: int, bound: int) -> int:
        """The begin of the first block or unreadable range from `start` on; at least `bound + 1`
        without one up to `bound`.

        Raises:
            TablesFailed, Corrupt: as `read`.
        """
        run = await self.read(log, start, bound, _head, bytes_max=1, blocks_max=1)
        return _first_of(run, start)

    def batches(self, logs: Iterable[int]) -> Iterator[list[int]]:
        """Logs whose heads are read together. `logs` are all logs of the cache, ascending."""
        stored = {} if self._logs is None else self._logs.logs
        none = StoredLog()
        return batches(logs, lambda log: stored.get(log, none).blocks)

    async def heads(self, logs: Sequence[int]) -> dict[int, list[StoredBlock]]:
        """All blocks of some logs without their bodies, by log; as `read` gives them. A log is left
        out if it has to be read by itself, for example because the cache has blocks of it.

        Args:
            logs: one of the `batches`.
        """
        heads: dict[int, list[StoredBlock]] = {}
        if self._logs is None:
            return heads
        for log, entries in (await self._logs.entries(logs)).items():
            held = self._cache.get(log)
            if held is None or held.blocks:
                continue
            try:
                heads[log] = [
                    read_head(wire)
                    for key, wire, _ in winners(entries, held.counts)
                    if key.last > held.gone
                ]
            except Corrupt:
                continue  # `read` reports the range
        return heads

    async def read(
        self,
        log: int,
        start: int,
        bound: int,
        wanted: Wanted | None = None,
        *,
        bytes_max: int,
        blocks_max: int,
    ) -> BlockRun:
        """Blocks that end at or after `start` and begin at or before `bound`.

        Args:
            wanted: leaves out blocks or bodies, before these are read; None wants all.
            bytes_max, blocks_max: it ends once either is reached, at least 1 each: of wanted
                bytes, and of blocks looked at.
        Raises:
            TablesFailed: the store below does not answer.
            Corrupt: the metadata cannot be read, so the held blocks are unknown.
        """
        held = self._cache.log(log)
        cached = _gathered(
            held.from_lsn(start), start, bound, wanted, bytes_max, blocks_max
        )  # fmt: skip
        if self._logs is None:
            return cached
        stored = await self._logs.read(
            log,
            max(start, held.gone + 1),
            bound,
            held.counts,
            wanted,
            bytes_max=bytes_max,
            blocks_max=blocks_max,
        )
        return _merged(held, stored, cached, bound)


def _head(block: StoredBlock) -> Part:
    return Part.HEAD


def _first_of(run: BlockRun, start: int) -> int:
    begins = [block.header.first for block in run.blocks] + [first for first, _ in run.damaged]
    return max(start, min(begins, default=run.next))


def _gathered(
    blocks: Iterable[StoredBlock],
    start: int,
    bound: int,
    wanted: Wanted | None,
    bytes_max: int,
    blocks_max: int,
) -> BlockRun:
    """A run of blocks that end at or after `start`, by last LSN."""
    taken: list[StoredBlock] = []
    size = seen = 0
    next_lsn = start
    for block in blocks:
        if block.header.first > bound:
            break
        is_full = size >= bytes_max or seen >= blocks_max
        # Overlapping blocks must be in the same batch, because otherwise the reader would take some
        # of them for absent.
        if is_full and (not seen or block.header.first >= next_lsn):
            return BlockRun(taken, next_lsn, seen - len(taken))
        seen += 1
        part = Part.WHOLE if wanted is None else wanted(block)
        if part:
            taken.append(block)
            size += block.wire_bytes if part is Part.WHOLE else len(block.wire)
        next_lsn = max(next_lsn, block.header.last + 1)
    return BlockRun(taken, max(next_lsn, bound + 1), seen - len(taken))


def _merged(held: CachedLog, stored: BlockRun, cached: BlockRun, bound: int) -> BlockRun:
    """Merge both runs, as far as both reach. Of two copies of one block it keeps the copy of higher
    precedence."""
    is_whole = min(stored.next, cached.next) > bound
    next_lsn = (max if is_whole else min)(stored.next, cached.next)
    best: dict[tuple[int, int, int], StoredBlock] = {}
    for block in (*stored.blocks, *cached.blocks):
        header = block.header
        if not is_whole and header.first >= next_lsn:
            continue
        if not held.counts_block(block):
            continue
        place = (header.last, header.first, header.kind)
        known = best.get(place)
        if known is None or block.envelope.precedence > known.envelope.precedence:
            best[place] = block
    blocks = [best[place] for place in sorted(best)]
    damaged = [each for each in stored.damaged if is_whole or each[0] < next_lsn]
    return BlockRun(blocks, next_lsn, stored.passed + cached.passed, damaged)
