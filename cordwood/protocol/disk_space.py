"""The rule for when a storage node stops taking records for lack of disk space, and resumes.

Below a low mark the node is read-only: it refuses all stores of sequencers, even of blocks that
are numbered already. It still writes seals and the stores of recoveries, and it serves reads. It
takes records again above a higher mark; two marks keep a disk at the limit from switching the node
on and off. Both marks are bytes, or a share of a small disk, whichever is less.

Blocks that are in the WAL and not in LogsDB count as written to the disk: a node that took more
than fits could never flush it, so its WAL could never be trimmed. Between two measurements of the
disk, `DiskRoom` subtracts what flushes have written.

Source: docs/sources/logdevice.md 2.13 ("Disk"); docs/sources/bookkeeper.md (c), "Read-only".
"""

from __future__ import annotations

from cordwood.nodes import FILL_MAX

LOW_SHARE = 0.05
BACK_SHARE = 0.1
"""Shares of the whole disk. They apply to a small disk, of which the bytes would be most."""

LOW_BYTES_MIN = 8 << 20
"""Free bytes of a very small disk, at most a quarter of it. Dropping a partition first writes to
LogsDB's metadata, and the files of a new partition also need space."""

FILL_SHARES = (0.5, 0.25, 0.1)
"""A node is a level fuller below each of these free shares of its disk. Each level halves its share
of new ledgers. A few levels even disks out; more levels would write metadata all the time."""

assert len(FILL_SHARES) == FILL_MAX

FILL_BACK_SHARE = 0.05
"""The share by which the free space must grow before the disk counts as less full again: a trim of
some partitions."""

FLUSH_GROWTH = 1.1
"""Bytes that a flush writes for each byte of blocks, index entries and file headers included."""


def to_write(unflushed_bytes: int) -> int:
    """The disk space that blocks take after a flush."""
    return int(unflushed_bytes * FLUSH_GROWTH)


class DiskRoom:
    """The bytes that a disk still takes until the next measurement."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._reserve = 0

    def on_free(self, free_bytes: int, reserve_bytes: int) -> None:
        """The disk was measured. First waves may not use the reserve; no store may use the lower
        half of it."""
        self._left, self._reserve = free_bytes, reserve_bytes

    def on_flushed(self, size: int) -> None:
        """A flush has written blocks of `size` bytes since the last measurement."""
        if self._left is not None:
            self._left -= to_write(size)

    def first_wave_space(self, unflushed_bytes: int, most: int) -> int:
        """Bytes that first waves may still use, `most` at most."""
        if self._left is None or not self._reserve:
            return most
        left = self._left - self._reserve - to_write(unflushed_bytes)
        return max(0, min(most, int(left / FLUSH_GROWTH)))

    def takes(self, unflushed_bytes: int) -> bool:
        """Whether `unflushed_bytes` of numbered blocks may wait for a flush in total. Half of the
        reserve is left then."""
        left = self._left
        return left is not None and left - to_write(unflushed_bytes) >= self._reserve // 2

    def flush_fits(self, size: int) -> bool:
        """Whether a flush of `size` bytes of blocks fits. Small flushes always do, so that they
        are tried."""
        return self._left is None or self._left >= to_write(size) or size < LOW_BYTES_MIN // 4


class DiskSpace:
    """See the module.

    Attributes:
        is_low: whether the node is read-only.
    """

    def __init__(self, low_bytes: int, back_bytes: int) -> None:
        """
        Args:
            low_bytes, back_bytes: the marks of a large disk; `low_bytes` 0 means no mark.
        """
        self.is_low = False
        self._low_bytes = low_bytes
        self._back_bytes = max(low_bytes, back_bytes)

    def marks(self, total_bytes: int) -> tuple[int, int]:
        """The low and the high mark on a disk of this size."""
        least = min(LOW_BYTES_MIN, total_bytes // 4)
        low = min(self._low_bytes, max(least, int(total_bytes * LOW_SHARE)))
        return low, max(low, min(self._back_bytes, int(total_bytes * BACK_SHARE)))

    def on_free(self, free_bytes: int, total_bytes: int) -> bool:
        """The disk was measured; whether the node became read-only, or writable again."""
        low, back = self.marks(total_bytes)
        was = self.is_low
        self.is_low = free_bytes < low or (was and free_bytes < back)
        return self.is_low != was


class DiskFill:
    """How full a disk is, in a few levels that do not flutter.

    Attributes:
        level: 0 for a disk of which half or more is free, up to `len(FILL_SHARES)`.
    """

    def __init__(self) -> None:
        self.level = 0

    def on_free(self, free_bytes: int, total_bytes: int) -> bool:
        """The disk was measured; whether the level changed."""
        share = free_bytes / total_bytes if total_bytes > 0 else 1.0
        least = sum(share < each for each in FILL_SHARES)
        most = sum(share < each + FILL_BACK_SHARE for each in FILL_SHARES)
        before, self.level = self.level, max(least, min(self.level, most))
        return self.level != before
