"""A child of `fork` must not touch its parent's RocksDB databases, not even at its end.

The fork copies no thread. Where RocksDB closes a database, and where its library ends with the
process, it waits for threads of its own: the child ended by SIGSEGV. So the child keeps all open
databases, and ends without the libraries' exit handlers. Python has run its own handlers by then,
and has flushed its buffers. `os._exit`, as `multiprocessing` ends its children, leaves them out as
well.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterable
from typing import Any, Protocol


def process_number() -> int:
    """The number of this process: a forked child has another number than its parent."""
    return os.getpid()


class Owner(Protocol):
    """Opens databases."""

    def handles(self) -> Iterable[Any]:
        """What rocksdict gave and was not closed."""


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def note(owner: Owner) -> None:
    """`owner` has databases open, or had."""
    _owners.add(owner)
    _watch_forks()


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_on_child)


def _on_child() -> None:
    for owner in list(_owners):
        for handle in owner.handles():
            # One reference too many: nothing that Python does at its end lets go of it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of Linux; it is called with the process's exit code
        # Order matters: the callback registered last runs first, and `_exit` does not return.
        libc.on_exit(libc._exit, None)
