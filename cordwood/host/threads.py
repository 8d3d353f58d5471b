"""A bounded pool of threads for calls that block: small files and databases.

Threads live only in this room. The pool is bounded twice: in threads, and in
calls that wait for one, because a stalled disk must not gather work without end.

Source: CONTRIBUTING.md, "Determinism"; docs/design.md §6.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from cordwood.errors import Closed, Overloaded

Result = TypeVar("Result")

CALLS_WAITING_MAX = 1024
"""Calls running or waiting in one pool: more than this and the disk is not keeping up."""

YIELDING_NICE = 10
"""A tenth of the share of a thread with the usual priority: such a thread that wakes runs at once,
and a busy machine still lets the calculation go on. Linux counts it within a session or a
container alone, so that programs outside of it take no more than before."""


class BlockingPool:
    """Runs blocking functions in a few threads; it is a `RunBlocking`.

    Args:
        yields: whether the threads leave their core to the session's other threads.
    """

    def __init__(self, name: str, threads: int, *, yields: bool = False) -> None:
        self._name = name
        self._executor = concurrent.futures.ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=_yield_cores if yields else None
        )
        self._room = threading.BoundedSemaphore(CALLS_WAITING_MAX)
        self._closed = False

    async def __call__(self, function: Callable[[], Result], *, timeout_s: float) -> Result:
        """Run `function` in a thread and return its result.

        A function that has not started at the deadline never starts. A started function continues,
        and its result is dropped.

        Raises:
            TimeoutError: it did not return within `timeout_s`.
            Overloaded: CALLS_WAITING_MAX calls are waiting already.
            Closed: the pool was closed.
        """
        async with asyncio.timeout(timeout_s):
            return await self.run(function)

    async def run(self, function: Callable[[], Result]) -> Result:
        """As a call, without a deadline of its own: the caller's `asyncio.timeout` holds."""
        if self._closed:
            raise Closed(f"the threads of {self._name} were stopped")
        if not self._room.acquire(blocking=False):
            raise Overloaded(f"{self._name}: {CALLS_WAITING_MAX} blocking calls are waiting")
        future = self._executor.submit(function)
        future.add_done_callback(lambda _: self._room.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Stop taking calls and cancel those not started. Safe to call twice."""
        # No join: a call stuck in the kernel would hold the loop with it.
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)


def half_of_cores() -> int:
    """Half of the cores that this process may use; at least 1."""
    usable = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
    return max(1, len(usable) // 2)


def _yield_cores() -> None:
    """Lower the priority of the calling thread, where the system has one for each thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # A sandbox may forbid the calls: the thread then runs like the others.
        with contextlib.suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(now, YIELDING_NICE))
