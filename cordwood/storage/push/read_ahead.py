"""Batches of LogsDB that are read before their readers may have them.

A reader that goes through cold data has one node send at a time: blocks that follow one another
have one copyset, and of a copyset one node sends. Unless that node reads the next batch while the
last one leaves, the disk waits for the network and the network for the disk.

What is read ahead lies below what is released, so nothing is stored there any more; it is kept for
a second at most, as long as what waits for a full connection may be old. How many streams have a
batch here is bounded, whoever comes first: the others are read for when it is their turn.

Source: docs/design.md §5 ("LogsDB with read-ahead").
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from cordwood.storage.logs_db.partition import BlockRun

Stream = TypeVar("Stream", bound=Hashable)

STREAMS_MAX = 3
"""Streams that have a batch here, or one under way: with the batches of 4 MiB that `read_streams`
reads, 12 MiB of a node; and of its four tasks that read one is left for those who wait."""

KEPT_S = 1.0
"""A reader that did not come for its batch by then is slow, or went elsewhere."""


class Ahead(NamedTuple):
    """A batch: what a log holds in `[start, run.next)`."""

    start: int
    run: BlockRun


class ReadAhead(Generic[Stream]):
    """See the module."""

    def __init__(self) -> None:
        # None for one whose batch is being read, or is still to be.
        self._kept: dict[Stream, Ahead | None] = {}
        self._asked: deque[Stream] = deque()
        self._drops: dict[Stream, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def ask(self, stream: Stream) -> bool:
        """Take a place for a stream's next batch; False where there is none, or it has one."""
        if stream in self._kept or len(self._kept) >= STREAMS_MAX:
            return False
        self._kept[stream] = None
        self._asked.append(stream)
        return True

    def next_asked(self) -> Stream | None:
        """Whose batch is to be read now, None for nobody's."""
        while self._asked:
            stream = self._asked.popleft()
            if stream in self._kept:
                return stream
        return None

    def is_under_way(self, stream: Stream) -> bool:
        """Whether its batch was asked for and is not here yet."""
        return stream in self._kept and self._kept[stream] is None

    def keep(self, stream: Stream, start: int, run: BlockRun) -> None:
        """A batch that was asked for is here; if nobody wants it any more, it goes."""
        if stream in self._kept:
            self.drop(stream)
            self._kept[stream] = Ahead(start, run)
            loop = asyncio.get_running_loop()
            self._drops[stream] = loop.call_later(KEPT_S, self.drop, stream)

    def take(self, stream: Stream, start: int, bound: int, bytes_max: int) -> BlockRun | None:
        """What a stream may have now of its batch, the rest of which stays.

        Args:
            start: where the stream stands.
            bound, bytes_max: as of `LogReader.read`.
        Returns:
            None where nothing is kept that begins there.
        """
        kept = self._kept.get(stream)
        if kept is None:
            return None
        timer = self._drops.get(stream)
        self.drop(stream)
        if kept.start != start:
            return None
        run, rest = cut(kept.run, bound, bytes_max)
        if rest is not None:
            self._kept[stream] = Ahead(run.next, rest)
            assert timer is not None
            loop = asyncio.get_running_loop()
            # As old as it was: only what comes from the disk is new.
            self._drops[stream] = loop.call_at(timer.when(), self.drop, stream)
        return run

    def drop(self, stream: Stream) -> None:
        """Forget what is kept of a stream, and what was asked for it."""
        self._kept.pop(stream, None)
        timer = self._drops.pop(stream, None)
        if timer is not None:
            timer.cancel()


def cut(run: BlockRun, bound: int, bytes_max: int) -> tuple[BlockRun, BlockRun | None]:
    """A run as far as it would have been read with these limits, and what is behind it.

    Args:
        bound: the last LSN at which a block may begin.
        bytes_max: it ends once so many bytes are reached, but not before a whole block.
    """
    size = count = last = 0
    is_full = False
    for block in run.blocks:
        first = block.header.first
        if first > bound:
            break
        # What overlaps what is sent belongs to it, or the reader would take it for absent.
        if count and size >= bytes_max and first > last:
            is_full = True
            break
        count += 1
        size += block.wire_bytes
        last = max(last, block.header.last)
    blocks, later = run.blocks[:count], run.blocks[count:]
    next_lsn = last + 1 if is_full else max(bound, last) + 1
    if not (blocks or run.passed or any(each[0] < next_lsn for each in run.damaged)):
        # Nothing is there: behind an empty window it is told how far, as `read_streams` does.
        begins = [each.header.first for each in later[:1]] + [each[0] for each in run.damaged]
        next_lsn = max(next_lsn, min(begins, default=run.next))
    if next_lsn >= run.next:
        return run, None
    now = [each for each in run.damaged if each[0] < next_lsn]
    # A range that reaches further is told now as a whole, as a read with these limits tells it.
    behind = [each for each in run.damaged if each[0] >= next_lsn]
    return BlockRun(blocks, next_lsn, run.passed, now), BlockRun(later, run.next, 0, behind)
