"""Inspects a WAL from outside: its slots, its records, and its faults.

Nothing is written, so the WAL may belong to a running node or to a dead node. A running node goes
on writing meanwhile: the bytes at the end of a pass may be a write under way, and the bytes at its
start may be overwritten. So a hole or damage counts only if it is found twice, by two passes that
each begin at the header of their own time.

Source: docs/sources/s3stream.md (c) (RecoverTool).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from cordwood.errors import CordwoodError
from cordwood.layout.wal_block import WalHeader, WalKind, WalRecord, align_up, wal_position
from cordwood.layout.wal_run import RecordRun
from cordwood.protocol.wal_ring import Range, WalScan
from cordwood.storage.wal.wal_file import newest_header, read_slots
from cordwood.storage.wal.wal_recovery import ReadableFile, records_of, scan_records, start_scan

DATA_KINDS = (WalKind.DATA, WalKind.BATCH)
NO_RECORDS = RecordRun.of_one(0, b"").above(0)

PASSES = 2
"""A third pass would find the same faults: durable damage stays."""


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """A record that belongs where it stands.

    Attributes:
        record: its header.
        position: its place in the file.
        is_live: it holds untrimmed data.
        body: its contents, None if damaged.
        live: its untrimmed data records.
    """

    record: WalRecord
    position: int
    is_live: bool
    body: bytes | None
    live: RecordRun


@dataclass(frozen=True, slots=True)
class NothingThere:
    """Logical offsets `[start, stop)` where a record should begin and none does."""

    start: int
    stop: int


Seen = SeenRecord | NothingThere


@dataclass(frozen=True, slots=True)
class WalVerdict:
    """The result of a check.

    Attributes:
        header: the valid header at the end.
        bad_slots: by number, why a header slot is not valid. One valid slot is enough to open the
            WAL.
        records, bytes: live data records, and the bytes of their bodies.
        start, stop: the checked logical offsets.
        holes: never acknowledged; writes under way in a used WAL, or remains of a crash. No fault.
        damage: ranges that held durable records which cannot be read.
        missing_bytes: of the ring, that the file lacks.
    """

    header: WalHeader
    bad_slots: tuple[tuple[int, str], ...]
    records: int
    bytes: int
    start: int
    stop: int
    holes: tuple[Range, ...]
    damage: tuple[Range, ...]
    missing_bytes: int

    @property
    def is_well(self) -> bool:
        """Whether everything that was acknowledged and not trimmed can be read."""
        return not self.damage and not self.missing_bytes


class WalView:
    """A WAL opened for looking. Made by `WalView.open`.

    Attributes:
        slots: the header slots at the opening, or why they are not valid.
        header: the valid one.
    """

    def __init__(
        self,
        file: ReadableFile,
        path: str,
        slots: tuple[WalHeader | CordwoodError, ...],
        header: WalHeader,
    ) -> None:
        self.slots = slots
        self.header = header
        self._file = file
        self._path = path

    @classmethod
    async def open(cls, file: ReadableFile, path: str) -> WalView:
        """Read the slots.

        Raises:
            WalBlank: it holds nothing yet.
            Malformed: it holds something, but neither header can be read.
        """
        slots = await read_slots(file)
        return cls(file, path, slots, await newest_header(file, path, slots))

    @property
    def bad_slots(self) -> tuple[tuple[int, str], ...]:
        """Numbers of invalid slots, and why."""
        return tuple(
            (number, str(slot))
            for number, slot in enumerate(self.slots)
            if isinstance(slot, CordwoodError)
        )

    async def records(self, start: int | None = None) -> AsyncGenerator[Seen, None]:
        """What stands in the ring, in order, from logical offset `start` or the scan point.

        Raises:
            OSError: the machine could not read.
            TornBlock: the file ends inside the ring.
        """
        scan = start_scan(self.header) if start is None else _scan_from(self.header, start)
        expected = scan.cursor
        async with contextlib.aclosing(self._scan(self.header, scan)) as seen:
            async for each in seen:
                record = each.record
                if record.offset > expected:
                    yield NothingThere(expected, record.offset)
                expected = align_up(record.stop) if record.is_last else record.stop
                yield each

    async def check(self) -> WalVerdict:
        """Check all live records; see `WalVerdict`; raises as `records`."""
        verdict = await self._pass()
        for _ in range(PASSES - 1):
            if not (verdict.holes or verdict.damage):
                break
            again = await (await WalView.open(self._file, self._path))._pass()
            verdict = WalVerdict(
                again.header,
                again.bad_slots,
                again.records,
                again.bytes,
                again.start,
                again.stop,
                _common(verdict.holes, again.holes),
                _common(verdict.damage, again.damage),
                again.missing_bytes,
            )
        return verdict

    async def _pass(self) -> WalVerdict:
        header = self.header
        scan = start_scan(header)
        records = size = 0
        missing = max(0, header.capacity - self._file.size)
        if not missing:
            async with contextlib.aclosing(self._scan(header, scan)) as seen:
                async for each in seen:
                    live = each.live
                    records += len(live)
                    size += live.bytes
        found = scan.verdict()
        bad = (
            (n, str(slot)) for n, slot in enumerate(self.slots) if isinstance(slot, CordwoodError)
        )
        return WalVerdict(
            header, tuple(bad), records, size, header.scan, found.resume,
            found.holes, found.damage, missing,
        )  # fmt: skip

    async def _scan(self, header: WalHeader, scan: WalScan) -> AsyncGenerator[SeenRecord, None]:
        # A writer that is faster than the check would keep it going round the ring without an end.
        lap = scan.cursor + header.ring
        async with contextlib.aclosing(
            scan_records(self._file, header, scan, lambda: None)
        ) as scanning:
            async for found in scanning:
                for record, body in found:
                    position = wal_position(record.offset, header.ring)
                    held = records_of(record, body)
                    live = NO_RECORDS if held is None else held.above(header.trim)
                    is_live = len(live) > 0 or (
                        body is None and record.offset > header.trim and record.kind in DATA_KINDS
                    )
                    yield SeenRecord(record, position, is_live, body, live)
                if scan.cursor >= lap:
                    return


def _scan_from(header: WalHeader, start: int) -> WalScan:
    """A scan that begins elsewhere: before the scan point it finds records that were not
    overwritten yet."""
    return WalScan(
        ring=header.ring,
        scan=start,
        durable=header.durable,
        resume=header.resume,
        window=header.window,
        incarnation=header.incarnation,
        is_graceful=header.graceful,
    )


def _common(ranges: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """What lies in one of `ranges` and in one of `others`."""
    cuts = ((max(start, low), min(stop, high)) for start, stop in ranges for low, high in others)
    return tuple((start, stop) for start, stop in cuts if start < stop)
