"""Calls at the end of the interpreter, while threads can still be given work.

`atexit` comes too late for a store in this process: thread pools refuse work before it, and a
node without them ends. So this runs first among the exit steps of `threading`, and again by
`atexit`, for the remains of threads that were joined in between.

All calls together have END_S to wait. The last that was registered is called first, as with
`atexit`: a client hands its records over before the store that it stands on is closed.

Daemon threads end with the interpreter, wherever they are. Those that call a store in this process
rest from the begin of the end on: their calls would hold up the records of others, and then fail
with an error that nobody handles.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  registers its own end first, so that it comes after
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

logger = logging.getLogger(__name__)

END_S = 10.0
"""How long the interpreter's end waits for records that were submitted, over all clients and both
times. An answer takes milliseconds while the cluster is up."""

CLOSE_S = 10.0
"""How long it waits for all stores in this process to close, each of which takes some hundredths of
a second. A store that does not close has all that it acknowledged in its WAL."""

REST_S = 30.0
"""How long a daemon thread rests: as long as the end may take. Then it goes on, because a thread
that is no daemon may wait for it."""

AtEnd = Callable[[Callable[[], float]], None]
"""Is given a function that tells the seconds that are left to wait."""

_calls: dict[object, AtEnd] = {}
"""Of this process, as its end is; each is there until it is cancelled."""

_waited_s = _closing_s = 0.0

_own_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""Loops with a store in this process."""

has_begun = False
"""Whether the interpreter's end has begun."""


def at_end(call: AtEnd) -> Callable[[], None]:
    """Have `call` called when the interpreter ends; returns what cancels that.

    A forked child of this process does not call it.
    """
    key, pid = object(), os.getpid()

    def call_here(left_s: Callable[[], float]) -> None:
        if os.getpid() == pid:
            call(left_s)

    _calls[key] = call_here

    def cancel() -> None:
        _calls.pop(key, None)

    return cancel


def close_at_end(close: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Have the running loop run `close` when the interpreter ends, if the loop still runs then, in
    a thread of its own. Returns what cancels that."""
    loop = asyncio.get_running_loop()
    _own_loops.add(loop)

    def close_it(_: Callable[[], float]) -> None:
        global _closing_s, _waited_s
        cancel()  # tried once: a second try would wait as long
        if loop.is_closed() or not loop.is_running():
            return
        work, began = close(), time.monotonic()
        try:
            ended = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop was closed just now
            work.close()
            return
        try:
            ended.result(max(0.0, CLOSE_S - _closing_s))
        finally:
            took_s = time.monotonic() - began
            _closing_s += took_s
            _waited_s -= took_s  # `_call_all` counts it as a wait for records

    cancel = at_end(close_it)
    return cancel


def rest(loop: asyncio.AbstractEventLoop) -> None:
    """Have a daemon thread rest that calls a store in this process; to be called once `has_begun`.

    Args:
        loop: the store's.
    """
    if loop in _own_loops and threading.current_thread().daemon:
        time.sleep(REST_S)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _call_all() -> None:
    global _waited_s, has_begun
    has_begun = True
    for call in reversed(list(_calls.values())):
        began = time.monotonic()
        until = began + END_S - _waited_s
        try:
            call(partial(_left, until))
        except Exception as error:  # noqa: BLE001  (told: the others are called all the same)
            logger.warning("the program ended, and a store in it was not closed: %r", error)
        _waited_s += time.monotonic() - began


# Refused where this is first imported as the interpreter ends; `atexit` is left then.
with suppress(RuntimeError):
    # Not public, and there since Python 3.9.
    threading._register_atexit(_call_all)  # type: ignore[attr-defined]
atexit.register(_call_all)
