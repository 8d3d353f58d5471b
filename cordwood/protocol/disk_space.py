"""When a storage node takes nothing new for want of disk, and when it does again: a rule.

Below a low-water mark it is read-only by itself: it takes nothing of sequencers, not even what
they numbered already; seals and recoveries are written, reads go on. It takes new records
again above a higher mark, so that a disk that hovers about one number does not turn the node
on and off. Both marks are bytes, or a share of a small disk, whichever is less.

Source: LogDevice digest 2.13 ("Disk"); BookKeeper digest (c), "Read-only".
"""

from __future__ import annotations

LOW_SHARE = 0.05
BACK_SHARE = 0.1
"""Of the whole disk: what a small one is left free of, where the bytes would be most of it."""


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
        low = min(self._low_bytes, int(total_bytes * LOW_SHARE))
        return low, max(low, min(self._back_bytes, int(total_bytes * BACK_SHARE)))

    def on_free(self, free_bytes: int, total_bytes: int) -> bool:
        """So much is free; whether that changed what the node takes."""
        low, back = self.marks(total_bytes)
        was = self.is_low
        self.is_low = free_bytes < low or (was and free_bytes < back)
        return self.is_low != was
