"""The limits of a WAL's writes: sizes and counts, each with its reason.

Source: docs/sources/s3stream.md (a), "Blocks", "Window", and (d); docs/sources/hotpath.md §1.
"""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.errors import BadSetting
from cordwood.layout.wal_block import (
    WAL_BODY_BYTES_MAX,
    WAL_RECORD_HEADER_BYTES,
    WAL_UNIT_BYTES,
    WalHeader,
    align_up,
)
from cordwood.protocol.wal_ring import RingSpace, WriteWindow
from cordwood.write_budget import UNLIMITED, WriteBudget


@dataclass(frozen=True, slots=True)
class WalLimits:
    """The limits of a WAL's writes. They are not stored on disk: the next start may use other
    limits.

    Attributes:
        block_bytes: a block takes no further record past this; a larger record has
            a block to itself. Cloud disks split larger writes, one after the other.
        writes_in_flight: blocks under way before another is written that is not full: at
            4 the disk is at its best, and what waits fills its block meanwhile.
        writes_ahead: full blocks handed over after them, so that a writer that has ended one
            finds the next without waiting for the loop. Writer threads leave them alone
            till then. A kernel's queue takes them at once (`host.direct_file.AIO_DEPTH` has
            room), so that up to `writes_in_flight + writes_ahead` blocks are at the device
            of a busy WAL, and its queue is not empty while the loop is late. Threads and kernel
            share this number, because the WAL does not know which of them writes. To measure
            at a stated depth, set it to 0.
        window_bytes: where the window starts: all full blocks that are handed over.
        window_step_bytes: by how much it grows; each growth costs a header write.
        window_bytes_max: past this, writers wait for the write that lags behind.
            Recovery reads as far past the end, so it bounds the time of a start.
        reserve_bytes: kept for `reserve_ok` appends, at most a quarter of the ring.
            None takes capacity / 64 and at least 64 KiB: a seal alone in its block
            takes 4 KiB, so 128 MiB keep 512 seals and recoveries for a full node.
        budget: what the disk may be asked for a second; no limit by default, because a
            local disk has none. `write_budget.GP3` is for a cloud volume;
            a node takes it from `storage.wal_budget`.
        stall_s: a write that lasts longer is a stall: shared disks were seen to stop for
            tens of ms and cloud disks for a second or two.
        give_up_s: after this time the write is given up and the WAL has failed; S3Stream came to
            the same 30 s.
    """

    block_bytes: int = 256 << 10
    writes_in_flight: int = 4
    writes_ahead: int = 4
    window_bytes: int = 2 << 20
    window_step_bytes: int = 4 << 20
    window_bytes_max: int = 512 << 20
    reserve_bytes: int | None = None
    budget: WriteBudget = UNLIMITED
    stall_s: float = 5.0
    give_up_s: float = 30.0

    def __post_init__(self) -> None:
        if (
            self.writes_in_flight < 1
            or min(self.writes_ahead, self.block_bytes, self.window_step_bytes) < 0
        ):
            raise BadSetting(f"{self} cannot write")
        if not WAL_UNIT_BYTES <= self.window_bytes <= self.window_bytes_max:
            raise BadSetting(f"{self}: a window starts between {WAL_UNIT_BYTES} and its limit")
        if not 0 < self.stall_s <= self.give_up_s:
            raise BadSetting(f"{self}: a stall comes before it is given up")

    def reserve(self, header: WalHeader) -> int:
        """Bytes of the ring that only `reserve_ok` appends may use."""
        wanted = self.reserve_bytes
        if wanted is None:
            wanted = max(64 << 10, header.capacity // 64)
        return min(wanted, header.ring // 4)

    def open_ring(self, header: WalHeader, start: int) -> tuple[RingSpace, WriteWindow, int]:
        """The ring and the window for writes from `start` on, and the bytes of the largest body
        that the ring takes."""
        space = RingSpace(
            ring=header.ring,
            start=start,
            floor=header.scan,
            reserve=self.reserve(header),
            block_soft=self.block_bytes,
        )
        body_max = min(WAL_BODY_BYTES_MAX, space.record_max - WAL_RECORD_HEADER_BYTES)
        block_max = align_up(body_max + WAL_RECORD_HEADER_BYTES)
        window = WriteWindow(
            start=start,
            length=header.window,
            step=self.window_step_bytes,
            limit=min(header.ring, align_up(max(self.window_bytes_max, block_max))),
        )
        return space, window, body_max
