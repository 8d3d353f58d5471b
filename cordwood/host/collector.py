"""The garbage collector of this process, and the users that want it to run rarely.

The collector belongs to the whole process: the setting also holds for the program around a client.
It is undone when its last user has left.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLD = 50_000
"""Objects of an append or a block are long-lived and free of cycles; a young collection every 700
objects walks thousands of them in vain."""


class _Wanted:
    """The number of users, and the setting before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before = gc.get_threshold()

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count > 1:
                return
            self._before = gc.get_threshold()
            gc.collect()
            gc.freeze()
            # 0: the program has switched the collector off. Higher: the program chose its own.
            if 0 < self._before[0] < GC_THRESHOLD:
                gc.set_threshold(GC_THRESHOLD, 20, 50)

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                gc.set_threshold(*self._before)
                gc.unfreeze()


_wanted = _Wanted()


@contextmanager
def rare_collections(is_wanted: bool = True) -> Iterator[None]:
    """For the length of the `with` block, ignore existing objects and look for cycles rarely."""
    if not is_wanted:
        yield
        return
    _wanted.enter()
    try:
        yield
    finally:
        _wanted.leave()
