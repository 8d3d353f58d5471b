"""An event loop in a thread of its own, for callers that have none.

Source: design.md §7 (`connect` blocks); style.md §8 (threads only in this room).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from cordwood.errors import Closed, Unreachable

Result = TypeVar("Result")

STOP_TIMEOUT_S = 10.0
"""How long `close` waits for the loop to end; it is a daemon, so a program ends anyway."""


class LoopThread:
    """Runs coroutines for blocking callers."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, Result], *, timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop and wait for what it returns.

        Whatever is raised in this thread while it waits (a signal handler's error, as of a
        time limit, `SystemExit`, `KeyboardInterrupt`) cancels it. It may have ended by then, so
        what it takes for its caller has to stay where it is until this thread has it.
        `timeout_s` None leaves the deadline to the coroutine.

        Raises:
            Closed: the loop was closed.
            Unreachable: nothing came within `timeout_s`.
        """
        if not self._thread.is_alive():
            work.close()
            raise Closed("this client was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise Unreachable(f"no answer within {timeout_s:g} s") from None
        except BaseException:
            # Also what the coroutine itself raised: then there is nothing to cancel.
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop; its outcome comes by the future.

        Raises:
            Closed: the loop was closed.
        """
        if not self._thread.is_alive():
            work.close()
            raise Closed("this client was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop.

        Raises:
            Closed: the loop was closed.
        """
        if not self._thread.is_alive():
            raise Closed("this client was closed")
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Stop the loop and its thread. Safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive() and not self._loop.is_closed():
            self._loop.close()
