"""Flushed blocks that stay in memory for readers that read them soon.

Most reads are of recent writes. So blocks that leave the log cache come here, and the oldest leave
when there is no space (`storage/recent_room.py`). For each log this knows the LSN from which on
*all* of LogsDB's blocks are here too: a reader above it needs no disk. Superseded copies are here
as in LogsDB, and readers resolve them in the same way.

Source: docs/sources/s3stream.md (b) ("LogCache": what was uploaded stays until room is wanted).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from cordwood.layout.waves import StoredBlock
from cordwood.storage.recent_room import RecentRoom

_LAST = attrgetter("header.last")


class _Recent:
    """The recent blocks of one log, by last LSN: all blocks of LogsDB that end at `complete_from`
    or above it."""

    __slots__ = ("blocks", "complete_from")

    def __init__(self, complete_from: int) -> None:
        self.complete_from = complete_from
        self.blocks: list[StoredBlock] = []


class RecentBlocks:
    """See the module."""

    def __init__(self, room: RecentRoom) -> None:
        self._room = room
        self._logs: dict[int, _Recent] = {}

    def begin(self, logs: Iterable[tuple[int, int]]) -> None:
        """A flush of these logs begins; with each the highest LSN that LogsDB held before it."""
        if self._room.bytes_max:
            for log, last in logs:
                if log not in self._logs:
                    self._logs[log] = _Recent(last + 1)

    def add(self, blocks: Sequence[StoredBlock], logs: Iterable[int]) -> None:
        """The flush that was begun is durable, and leaves these blocks of these logs."""
        if not self._room.bytes_max:
            return
        for block in blocks:
            of_log = self._logs[block.header.log]
            if block.header.last < of_log.complete_from:
                continue  # it came late, and not all blocks around it are here any more
            held = of_log.blocks
            if held and held[-1].header.last > block.header.last:
                insort(held, block, key=_LAST)
            else:
                held.append(block)
            self._room.add(self._drop, block, block.wire_bytes)
        self._room.trim()
        for log in logs:
            if log in self._logs and not self._logs[log].blocks:
                del self._logs[log]

    def complete_from(self, log: int) -> int | None:
        """The LSN from which on all of LogsDB's blocks of a log are here; None where nothing is."""
        held = self._logs.get(log)
        return None if held is None else held.complete_from

    def from_lsn(self, log: int, lsn: int) -> Iterator[StoredBlock]:
        """Blocks that end at `lsn` or above it, by last LSN."""
        held = self._logs.get(log)
        if held is not None:
            blocks = held.blocks
            for index in range(bisect_left(blocks, lsn, key=_LAST), len(blocks)):
                yield blocks[index]

    def _drop(self, block: StoredBlock) -> None:
        log = block.header.log
        held = self._logs.get(log)
        if held is None or block.header.last < held.complete_from:
            return  # it was dropped together with a later block
        held.complete_from = block.header.last + 1
        del held.blocks[: bisect_left(held.blocks, held.complete_from, key=_LAST)]
        if not held.blocks:
            del self._logs[log]
