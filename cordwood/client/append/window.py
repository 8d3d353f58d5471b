"""The bound on a client's appends in flight, and the queue of calls that wait for free space.

Records and their bytes are bounded together over all logs. Waiting calls go in turn. A new call
does not overtake them, and a call that was woken but found the space taken keeps its place.

Source: docs/design.md §2 ("windows are bounded in bytes and LSNs").
"""

from __future__ import annotations

import asyncio
import heapq

from cordwood.errors import CordwoodError, Overloaded
from cordwood.settings import ClientSettings


class Window:
    """See the module.

    Attributes:
        records, bytes: in flight now.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.records = 0
        self.bytes = 0
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        # By ticket; a future that is done belongs to a call that gave up.
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._woken = 0
        self._last_ticket = 0
        self._mean_bytes = 1

    @property
    def has_space(self) -> bool:
        """Whether free space is left and no call waits for it."""
        return (
            self.bytes < self._settings.window_bytes
            and self.records < self._settings.window_records
            and not (self._waiting or self._woken)
        )

    @property
    def fits(self) -> bool:
        """Whether free space is left, even if calls wait for it."""
        settings = self._settings
        return self.bytes < settings.window_bytes and self.records < settings.window_records

    def take(self, records: int, size: int) -> None:
        """Records go into the window."""
        self.records += records
        self.bytes += size

    def give_back(self, records: int, size: int) -> None:
        """Records left the window."""
        self.records -= records
        self.bytes -= size
        if self._waiting:
            self._wake()

    async def wait_space(self, deadline: float | None = None) -> None:
        """Wait, first come first served, until it takes more.

        The caller takes its space before its next await: another call could take it.

        Args:
            deadline: of the call that waits, on the loop's clock; None waits for the
                client's timeout.
        Raises:
            Overloaded: there was none in time.
            Closed: the client was closed meanwhile.
        """
        if self.has_space:
            return
        self._last_ticket += 1
        began = self._loop.time()
        until = began + self._settings.timeout_s if deadline is None else deadline
        try:
            async with asyncio.timeout_at(until):
                await self._wait_turn(self._last_ticket)
        except TimeoutError:
            waited_s = self._loop.time() - began
            raise Overloaded(f"the client's window was full for {waited_s:.3g} s") from None
        finally:
            # A call that gives up, or takes less than was free, leaves space for the next call.
            if self._waiting:
                self._loop.call_soon(self._wake)

    def close(self, error: CordwoodError) -> None:
        """Fail all waiting calls."""
        while self._waiting:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._woken += 1
                turn.set_exception(error)

    async def _wait_turn(self, ticket: int) -> None:
        while True:
            turn: asyncio.Future[None] = self._loop.create_future()
            heapq.heappush(self._waiting, (ticket, turn))
            try:
                await turn
            finally:
                if turn.done() and not turn.cancelled():
                    self._woken -= 1
            if self.fits:
                return

    def _wake(self) -> None:
        """Wake, in turn, about as many calls as there is space for.

        If only one call woke for each block that came back, the next blocks would have one record
        each. If all calls woke, most of them would find no space.
        """
        if not self.fits:
            return
        settings = self._settings
        if self.records:
            self._mean_bytes = max(1, self.bytes // self.records)
        room = min(
            settings.window_records - self.records,
            (settings.window_bytes - self.bytes) // self._mean_bytes + 1,
        )
        while self._waiting and self._woken < room:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                self._woken += 1
