"""Calls at the end of the interpreter, while threads can still be given work.

`atexit` comes too late for a store in this process: thread pools refuse work before it, and a
node without them ends. So this runs first among the exit steps of `threading`, and again by
`atexit`, for the remains of threads that were joined in between.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  registers its own end first, so that it comes after
import threading
from collections.abc import Callable
from contextlib import suppress

_calls: dict[object, Callable[[], None]] = {}
"""Of this process, as its end is; each is there until it is cancelled."""


def at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` called when the interpreter ends; returns what cancels that."""
    key = object()
    _calls[key] = call

    def cancel() -> None:
        _calls.pop(key, None)

    return cancel


def _call_all() -> None:
    for call in list(_calls.values()):
        call()


# Refused where this is first imported as the interpreter ends; `atexit` is left then.
with suppress(RuntimeError):
    # Not public, and there since Python 3.9.
    threading._register_atexit(_call_all)  # type: ignore[attr-defined]
atexit.register(_call_all)
