"""An event loop in a thread of its own, for callers that have none.

Source: design.md §7 (`connect` blocks); style.md §8 (threads only in this room).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from cordwood.errors import Closed, CordwoodError, OutcomeUnknown, Unreachable

Result = TypeVar("Result")

STOP_TIMEOUT_S = 10.0
"""How long `close` waits for the loop to end; it is a daemon, so a program ends anyway."""

LATE_S = 2.0
"""How long a call that is late waits for the loop: after a pause of the whole process (SIGSTOP, a
frozen container) the waiting thread may wake first, and the loop holds the answer."""

END_S = 5.0
"""How long calls in other threads may take to tell their outcome while the client closes, and as
long again to be cancelled: what they wait for has failed by then, so a few turns are enough."""


class LoopThread:
    """Runs coroutines for blocking callers."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._has_ended = False
        self._lock = threading.Lock()
        self._is_closing = False
        # Calls that threads wait for. What the loop never came to is cancelled as it closes.
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._has_ended = True

    @property
    def _is_alive(self) -> bool:
        """Whether the loop runs, in this process.

        Not `Thread.is_alive`: a signal handler that raises within it has CPython 3.11 take the
        thread for ended, and every later call would say that the client was closed.
        """
        return not self._has_ended and os.getpid() == self._pid

    def call(
        self,
        work: Coroutine[Any, Any, Result],
        *,
        timeout_s: float | None = None,
        changes: bool = False,
    ) -> Result:
        """Run a coroutine on the loop and wait for what it returns.

        Whatever is raised in this thread while it waits (a signal handler's error, as of a
        time limit, `SystemExit`, `KeyboardInterrupt`) cancels it. It may have ended by then, so
        what it takes for its caller has to stay where it is until this thread has it.
        `timeout_s` None leaves the deadline to the coroutine.

        Args:
            changes: the coroutine may have stored something when nothing is known of its end.
        Raises:
            Closed: the loop was closed.
            Unreachable: nothing came within `timeout_s`.
            OutcomeUnknown: either of these, of a call that changes something.
        """
        future = self.start(work)
        try:
            try:
                return future.result(timeout_s)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
                return future.result(LATE_S)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise _unanswered(f"no answer within {timeout_s:g} s", Unreachable, changes) from None
        except concurrent.futures.CancelledError:
            # Nobody but `close` cancels what this thread waits for.
            raise _unanswered("this client was closed meanwhile", Closed, changes) from None
        except BaseException:
            # Also what the coroutine itself raised: then there is nothing to cancel.
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop; its outcome comes by the future.

        Raises:
            Closed: the loop was closed.
        """
        with self._lock:
            if self._is_closing or not self._is_alive:
                work.close()
                raise Closed("this client was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def soon(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop.

        Raises:
            Closed: the loop was closed.
        """
        with self._lock:
            if self._is_closing or not self._is_alive:
                raise Closed("this client was closed")
            self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Stop the loop and its thread. Safe to call twice, and in a forked child, which has
        neither.

        Calls of other threads end first: with the outcome that they have by now, else with
        `Closed` or `OutcomeUnknown`.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            was_closing, self._is_closing = self._is_closing, True
        if not self._has_ended and not was_closing:
            asyncio.run_coroutine_threadsafe(self._end_calls(), self._loop)
        if not self._has_ended:
            self._thread.join(STOP_TIMEOUT_S + 2 * END_S)
        for future in list(self._open):
            future.cancel()
        if self._has_ended and not self._loop.is_closed():
            self._loop.close()

    async def _end_calls(self) -> None:
        """Give every call its last turns, then stop the loop."""
        try:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, late = await asyncio.wait(others, timeout=END_S)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late, timeout=END_S)
        finally:
            self._loop.stop()


def _unanswered(why: str, kind: type[CordwoodError], changes: bool) -> CordwoodError:
    if not changes:
        return kind(why)
    return OutcomeUnknown(f"{why}: read the log to know whether it is stored")
