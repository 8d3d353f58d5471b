"""Tasks and futures that hash by number.

asyncio's tasks hash by address, and a TaskGroup cancels by walking a set: two runs of one seed
would cancel in two orders. Here a task is numbered when it is made, and a future is numbered when
it is first hashed.

Source: CONTRIBUTING.md, "Determinism"; trio's test_scheduler_determinism.py.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar, cast

from cordwood.sim.process import Process

Result = TypeVar("Result")


class _Numbering(Protocol):
    """The part of a simulated loop that futures use."""

    def next_future_number(self) -> int:
        """The next number."""


class SimFuture(asyncio.Future[Result]):
    """A future that `asyncio.wait` and sets see in one order."""

    # Numbered late, and without a constructor of its own: a run makes thousands of futures, and few
    # are ever hashed.
    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:
            self._number = cast(_Numbering, self.get_loop()).next_future_number()
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
        # Named by number too: asyncio's own names count over all loops of this interpreter.
        super().__init__(coro, loop=loop, name=name or f"task-{number}", context=context)

    def __hash__(self) -> int:
        return self.number

    def bury(self) -> None:
        """Hide the task from asyncio: it never runs again, and asyncio does not report it."""
        asyncio.tasks._unregister_task(self)
        self._log_destroy_pending = False
