"""The ring WAL's rules: where a record goes, what may be written, what a scan concludes.

Three small machines over logical offsets, which only grow; what stands on disk
and how it is read is the shell's.

- `RingSpace` gives out offsets. A block never crosses the end of a lap; a tail too
  short is skipped by padding. Full is judged against what is *durably* trimmed.
- `WriteWindow` bounds how far writes may run ahead of the last durable offset. Its
  length is durable before it is used, because recovery looks just that far: a
  window that grew only in memory, then a crash, would hide acknowledged records
  behind a hole (a block lost, the next one landed).
- `WalScan` walks what a crash left and decides when nothing more can come, where
  writing goes on, which ranges never happened and which are damaged.

How a scan goes on past a bad place:

- No record header: to the next unit (4 KiB). Only where a record must have stood
  does this open a hole; a block's zero tail is jumped, because the last record of
  a block says so. S3Stream guesses from alignment and so misses a record lost out
  of the end of a block.
- A good header with a bad body: its length is right, so the next record is where
  it says. S3Stream gives up the rest of that block; we need not.
- A good header of a later lap: this place was trimmed and written again after the
  header slot that we hold, so all before it is dead (our slot is the older one,
  because the newer was damaged). It is no sign of the end.
- The end: one window past the last place that is known to have been written, and the unit
  behind it. A block that begins just there was let in when all before it was durable, and
  may be the only one that says so: of a block as long as the window, lost before it.

What is recovered stays recoverable. Writing resumes past every record header that
was found, intact body or not, so no offset is ever given out twice, and the resume
offset goes into the WAL's header: the next scan reads on to there whatever holes
lie before it. A recovery's holes are told in a RESUME record in front of whatever
it appends, so that they stay holes and are not called damage once later records
show that all before them was durable.

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
    """An offset past all that can stand in a ring, where nothing of it was read.

    Writes reach at most a lap past what was durably trimmed, and of the two header
    slots that told of trims the newer may be the one that is lost: the trim it told of
    lay at most a lap past the older one's.

    Args:
        ring: bytes of the ring.
        known: the highest offset that the header slot in hand knows of.
    """
    return align_up(known) + 2 * ring


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a record goes.

    Attributes:
        offset: its logical offset.
        opens_block: whether it starts a block, so that the one before is sealed.
        padding: what is skipped before it, a lap's tail; None for nothing.
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
        reserve: bytes that only a caller who says so may use.
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
        """Bytes between what is durably trimmed and what was given out."""
        return self.next - self._floor

    @property
    def record_max(self) -> int:
        """Bytes of the largest record, with its header, that an empty ring always takes.

        Half the ring: a tail that is just too short is skipped, and then the record
        needs its own length again.
        """
        return align_down((self.ring - self.reserve) // 2)

    def extend(self, size: int) -> int | None:
        """Give `size` bytes a place in the open block; None, and nothing changed, if it is full.

        What `place` would say, for most records in one comparison.
        """
        offset = self._next
        if offset + size > self._block_stop:
            return None
        self._next = offset + size
        return offset

    def place(self, size: int, *, use_reserve: bool = False) -> Placement | None:
        """Give `size` bytes (header and body) a place; None, and nothing changed, if full."""
        placement = self._find(size)
        stop = align_up(placement.offset + size)
        if stop > self._room_stop(use_reserve):
            return None
        if placement.opens_block:
            self._block = placement.offset
        self._next = placement.offset + size
        self._limit_block()
        return placement

    def takes(self, sizes: Sequence[int], *, use_reserve: bool = False) -> bool:
        """Whether `place` would find room for all of these, one after the other."""
        trial = copy.copy(self)
        return all(trial.place(size, use_reserve=use_reserve) is not None for size in sizes)

    def _find(self, size: int) -> Placement:
        if self._block is not None:
            stop = self._next + size
            if stop - self._block <= self._block_soft and align_up(stop) <= self._lap_stop():
                return Placement(self._next, opens_block=False)
        start = self.next
        tail = self.ring - start % self.ring
        if tail >= align_up(size):
            return Placement(start, opens_block=True)
        return Placement(start + tail, opens_block=True, padding=(start, start + tail))

    def _room_stop(self, use_reserve: bool) -> int:
        """Where records must end: a lap past what is trimmed, less the reserve."""
        return self._floor + self.ring - (0 if use_reserve else self.reserve)

    def _lap_stop(self) -> int:
        """Where the open block's lap ends."""
        assert self._block is not None
        return self._block + self.ring - self._block % self.ring

    def _limit_block(self) -> None:
        """Work out how far the open block may be extended without being asked again."""
        if self._block is None:
            self._block_stop = 0
            return
        room = align_down(self._room_stop(use_reserve=False))
        self._block_stop = min(self._block + self._block_soft, self._lap_stop(), room)

    def seal(self) -> None:
        """End the open block, if there is one: the next record starts another."""
        self._next = align_up(self._next)
        self._block = None
        self._limit_block()

    def on_trimmed(self, floor: int) -> None:
        """What is below `floor` is durably trimmed."""
        assert floor <= self.next, (floor, self.next)
        self._floor = max(self._floor, align_down(floor))
        self._limit_block()


class WriteWindow:
    """How far past the last durable offset a write may reach.

    Args:
        start: all below is durable.
        length: bytes past `start` that recovery would look at, as the WAL's header says.
        step: bytes to grow by at once, so that growth is rare.
        limit: bytes it never exceeds; at least those of the largest block.
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

        None where the limit forbids it: then it waits until `start` moves on.
        """
        needed = stop - self.start
        if needed > self._limit:
            return None
        return min(align_up(needed + self._step), self._limit)


@dataclass(frozen=True, slots=True)
class ScanVerdict:
    """What a scan concluded.

    Attributes:
        resume: where writing goes on, a multiple of UNIT.
        scan: where the next scan may start; all before is dead.
        holes: ranges that never happened and that no RESUME record tells of yet.
        damage: ranges that held durable records which cannot be read any more.
        incarnation: the highest one seen.
        durable: all below was known to be durable before the crash.
    """

    resume: int
    scan: int
    holes: tuple[Range, ...]
    damage: tuple[Range, ...]
    incarnation: int
    durable: int


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """What records back to back must keep to, as of now.

    Attributes:
        resume: from here on only records of `least` or later count.
        least: an incarnation.
        seen: of the last record; it does not fall from one to the next.
        end: nothing is looked at from here on; None where each record moves the end.
    """

    resume: int
    least: int
    seen: int
    end: int | None


class WalScan:
    """Walks a ring after a crash: `cursor` is where to look next, until `is_over`.

    Args:
        ring: bytes of the ring.
        scan: where a record starts from which on all is wanted.
        durable, resume, window, incarnation: as in the WAL's header.
        is_graceful: nothing was written after the header; `durable` is the end.

    Attributes:
        cursor: where to look next.
        end: as far as is known now, nothing that was written can lie at or past it. It
            moves on with what is found.
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
        """Whether nothing that was written can lie at or past `cursor`."""
        return self.cursor >= self.end

    def admits(self, offset: int, incarnation: int) -> bool:
        """Whether a good record header at `cursor` is the one that belongs there.

        Not one of an earlier lap; and, from the resume offset on, not one of an
        earlier incarnation.
        """
        if offset != self.cursor or incarnation < self._incarnation_seen:
            return False
        return offset < self._resume or incarnation >= self._incarnation_least

    def is_later_lap(self, offset: int) -> bool:
        """Whether a good header at `cursor` shows that its place was written over."""
        return offset > self.cursor and (offset - self.cursor) % self._ring == 0

    def on_record(self, stop: int, durable: int, incarnation: int, is_last: bool) -> None:
        """An admitted header and its body are good. Called once a record: no call within."""
        if self._hole_start is not None:
            self._close_hole(self.cursor)
        if durable > self._durable:
            self._durable = durable
        self._incarnation_seen = incarnation
        cursor = -(-stop // UNIT) * UNIT if is_last else stop
        self.cursor = self._reached = cursor
        # No record knows of durable offsets past its own, so `durable` moves no end.
        if cursor + self._look_ahead > self.end:
            self.end = cursor + self._look_ahead

    def on_run(self, cursor: int, durable: int, incarnation: int) -> None:
        """What `on_record` comes to for records back to back, all admitted and good.

        Args:
            cursor: where the next record would stand.
            durable: the highest that one of them knows.
            incarnation: of the last.
        """
        self.on_record(cursor, durable, incarnation, False)

    def limits(self) -> ScanLimits:
        """What `admits` goes by, for whoever looks at many records at once."""
        return ScanLimits(
            self._resume,
            self._incarnation_least,
            self._incarnation_seen,
            None if self._look_ahead else self.end,
        )

    def on_bad_body(self, stop: int, durable: int, incarnation: int, is_last: bool) -> None:
        """An admitted header is good, its body is not."""
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
        self._holes.clear()
        stop = self.cursor + size
        self.cursor = self._reached = self._scan = align_up(stop) if is_last else stop
        self.end = max(self.end, self.cursor + self._look_ahead)

    def on_holes_told(self, holes: Sequence[Range]) -> None:
        """A RESUME record tells of holes that an earlier recovery went past."""
        self._told_holes.extend(holes)

    def verdict(self) -> ScanVerdict:
        """What it all means; call it once, when `is_over`."""
        resume = align_up(max(self._reached, self._resume, self._durable))
        # Also what a torn block lacks at its end, behind its last good record.
        self._close_hole(resume)
        untold = _subtract(self._holes, self._told_holes)
        return ScanVerdict(
            resume=resume,
            # More than a lap back was written over, whatever an older slot says of trims.
            scan=max(self._scan, resume - self._ring),
            holes=_clip(untold, self._durable, resume),
            damage=_clip(untold, 0, self._durable),
            incarnation=max(self._incarnation_least, self._incarnation_seen),
            durable=self._durable,
        )

    def _close_hole(self, stop: int) -> None:
        if self._hole_start is not None and self._hole_start < stop:
            self._holes.append((self._hole_start, stop))
        self._hole_start = None


LOST_RANGES_MAX = 64
"""Lost ranges that are told apart; more join to one, so that no number of bad starts fills the
row that they stand in. That there is one is what counts; where is for a person to read."""


def united(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """What lies in any of `ranges`, ascending and apart; all between them too if they are many."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    if len(joined) > LOST_RANGES_MAX:
        joined = [(joined[0][0], joined[-1][1])]
    return tuple(joined)


def _clip(ranges: Sequence[Range], low: int, high: int) -> tuple[Range, ...]:
    """What of `ranges` lies in `[low, high)`."""
    clipped = ((max(start, low), min(stop, high)) for start, stop in ranges)
    return tuple((start, stop) for start, stop in clipped if start < stop)


def _subtract(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """What of `ranges` lies in none of `taken`."""
    left = list(ranges)
    for low, high in taken:
        left = [*_clip(left, 0, low), *_clip(left, high, 1 << 63)]
    return sorted(left)
