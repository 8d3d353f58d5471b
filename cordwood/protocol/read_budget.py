"""What all read streams of a client may have sent ahead of their readers, together.

A stream reserves what its nodes may send before it has consumed it. It gets what it wants
while there is plenty, and never more than half of what is left, so that the next one finds
something too; and at least a floor, or it could not go on at all. It asks anew
each time its window moves: so those who came early give back when others come, and all grow
again when they go.

What is reserved is at most the budget and one floor for each node of each stream.

Source: docs/sources/logdevice.md 2.11 (memory pressure halves the window); docs/design.md §2
(windows).
"""

from __future__ import annotations


class ReadBudget:
    """See the module; all in bytes.

    Attributes:
        limit: what there is.
        free: what nobody has reserved; below 0 where floors had to be given.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.free = limit

    def take(self, wanted: int, floor: int) -> int:
        """Reserve up to `wanted`, at least `floor`; what it is."""
        got = max(min(floor, wanted), min(wanted, self.free // 2))
        self.free -= got
        return got

    def give_back(self, reserved: int) -> None:
        """What `take` gave is not needed any more."""
        self.free += reserved
        assert self.free <= self.limit, "more came back than was taken"
