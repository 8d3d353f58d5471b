"""Frames that have begun to arrive on all connections of one node: how much, and for how long.

A length in a frame's header is bounded, and so is what one peer makes a node keep; over
thousands of connections that is far more than a node has. So their bytes are counted together,
and a frame that was begun has to end in time. What is counted is what has arrived: a length that
is only claimed costs nothing.

Source: docs/sources/reliability.md §7 (4, 9).
"""

from __future__ import annotations

from typing import Generic, TypeVar

UNFINISHED_BYTES_MAX = 512 << 20
"""Room for a block of 1 MiB from each of 500 clients at once, or seven of the largest frames."""

FRAME_GRACE_S = 20.0
"""For a frame of any length: a sender that is stopped for a moment, or a link that is cut, is back
by then or never."""

FRAME_BYTES_S_MIN = 1 << 20
"""A frame gets a second more for each of these: 8 Mbit/s is a slow line."""

Caller = TypeVar("Caller")


class Arrivals(Generic[Caller]):
    """See the module; a rule, told of what arrived."""

    def __init__(self) -> None:
        # What began first stands first: bytes that are here, and when the frame must be whole.
        self._unfinished: dict[Caller, tuple[int, float]] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Of all frames that are not whole yet."""
        return self._bytes

    def note(self, caller: Caller, here: int, length: int, now: float, *, is_new: bool) -> None:
        """A caller's unfinished frame has so many bytes now; 0 for no such frame.

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
        """Whose connection must go, because all hold too much together: of the frame that began
        first. An honest one is whole within a moment, so the oldest is one that stopped."""
        if self._bytes <= UNFINISHED_BYTES_MAX:
            return None
        return next(iter(self._unfinished))

    def late(self, now: float) -> list[Caller]:
        """Callers whose frame should be whole by now."""
        return [caller for caller, (_, until) in self._unfinished.items() if until < now]

    def late_s(self, now: float) -> float:
        """For how long the one that should have been whole first has been late; 0 for none."""
        until = min((until for _, until in self._unfinished.values()), default=now)
        return max(0.0, now - until)
