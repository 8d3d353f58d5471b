"""A child of `fork` uses nothing that its parent holds: databases, records that were read, locks.

It must not touch its parent's RocksDB databases, not even at its end.

The fork copies no thread. Where RocksDB closes a database, and where its library ends with the
process, it waits for threads of its own: the child ended by SIGSEGV. So the child keeps all open
databases, and ends without the libraries' exit handlers. Python has run its own handlers by then,
and has flushed its buffers. `os._exit`, as `multiprocessing` ends its children, leaves them out as
well.

Nor can the child open a database of its own. RocksDB keeps one pool of threads for the process, and
counts threads in it that the fork did not copy. So no flush ever began: a store in the child
refused records once its WAL was full, and its close did not end.

Records that a parent's reader has taken from the nodes are in the child's memory as well, and only
one of the two may give them out: the parent does.

A child closes its copies of its parent's directory locks: a lock ends when all copies are closed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from cordwood.errors import Rejected


def process_number() -> int:
    """The number of this process: a forked child has another number than its parent."""
    return os.getpid()


class Owner(Protocol):
    """Opens databases."""

    def handles(self) -> Iterable[Any]:
        """What rocksdict gave and was not closed."""


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


_has_parents_pool = False
"""Whether RocksDB's pool of threads in this process is a copy of a parent's, without threads."""


def note(owner: Owner) -> None:
    """`owner` has databases open, or had, or is about to open them."""
    _owners.add(owner)
    _call_in_children(_on_child)


def check_databases() -> None:
    """Check that this process can open databases.

    Raises:
        Rejected: it was forked from a process that had some open.
    """
    if _has_parents_pool:
        raise Rejected(
            "this process was forked from a process that had an embedded store open, and RocksDB "
            "has no threads here: start it in another way (`spawn` or `forkserver` of "
            "multiprocessing), or connect to the address that `serve` of the parent's store gives"
        )


class Leaver(Protocol):
    """Holds for its process what a forked child must not have: records to give out, or a lock."""

    def _leave_in_child(self) -> None:
        """This is a forked child of that process: give out no record, and let the lock be."""


_leavers: weakref.WeakSet[Any] = weakref.WeakSet()


def leave_in_child(leaver: Leaver) -> None:
    """Have a forked child of this process call `leaver._leave_in_child`, while that exists."""
    _leavers.add(leaver)
    _call_in_children(_leave_all)


@functools.cache
def _call_in_children(call: Callable[[], None]) -> None:
    """Have each later forked child call this. Each of the two is registered only if it is needed:
    a child of a process without databases keeps its exit handlers."""
    os.register_at_fork(after_in_child=call)


def _leave_all() -> None:
    for leaver in list(_leavers):
        leaver._leave_in_child()


def _on_child() -> None:
    global _has_parents_pool
    _has_parents_pool = True
    for owner in list(_owners):
        for handle in owner.handles():
            # One reference too many: nothing that Python does at its end lets go of it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of Linux; it is called with the process's exit code
        # Order matters: the callback registered last runs first, and `_exit` does not return.
        libc.on_exit(libc._exit, None)
