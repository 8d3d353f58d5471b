"""The queue of calls that wait for a SQLite connection, and the choice of calls that are done
together.

A commit is a sync of the disk, some milliseconds; its size hardly matters. So the call that gets
the connection takes the waiting calls along, and one commit serves all their writes. Each call
still has a thread of its own. The thread finds its answer there, or does the call itself if no
other thread took it along. So no call depends on the scheduling of another thread.

Source: sqlite.org, "WAL" (one writer at a time); docs/sources/hotpath.md §1 (group commit).
"""

from __future__ import annotations

import enum
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

TOGETHER_MAX = 256
"""Calls done together: past it a commit of small entries is longer than its sync."""

Work = Callable[[sqlite3.Connection], Any]


class State(enum.Enum):
    """Where a call is."""

    WAITING = enum.auto()
    BEGUN = enum.auto()
    ENDED = enum.auto()
    GIVEN_UP = enum.auto()


class SqliteCall:
    """One call on the connection.

    Attributes:
        work: the work; for a write, within a transaction that other calls may share.
        is_write: whether it may change anything.
        wait_until: of `time.monotonic`: a call not begun by then never begins.
        state: guarded by the calls' lock.
        answer: the outcome once it has ended: a value, or an error to raise.
    """

    __slots__ = ("answer", "is_write", "state", "wait_until", "work")

    def __init__(self, work: Work, is_write: bool, wait_until: float) -> None:
        self.work = work
        self.is_write = is_write
        self.wait_until = wait_until
        self.state = State.WAITING
        self.answer: Any = None


class SqliteCalls:
    """See the module. Called by any thread; the taking thread owns the connection."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[SqliteCall] = deque()

    def add(self, call: SqliteCall) -> None:
        """Let `call` wait from now on."""
        self._waiting.append(call)

    def take(self, first: SqliteCall) -> list[SqliteCall]:
        """Begin `first` and the other waiting calls, in the order of arrival. Returns them.

        Empty if another call did `first`, or its caller gave it up.
        """
        with self._guard:
            if first.state is not State.WAITING:
                return []
            taken = [first]
            now = time.monotonic()
            while self._waiting and len(taken) < TOGETHER_MAX:
                call = self._waiting.popleft()
                if call.state is State.WAITING and call is not first and now < call.wait_until:
                    taken.append(call)
            for call in taken:
                call.state = State.BEGUN
            return taken

    def put_back(self, calls: list[SqliteCall]) -> None:
        """Put calls back that failed because of another call. Each of them then runs by itself."""
        with self._guard:
            for call in calls:
                if call.state is State.BEGUN:
                    call.state = State.WAITING

    def end(self, call: SqliteCall, answer: Any) -> None:
        """Set the outcome."""
        with self._guard:
            call.answer, call.state = answer, State.ENDED

    def give_up(self, call: SqliteCall) -> bool:
        """Give a call up. Returns whether this came in time, so that the call never begins."""
        with self._guard:
            if call.state is State.WAITING:
                call.state = State.GIVEN_UP
            return call.state is State.GIVEN_UP
