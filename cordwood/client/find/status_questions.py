"""Asks for the member list until the statuses of nodes are new enough for those that wait.

A node answers with the list that it read last, and says how old this is. So one question may not be
enough.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable

from cordwood.errors import CordwoodError

logger = logging.getLogger(__name__)

AGAIN_S = 0.25
"""The pause between two questions. A node reads the list each second."""

Told = weakref.WeakMethod[Callable[[], None]]


class StatusQuestions:
    """See the module.

    Args:
        ask: reads the member list anew.
        known_at: the time from which the known statuses are.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        ask: Callable[[], Awaitable[None]],
        known_at: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._ask = ask
        self._known_at = known_at
        self._waiting: list[tuple[float, Told]] = []
        self._asking: asyncio.Task[None] | None = None

    def want(self, since: float, told: Told) -> None:
        """Call `told` once statuses from `since` or later are known."""
        self._waiting.append((since, told))
        if self._asking is None:
            self._asking = self._tasks.create_task(self._run())

    def close(self) -> None:
        """Ask no more."""
        self._waiting.clear()
        if self._asking is not None:
            self._asking.cancel()

    async def _run(self) -> None:
        while self._waiting:
            try:
                await self._ask()
            except CordwoodError as error:
                logger.debug("the statuses of nodes could not be asked for: %s", error)
            waiting, self._waiting = self._waiting, []
            for since, told in waiting:
                if (call := told()) is None:
                    continue  # its reader is gone
                if self._known_at() >= since:
                    call()
                else:
                    self._waiting.append((since, told))
            if self._waiting:
                await asyncio.sleep(AGAIN_S)
        self._asking = None  # here and not when the task ends: none may want between
