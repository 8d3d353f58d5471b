"""Whether this client had its turns: a process that is stopped (`SIGSTOP`), or an event loop that
somebody holds up, has none. Time in which the client stood says nothing of the nodes.

Source: docs/design.md §7.
"""

from __future__ import annotations

import asyncio

TURN_S = 0.1
"""The time between two turns that are looked for. A stand counts without the first so much of it,
which the client may have run."""


class RunningTime:
    """Counts the time in which the event loop ran, and in which it stood, until `end`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._turn_s = self._loop.time()
        self._stood_s = 0.0
        self._timer = self._loop.call_later(TURN_S, self._turn)

    @property
    def stood_s(self) -> float:
        """How long the loop stood."""
        # Also since the last turn: the caller may have the first turn after a stand.
        return self._stood_s + max(0.0, self._loop.time() - self._turn_s - TURN_S)

    @property
    def ran_s(self) -> float:
        """How long the loop ran."""
        return self._loop.time() - self._began_s - self.stood_s

    def end(self) -> None:
        """Look for turns no more."""
        self._timer.cancel()

    def _turn(self) -> None:
        self._stood_s, self._turn_s = self.stood_s, self._loop.time()
        self._timer = self._loop.call_later(TURN_S, self._turn)
