"""Calls in a line: they go on in the order in which they came.

Calls that wait are released together, in one tick, so that their records still share blocks. If
only one call a tick were released, a new client would send one record a block for as long as calls
come faster than that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cordwood.errors import Overloaded

LET_IN_TURNS = 4
"""Ticks of the loop. Before Python 3.12, `asyncio.wait_for` takes three ticks to pass on the end of
a wait."""


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
    """See the module. Each call must leave its place, however it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[QueuedCall] = deque()
        # Calls that were released and have not left yet. Later calls must not pass them.
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
        """Note that the call's own wait has ended."""
        place.is_ready = True
        self._let_go()

    async def turn(self, place: QueuedCall) -> None:
        """Wait until no call is ahead. Returns at once if there is none."""
        await place.future

    def leave(self, place: QueuedCall) -> None:
        """Leave the line, because the call went on or gave up. Safe to call twice."""
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
    """Counts waits for free space that have just ended. For each of them, one call may pass the
    calls that still wait.

    A program waits with one call and takes the free space with the next. Without this count,
    programs that wait for the same space would block one another for ever: each finds that others
    wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: dict[object, None] = {}

    def note(self) -> None:
        """Note that a wait ended. Its caller will come with another call."""
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
