"""A node process's log: bounded in bytes, and in the rate of each kind of line.

A node writes its log to standard error; the program that starts the node makes that a file. Any
client that can connect can have the node write lines. So the file has a largest size, past which a
new file begins and one older file is kept. Of lines that differ only in their arguments, a few a
minute are written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable

from cordwood.durable import open_private

LOG_BYTES_MAX = 8 << 20
"""Of one file; a quiet node writes a few KiB a day."""

OLDER = ".1"
"""Ends the name of the file before."""

LINES_MAX = 20
WINDOW_S = 60.0
"""At most this many lines of one kind in this time; a count replaces further lines."""


class RareLines(logging.Filter):
    """Lets LINES_MAX warnings of one kind pass in WINDOW_S.

    Args:
        now: seconds on a clock that does not go back.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self._since = now()
        self._counts: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line; the first line after a suppression names the suppressed
        number."""
        now = self._now()
        if now - self._since >= WINDOW_S:
            left_out = sum(max(0, count - LINES_MAX) for count in self._counts.values())
            self._counts.clear()
            self._since = now
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out} lines like earlier ones left out)"
                record.args = ()
        if record.levelno < logging.WARNING:
            return True
        kind = (record.name, str(record.msg))
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return self._counts[kind] <= LINES_MAX


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error; where it is a file, one of LOG_BYTES_MAX at most, and one older."""

    def __init__(self, fd: int = 2, bytes_max: int = LOG_BYTES_MAX) -> None:
        super().__init__()
        self._fd = fd
        self._bytes_max = bytes_max

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, into a new file if the present file is full."""
        with contextlib.suppress(OSError):  # a full disk: the line is worth more than the turn
            turn_over(self._fd, self._bytes_max)
        super().emit(record)


def turn_over(fd: int, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """If the file of `fd` is full, begin a new file under its name."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size < bytes_max:
        return False
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not os.path.samestat(os.lstat(path), found):
        return False  # the file was moved: another file has its name now
    os.replace(path, path + OLDER)
    new = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.dup2(new, fd)
    finally:
        os.close(new)
    return True
