"""How fast a donor may go: it gives way to foreground work, and goes at full speed without it.

The donor looks every `PERIOD_S` at what foreground stores of its node had to wait, in the WAL and
for the loop. What they wait when the donor hardly works is the *base*. The rule compares with it:

- No foreground work: the donor goes as fast as it may.
- Nothing suffers: a step faster.
- The wait is above `TOLERATED` times the base: down to the floor at once. After a period in which
  queues drain, the wait at the floor is a new base. The rule uses the least of the last few bases,
  because other donors can only lengthen a measured wait. A shorter wait at any pace is a base too.

So the pace climbs slowly and falls at once, like a saw. Donors that share a disk or cores see the
same waits, and give way together. The pace never falls below the floor: a rebuilding comes to its
end under any foreground work.

A fixed share of the disk was tried before. It does not limit the use of cores, and on busy cores
donors took three quarters of the appends' part. This rule measures neither disk nor cores, but the
foreground work that suffers.

Source: LEDBAT (RFC 6817), which yields by the delay that it adds; docs/protocol/rebuilding.md.
"""

from __future__ import annotations

from collections import deque

PERIOD_S = 0.5
"""The time between two looks: some dozens of stores of a busy node, and a short time for appends
that suffer."""

TOLERATED = 1.15
"""A closed loop whose stores take this much longer keeps 0.87 of its rate; the aim is 0.8."""

SLACK_S = 0.00025
"""A wait that is less above the base is a timer's grain."""

FASTER = 1.25
"""A step up: from the floor to 32 times of it in sixteen looks."""

BASES = 8
"""Looks at the floor that are remembered."""

FLOOR_BYTES_S = 512 << 10
"""The least pace: with ten donors 400 GB a day, for a hundredth of the bytes that a disk writes."""


class YieldingPace:
    """See the module.

    Args:
        bytes_s_max: the most; 0 for no bound.

    Attributes:
        bytes_s: what the donor may send in a second; 0 for as fast as nodes take it.
    """

    def __init__(self, bytes_s_max: float) -> None:
        self._max = bytes_s_max
        self._floor = min(FLOOR_BYTES_S, bytes_s_max) if bytes_s_max else float(FLOOR_BYTES_S)
        self._bases: deque[float] = deque(maxlen=BASES)
        self._drains = True
        self.bytes_s = self._floor

    @property
    def is_yielding(self) -> bool:
        """Whether foreground work holds it back."""
        return self.bytes_s != self._max

    def on_look(self, stores: int, wait_s: float) -> None:
        """A period is over.

        Args:
            stores: of foreground work, that became durable in it.
            wait_s: what each of them waited, on average.
        """
        if not stores:
            self.bytes_s = self._max
        elif self.bytes_s == self._floor:
            self._on_floor(wait_s)
        elif not self._bases or wait_s > self._bound:
            # Without a base nothing is known of this work yet.
            self.bytes_s, self._drains = self._floor, True
        else:
            if wait_s < min(self._bases):
                self._bases.append(wait_s)
            self.bytes_s = self._faster()

    @property
    def _bound(self) -> float:
        base = min(self._bases)
        return max(base * TOLERATED, base + SLACK_S)

    def _on_floor(self, wait_s: float) -> None:
        if self._drains:
            self._drains = False
            return
        self._bases.append(wait_s)
        if wait_s <= self._bound:
            self.bytes_s = self._faster()

    def _faster(self) -> float:
        faster = self.bytes_s * FASTER
        return min(faster, self._max) if self._max else faster
