"""The system calls that `RealDisk` makes, carried out in a directory and written to a log.

In the log they are what POSIX promises and no more: bytes and names are on stable
storage after an fsync of their file or directory, or at once through `O_DSYNC`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cordwood.host import direct_file, real_disk
from cordwood.sim.crash_states.content import DIRECTORY, FileBytes
from cordwood.sim.crash_states.disk_log import (
    Bytes,
    DiskLog,
    Effect,
    Names,
    SyncFile,
    SyncNames,
)


class RecordedCalls:
    """Stands where the modules of `host` say `os`; what it does not record it passes on.

    Args:
        root: an empty directory, `/` in the log.
    """

    def __init__(self, root: Path, log: DiskLog) -> None:
        self.log = log
        self._root = str(root)
        self._lock = threading.Lock()  # direct writes come from threads
        self._opened: dict[int, tuple[int | str, bool]] = {}

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of `os` and `open` for this test."""
        for module in (real_disk, direct_file):
            monkeypatch.setattr(module, "os", self)
        monkeypatch.setattr(real_disk, "open", self.open_file, raising=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _place(self, path: str) -> str:
        assert path == self._root or path.startswith(self._root + "/"), path
        return path[len(self._root) :] or "/"

    def _note(self, words: str, effects: Sequence[Effect], *, is_durable: bool = False) -> None:
        with self._lock:
            self.log.end(self.log.begin(words, effects, is_durable=is_durable))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        place = self._place(path)
        is_new = self.log.target(place) is None or bool(flags & os.O_TRUNC)
        fd = os.open(path, flags, mode)
        if flags & os.O_CREAT and is_new:
            # One that is cut to nothing is a new one as well: what it held is of no use.
            self._note(f"create {place}", [Names(((place, self.log.new_file(FileBytes())),))])
        target = self.log.target(place)
        assert target is not None
        self._opened[fd] = (place if target == DIRECTORY else target, bool(flags & os.O_DSYNC))
        return fd

    def open_file(self, fd: int, mode: str) -> WrittenFile:
        assert mode == "wb"
        return WrittenFile(self, fd)

    def close(self, fd: int) -> None:
        del self._opened[fd]
        os.close(fd)

    def pwritev(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        number, is_durable = self._opened[fd]
        assert isinstance(number, int)
        data = b"".join(views)
        count = os.pwritev(fd, [data], offset)
        words = f"write {number} [{offset}, {offset + count})"
        self._note(words, [Bytes(number, offset, data[:count])], is_durable=is_durable)
        return count

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        os.posix_fallocate(fd, offset, length)
        number, _ = self._opened[fd]
        assert isinstance(number, int)
        self._note(f"allocate {number}", [Bytes(number, offset, bytes(length))])

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        target, _ = self._opened[fd]
        of = SyncFile(target) if isinstance(target, int) else SyncNames(target)
        self._note(f"fsync {target}", [of])

    fdatasync = fsync

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)
        self._note(f"mkdir {self._place(path)}", [Names(((self._place(path), DIRECTORY),))])

    def link(self, path: str, new_path: str) -> None:
        os.link(path, new_path)
        number = self.log.target(self._place(path))
        self._note(f"link {self._place(new_path)}", [Names(((self._place(new_path), number),))])

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self._note(f"unlink {self._place(path)}", [Names(((self._place(path), None),))])

    def replace(self, path: str, new_path: str) -> None:
        os.replace(path, new_path)
        number = self.log.target(self._place(path))
        changes = ((self._place(path), None), (self._place(new_path), number))
        self._note(f"rename to {self._place(new_path)}", [Names(changes)])


class WrittenFile:
    """What `open(fd, "wb")` gives, as far as it is used."""

    def __init__(self, calls: RecordedCalls, fd: int) -> None:
        self._calls = calls
        self._fd = fd
        self._at = 0

    def __enter__(self) -> WrittenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.close(self._fd)

    def write(self, data: bytes) -> None:
        self._at += self._calls.pwritev(self._fd, [memoryview(data)], self._at)

    def flush(self) -> None:
        """Nothing is held back: what a crash may take of a write, it may take of this one."""
