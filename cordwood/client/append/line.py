"""Calls in a line: they go on in the order in which they came.

Calls that wait are let go together, in one tick, so that their records still share
blocks. Letting go one call a turn would hold a fresh client at one record a block for as long as
calls come faster than that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cordwood.errors import Overloaded

LET_IN_TURNS = 4
"""Turns of the loop: `asyncio.wait_for` hands an end on in three, before Python 3.12."""


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
        # Calls that were let go and have not left: later calls would pass them.
        self._going = 0

    @property
    def is_empty(self) -> bool:
        """Whether a call may go on without a place."""
        return not (self._waiting or self._going)

    def join(self, *, holds: bool = False, is_ready: bool = True) -> QueuedCall:
        """Take the last place.

        Args:
            holds: the call waits for other things between its turn and its leave; no call
                after it is let go meanwhile.
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


@asynccontextmanager
async def turn_in(line: Line, deadline: float, *, holds: bool) -> AsyncIterator[None]:
    """Have a turn in a line.

    Args:
        deadline: for the turn to come, on the loop's clock.
        holds: see `Line.join`; without, the place is left as the turn comes.
    Raises:
        Overloaded: it has not come by then.
    """
    place = line.join(holds=holds)
    try:
        try:
            async with asyncio.timeout_at(deadline):
                await line.turn(place)
        except TimeoutError:
            raise Overloaded("calls to this log before this one still wait for room") from None
        if not holds:
            line.leave(place)
        yield
    finally:
        line.leave(place)


class LetIn:
    """Waits for room that ended a moment ago: for each, one call may pass those that wait still.

    A program waits with one call and takes its room with the next. Without this, calls that
    wait for the same room keep one another out for good: each finds that others wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: dict[object, None] = {}

    def note(self) -> None:
        """A wait ended, and its caller comes with another call."""
        mark = object()
        self._ended[mark] = None
        self._loop.call_soon(self._age, mark, LET_IN_TURNS)

    def take(self) -> bool:
        """Whether a call may pass; the next one needs another wait."""
        if not self._ended:
            return False
        del self._ended[next(iter(self._ended))]
        return True

    def _age(self, mark: object, turns: int) -> None:
        if mark not in self._ended:
            return
        if turns:
            self._loop.call_soon(self._age, mark, turns - 1)
        else:
            del self._ended[mark]
