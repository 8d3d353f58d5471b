"""The rules of the ring WAL: the place of a record, the limit of writes, and the verdict of a scan.

Three small state machines work on logical offsets, which only grow. `storage.wal` reads and writes
the disk.

- `RingSpace` gives out offsets. A block never crosses the end of a lap; padding fills a tail that
  is too short. The ring is full when the next record would pass the *durably* trimmed offset by
  more than a lap.
- `WriteWindow` limits how far writes may run ahead of the last durable offset. Its length is
  durable before it is used, because recovery looks exactly that far. If a window grew only in
  memory before a crash, a hole could hide acknowledged records (a block lost, the next one
  landed).
- `WalScan` walks the ring after a crash. It decides where the written part ends, where writing goes
  on, which ranges were never written, and which ranges are damaged.

How a scan continues at a bad place:

- No record header: it goes to the next unit (4 KiB). This opens a hole only where a record must
  have stood. The zero tail of a block is skipped, because the last record of a block is marked as
  last. S3Stream guesses from alignment, and so misses a record that was lost from the end of a
  block.
- A good header with a bad body: its length is right, so the next record stands after that length.
  S3Stream gives up the rest of that block.
- A good header of a later lap: the newer header slot was damaged, and the scan holds the older one.
  After that slot this place was trimmed and written again, so all before it is dead. It is no sign
  of the end.
- The end is one window past the last place that is known to be written, plus the unit after it. A
  block may begin exactly there, because all before it was durable. If a block as long as the window
  was lost before it, this block is the only sign of that.

Recovered records stay recoverable. Writing resumes past every record header that was found, with an
intact body or not, so no offset is given out twice. The resume offset goes into the WAL's header:
the next scan reads to that offset, past any holes before it. A recovery writes its holes into a
RESUME record before its first append. So they stay holes, and do not count as damage when later
records show that all before them was durable.

Source: docs/sources/s3stream.md (a), "Blocks", "Window", "Recovery", and "Traps"
2 to 7; docs/design.md §5.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

UNIT = 4096
"""Unit of place and length of every block."""

Range = tuple[int, int]
"""Logical offsets `[start, stop)`."""


def align_up(offset: int) -> int:
    """The first multiple of UNIT at or after `offset`."""
    return -(-offset // UNIT) * UNIT


def align_down(offset: int) -> int:
    """The last multiple of UNIT at or before `offset`."""
    return offset - offset % UNIT


def reset_offset(ring: int, known: int) -> int:
    """An offset past all that can stand in a ring, for a ring that was not read.

    Args:
        ring: bytes of the ring.
        known: the highest offset in the header slot that was read.
    """
    # Number: two laps. Writes reach at most a lap past the durable trim. The newer header slot may
    # be the lost one, and its trim lay at most a lap past the trim in the older slot.
    return align_up(known) + 2 * ring


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a record goes.

    Attributes:
        offset: its logical offset.
        opens_block: whether it starts a block, so that the block before is sealed.
        padding: the end of a lap that is skipped before it; None for no padding.
    """

    offset: int
    opens_block: bool
    padding: Range | None = None


class RingSpace:
    """Gives out logical offsets of a ring.

    Args:
        ring: bytes of the ring, a multiple of UNIT.
        start: first offset to give out, a multiple of UNIT.
        floor: bytes below it may be written over; at most `start`.
        reserve: bytes that only a caller with `use_reserve` may use.
        block_soft: bytes past which a block takes no further record.
    """

    def __init__(self, *, ring: int, start: int, floor: int, reserve: int, block_soft: int) -> None:
        self.ring = ring
        self.reserve = reserve
        self._block_soft = block_soft
        self._floor = align_down(floor)
        self._next = start
        self._block: int | None = None
        self._block_stop = 0

    @property
    def next(self) -> int:
        """Where the next block would start."""
        return align_up(self._next)

    @property
    def used(self) -> int:
        """Bytes between the durable trim and the last offset given out."""
        return self.next - self._floor

    @property
    def record_max(self) -> int:
        """Bytes of the largest record, with its header, that an empty ring always takes."""
        # Number: half the ring. A tail that is just too short is skipped, and then the record needs
        # its own length again.
        return align_down((self.ring - self.reserve) // 2)

    def extend(self, size: int) -> int | None:
        """Give `size` bytes a place in the open block; None, and no change, if it is full.

        A fast path of `place`: one comparison for most records.
        """
        offset = self._next
        if offset + size > self._block_stop:
            return None
        self._next = offset + size
        return offset

    def place(self, size: int, *, use_reserve: bool = False) -> Placement | None:
        """Give `size` bytes (header and body) a place; None, and no change, if the ring is full."""
        placement = self.find_placement(size)
        stop = align_up(placement.offset + size)
        # Writing on would overwrite a record that is not durably trimmed yet.
        if stop > self.space_stop(use_reserve):
            return None
        if placement.opens_block:
            self._block = placement.offset
        self._next = placement.offset + size
        self._limit_block()
        return placement

    def takes(self, sizes: Sequence[int], *, use_reserve: bool = False) -> bool:
        """Whether `place` would find space for all of these, one after the other."""
        trial = copy.copy(self)
        return all(trial.place(size, use_reserve=use_reserve) is not None for size in sizes)

    def find_placement(self, size: int) -> Placement:
        if self._block is not None:
            stop = self._next + size
            # A block never crosses the end of the ring: one write is one range of the file.
            if stop - self._block <= self._block_soft and align_up(stop) <= self._lap_stop():
                return Placement(self._next, opens_block=False)
        start = self.next
        tail = self.ring - start % self.ring
        if tail >= align_up(size):
            return Placement(start, opens_block=True)
        return Placement(start + tail, opens_block=True, padding=(start, start + tail))

    def space_stop(self, use_reserve: bool) -> int:
        """The limit for the end of a record: a lap past the trim, less the reserve."""
        return self._floor + self.ring - (0 if use_reserve else self.reserve)

    def _lap_stop(self) -> int:
        """The end of the open block's lap."""
        assert self._block is not None
        return self._block + self.ring - self._block % self.ring

    def _limit_block(self) -> None:
        """Compute the offset up to which `extend` may fill the open block."""
        if self._block is None:
            self._block_stop = 0
            return
        room = align_down(self.space_stop(use_reserve=False))
        self._block_stop = min(self._block + self._block_soft, self._lap_stop(), room)

    def seal(self) -> None:
        """End the open block, if there is one: the next record starts a new block."""
        self._next = align_up(self._next)
        self._block = None
        self._limit_block()

    def on_trimmed(self, floor: int) -> None:
        """Records below `floor` are durably trimmed."""
        assert floor <= self.next, (floor, self.next)
        self._floor = max(self._floor, align_down(floor))
        self._limit_block()


class WriteWindow:
    """The limit of writes past the last durable offset.

    Args:
        start: all records below it are durable.
        length: bytes past `start` that recovery would read, by the WAL's header.
        step: bytes by which the window grows at once, so that growth is rare.
        limit: the longest window; at least the largest block.
    """

    def __init__(self, *, start: int, length: int, step: int, limit: int) -> None:
        self.start = start
        self.length = length
        self._step = step
        self._limit = limit

    def admits(self, stop: int) -> bool:
        """Whether a block that ends at `stop` may be written now."""
        return stop <= self.start + self.length

    def wanted_length(self, stop: int) -> int | None:
        """The length to make durable before a block that ends at `stop` is written.

        None if the limit forbids it: then the block waits until `start` moves on.
        """
        needed = stop - self.start
        # A longer window would make every recovery read more, for one slow write.
        if needed > self._limit:
            return None
        return min(align_up(needed + self._step), self._limit)


@dataclass(frozen=True, slots=True)
class ScanVerdict:
    """The verdict of a scan.

    Attributes:
        resume: where writing goes on, a multiple of UNIT.
        scan: where the next scan may start; all records before it are dead.
        holes: ranges that were never written and that no RESUME record names yet.
        damage: ranges that held durable records, which cannot be read any more.
        incarnation: the highest one seen.
        durable: all records below it were known to be durable before the crash.
    """

    resume: int
    scan: int
    holes: tuple[Range, ...]
    damage: tuple[Range, ...]
    incarnation: int
    durable: int


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The limits that consecutive records must keep, as of now.

    Attributes:
        resume: from here on only records of incarnation `least` or later count.
        least: an incarnation.
        seen: the incarnation of the last record; it never falls from one record to the next.
        end: the scan stops here; None if each record moves the end.
    """

    resume: int
    least: int
    seen: int
    end: int | None


class WalScan:
    """Walks a ring after a crash: `cursor` is where to look next, until `is_over`.

    Args:
        ring: bytes of the ring.
        scan: the start of the first record that is wanted.
        durable, resume, window, incarnation: as in the WAL's header.
        is_graceful: whether the shutdown was clean: no write after the header; `durable` is the
            end.

    Attributes:
        cursor: where to look next.
        end: by present knowledge no written record can lie at or past it. Each record that is
            found may move it.
    """

    def __init__(
        self,
        *,
        ring: int,
        scan: int,
        durable: int,
        resume: int,
        window: int,
        incarnation: int,
        is_graceful: bool,
    ) -> None:
        self.cursor = scan
        self._ring = ring
        self._scan = scan
        self._durable = durable
        self._resume = resume
        self._incarnation_least = incarnation
        self._incarnation_seen = 0
        self._look_ahead = 0 if is_graceful else window + UNIT
        self._reached = scan
        self._hole_start: int | None = None
        self._holes: list[Range] = []
        self._told_holes: list[Range] = []
        self.end = max(scan, durable, resume) + self._look_ahead

    @property
    def is_over(self) -> bool:
        """Whether no written record can lie at or past `cursor`."""
        return self.cursor >= self.end

    def admits(self, offset: int, incarnation: int) -> bool:
        """Whether a good record header at `cursor` belongs there.

        A header of an earlier lap does not. From the resume offset on, a header of an earlier
        incarnation does not.
        """
        # A lower incarnation after a higher one is left from before the last start.
        if offset != self.cursor or incarnation < self._incarnation_seen:
            return False
        return offset < self._resume or incarnation >= self._incarnation_least

    def is_later_lap(self, offset: int) -> bool:
        """Whether a good header at `cursor` shows that a later lap wrote over this place."""
        return offset > self.cursor and (offset - self.cursor) % self._ring == 0

    def on_record(self, stop: int, durable: int, incarnation: int, is_last: bool) -> None:
        """An admitted header and its body are good."""
        # Called for each record, so it calls no other function on the usual path.
        if self._hole_start is not None:
            self._close_hole(self.cursor)
        if durable > self._durable:
            self._durable = durable
        self._incarnation_seen = incarnation
        cursor = -(-stop // UNIT) * UNIT if is_last else stop
        self.cursor = self._reached = cursor
        # `durable` never moves the end: no record knows a durable offset past its own.
        if cursor + self._look_ahead > self.end:
            self.end = cursor + self._look_ahead

    def on_run(self, cursor: int, durable: int, incarnation: int) -> None:
        """The effect of `on_record` for consecutive records, all admitted and good.

        Args:
            cursor: where the next record would stand.
            durable: the highest durable offset that any of the records knows.
            incarnation: of the last record.
        """
        self.on_record(cursor, durable, incarnation, False)

    def limits(self) -> ScanLimits:
        """The limits that `admits` checks, for a caller that checks many records at once."""
        return ScanLimits(
            self._resume,
            self._incarnation_least,
            self._incarnation_seen,
            None if self._look_ahead else self.end,
        )

    def on_bad_body(self, stop: int, durable: int, incarnation: int, is_last: bool) -> None:
        """An admitted header is good, but its body is damaged."""
        # The header tells the length, so the scan goes on after the record instead of unit by unit.
        hole_start = self.cursor if self._hole_start is None else self._hole_start
        self._hole_start = None
        self.on_record(stop, durable, incarnation, is_last)
        self._hole_start = hole_start

    def on_nothing(self) -> None:
        """No admitted header stands at `cursor`."""
        if self._hole_start is None:
            self._hole_start = self.cursor
        self.cursor = align_down(self.cursor) + UNIT

    def on_later_lap(self, size: int, is_last: bool) -> None:
        """A record of a later lap, `size` bytes with its header, stands at `cursor`."""
        self._hole_start = None
        # A later lap overwrote all before it, so records that were missing there are trimmed now.
        self._holes.clear()
        stop = self.cursor + size
        self.cursor = self._reached = self._scan = align_up(stop) if is_last else stop
        self.end = max(self.end, self.cursor + self._look_ahead)

    def on_holes_told(self, holes: Sequence[Range]) -> None:
        """A RESUME record names holes that an earlier recovery went past."""
        self._told_holes.extend(holes)

    def verdict(self) -> ScanVerdict:
        """The verdict; call it once, when `is_over`."""
        # Records up to `durable` were acknowledged, and no new record may take their place.
        resume = align_up(max(self._reached, self._resume, self._durable))
        # This includes the missing end of a torn block, after its last good record.
        self._close_hole(resume)
        untold = outside(self._holes, self._told_holes)
        return ScanVerdict(
            resume=resume,
            # Places more than a lap back were written over, even if an older slot's trim is lower.
            scan=max(self._scan, resume - self._ring),
            # Above `durable` nothing was acknowledged: a range without a record was never written.
            # Below it, it held records.
            holes=clipped(untold, self._durable, resume),
            damage=clipped(untold, 0, self._durable),
            incarnation=max(self._incarnation_least, self._incarnation_seen),
            durable=self._durable,
        )

    def _close_hole(self, stop: int) -> None:
        if self._hole_start is not None and self._hole_start < stop:
            self._holes.append((self._hole_start, stop))
        self._hole_start = None


LOST_RANGES_MAX = 64
"""The most lost ranges that are kept apart. If there are more, they become one range, so that their
row stays small after many bad starts. The code needs only to know that there is a lost range; a
person reads its place."""


def united(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The union of `ranges`, ascending and disjoint; one enclosing range if there are too many."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    if len(joined) > LOST_RANGES_MAX:
        joined = [(joined[0][0], joined[-1][1])]
    return tuple(joined)


def clipped(ranges: Sequence[Range], low: int, high: int) -> tuple[Range, ...]:
    """The parts of `ranges` in `[low, high)`."""
    cut = ((max(start, low), min(stop, high)) for start, stop in ranges)
    return tuple((start, stop) for start, stop in cut if start < stop)


def outside(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """The parts of `ranges` outside all of `taken`."""
    left = list(ranges)
    for low, high in taken:
        left = [*clipped(left, 0, low), *clipped(left, high, 1 << 63)]
    return sorted(left)
