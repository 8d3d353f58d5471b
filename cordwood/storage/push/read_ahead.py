"""Batches that are read from LogsDB before they may be sent to their readers.

A reader of cold data gets its blocks from one node at a time: consecutive blocks have one copyset,
and one node of a copyset sends. If that node does not read the next batch while the last one
leaves, the disk waits for the network and the network waits for the disk.

A read-ahead batch lies below the released LSN, so no store changes it any more. It is kept for a
second at most, as long as a batch may wait for a full connection. The number of streams with a
batch here is bounded, first come first served; batches of other streams are read in their turn.

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
"""The most streams with a batch here or under way: 12 MiB of a node, with the 4 MiB batches of
`read_streams`. Of the four reading tasks, one is left for waiting streams."""

KEPT_S = 1.0
"""A reader that has not taken its batch within this time is slow, or reads elsewhere."""


class Ahead(NamedTuple):
    """A batch: a log's blocks in `[start, run.next)`."""

    start: int
    run: BlockRun


class ReadAhead(Generic[Stream]):
    """See the module."""

    def __init__(self) -> None:
        # By stream: its batch; None while the batch is not read yet.
        self._kept: dict[Stream, Ahead | None] = {}
        self._asked: deque[Stream] = deque()
        self._drops: dict[Stream, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def ask(self, stream: Stream) -> bool:
        """Reserve a place for a stream's next batch; False if none is free, or it has one."""
        if stream in self._kept or len(self._kept) >= STREAMS_MAX:
            return False
        self._kept[stream] = None
        self._asked.append(stream)
        return True

    def next_asked(self) -> Stream | None:
        """The stream whose batch to read now, None for no stream."""
        while self._asked:
            stream = self._asked.popleft()
            if stream in self._kept:
                return stream
        return None

    def is_under_way(self, stream: Stream) -> bool:
        """Whether its batch was asked for and is not here yet."""
        return stream in self._kept and self._kept[stream] is None

    def keep(self, stream: Stream, start: int, run: BlockRun) -> None:
        """A batch was read; it is dropped if its stream does not want it any more."""
        if stream in self._kept:
            self.drop(stream)
            self._kept[stream] = Ahead(start, run)
            loop = asyncio.get_running_loop()
            self._drops[stream] = loop.call_later(KEPT_S, self.drop, stream)

    def take(self, stream: Stream, start: int, bound: int, bytes_max: int) -> BlockRun | None:
        """The part of its batch that a stream may have now; the rest stays here.

        Args:
            start: the stream's position.
            bound, bytes_max: as in `LogReader.read`.
        Returns:
            None if no batch that begins there is kept.
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
            # The rest keeps its age: only a new read from the disk resets it.
            self._drops[stream] = loop.call_at(timer.when(), self.drop, stream)
        return run

    def drop(self, stream: Stream) -> None:
        """Forget a stream's batch, and its request for one."""
        self._kept.pop(stream, None)
        timer = self._drops.pop(stream, None)
        if timer is not None:
            timer.cancel()


def cut(run: BlockRun, bound: int, bytes_max: int) -> tuple[BlockRun, BlockRun | None]:
    """Cut a run in two: the part that a read with these limits would return, and the rest.

    Args:
        bound: the last LSN at which a block may begin.
        bytes_max: the part ends when it has this many bytes, but it has at least one block.
    """
    size = count = last = 0
    is_full = False
    for block in run.blocks:
        first = block.header.first
        if first > bound:
            break
        # Trap: a block that overlaps the part belongs to it. Otherwise the reader would take that
        # block for absent.
        if count and size >= bytes_max and first > last:
            is_full = True
            break
        count += 1
        size += block.wire_bytes
        last = max(last, block.header.last)
    blocks, later = run.blocks[:count], run.blocks[count:]
    next_lsn = last + 1 if is_full else max(bound, last) + 1
    if not (blocks or run.passed or any(each[0] < next_lsn for each in run.damaged)):
        # There is no block in the part: report how far it is empty, as `read_streams` does after an
        # empty window.
        begins = [each.header.first for each in later[:1]] + [each[0] for each in run.damaged]
        next_lsn = max(next_lsn, min(begins, default=run.next))
    if next_lsn >= run.next:
        return run, None
    now = [each for each in run.damaged if each[0] < next_lsn]
    # A damaged range that reaches past the part is reported now as a whole, as a read with these
    # limits reports it.
    behind = [each for each in run.damaged if each[0] >= next_lsn]
    return BlockRun(blocks, next_lsn, run.passed, now), BlockRun(later, run.next, 0, behind)
