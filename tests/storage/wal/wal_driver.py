"""Drives a WAL through appends, writes that end in any order, trims and crashes.

It keeps a plain list beside it, which says what a recovery must, may and must not
bring back. Used by the Hypothesis state machine and by the seeded sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from wal_memory_disk import MemoryDisk

from cordwood.errors import BadSetting, CordwoodError
from cordwood.layout.wal_block import (
    align_down,
    unpack_wal_header,
    unpack_wal_record,
    wal_position,
)
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalFull, WalLimits

OWNER = NodeId(3)
PATH = "wal"
Result = TypeVar("Result")
Item = tuple[int, bytes]

LIMITS = WalLimits(
    block_bytes=12 << 10,
    writes_in_flight=4,
    window_bytes=8192,
    window_step_bytes=8192,
    window_bytes_max=48 << 10,
    reserve_bytes=8192,
)


class WalDriver:
    """One WAL on a disk in memory, and what is known of it.

    Attributes:
        kept: acknowledged, or recovered once: must come back until trimmed.
        in_doubt: appended and not acknowledged: may come back, in this order.
        recoveries: how many crashes were recovered from.
    """

    def __init__(self, ring: int, seed: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.chance = random.Random(seed)
        self.disk = MemoryDisk()
        self.kept: list[Item] = []
        self.in_doubt: list[Item] = []
        self.trim_done = -1
        self.trims: list[tuple[int, asyncio.Task[Any]]] = []
        self.recoveries = 0
        self.life = 0
        self.run(Wal.format(self.disk, PATH, 8192 + ring, owner=OWNER, salt=seed))
        self.wal = self.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(asyncio.wait_for(work, 5))

    def turn(self) -> None:
        """Let the loop do all that it can without the disk."""
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.check_window()

    def check_window(self) -> None:
        """What is being written lies in the window that the header on disk tells of."""
        slots = self.disk.file.stable
        headers = [unpack_wal_header(bytes(slots[at : at + 4096])) for at in (0, 4096)]
        header = max(headers, key=lambda header: header.sequence)
        for write in self.disk.file.pending:
            record = unpack_wal_record(write.data(), 0, header.salt)
            if write.offset >= 8192:
                assert record is not None
                assert write.offset == wal_position(record.offset, header.ring)
                stop = record.offset + len(write.data())
                assert stop <= self.wal.durable_offset + header.window, "window"
                assert stop <= align_down(header.scan) + header.ring, "over what is live"

    def append(self, size: int, *, reserve_ok: bool = False, nested: bool = False) -> bool:
        """Append `size` bytes; False if the WAL is full."""
        if nested:  # a payload made of the WAL's own bytes
            start = self.chance.randrange(len(self.disk.file.stable))
            body = bytes(self.disk.file.stable[start : start + size])
        else:
            body = self.chance.randbytes(min(size, 64)) + bytes(max(0, size - 64))
        life = self.life

        def on_durable(error: CordwoodError | None) -> None:
            if life == self.life:
                assert error is None
                assert self.in_doubt[0] == (offset, body)
                self.kept.append(self.in_doubt.pop(0))

        cut = self.chance.randint(0, size)
        try:
            offset = self.wal.submit([body[:cut], body[cut:]], on_durable, reserve_ok=reserve_ok)
        except WalFull:
            return False
        self.in_doubt.append((offset, body))
        return True

    def append_many(self, sizes: list[int], *, reserve_ok: bool = False) -> bool:
        """Append records together; False, and none of them taken, if the WAL is full."""
        bodies = [self.chance.randbytes(min(size, 64)) + bytes(max(0, size - 64)) for size in sizes]
        life = self.life
        items: list[Item] = []

        def on_durable(error: CordwoodError | None) -> None:
            if life == self.life:
                assert error is None
                assert self.in_doubt[: len(items)] == items
                self.kept += items
                del self.in_doubt[: len(items)]

        try:
            offsets = self.wal.submit_many(bodies, on_durable, reserve_ok=reserve_ok)
        except WalFull:
            return False
        items += zip(offsets.tolist(), bodies, strict=True)
        self.in_doubt += items
        return True

    def end_write(self, index: int) -> None:
        """Let one write end, whichever `index` names."""
        pending = self.disk.file.pending
        if pending:
            self.disk.file.end(pending[index % len(pending)])
            self.turn()

    def settle(self) -> None:
        """Let everything end."""
        while self.disk.file.pending or self.in_doubt:
            self.disk.file.end_all()
            self.turn()
        self.note_trims()
        assert self.wal.durable_offset >= (self.kept[-1][0] if self.kept else 0)

    def trim(self, share: float) -> None:
        """Start a trim of that share of what is kept."""
        if self.kept:
            offset = self.kept[int(share * (len(self.kept) - 1))][0]
            self.trims.append((offset, self.loop.create_task(self.wal.trim(offset))))
            self.turn()
            self.note_trims()

    def reset(self) -> None:
        """Start a reset, which trims all, if nothing is in flight; else it must refuse."""
        task = self.loop.create_task(self.wal.reset())
        if self.in_doubt:
            self.turn()
            assert isinstance(task.exception(), BadSetting)
            return
        last = max((offset for offset, _ in self.kept), default=-1)
        self.trims.append((last, task))
        self.turn()
        self.note_trims()

    def reset_unread(self) -> None:
        """Cut the power, then let go of everything without reading it."""
        self.note_trims()
        self.life += 1
        for _, task in self.trims:
            task.cancel()
        self.disk = self.disk.crash(self.chance)
        self.kept, self.in_doubt, self.trims = [], [], []
        self.wal, start = self.run(self.open_and_reset())
        assert self.wal.used_bytes == 0
        self.trim_done = start - 1

    async def open_and_reset(self) -> tuple[Wal, int]:
        self.disk.by_hand = False
        wal = await Wal.open(self.disk, PATH, owner=OWNER, limits=LIMITS)
        start = await wal.reset()
        self.disk.by_hand = self.disk.file.by_hand = True
        return wal, start

    def note_trims(self) -> None:
        for offset, task in self.trims:
            if task.done():
                task.result()
                self.trim_done = max(self.trim_done, offset)
        self.trims = [pair for pair in self.trims if not pair[1].done()]
        self.kept = [item for item in self.kept if item[0] > self.trim_done]

    def crash(self) -> None:
        """Cut the power, start again, and check what came back."""
        self.note_trims()
        self.life += 1
        for _, task in self.trims:
            task.cancel()
        self.disk = self.disk.crash(self.chance)
        self.wal = self.start()

    def crash_in_recovery(self, taken: int, *, in_resume: bool) -> None:
        """Crash; then crash again while recovering, after `taken` records or at its end."""
        self.note_trims()
        self.life += 1
        for _, task in self.trims:
            task.cancel()
        self.disk = self.disk.crash(self.chance)
        before = bytes(self.disk.file.stable)
        self.run(self.recover_partly(taken, in_resume=in_resume))
        if not in_resume:
            assert self.disk.file.stable == before
        self.disk = self.disk.crash(self.chance)
        self.wal = self.start()

    async def recover_partly(self, taken: int, *, in_resume: bool) -> None:
        self.disk.by_hand = True
        wal = await Wal.open(self.disk, PATH, owner=OWNER, limits=LIMITS)
        task = asyncio.create_task(self.take(wal, 1000 if in_resume else taken))
        for _ in range(3 if in_resume else 0):
            await asyncio.sleep(0)
            if taken % 3:
                taken -= 1
                self.disk.file.end_all()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def take(self, wal: Wal, most: int) -> None:
        async with contextlib.aclosing(wal.recover()) as records:
            async for _ in records:
                most -= 1
                if most <= 0:
                    return

    def restart_gracefully(self) -> None:
        closing = self.loop.create_task(self.wal.close())
        while not closing.done():
            self.turn()
            self.disk.file.end_all()
        closing.result()
        self.note_trims()
        assert self.in_doubt == []
        self.life += 1
        assert self.wal.recovery is not None
        untold = self.wal.recovery.holes
        self.wal = self.start()
        assert self.wal.recovery is not None
        assert self.wal.recovery.was_graceful
        assert set(self.wal.recovery.holes) <= set(untold)

    def start(self) -> Wal:
        """Open, recover, and compare with what must, may and must not be there."""
        wal, found = self.run(self.recover())
        trim_in_doubt = max((offset for offset, _ in self.trims), default=-1)
        trim_in_doubt = max(trim_in_doubt, self.trim_done)
        must = [item for item in self.kept if item[0] > trim_in_doubt]
        may = set(self.kept) | set(self.in_doubt)
        assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
        assert set(must) <= set(found), "lost"
        assert set(found) <= may, "phantom"
        assert all(offset > self.trim_done for offset, _ in found), "trimmed"
        assert wal.recovery is not None
        assert wal.recovery.damage == ()
        assert wal.recovery.records == len(found)
        self.trim_done = wal.trim_offset
        self.trims = []
        self.kept, self.in_doubt = found, []
        self.recoveries += 1
        return wal

    async def recover(self) -> tuple[Wal, list[Item]]:
        self.disk.by_hand = False
        wal = await Wal.open(self.disk, PATH, owner=OWNER, limits=LIMITS)
        found = [item async for item in wal.recover()]
        self.disk.by_hand = self.disk.file.by_hand = True
        return wal, found

    def close(self) -> None:
        self.life += 1
        for _, task in self.trims:
            task.cancel()
        self.turn()
        self.loop.close()
