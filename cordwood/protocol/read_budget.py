"""The memory budget for data that nodes send ahead of a client's readers, over all read streams.

A stream reserves the bytes that its nodes may send before it has consumed them. It reserves again
each time its window moves. So early streams give memory back when others come, and all streams
grow again when some of them end.

The reserved bytes are at most the budget plus one floor for each node of each stream.

Source: docs/sources/logdevice.md 2.11 (memory pressure halves the window); docs/design.md §2
(windows).
"""

from __future__ import annotations


class ReadBudget:
    """See the module; all in bytes.

    Attributes:
        limit: the whole budget.
        free: bytes that no stream has reserved; below 0 if floors exceeded the budget.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free = limit

    def take(self, wanted: int, floor: int) -> int:
        """Reserve up to `wanted`, at least `floor`; the bytes reserved."""
        # Numbers: at most half of the free bytes, so that the next stream gets some too. At least
        # the floor, or the stream would make no progress.
        got = max(min(floor, wanted), min(wanted, self.free // 2))
        self.free -= got
        return got

    def give_back(self, reserved: int) -> None:
        """Return bytes that `take` reserved."""
        self.free += reserved
        assert self.free <= self.limit, "more came back than was taken"
