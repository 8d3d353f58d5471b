"""Bugs of the WAL: what is durable, how far a start reads, what may be written over.

Those that need the power to go in one write of thousands are left to crash states, which go
through all of them (`sim/crash_states/planted.py`).

Source: docs/sources/reliability.md §6; docs/sources/s3stream.md, "Traps"; Rebello et al., ATC 2020.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed

_WAL = "storage.wal.delta_wal:Wal"
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


def _half_used(right: Any) -> Any:
    return property(lambda self: right.fget(self) // 2)


def _a_lap_more(right: Any) -> Any:
    def space_stop(self: Any, use_reserve: bool) -> int:
        return int(right(self, use_reserve)) + int(self.ring)

    return space_stop


BUGS = (
    PlantedBug("wal-acks-at-once", "the WAL confirms a record when its write begins",
               changed({f"{_WAL}._write": _acks_at_once}), scenario=scenarios.POWER),
    PlantedBug("wal-resume-unwritten", "where a start resumes writing is kept in memory only",
               changed({f"{_WAL}._resume": _resume_unwritten}), scenario=scenarios.POWER),
    PlantedBug("wal-error-ignored", "a write that failed counts as done",
               changed({f"{_WAL}._on_written": _error_ignored}), scenario=scenarios.WRITE_ERRORS),
    PlantedBug("wal-wraps-over", "a full ring is written over where it is still needed",
               changed({f"{_SPACE}.used": _half_used, f"{_SPACE}._space_stop": _a_lap_more}),
               scenario=scenarios.FULL_WALS),
)  # fmt: skip
