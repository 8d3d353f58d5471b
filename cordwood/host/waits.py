"""Waits of one thread for another that a signal handler's error cannot leave locked.

A signal handler runs between two bytecodes of the main thread, and its error is raised there. The
library's `threading.Condition.__enter__` is a Python function: an error raised as it returns leaves
the lock held without an owner, and the notifying thread waits forever. `concurrent.futures.Future`
uses this class. A lock in C has no state in between: either the lock is taken, or the error is
raised before.
"""

from __future__ import annotations

import _thread
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from cordwood.errors import Closed

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

FOREVER = -1.0
"""A lock's value for "without a limit"."""

FORKED = "this client is of the process that was forked: connect anew"
"""The error text for a forked child."""

LOOK_S = 1.0
"""How long a thread waits before it looks whether a signal came. A signal right before the wait, or
to another thread, does not end the wait: the handler would run after it."""


def take(lock: _thread.LockType, timeout: float) -> bool:
    """Take a lock, within `timeout` seconds unless that is FOREVER; whether it was taken."""
    if timeout < 0:
        while not lock.acquire(True, LOOK_S):
            pass
        return True
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        if lock.acquire(True, min(max(left, 0.0), LOOK_S)):
            return True
        if left <= LOOK_S:
            return False


class Condition(_thread.RLock):  # type: ignore[misc]  # not final at run time
    """A condition variable with a lock that is taken and released in C. It may not be nested."""

    def __init__(self) -> None:
        # No deque: it takes up 700 bytes, and each record that is submitted has one of these.
        self._waiting: list[_thread.LockType] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `notify_all`, for `timeout` seconds at most; whether it came."""
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiting.append(waiter)
        try:
            self.release()
            return take(waiter, FOREVER if timeout is None else max(timeout, 0.0))
        finally:
            try:
                self._take_again()
            except BaseException:
                # A signal handler raised right here. Without the lock, its `with` block would raise
                # RuntimeError in the place of that error.
                self._take_again()
                raise

    def _take_again(self) -> None:
        # A signal handler may have raised before the release.
        if not self._is_owned():  # type: ignore[attr-defined]
            self.acquire()

    def wait_for(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait until `holds`, for `timeout` seconds at most; whether it does."""
        end = time.monotonic() + timeout
        while not holds():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def notify_all(self) -> None:
        """Wake all that wait. Only the holder may call it."""
        while self._waiting:
            self._waiting.pop(0).release()


class ThreadFuture(Future[Result]):
    """A future for a caller's thread, which the loop's thread can always resolve.

    A forked child has no loop thread: there it raises Closed, unless it was resolved before.
    """

    def __init__(self) -> None:
        super().__init__()
        # The library's own methods use only its lock, `wait` and `notify_all`.
        self._condition: Any = Condition()
        self._pid = os.getpid()

    def result(self, timeout: float | None = None) -> Result:
        """See `concurrent.futures.Future`."""
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `concurrent.futures.Future`."""
        self._check_process()
        return super().exception(timeout)

    def _invoke_callbacks(self) -> None:
        """As the library's, also if a callback raises SystemExit: in the client's thread the error
        would end the loop, and with it the work of all other threads."""
        raised: BaseException | None = None
        for callback in self._done_callbacks:  # type: ignore[attr-defined]  # of the library
            try:
                callback(self)
            except BaseException as error:
                logger.exception("a callback of a future failed: %r", callback)
                if not isinstance(error, Exception):
                    raised = error
        # A thread that cancels it runs the callbacks itself, and may have to end.
        if raised is not None and self.cancelled():
            raise raised

    def _check_process(self) -> None:
        """
        Raises:
            Closed: no thread will resolve it in this process.
        """
        if os.getpid() == self._pid:
            return
        # The loop's thread may have held the lock as the process was forked.
        self._condition = Condition()
        if not self.done():
            raise Closed(FORKED)
