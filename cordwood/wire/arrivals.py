"""Counts the frames that have begun to arrive on all connections of one node: their bytes, and the
time since they began.

The length in a frame's header is bounded, and so are the bytes that one peer makes a node keep. But
over thousands of connections the sum exceeds a node's memory. So unfinished frames are counted
together, and a frame has to end in time once it began. Only arrived bytes count: a claimed length
costs nothing.

Source: docs/sources/reliability.md §7 (4, 9).
"""

from __future__ import annotations

from typing import Generic, TypeVar

UNFINISHED_BYTES_MAX = 512 << 20
"""Space for a block of 1 MiB from each of 500 clients at the same time, or for seven of the largest
frames."""

FRAME_GRACE_S = 20.0
"""For a frame of any length: a sender that paused, or a link that was cut, is back within this time
or never."""

FRAME_BYTES_S_MIN = 1 << 20
"""A frame gets one more second for each of these bytes: 8 Mbit/s is a slow line."""

Caller = TypeVar("Caller")


class Arrivals(Generic[Caller]):
    """See the module. It is a rule: its caller notes the bytes that arrived."""

    def __init__(self) -> None:
        # The oldest frame stands first: its arrived bytes, and its deadline.
        self._unfinished: dict[Caller, tuple[int, float]] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of all unfinished frames."""
        return self._bytes

    def note(self, caller: Caller, here: int, length: int, now: float, *, is_new: bool) -> None:
        """Note the present size of a caller's unfinished frame; 0 for none.

        Args:
            is_new: an earlier one was finished since the last time.
        """
        before = self._unfinished.get(caller)
        if before is not None:
            self._bytes -= before[0]
        if before is not None and (is_new or not here):
            del self._unfinished[caller]
            before = None
        if here:
            until = now + FRAME_GRACE_S + length / FRAME_BYTES_S_MIN
            self._unfinished[caller] = (here, until if before is None else before[1])
            self._bytes += here

    def excess(self) -> Caller | None:
        """The caller to cut off if all hold too much together: the sender of the oldest unfinished
        frame. An honest frame ends within a moment, so the oldest frame's sender has stopped."""
        if self._bytes <= UNFINISHED_BYTES_MAX:
            return None
        return next(iter(self._unfinished))

    def late(self, now: float) -> list[Caller]:
        """Callers with an overdue frame."""
        return [caller for caller, (_, until) in self._unfinished.items() if until < now]

    def late_s(self, now: float) -> float:
        """How long the first overdue frame is late; 0 for none."""
        until = min((until for _, until in self._unfinished.values()), default=now)
        return max(0.0, now - until)
