"""The tick of all writers of a client: it visits only those that have something to say, or wait.

A writer that was given up, or that has told its LAC, costs nothing. With a timer for each, a client
that left thousands of ledgers behind spent its time on them.

Source: docs/protocol/ledgers.md, rule 5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK_S = 0.1
"""Pause between two checks whether the LAC must be sent: a reader of a quiet ledger is this
late."""


Visit = Callable[[], bool]
"""Lets a writer look at the time. Returns whether it needs another tick."""


class WriterTicks:
    """See the module. A waiting writer is kept alive by it, and an idle one is not."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._waiting: dict[Visit, None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of writers that need a tick."""
        return len(self._waiting)

    def need(self, visit: Visit) -> None:
        """Visit a writer at the next ticks, until it needs no more."""
        self._waiting[visit] = None
        if self._task is None:
            self._task = self._tasks.create_task(self._run())

    def forget(self, visit: Visit) -> None:
        """The writer has ended."""
        self._waiting.pop(visit, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(TICK_S)
                for visit in [*self._waiting]:
                    if visit in self._waiting and not visit():
                        self._waiting.pop(visit, None)
        finally:
            self._task = None
