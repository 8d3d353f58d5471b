"""A bounded pool of threads for calls that block: small files and databases.

Threads live only in this room. The pool is bounded twice: in threads, and in
calls that wait for one, because a stalled disk must not gather work without end.

Source: CONTRIBUTING.md, "Determinism"; docs/design.md §6.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

from cordwood.errors import Closed, Overloaded

Result = TypeVar("Result")

CALLS_WAITING_MAX = 1024
"""Calls running or waiting in one pool: more than this and the disk is not keeping up."""


class BlockingPool:
    """Runs blocking functions in a few threads; it is a `RunBlocking`."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
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
