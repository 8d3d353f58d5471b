"""The Delta WAL: a ring of direct writes that every change of a node's state goes through.

::

    append ─► current block ─► pending ─► writing (4 in flight) ─► durable, in order ─► done
                   └ at the end of the tick, or when 256 KiB are in it

An idle WAL writes a tick's records at once. A busy WAL fills blocks meanwhile, so load makes the
batches and not a timer. A record is acknowledged once it and *all before it* are on stable storage.

Order of a life: `format` once; `open`, `recover` to its end (or `reset`), then `append`,
`trim` and `reset`, then `close`. Recovery changes nothing on disk until its last record was
taken. Then both header slots get a new incarnation and the offset where writing resumes (both
slots, so that one bad sector cannot bring the old values back). A killed process may have left
writes in the disk's cache. These header writes make them durable too, before the node acts on a
recovered record.

A write that fails poisons the WAL for good. After a failed sync the blocks' contents are unknown,
and a successful second try proves nothing about the first. While the disk stalls, or has no space,
nothing more is taken (`wal_device`). With a budget, blocks wait for their turn and fill meanwhile;
headers are charged and do not wait.

The rules are in `protocol.wal_ring` and `protocol.write_pace`, the bytes in
`layout.wal_block`.

Source: docs/design.md §4, §5; docs/sources/s3stream.md (a) and "Traps"; Rebello et al., ATC 2020.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from cordwood.block import Buffer
from cordwood.errors import (
    BadSetting,
    Closed,
    CordwoodError,
    Overloaded,
    RecordTooLarge,
)
from cordwood.host.seams import (
    DIRECT_WRITE_BYTES_MAX,
    DISK_BLOCK_BYTES,
    DirectFile,
    Disk,
)
from cordwood.layout.wal_block import (
    WAL_RECORD_HEADER_BYTES,
    WAL_SLOTS,
    WAL_UNIT_BYTES,
    WalHeader,
    WalKind,
    align_up,
    body_checksum,
    pack_holes,
    wal_position,
)
from cordwood.layout.wal_run import Numbers, RecordRun
from cordwood.nodes import NodeId
from cordwood.protocol import wal_ring
from cordwood.protocol.wal_ring import ScanVerdict
from cordwood.storage.wal.wal_batches import BatchPlaces, plan_batches
from cordwood.storage.wal.wal_blocks import OnDurable, WalBlock, cut_writes
from cordwood.storage.wal.wal_device import WalDevice
from cordwood.storage.wal.wal_errors import WalFailed, WalFull, WalNoSpace, WalStalled, wal_full
from cordwood.storage.wal.wal_file import WalBlank, format_wal, open_wal
from cordwood.storage.wal.wal_header import HeaderWriter
from cordwood.storage.wal.wal_limits import WalLimits
from cordwood.storage.wal.wal_recovery import LiveRecords, OnProgress, WalProgress, WalRecovery

__all__ = [
    "OnDurable",
    "Wal",
    "WalBlank",
    "WalFailed",
    "WalFull",
    "WalLimits",
    "WalNoSpace",
    "WalProgress",
    "WalRecovery",
    "WalStalled",
]

logger = logging.getLogger(__name__)

_DATA = int(WalKind.DATA)
_BATCH = int(WalKind.BATCH)

assert WAL_UNIT_BYTES == wal_ring.UNIT == DISK_BLOCK_BYTES


class Wal:
    """One open WAL. Made by `Wal.open`; used on the loop that opened it only.

    `record_bytes_max` is the largest body that it takes: half the ring at most.
    """

    def __init__(self, file: DirectFile, path: str, header: WalHeader, limits: WalLimits) -> None:
        self._file = file
        self._path = path
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._device = WalDevice(file, path, limits, on_free=self._pump)
        self._headers = HeaderWriter(
            self._device, header, on_durable=self._on_header_durable, on_failure=self._fail
        )
        self._failure: WalFailed | None = None
        self._recovery: WalRecovery | None = None
        self._recovery_begun = False
        self._closed: asyncio.Future[None] | None = None
        self._current: WalBlock | None = None
        # Bounded by the ring: records without space in it are refused.
        self._pending: deque[WalBlock] = deque()
        self._writing: deque[WalBlock] = deque()
        self._blocks_in_flight = 0
        self._pump_scheduled = False
        self._growing = False
        self._drained: asyncio.Future[None] | None = None
        self._untold_holes: tuple[wal_ring.Range, ...] = ()
        self._last_offset = -1
        self._batches = BatchPlaces()
        self._known_durable = header.durable
        self._open_ring(max(header.resume, align_up(header.scan)))

    # Make one, once.
    format = staticmethod(format_wal)

    @classmethod
    async def open(
        cls, disk: Disk, path: str, *, owner: NodeId, capacity_bytes: int | None = None,
        limits: WalLimits | None = None,
    ) -> Wal:  # fmt: skip
        """Open a WAL that `format` made; see `wal_file.open_wal`. `recover` comes next."""
        file, header = await open_wal(disk, path, owner=owner, capacity=capacity_bytes)
        return cls(file, path, header, limits or WalLimits())

    # ---- properties ----

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the WAL, its two header slots included."""
        return self._headers.durable.capacity

    @property
    def used_bytes(self) -> int:
        """Bytes of the ring between the durable trim and the last append."""
        return self._space.used

    @property
    def durable_offset(self) -> int:
        """All records below this offset are on stable storage."""
        return self._window.start

    @property
    def trim_offset(self) -> int:
        """Records at or below it are durably trimmed; -1 for none."""
        return self._headers.durable.trim

    @property
    def recovery(self) -> WalRecovery | None:
        """The findings of `recover`; None until it has ended."""
        return self._recovery

    @property
    def failure(self) -> WalFailed | None:
        """The error for which the WAL takes no records any more; None while it takes them."""
        return self._failure

    @property
    def trouble(self) -> Overloaded | None:
        """The error for which the WAL takes no records just now, a WalStalled or a WalNoSpace; None
        if it takes them."""
        return self._device.trouble() if self._device.is_troubled else None

    @property
    def device_counts(self) -> tuple[int, int]:
        """Writes handed to the disk since it was opened, headers included, and their bytes."""
        return self._device.writes, self._device.bytes

    # ---- recovery ----

    async def recover(
        self, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield offset and body of every live record, in order; then appends may begin.

        Once only, and to its end. A record that was never acknowledged may be returned, even from
        behind a hole. If one recovery returned it, each later one does so too, until it is trimmed.
        `recovery` holds the findings afterwards.

        Args:
            on_progress: told how far it is, for each MiB or so that was read.
        Raises:
            Closed: it was called before, or the WAL was closed.
            OSError: the disk could not be read; nothing was changed.
            WalFailed: the new incarnation could not be made durable.
        """
        async with contextlib.aclosing(self.recover_runs(on_progress)) as runs:
            async for run in runs:
                for item in run:
                    yield item

    async def recover_runs(
        self, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[RecordRun, None]:
        """As `recover`, but many records at a time, and without objects for unwanted records."""
        self._begin_recovery()
        live = LiveRecords(self._file, self._path, self._headers.durable, on_progress)
        async with contextlib.aclosing(live.runs()) as runs:
            async for run in runs:
                yield run
        self._last_offset = live.last_offset
        self._batches = BatchPlaces(live.batches)
        await self.resume(live.scan.verdict(), live.records, live.bytes)

    def _begin_recovery(self) -> None:
        if self._recovery_begun or self._closed is not None:
            raise Closed(f"{self._path}: a WAL is recovered once, after it was opened")
        self._recovery_begun = True

    async def resume(self, verdict: ScanVerdict, records: int, size: int, **changes: Any) -> None:
        """Make a new incarnation durable, and begin to take appends."""
        was_graceful = self._headers.durable.graceful
        # Until a RESUME record tells of the holes, "all below is durable" is not yet true.
        self._known_durable = verdict.durable if verdict.holes else verdict.resume
        self._untold_holes = verdict.holes
        # Both slots: if one of them cannot be read later, the other must not lead back before this
        # start.
        for _ in range(WAL_SLOTS):
            await self._write_header(
                graceful=False,
                incarnation=verdict.incarnation + 1,
                resume=verdict.resume,
                scan=verdict.scan,
                window=min(align_up(self._limits.window_bytes), self._headers.durable.ring),
                **changes,
            )
        self._open_ring(verdict.resume)
        self._recovery = WalRecovery.of(verdict, records, size, was_graceful=was_graceful)
        level = logging.ERROR if verdict.damage else logging.INFO
        logger.log(level, "%s: recovered, %s", self._path, self._recovery)

    async def reset(self) -> int:
        """Trim every record, durably. Returns the offset where writing continues.

        After `recover` it trims all records that were recovered or appended since. In place of
        `recover` it reads nothing, so it is the way out if recovery cannot read the disk: writing
        continues so far ahead that no old record can pass for a new record.

        Raises:
            BadSetting: something appended is not durable yet.
            WalFailed: a write failed.
            Closed: recovery was begun and not ended, or the WAL was closed.
        """
        if not self._recovery_begun:
            self._begin_recovery()
            start = self.far_above(0)
            await self._resume_at(start, trim=start - 1)
            return start
        self._check_usable()
        stop = self._space.next
        # A record in flight could become durable after the trim that lets go of it.
        if self._window.start != stop:
            raise BadSetting(f"{self._path}: reset at {stop}, but what was appended is in flight")
        await self._write_header(trim=stop - 1, scan=stop, durable=self._known_durable)
        return stop

    def far_above(self, offset: int) -> int:
        """An offset so far above `offset` that no old record in the ring can pass for a new record
        there."""
        header = self._headers.durable
        known = max(offset, header.scan, header.durable, header.resume)
        return wal_ring.reset_offset(header.ring, known)

    async def go_on_at(self, start: int) -> None:
        """Go on at the offset of `far_above`, for an owner that holds records that this WAL lost.

        After `recover`, before the first append. The WAL drops all recovered records: the owner
        holds them too.

        Raises:
            WalFailed: a write failed.
        """
        self._check_usable()
        self._last_offset, self._batches = -1, BatchPlaces()
        self._recovery = None  # until it is recovered anew, the ring is not trimmed
        # The trim stays: the owner has no record of a higher offset yet.
        await self._resume_at(start)

    async def _resume_at(self, start: int, **changes: Any) -> None:
        incarnation = self._headers.durable.incarnation
        beyond = ScanVerdict(start, start, (), (), incarnation, start)
        await self.resume(beyond, 0, 0, durable=start, **changes)

    def _open_ring(self, start: int) -> None:
        opened = self._limits.open_ring(self._headers.durable, start)
        self._space, self._window, self.record_bytes_max = opened

    # ---- append ----

    def append(
        self, parts: Sequence[Buffer], *, reserve_ok: bool = False
    ) -> tuple[int, asyncio.Future[int]]:
        """Add one record; `parts` back to back are its body and must not change until done.

        Args:
            parts: buffers of bytes.
            reserve_ok: may use the last `reserve_bytes`, as what ends an epoch must.
        Returns:
            The record's offset, and a future of `durable_offset`. The future is done once this
                record and all records before it are on stable storage, in the order of the appends.
                It fails with WalFailed. Cancelling it cancels nothing else.
        Raises:
            WalFull: no room; nothing was allocated.
            WalStalled, WalNoSpace: the disk does not keep up; nothing was allocated.
            RecordTooLarge: over `record_bytes_max`.
            WalFailed: a write failed before.
            Closed: not recovered yet, or closed.
        """
        done: asyncio.Future[int] = self._loop.create_future()
        offset = self.submit(parts, functools.partial(self._settle, done), reserve_ok=reserve_ok)
        return offset, done

    def submit(
        self, parts: Sequence[Buffer], on_durable: OnDurable, *, reserve_ok: bool = False
    ) -> int:
        """As `append`, but calls `on_durable` with None, or with why not. It must not raise.

        For the hot path: it needs no future, and the callbacks of all records of one write run
        together.
        """
        length = sum(map(len, parts))
        self._begin_append(length)
        self._last_offset = offset = self._put(_DATA, parts, length, reserve_ok)
        assert self._current is not None
        self._current.waiters.append(on_durable)
        return offset

    def append_many(
        self, bodies: Sequence[Buffer], *, reserve_ok: bool = False
    ) -> tuple[Numbers, asyncio.Future[int]]:
        """Add many records, for a small part of what `append` takes for each.

        They stand in batches of up to `block_bytes`, each under one header and one checksum
        (`layout.wal_batch`). Each has its offset, by which it is trimmed and comes back.

        Returns their offsets, ascending, and one future as of `append`. It raises as `append`; then
        none of them was taken.
        """
        done: asyncio.Future[int] = self._loop.create_future()
        on_durable = functools.partial(self._settle, done)
        return self.submit_many(bodies, on_durable, reserve_ok=reserve_ok), done

    def submit_many(
        self, bodies: Sequence[Buffer], on_durable: OnDurable, *, reserve_ok: bool = False
    ) -> Numbers:
        """As `append_many`, and `on_durable` as in `submit`: once, for all of them."""
        batches = plan_batches(bodies, self._limits.block_bytes - WAL_RECORD_HEADER_BYTES)
        self._begin_append(max((batch.size for batch in batches), default=0))
        sizes = [WAL_RECORD_HEADER_BYTES + batch.size for batch in batches]
        # Take all records or none: if a call stored a part of its records, its error could not tell
        # which.
        if not self._space.takes(sizes, use_reserve=reserve_ok):
            raise wal_full(self._path, self.used_bytes, self.capacity_bytes)
        offsets = np.empty(0, np.int64)
        for batch in batches:
            start = self._put(_BATCH, batch.parts(), batch.size, reserve_ok)
            offsets = np.append(offsets, self._batches.add(start, batch))
        if not batches or self._current is None:
            on_durable(None)
        else:
            self._last_offset = int(offsets[-1])
            self._current.waiters.append(on_durable)
        return offsets

    def _begin_append(self, length: int) -> None:
        """Check that a body of this size may be appended now, and record holes before it."""
        self._check_usable()
        if self._device.is_troubled:
            raise self._device.trouble()
        if length > self.record_bytes_max:
            raise RecordTooLarge(
                f"{self._path}: a record of {length} bytes; it takes {self.record_bytes_max}"
            )
        # The record before the first append names the holes. Otherwise the `durable` offset in this
        # append would cover places that were never written.
        if self._untold_holes:
            self.tell_holes()

    def tell_holes(self) -> None:
        """Write a record of the holes that recovery passed, before all new appends."""
        body = pack_holes(self._untold_holes)
        self._put(WalKind.RESUME, [body], len(body), True)
        self._untold_holes = ()

    def _put(self, kind: int, parts: Sequence[Buffer], length: int, reserve_ok: bool) -> int:
        """Put one record into the current block, and make sure that the block will be written.
        Returns the record's offset."""
        checksum = body_checksum(parts)
        offset = self._space.extend(WAL_RECORD_HEADER_BYTES + length)
        if offset is None:
            offset = self._place(WAL_RECORD_HEADER_BYTES + length, reserve_ok)
        assert self._current is not None
        self._current.add(kind, parts, length, checksum)
        # At the end of the tick, so that all records of one tick go out in one write.
        if not self._pump_scheduled and self._blocks_in_flight < self._most_in_flight():
            self._pump_scheduled = True
            self._loop.call_soon(self._on_tick_end)
        return offset

    def _place(self, size: int, reserve_ok: bool) -> int:
        """Place a record that does not fit into the current block."""
        placement = self._space.place(size, use_reserve=reserve_ok)
        if placement is None:
            raise wal_full(self._path, self.used_bytes, self.capacity_bytes)
        if placement.opens_block:
            self._take_current()
            if placement.padding is not None:
                tail = WalBlock(placement.padding[0])
                tail.add_padding(placement.padding[1])
                self._pending.append(tail)
            self._current = WalBlock(placement.offset)
        return placement.offset

    def _take_current(self) -> None:
        """Queue the current block; the next record opens another."""
        if self._current is not None:
            self._pending.append(self._current)
            self._current = None

    def _settle(self, done: asyncio.Future[int], error: CordwoodError | None) -> None:
        if not done.done():
            done.set_result(self.durable_offset) if error is None else done.set_exception(error)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed is not None:
            raise Closed(f"{self._path} was closed")
        if self._recovery is None:
            raise Closed(f"{self._path} was not recovered to its end yet")

    # ---- writing ----

    def _on_tick_end(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _most_in_flight(self) -> int:
        """How many blocks may be in flight before the next block is handed over.

        Full blocks queue behind those being written, so that the disk never waits for the next; a
        partly filled block can wait for more records.
        """
        limits = self._limits
        return limits.writes_in_flight + (limits.writes_ahead if self._pending else 0)

    def _pump(self) -> None:
        """Write the blocks that may be written now: pending blocks, then the current one."""
        while self._failure is None and self._blocks_in_flight < self._most_in_flight():
            if not self._pending and self._current is None:
                self._on_idle()
                return
            if self._device.holds_back():
                return
            if not self._pending:
                self._space.seal()
                self._take_current()
            # Recovery reads no farther than the window, so no record may be written past it before
            # the header that widens it is durable.
            if not self._window.admits(self._pending[0].stop):
                self.grow_window(self._pending[0].stop)
                return
            self.begin_write(self._pending.popleft())

    def grow_window(self, stop: int) -> None:
        """Widen the window, durably, so that a block that ends at `stop` may be written."""
        length = self._window.wanted_length(stop)
        if length is None or self._growing:
            return  # the end of any write, or of the header's, calls `_pump` again
        self._growing = True
        self._headers.write(window=length, durable=self._known_durable).add_done_callback(
            self._on_grown
        )

    def _on_grown(self, done: asyncio.Future[None]) -> None:
        self._growing = False
        if done.exception() is None:
            self._pump()

    def begin_write(self, block: WalBlock) -> None:
        header = self._headers.durable
        parts = block.seal(
            durable=self._known_durable, incarnation=header.incarnation, salt=header.salt
        )
        self._blocks_in_flight += 1
        self._writing.append(block)
        position = wal_position(block.start, header.ring)
        writes = list(cut_writes(position, parts, DIRECT_WRITE_BYTES_MAX))
        # Before the first write: a write that fails at once reports while this loop runs.
        block.writes_left = len(writes)
        on_written = functools.partial(self.on_block_written, block)
        for at, piece in writes:
            self._device.write(at, piece, on_written)

    def on_block_written(self, block: WalBlock, error: BaseException | None) -> None:
        if self._failure is not None:
            return
        if error is not None:
            self._fail(error)
            return
        block.writes_left -= 1
        if block.writes_left:
            return
        self._blocks_in_flight -= 1
        # A block counts only with all before it: recovery stops at a hole, and would not find this
        # block.
        waiters = self._slide()
        if self._pending:
            self._pump()  # first keep the disk busy
        for on_durable in waiters:
            on_durable(None)
        # Their own appends join the present records at the end of this tick.
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._on_tick_end)

    def _slide(self) -> list[OnDurable]:
        """Move the window past the blocks that are durable, with all blocks before them."""
        waiters: list[OnDurable] = []
        while self._writing and self._writing[0].writes_left == 0:
            block = self._writing.popleft()
            self._window.start = self._known_durable = block.stop
            waiters += block.waiters
        return waiters

    def _on_idle(self) -> None:
        """No block is left to write. `close` may be waiting for writes in flight."""
        if self._drained is not None and not self._writing and not self._drained.done():
            self._drained.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Poison the WAL: records that are not acknowledged by now never will be."""
        if self._failure is not None:
            return
        self._failure = WalFailed(
            f"{self._path}: a write failed ({error!r}); this WAL takes nothing any more"
        )
        self._failure.__cause__ = error
        logger.error("%s", self._failure)
        self._device.stop_waiting()
        self._take_current()
        # Trap: a block that was written after the failed block may be on the disk. Its outcome is
        # unknown all the same, because recovery may not reach it.
        left = (*self._writing, *self._pending)
        waiters = [on_durable for block in left for on_durable in block.waiters]
        self._writing.clear()
        self._pending.clear()
        for on_durable in waiters:
            on_durable(self._failure)
        self._on_idle()

    # ---- header: trim, close ----

    async def trim(self, offset: int) -> None:
        """Trim all records up to and including `offset`; returns once the trim is durable.

        Args:
            offset: of a record, as `append` or `recover` gave it. At or below an
                earlier trim it does nothing. The block that holds `offset` stays in use until a
                later block or all blocks are trimmed: recovery starts there.
        Raises:
            BadSetting: that record is not durable yet.
            WalFailed: a write failed.
            Closed: not recovered yet, or closed.
        """
        self._check_usable()
        if offset >= self._window.start:
            raise BadSetting(
                f"{self._path}: trim at {offset}, but only what is below "
                f"{self._window.start} is durable"
            )
        if offset > self._headers.wanted.trim:
            is_all = offset >= self._last_offset and self._window.start == self._space.next
            await self._write_header(
                trim=offset,
                # A scan has to begin at a header, and the header of a batch stands before its
                # records.
                scan=self._window.start if is_all else self._batches.header_of(offset),
                durable=self._known_durable,
            )
        elif offset > self._headers.durable.trim:
            await self._write_header()

    async def close(self) -> None:
        """Write appended records, mark the end as graceful, close. Safe to call twice.

        It raises no error of a failed write, earlier or now: `failure` has it.
        """
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closed = self._loop.create_future()
        try:
            if self._recovery is not None:
                await self.finish()
        finally:
            await self._device.close()
            if self._current or self._pending or self._writing:
                self._fail(Closed("closed before all was written"))  # the wait was cancelled
            self._closed.set_result(None)

    async def finish(self) -> None:
        self._device.stop_waiting()
        self._drained = self._loop.create_future()
        self._pump()
        if self._failure is None:
            await self._drained
        if self._failure is None:
            with contextlib.suppress(WalFailed):  # `_fail` has logged it
                await self._write_header(graceful=True, durable=self._known_durable)

    async def _write_header(self, **changes: Any) -> None:
        try:
            await self._headers.write(**changes)
        except (OSError, Closed) as error:
            assert self._failure is not None
            raise self._failure from error

    def _on_header_durable(self, header: WalHeader) -> None:
        if self._recovery is not None:  # else `_open_ring` takes it from there
            self._window.length = header.window
            self._space.on_trimmed(header.scan)
