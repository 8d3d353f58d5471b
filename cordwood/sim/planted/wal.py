"""Bugs of the WAL: durability, reads of a start, overwriting.

Some bugs show only if the power fails during one write of thousands. These are left to crash
states, which go through all writes (`sim/crash_states/planted.py`).

Source: docs/sources/reliability.md §6; docs/sources/s3stream.md, "Traps"; Rebello et al., ATC 2020.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cordwood.protocol.wal_ring import RingSpace, ScanVerdict
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.storage.wal.delta_wal import Wal
from cordwood.storage.wal.wal_blocks import WalBlock


def _acks_at_once(right: Any, self: Wal, block: WalBlock) -> None:
    waiters, block.waiters = block.waiters, []
    right(self, block)
    for on_durable in waiters:
        on_durable(None)


async def _resume_unwritten(
    right: Any, /, self: Wal, verdict: ScanVerdict, records: int, size: int, **changes: Any
) -> None:
    headers = self._headers

    async def kept_in_memory(**values: Any) -> None:
        headers.durable = headers.wanted = dataclasses.replace(headers.durable, **values)

    vars(self)["_write_header"] = kept_in_memory
    try:
        await right(self, verdict, records, size, **changes)
    finally:
        del vars(self)["_write_header"]


def _error_ignored(right: Any, self: Wal, block: WalBlock, error: BaseException | None) -> None:
    right(self, block, None)


def _half_used(right: Any, self: RingSpace) -> Any:
    return right(self) // 2


def _a_lap_more(right: Any, self: RingSpace, use_reserve: bool) -> int:
    return int(right(self, use_reserve)) + int(self.ring)


BUGS = (
    PlantedBug("wal-acks-at-once", "the WAL confirms a record when its write begins",
               at(Wal.begin_write).around(_acks_at_once), scenario=scenarios.POWER),
    PlantedBug("wal-resume-unwritten", "a WAL start keeps the place at which it resumes writing "
                                       "in memory only",
               at(Wal.resume).around(_resume_unwritten), scenario=scenarios.POWER),
    PlantedBug("wal-error-ignored", "a write that failed counts as done",
               at(Wal.on_block_written).around(_error_ignored), scenario=scenarios.WRITE_ERRORS),
    PlantedBug("wal-wraps-over", "a full ring overwrites records that are still needed",
               together(at(RingSpace.used).around(_half_used),
                        at(RingSpace.space_stop).around(_a_lap_more)),
               scenario=scenarios.FULL_WALS),
)  # fmt: skip
