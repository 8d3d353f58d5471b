"""When a storage node takes nothing new for want of disk, and when it does again: a rule.

Below a low-water mark it is read-only by itself: it takes nothing of sequencers, not even what
they numbered already; seals and recoveries are written, reads go on. It takes new records
again above a higher mark, so that a disk that hovers about one number does not turn the node
on and off. Both marks are bytes, or a share of a small disk, whichever is less.

What the WAL holds and LogsDB does not has still to be written to the disk, so it counts as if
it were there: a node that took more than fits could never flush it, and so never be trimmed.
Between two looks at the disk, what flushes have written since is taken off (`DiskRoom`).

Source: docs/sources/logdevice.md 2.13 ("Disk"); docs/sources/bookkeeper.md (c), "Read-only".
"""

from __future__ import annotations

LOW_SHARE = 0.05
BACK_SHARE = 0.1
"""Of the whole disk: what a small one is left free of, where the bytes would be most of it."""

LOW_BYTES_MIN = 8 << 20
"""Of a very small disk: a dropped partition is first noted in LogsDB's metadata, and the files
of a new one take some too; at most a quarter of the disk."""

FLUSH_GROWTH = 1.1
"""What a flush writes for each byte of blocks: index entries and file headers beside them."""


def to_write(unflushed_bytes: int) -> int:
    """What blocks take of the disk once they are flushed."""
    return int(unflushed_bytes * FLUSH_GROWTH)


class DiskRoom:
    """What a disk takes until it is looked at next."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._reserve = 0

    def on_free(self, free_bytes: int, reserve_bytes: int) -> None:
        """So much is free; the reserve is not for first waves, and half of it for no store."""
        self._left, self._reserve = free_bytes, reserve_bytes

    def on_flushed(self, size: int) -> None:
        """A flush has written blocks of `size` bytes since."""
        if self._left is not None:
            self._left -= to_write(size)

    def first_wave_room(self, unflushed_bytes: int, most: int) -> int:
        """Bytes left for first waves, `most` at most."""
        if self._left is None or not self._reserve:
            return most
        left = self._left - self._reserve - to_write(unflushed_bytes)
        return max(0, min(most, int(left / FLUSH_GROWTH)))

    def takes(self, unflushed_bytes: int) -> bool:
        """Whether so much may wait for a flush in all, of what was numbered already; half of the
        reserve is left then."""
        left = self._left
        return left is not None and left - to_write(unflushed_bytes) >= self._reserve // 2

    def flush_fits(self, size: int) -> bool:
        """Whether a flush of blocks of `size` bytes finds room; small ones are always tried."""
        return self._left is None or self._left >= to_write(size) or size < LOW_BYTES_MIN // 4


class DiskSpace:
    """See the module.

    Attributes:
        is_low: whether the node is read-only.
    """

    def __init__(self, low_bytes: int, back_bytes: int) -> None:
        """
        Args:
            low_bytes, back_bytes: the marks of a large disk; 0 for the first is none at all.
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
        """So much is free; whether that changed what the node takes."""
        low, back = self.marks(total_bytes)
        was = self.is_low
        self.is_low = free_bytes < low or (was and free_bytes < back)
        return self.is_low != was
