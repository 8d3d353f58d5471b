"""Tasks and futures that hash by number.

asyncio's hash by address, and a TaskGroup cancels by walking a set: two runs of
one seed would cancel in two orders. Here a task has the number of its making,
and a future takes one when it is first hashed.

Source: style.md §8; trio's test_scheduler_determinism.py.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from cordwood.sim.process import Process

Result = TypeVar("Result")


class SimFuture(asyncio.Future[Result]):
    """A future that `asyncio.wait` and sets see in one order."""

    _number: int | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop, numbers: Iterator[int]) -> None:
        super().__init__(loop=loop)
        self._numbers = numbers

    def __hash__(self) -> int:
        # Numbered late: few futures are ever hashed, and this is a hot constructor.
        if self._number is None:
            self._number = next(self._numbers)
        return self._number


class SimTask(asyncio.Task[Result]):
    """A task that knows its number and the process that it belongs to."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Result],
        loop: asyncio.AbstractEventLoop,
        number: int,
        process: Process,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        # Before asyncio's __init__, which puts the task in a set and so hashes it.
        self.number = number
        self.process = process
        # Named by number too: asyncio counts over all loops of this interpreter.
        super().__init__(coro, loop=loop, name=name or f"task-{number}", context=context)

    def __hash__(self) -> int:
        return self.number

    def bury(self) -> None:
        """Take it out of asyncio's sight: it never runs again, and nobody is told."""
        asyncio.tasks._unregister_task(self)
        self._log_destroy_pending = False
