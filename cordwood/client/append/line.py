"""Calls in a line: they go on in the order in which they came.

Calls that wait are let go together, in one tick, so that their records still share
blocks. Letting go one call a turn would hold a fresh client at one record a block for as long as
calls come faster than that.
"""

from __future__ import annotations

import asyncio
from collections import deque


class QueuedCall:
    """A call's place in a line; made by `Line.join`."""

    __slots__ = ("future", "has_left", "holds", "is_let_go", "is_ready")

    def __init__(self, future: asyncio.Future[None], *, holds: bool, is_ready: bool) -> None:
        self.future = future
        self.holds = holds
        self.is_ready = is_ready
        self.is_let_go = False
        self.has_left = False


class Line:
    """See the module. Every place is left, however its call ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[QueuedCall] = deque()
        # Calls that were let go and have not left: the next ones would pass them.
        self._going = 0

    @property
    def is_empty(self) -> bool:
        """Whether a call may go on without a place."""
        return not (self._waiting or self._going)

    def join(self, *, holds: bool = False, is_ready: bool = True) -> QueuedCall:
        """Take the last place.

        Args:
            holds: the call waits for other things between its turn and its leave; no call
                behind it is let go meanwhile.
            is_ready: False for a call that must wait for something of its own before its turn;
                `ready` ends that.
        """
        place = QueuedCall(self._loop.create_future(), holds=holds, is_ready=is_ready)
        self._waiting.append(place)
        self._let_go()
        return place

    def ready(self, place: QueuedCall) -> None:
        """The call's wait has ended."""
        place.is_ready = True
        self._let_go()

    async def turn(self, place: QueuedCall) -> None:
        """Wait until no call is ahead; at once where none is."""
        await place.future

    def leave(self, place: QueuedCall) -> None:
        """The call went on, or gave up. Safe to call twice."""
        if place.has_left:
            return
        place.has_left = True
        if place.is_let_go:
            self._going -= 1
        else:
            place.future.cancel()
        self._let_go()

    def _let_go(self) -> None:
        if self._going:
            return
        waiting = self._waiting
        while waiting:
            place = waiting[0]
            if place.future.cancelled():
                waiting.popleft()
                continue
            if not place.is_ready or (place.holds and self._going):
                return
            waiting.popleft()
            place.is_let_go = True
            self._going += 1
            place.future.set_result(None)
            if place.holds:
                return
