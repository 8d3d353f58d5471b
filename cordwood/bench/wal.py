"""How fast a WAL writes, beside fio on the same path in the same minute.

The appender is as light as Python allows, because its time is taken from the WAL. It runs in a
closed loop (a fixed number of records in flight, the next as soon as one is durable). With a
throughput it runs in an open loop: records are due at their times, and latency counts from then, so
that a stall counts for every record that it delayed.

Source: docs/sources/s3stream.md (c) (WriteBench).
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter

from cordwood.errors import BadSetting, CordwoodError
from cordwood.host.real_disk import RealDisk
from cordwood.layout.wal_batch import batch_bytes
from cordwood.layout.wal_block import WAL_RECORD_HEADER_BYTES, WAL_RING_START, align_up
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalLimits
from cordwood.storage.wal.wal_errors import WalFull
from cordwood.storage.wal.wal_file import BLANK_BYTES
from cordwood.write_budget import UNLIMITED, WriteBudget

OWNER = NodeId(0xFFFF_FFFF)
"""The number of no node: no node opens a WAL that a benchmark left behind."""

FILE_NAME = ".cordwood-bench-wal"

TRIM_S = 0.1
"""Pause between trims, as in WriteBench: often enough that the ring never fills, and seldom enough
to cost nothing."""

TICK_S = 0.001
"""Pause between two looks for due records: a timer is not more precise."""

SECOND = 1.0


@dataclass(frozen=True, slots=True)
class WalProfile:
    """One way to write.

    Attributes:
        record_bytes: of a body.
        in_flight: records that are not durable yet.
        batch: records of one `append_many`; 1 appends each alone.
        depth: writes in flight at the device, as fio's `iodepth` is.
        block_bytes: a block's soft limit.
        bytes_per_s: of bodies, to be appended at an even pace; None as fast as possible.
        seconds: of a run.
        capacity_bytes: of the WAL.
        budget: the WAL's own limit for the device.
    """

    record_bytes: int = 65_536
    in_flight: int = 64
    batch: int = 1
    depth: int = 4
    block_bytes: int = 256 << 10
    bytes_per_s: float | None = None
    seconds: float = 5.0
    capacity_bytes: int = 1 << 30
    budget: WriteBudget = UNLIMITED

    def __post_init__(self) -> None:
        for name in ("record_bytes", "in_flight", "batch", "depth", "block_bytes"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} is {getattr(self, name)}; it is at least 1")
        if self.seconds <= 0 or (self.bytes_per_s is not None and self.bytes_per_s <= 0):
            raise BadSetting("seconds and the throughput are above 0")
        if self.in_flight < self.batch:
            raise BadSetting(f"{self.in_flight} records in flight are less than one batch")
        if self.in_flight * (self.record_bytes + WAL_RECORD_HEADER_BYTES) > self.capacity_bytes / 4:
            raise BadSetting(
                f"{self.in_flight} records of {self.record_bytes} bytes in flight want a WAL of "
                "four times their size"
            )

    @property
    def write_bytes(self) -> int:
        """Bytes of one write: a full block, or all waiting records or, at a pace, the records due
        at once."""
        fitting = min(self.block_bytes // self._unit_bytes, self._units // self.depth)
        if self.bytes_per_s is not None:
            due = int(self.bytes_per_s * TICK_S) // (self.record_bytes * self.batch)
            fitting = min(fitting, due)
        together = max(1, fitting) * self._unit_bytes
        return align_up(together if self.batch == 1 else min(together, self.block_bytes))

    @property
    def _unit_bytes(self) -> int:
        """Bytes that are appended at once."""
        if self.batch == 1:
            return self.record_bytes + WAL_RECORD_HEADER_BYTES
        return WAL_RECORD_HEADER_BYTES + batch_bytes(self.batch, self.batch * self.record_bytes)

    @property
    def _units(self) -> int:
        """How many of them are in flight."""
        return self.in_flight // self.batch

    @property
    def writes(self) -> int:
        """Number of writes in flight for this many records."""
        return min(self.depth, self._units)

    @property
    def limits(self) -> WalLimits:
        """The WAL's settings, without blocks ahead, because the kernel would get all of them at
        once.

        fio has `depth` operations at the device, and with a deeper queue a disk behaves
        differently. The header's write, of 4 KiB and ten times a second at a trim, is added.
        """
        return WalLimits(
            block_bytes=self.block_bytes,
            writes_in_flight=self.depth,
            writes_ahead=0,
            budget=self.budget,
        )


@dataclass(frozen=True, slots=True)
class WalRun:
    """The result of one run, or of one second of it; latencies in microseconds."""

    seconds: float
    records: int
    body_bytes: int
    writes: int
    written_bytes: int
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes of bodies made durable a second."""
        return self.body_bytes / self.seconds

    @property
    def writes_per_s(self) -> float:
        """Writes a second at the device, headers included."""
        return self.writes / self.seconds


Tell = Callable[[int, WalRun], None]
"""Called after each whole second of a run, from 1 on."""


class Appender:
    """Appends to one WAL and times it; see the module."""

    def __init__(self, wal: Wal, profile: WalProfile) -> None:
        self._wal = wal
        self._profile = profile
        self._loop = asyncio.get_running_loop()
        self._bodies = [os.urandom(profile.record_bytes)] * profile.batch
        # The due time of each record, or batch, in flight, and its last offset, in the order of
        # acks.
        self._due: deque[float] = deque()
        self._offsets: deque[int] = deque()
        self._durable_offset = -1
        self._latencies = array("d")
        self._fill_scheduled = False
        self._appended = 0
        self._began = 0.0
        self._end = 0.0
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def run(self, tell: Tell | None = None) -> WalRun:
        """Append for the profile's time.

        Raises:
            WalFailed: the WAL did.
        """
        self._began = perf_counter()
        self._end = self._began + self._profile.seconds
        before = self._counts()
        async with asyncio.TaskGroup() as tasks:
            trimming = tasks.create_task(self._trim())
            telling = tasks.create_task(self._tell(tell)) if tell else None
            self._fill()
            try:
                await self._done
            finally:
                trimming.cancel()
                if telling is not None:
                    telling.cancel()
        return self._sum(0, before, perf_counter() - self._began)

    # ---- appending ----

    def _fill(self) -> None:
        self._fill_scheduled = False
        now = perf_counter()
        if now >= self._end or self._done.done():
            self._finish_if_idle()
            return
        submit, bodies, on_durable = self._wal.submit, self._bodies, self._on_durable
        batch = self._profile.batch
        try:
            for _ in range(self._wanted(now) // batch):
                if batch == 1:
                    self._offsets.append(submit(bodies, on_durable))
                else:
                    offsets = self._wal.submit_many(bodies, on_durable)
                    self._offsets.append(int(offsets[-1]))
                self._due.append(self._due_time(now))
                self._appended += batch
        except WalFull:
            pass  # the next trim frees space, and the next tick or ack tries again
        except CordwoodError as error:
            self._fail(error)
            return
        if self._profile.bytes_per_s is not None or not self._due:
            self._loop.call_later(TICK_S, self._fill)

    def _wanted(self, now: float) -> int:
        """Number of records to append now."""
        room = self._profile.in_flight - len(self._due) * self._profile.batch
        rate = self._profile.bytes_per_s
        if rate is None:
            return room
        due = int((now - self._began) * rate / self._profile.record_bytes) + 1
        return min(room, due - self._appended)

    def _due_time(self, now: float) -> float:
        rate = self._profile.bytes_per_s
        if rate is None:
            return now
        return self._began + self._appended * self._profile.record_bytes / rate

    def _on_durable(self, error: CordwoodError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._latencies.append(perf_counter() - self._due.popleft())
        self._durable_offset = self._offsets.popleft()
        if not self._fill_scheduled and self._profile.bytes_per_s is None:
            self._fill_scheduled = True
            self._loop.call_soon(self._fill)

    def _finish_if_idle(self) -> None:
        if self._done.done():
            return
        if self._due:
            self._loop.call_later(TICK_S, self._finish_if_idle)
        else:
            self._done.set_result(None)

    def _fail(self, error: CordwoodError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    # ---- beside it ----

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(TRIM_S)
            if self._durable_offset > self._wal.trim_offset:
                await self._wal.trim(self._durable_offset)

    async def _tell(self, tell: Tell) -> None:
        number = 0
        while True:
            first, before, began = len(self._latencies), self._counts(), perf_counter()
            await asyncio.sleep(self._began + (number + 1) * SECOND - began)
            number += 1
            tell(number, self._sum(first, before, perf_counter() - began))

    def _counts(self) -> tuple[int, int]:
        return self._wal.device_counts

    def _sum(self, first: int, before: tuple[int, int], seconds: float) -> WalRun:
        """The result since the latency numbered `first`."""
        latencies = sorted(self._latencies[first:]) or [0.0]
        writes, written = self._counts()
        records = (len(self._latencies) - first) * self._profile.batch
        last = len(latencies) - 1
        return WalRun(
            seconds,
            records,
            records * self._profile.record_bytes,
            writes - before[0],
            written - before[1],
            sum(latencies) / len(latencies) * 1e6,
            latencies[round(last * 0.5)] * 1e6,
            latencies[round(last * 0.99)] * 1e6,
            latencies[last] * 1e6,
        )


# ---- where ----


@asynccontextmanager
async def bench_wal_file(
    path: str, capacity_bytes: int, *, destroy: bool = False
) -> AsyncIterator[str]:
    """A formatted WAL at `path` for the length of the block.

    A new file is removed at the end. A device, or an existing file, is left blank at its beginning,
    so that it may be formatted again.

    Args:
        path: a directory for a new file, the path of a file, or a device.
        capacity_bytes: of the WAL.
        destroy: whether existing content may be destroyed.

    Raises:
        BadSetting: there is content, and `destroy` does not allow to destroy it; or the device is
            too small.
        StoreInUse: the device is mounted or in use.
    """
    path, is_ours = _chosen_place(path)
    disk = RealDisk(writer_threads=1)
    try:
        if destroy and not is_ours:
            await _make_blank(disk, path)
        await Wal.format(disk, path, capacity_bytes, owner=OWNER)
        try:
            yield path
        finally:
            if not is_ours:
                await _make_blank(disk, path)
    finally:
        await disk.close()
        if is_ours:
            _remove(path)


def _chosen_place(path: str) -> tuple[str, bool]:
    """The file to write, and whether it is new."""
    if os.path.isdir(path):
        path = os.path.join(path, FILE_NAME)
        _remove(path)  # a killed benchmark may have left it
    return path, not os.path.exists(path)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


async def _make_blank(disk: RealDisk, path: str) -> None:
    file = await disk.open_direct(path)
    try:
        length = min(BLANK_BYTES, file.size // 4096 * 4096)
        if length:
            await file.write(0, [bytes(length)])
    finally:
        await file.close()


async def run_wal(path: str, profile: WalProfile, tell: Tell | None = None) -> WalRun:
    """One run on a WAL that `bench_wal_file` made. After it everything is trimmed and closed.

    Raises:
        WalFailed: the WAL did.
    """
    disk = RealDisk(writer_threads=profile.depth)
    try:
        wal = await Wal.open(disk, path, owner=OWNER, limits=profile.limits)
        try:
            await wal.reset()
            run = await Appender(wal, profile).run(tell)
            await wal.reset()
        finally:
            await wal.close()
    finally:
        await disk.close()
    return run


def ring_place(capacity_bytes: int) -> tuple[int, int]:
    """The place of a WAL's ring in a file of this capacity: offset and length."""
    return WAL_RING_START, capacity_bytes - WAL_RING_START
