"""Bugs of the WAL: what is durable, how far a start reads, what may be written over.

Source: reliability digest §6; AutoMQ S3Stream digest, "Traps"; Rebello et al., ATC 2020.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from cordwood.errors import Corrupt
from cordwood.layout.wal_block import WAL_SLOTS, WAL_UNIT_BYTES, unpack_wal_header
from cordwood.sim.zoo import grounds
from cordwood.sim.zoo.bug import PlantedBug, changed

_WAL = "storage.wal:Wal"
_SCAN = "protocol.wal_ring:WalScan"
_SPACE = "protocol.wal_ring:RingSpace"


def _acks_at_once(right: Any) -> Any:
    def write(self: Any, block: Any) -> None:
        waiters, block.waiters = block.waiters, []
        right(self, block)
        for on_durable in waiters:
            on_durable(None)

    return write


def _acks_each_write(right: Any) -> Any:
    def slide(self: Any) -> list[Any]:
        ended = [block for block in self._writing if block.writes_left == 0]
        waiters = [on_durable for block in ended for on_durable in block.waiters]
        for block in ended:
            block.waiters = []
        right(self)
        return waiters

    return slide


def _stops_at_hole(right: Any) -> Any:
    return property(lambda self: self._hole_start is not None or right.fget(self))


def _window_unwritten(right: Any) -> Any:
    def grow(self: Any, stop: int) -> None:
        length = self._window.wanted_length(stop)
        if length is not None:
            self._window.length = length
            self._pump()

    return grow


def _resume_unwritten(right: Any) -> Any:
    async def resume(self: Any, verdict: Any, records: int, size: int, **more: Any) -> None:
        headers = self._headers

        async def kept_in_memory(**changes: Any) -> None:
            headers.durable = headers.wanted = dataclasses.replace(headers.durable, **changes)

        self._write_header = kept_in_memory
        try:
            await right(self, verdict, records, size, **more)
        finally:
            del self._write_header

    return resume


def _error_ignored(right: Any) -> Any:
    def on_written(self: Any, block: Any, outcome: Any) -> None:
        if isinstance(outcome, asyncio.Future) and outcome.exception() is not None:
            outcome = self._loop.create_future()
            outcome.set_result(None)
        elif isinstance(outcome, BaseException):
            outcome = None
        right(self, block, outcome)

    return on_written


def _older_header(right: Any) -> Any:
    async def read_header(file: Any, path: str) -> Any:
        found = []
        for slot in range(WAL_SLOTS):
            try:
                data = await file.read(slot * WAL_UNIT_BYTES, WAL_UNIT_BYTES)
                found.append(unpack_wal_header(data))
            except Corrupt:
                continue
        if len(found) < WAL_SLOTS:
            return await right(file, path)
        return min(found, key=lambda header: header.sequence)

    return read_header


def _half_used(right: Any) -> Any:
    return property(lambda self: right.fget(self) // 2)


def _a_lap_more(right: Any) -> Any:
    def room_stop(self: Any, use_reserve: bool) -> int:
        return int(right(self, use_reserve)) + int(self.ring)

    return room_stop


BUGS = (
    PlantedBug("wal-acks-at-once", "the WAL confirms a record when its write begins",
               changed({f"{_WAL}._write": _acks_at_once}), hunt=grounds.POWER),
    PlantedBug("wal-stops-at-hole", "a start stops reading at the first hole",
               changed({f"{_SCAN}.is_over": _stops_at_hole}), hunt=grounds.POWER),
    PlantedBug("wal-window-unwritten", "the WAL's window grows in memory only",
               changed({f"{_WAL}._grow": _window_unwritten}), hunt=grounds.SMALL_WINDOWS),
    PlantedBug("wal-resume-unwritten", "where a start resumes writing is kept in memory only",
               changed({f"{_WAL}._resume": _resume_unwritten}), hunt=grounds.POWER),
    PlantedBug("wal-error-ignored", "a write that failed counts as done",
               changed({f"{_WAL}._on_written": _error_ignored}), hunt=grounds.WRITE_ERRORS),
    PlantedBug("wal-header-older", "of two good headers the older one counts",
               changed({"storage.wal_file:_read_header": _older_header}),
               hunt=grounds.SMALL_WINDOWS),
    PlantedBug("wal-wraps-over", "a full ring is written over where it is still needed",
               changed({f"{_SPACE}.used": _half_used, f"{_SPACE}._room_stop": _a_lap_more}),
               hunt=grounds.FULL_WALS),
)  # fmt: skip
