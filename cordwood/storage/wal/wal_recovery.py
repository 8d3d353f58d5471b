"""Read a ring WAL back: do the reads that `protocol.wal_ring.WalScan` asks for, and act on its
verdicts.

Nothing here writes, so a crash during recovery changes nothing. A sector that the machine cannot
read ends recovery with its `OSError`: if it counted as a hole, records would vanish now and come
back when the disk can read them again.

Source: docs/sources/s3stream.md (a), "Recovery" (a 1 MiB read buffer took 1 GiB from
92.7 s to 15.3 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from crc32c import crc32c

from cordwood.errors import TornBlock
from cordwood.layout.wal_batch import read_batch
from cordwood.layout.wal_block import (
    WAL_RECORD_HEADER_BYTES,
    WalHeader,
    WalKind,
    WalRecord,
    align_down,
    unpack_holes,
    unpack_wal_record,
    wal_position,
)
from cordwood.layout.wal_run import RecordRun, RunReader, data_starts
from cordwood.protocol.wal_ring import Range, ScanVerdict, WalScan
from cordwood.storage.wal.wal_runs import take_run

logger = logging.getLogger(__name__)

READ_BUFFER_BYTES = 1 << 20
"""One read: a thread's hand-off costs 50 µs, as much as reading 64 KiB does."""

READ_TIMEOUT_S = 60.0
"""A read takes a millisecond; disks that retry a bad sector take half a minute."""


Found = tuple[WalRecord, bytes | None]
"""A record that belongs where it stands, and its body: None if the body is damaged."""

RUN_RECORDS_MIN = 16
"""Fewer records back to back are quicker looked at one by one: numpy takes 100 µs for a run."""

OnRead = Callable[[], None]
"""Called each time that a piece of the ring was read."""

PROGRESS_LOG_S = 5.0
"""A start that takes longer than this logs its progress, and logs it again at this interval.
S3Stream's users took a slow recovery for a hang (#573)."""


@dataclass(frozen=True, slots=True)
class WalProgress:
    """How far a recovery is.

    Attributes:
        scanned: bytes of the ring gone through.
        to_scan: bytes to go through in all, as far as is known now: more records may
            still be found, and one window past the last of them is looked at.
        records, bytes: live records so far, and the bytes of their bodies.
    """

    scanned: int
    to_scan: int
    records: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.scanned >> 20:,} of {self.to_scan >> 20:,} MiB gone through, "
            f"{self.records:,} live records of {self.bytes >> 20:,} MiB so far"
        )


OnProgress = Callable[[WalProgress], None]


@dataclass(frozen=True, slots=True)
class WalRecovery:
    """The result of a recovery.

    Attributes:
        records, bytes: live data records, and the bytes of their bodies.
        was_graceful: the WAL was closed, not cut off.
        holes: ranges of offsets that were never acknowledged and are passed over now.
        damage: ranges that held durable records which cannot be read any more. The
            node must not answer "absent" for what may have been in them.
        resume: offset where writing goes on.
        incarnation: of this start, 1 for the first.
    """

    records: int
    bytes: int
    was_graceful: bool
    holes: tuple[Range, ...]
    damage: tuple[Range, ...]
    resume: int
    incarnation: int

    @classmethod
    def of(
        cls, verdict: ScanVerdict, records: int, size: int, *, was_graceful: bool
    ) -> WalRecovery:
        """The consequences of a scan's verdict for the start."""
        return cls(
            records,
            size,
            was_graceful,
            verdict.holes,
            verdict.damage,
            verdict.resume,
            verdict.incarnation + 1,
        )


def start_scan(header: WalHeader) -> WalScan:
    """A scan of the WAL that `header` describes."""
    return WalScan(
        ring=header.ring,
        scan=header.scan,
        durable=header.durable,
        resume=header.resume,
        window=header.window,
        incarnation=header.incarnation,
        is_graceful=header.graceful,
    )


class LiveRecords:
    """Go once through a WAL's records; yields the live records, and counts the rest.

    Attributes:
        scan: asks and concludes; its verdict is due when all came out.
        records, bytes: live records so far, and the bytes of their bodies.
        last_offset: of the last live record so far, -1 before the first.
        batches: offsets `[start, stop)` of each batch found.
    """

    def __init__(
        self, file: ReadableFile, path: str, header: WalHeader, on_progress: OnProgress | None
    ) -> None:
        self._file = file
        self._path = path
        self._header = header
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._told_at = self._loop.time()
        self.scan = start_scan(header)
        self.records = 0
        self.bytes = 0
        self.last_offset = -1
        self.batches: list[Range] = []

    async def runs(self) -> AsyncGenerator[RecordRun, None]:
        """The live records in order; raises as `scan_records`."""
        trim = self._header.trim
        async with contextlib.aclosing(
            _scan(self._file, self._header, self.scan, self._on_read, in_runs=True)
        ) as scanning:
            async for found in scanning:
                for each in found:
                    run = self._run(each)
                    # A block that holds one live record comes back as a whole. Its trimmed records
                    # are left out here.
                    if run is not None and len(run := run.above(trim)):
                        self.records += len(run)
                        self.bytes += run.bytes
                        self.last_offset = int(run.offsets[-1])
                        yield run

    def _run(self, found: Found | RecordRun) -> RecordRun | None:
        """The found records as a run; None where it holds no records."""
        if isinstance(found, RecordRun):
            return found
        record, body = found
        run = records_of(record, body)
        if run is not None and record.kind is WalKind.BATCH:
            self.batches.append((record.offset, record.offset + len(run)))
        return run

    def _on_read(self) -> None:
        scan, start = self.scan, self._header.scan
        progress = WalProgress(scan.cursor - start, scan.end - start, self.records, self.bytes)
        if self._on_progress is not None:
            self._on_progress(progress)
        if self._loop.time() - self._told_at >= PROGRESS_LOG_S:
            self._told_at = self._loop.time()
            logger.info("%s: recovering, %s", self._path, progress)


def records_of(record: WalRecord, body: bytes | None) -> RecordRun | None:
    """The data records under a header; None where it has none, or their bytes are damaged.

    Raises:
        Malformed: a batch that no writer of ours makes.
    """
    if body is None:
        return None
    if record.kind is WalKind.BATCH:
        return read_batch(body, record.offset)
    return RecordRun.of_one(record.offset, body) if record.kind is WalKind.DATA else None


async def scan_records(
    file: ReadableFile, header: WalHeader, scan: WalScan, on_read: OnRead
) -> AsyncGenerator[list[Found], None]:
    """Drive `scan` to its end, yielding every record that belongs there, in order, in lists.

    It includes padding and RESUME records, and records with damaged bodies.

    Raises:
        OSError: the machine could not read some part.
        TornBlock: the file ends inside the ring.
    """
    async with contextlib.aclosing(_scan(file, header, scan, on_read, in_runs=False)) as scanning:
        async for found in scanning:
            yield [each for each in found if not isinstance(each, RecordRun)]


async def _scan(
    file: ReadableFile, header: WalHeader, scan: WalScan, on_read: OnRead, *, in_runs: bool
) -> AsyncGenerator[Sequence[Found | RecordRun], None]:
    """As `scan_records`; `in_runs` gives good data records back to back as runs."""
    needed, salt = WAL_RECORD_HEADER_BYTES, header.salt
    runs = RunReader(salt) if in_runs else None
    async with contextlib.aclosing(RingReader(file, header.ring)) as reader:
        while not scan.is_over:
            piece = await reader.load(scan.cursor, needed, scan.end)
            on_read()
            found: list[Found | RecordRun] = []
            if runs is None:
                needed = _scan_piece(piece, scan, salt, found, scan.cursor + header.ring)
            else:
                needed = _scan_runs(piece, scan, salt, runs, found)
            if found:
                yield found


def _scan_runs(
    piece: Piece, scan: WalScan, salt: int, runs: RunReader, found: list[Found | RecordRun]
) -> int:
    """As `_scan_piece`, but many at a time as long as all is well with them.

    Suspicious records are checked one by one, up to the apparent end: a piece full of damage is not
    scanned again for each bad record.
    """
    while (cursor := scan.cursor) < scan.end:
        starts = data_starts(piece.data, cursor - piece.start, piece.start)
        if len(starts) >= RUN_RECORDS_MIN:
            run = take_run(piece.data, piece.start, starts, scan, runs)
            if run is not None:
                found.append(run)
                continue
        until = piece.start + starts[-1] + 1 if starts else cursor + 1
        needed = _scan_piece(piece, scan, salt, found, until)
        if scan.cursor < min(until, scan.end):
            return needed
    return WAL_RECORD_HEADER_BYTES


def _scan_piece(
    piece: Piece, scan: WalScan, salt: int, found: list[Found | RecordRun], until: int
) -> int:
    """Scan the bytes in memory; returns the number of bytes that the next step needs from the
    cursor on.

    One plain loop, because a start runs it once for each record that stands alone: 1.8 µs
    where calls for each step took 2.8.

    Args:
        until: it also ends when the cursor has come so far.
    """
    start, data, lap_stop = piece
    stop = start + len(data)
    while (cursor := scan.cursor) < scan.end and cursor < until:
        body_at = cursor + WAL_RECORD_HEADER_BYTES
        if body_at > stop:
            if not cursor < lap_stop < body_at:
                return WAL_RECORD_HEADER_BYTES
            scan.on_nothing()  # no header fits into the rest of this lap
            continue
        record = unpack_wal_record(data, cursor - start, salt)
        if record is None:
            scan.on_nothing()
            continue
        kind, length, body_crc, offset, durable, incarnation, is_last = record
        body_stop = body_at + length
        if body_stop > lap_stop:
            scan.on_nothing()
        elif offset != cursor and scan.is_later_lap(offset):
            scan.on_later_lap(WAL_RECORD_HEADER_BYTES + length, is_last)
        elif not scan.admits(offset, incarnation):
            scan.on_nothing()
        elif kind is WalKind.PADDING:
            scan.on_record(body_stop, durable, incarnation, is_last)
            found.append((record, b""))
        # The header is good, so the missing bytes of the body are worth another read.
        elif body_stop > stop:
            return body_stop - cursor
        else:
            body = bytes(data[body_at - start : body_stop - start])
            if crc32c(body) != body_crc:
                scan.on_bad_body(body_stop, durable, incarnation, is_last)
                found.append((record, None))
                continue
            if kind is WalKind.RESUME:
                scan.on_holes_told(unpack_holes(body))
            scan.on_record(body_stop, durable, incarnation, is_last)
            found.append((record, body))
    return WAL_RECORD_HEADER_BYTES


class ReadableFile(Protocol):
    """A scan's view of a file; a `DirectFile` fits."""

    @property
    def size(self) -> int:
        """Bytes."""

    async def read(self, offset: int, length: int) -> bytes:
        """As `DirectFile.read`."""


class Piece(NamedTuple):
    """A run of the ring in memory.

    Attributes:
        start: logical offset of `data[0]`.
        data: what stands there, all of one lap.
        lap_stop: where that lap ends.
    """

    start: int
    data: memoryview
    lap_stop: int


class RingReader:
    """Reads by logical offset, forwards, one piece ahead of its caller.

    So disk reads and checksums overlap. It does not read ahead past the known end of the scan.
    Close it with `aclose`: a read may be under way.
    """

    def __init__(self, file: ReadableFile, ring: int) -> None:
        self._file = file
        self._ring = ring
        # Pieces back to back; more than one only while a record lies across their seam.
        self._pieces: deque[Piece] = deque()
        self._stop = 0
        self._ahead: asyncio.Task[bytes] | None = None

    async def load(self, offset: int, needed: int, end: int) -> Piece:
        """A piece that holds `needed` bytes from logical `offset` on, all in one lap.

        Args:
            end: nothing is wanted past it, as far as is known; bounds the reading ahead.
        Raises:
            OSError: the machine could not read, or not within READ_TIMEOUT_S.
            TornBlock: the file ends inside the ring.
        """
        pieces = self._pieces
        while pieces and pieces[0].start + len(pieces[0].data) <= offset:
            pieces.popleft()
        # The scan jumped, over damage or to a later lap: the pieces read ahead are of no use.
        if offset < pieces[0].start if pieces else align_down(offset) != self._stop:
            await self.aclose()
            pieces.clear()
            self._stop = align_down(offset)
        while self._stop < offset + needed:
            pieces.append(await self._next(end))
        if offset + needed <= pieces[0].start + len(pieces[0].data):
            return pieces[0]
        assert offset + needed <= pieces[0].lap_stop, (offset, needed)
        # Only the record itself: joining whole pieces would copy all bytes.
        cuts = (
            piece.data[max(0, offset - piece.start) : max(0, offset + needed - piece.start)]
            for piece in pieces
        )
        return Piece(offset, memoryview(b"".join(cuts)), pieces[0].lap_stop)

    async def _next(self, end: int) -> Piece:
        start = self._stop
        data = await (self._ahead or self._read(start))
        self._ahead = None
        self._stop += len(data)
        # Past the apparent end a read would be wasted, unless a record moves the end.
        if self._stop < end:
            self._ahead = asyncio.ensure_future(self._read(self._stop))
            await asyncio.sleep(0)  # so that it is under way before this piece is looked at
        return Piece(start, memoryview(data), start + self._ring - start % self._ring)

    async def _read(self, start: int) -> bytes:
        wanted = min(READ_BUFFER_BYTES, self._ring - start % self._ring)
        async with asyncio.timeout(READ_TIMEOUT_S):
            data = await self._file.read(wal_position(start, self._ring), wanted)
        if len(data) != wanted:
            raise TornBlock(f"a WAL's file ends inside its ring, {wanted - len(data)} bytes short")
        return data

    async def aclose(self) -> None:
        """Drop the read-ahead."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            # No caller asked for it, so its error goes to none.
            with contextlib.suppress(asyncio.CancelledError, OSError, TornBlock):
                await ahead
