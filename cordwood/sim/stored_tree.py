"""The directory tree of one simulated disk: which paths name which bytes.

Changes are atomic and durable, unless a death cuts them short. Such an entry is *volatile* until
its directory is synced, and a power cut may bring the old entry back. The rules of paths and errors
are POSIX's, as far as the seam shows them.

Source: Pillai et al., OSDI 2014 (renames without a synced directory).
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import random
from collections.abc import Callable

from cordwood.sim.stored_file import StoredFile


def plain_path(path: str) -> str:
    """The one absolute spelling of `path`; the simulated working directory is `/`."""
    return posixpath.normpath(posixpath.join("/", path))


def posix_error(code: int, path: str) -> OSError:
    """The OSError of `code`, naming `path`."""
    return OSError(code, os.strerror(code), path)


class StoredTree:
    """Paths, as `plain_path` spells them, and their files and directories.

    Args:
        capacity_bytes: of all files together; None for no limit.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: dict[str, StoredFile | None] = {"/": None}  # None for a directory
        self._durable: dict[str, StoredFile | None] = {}  # volatile entries; None: absent

    def copy(self) -> StoredTree:
        """A copy of the present tree."""
        twin = StoredTree(self._capacity_bytes)
        twin._entries = {path: file and file.copy() for path, file in self._entries.items()}
        twin._durable = {path: file and file.copy() for path, file in self._durable.items()}
        return twin

    @property
    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._entries.values() if file is not None)

    def file(self, path: str) -> StoredFile:
        """The file that `path` names."""
        if path not in self._entries:
            self.check_parent(path)
            raise posix_error(errno.ENOENT, path)
        file = self._entries[path]
        if file is None:
            raise posix_error(errno.EISDIR, path)
        return file

    def open(self, path: str) -> StoredFile:
        """As `file`. Its directory is synced, so that the entry is durable before files below are
        used."""
        file = self.file(path)
        self._sync(posixpath.dirname(path))
        return file

    def content(self, path: str) -> bytes | None:
        """All bytes of a file, None if there is none."""
        if path not in self._entries:
            return None
        file = self.file(path)
        return file.read(0, file.size)

    def create(self, path: str, size: int) -> None:
        """Make a file of `size` zeros."""
        if path in self._entries:
            raise posix_error(errno.EEXIST, path)
        self._check_space(path, size)
        self.put(path, StoredFile(size))
        self._sync(posixpath.dirname(path))

    def replace(self, path: str, data: bytes) -> None:
        """Let `path` name a new file of these bytes."""
        old = self._entries.get(path)
        if path in self._entries and old is None:
            raise posix_error(errno.EISDIR, path)
        self._check_space(path, len(data) - (old.size if old is not None else 0))
        self.put(path, StoredFile.holding(data))
        self._sync(posixpath.dirname(path))

    def put(self, path: str, file: StoredFile) -> None:
        """Let `path`, in an existing directory, name `file`."""
        self.check_parent(path)
        self._entries[path] = file

    def lose(self, path: str) -> None:
        """Let a file be gone for good, as no program asked for."""
        self.file(path)
        del self._entries[path]
        self._durable.pop(path, None)

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents."""
        if self._entries.get(path) is not None:
            raise posix_error(errno.EEXIST, path)
        missing: list[str] = []
        while path not in self._entries:
            missing.append(path)
            path = posixpath.dirname(path)
        if self._entries[path] is not None:
            raise posix_error(errno.ENOTDIR, missing[-1])
        for directory in reversed(missing):
            self._entries[directory] = None

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if the directory does not exist."""
        if self._entries.get(path) is not None:
            raise posix_error(errno.ENOTDIR, path)
        return sorted(
            posixpath.basename(entry)
            for entry in self._entries
            if entry != "/" and posixpath.dirname(entry) == path
        )

    def perhaps(self, path: str, change: Callable[[], None], chance: random.Random) -> None:
        """A change of `path` that a death cut short: it is seen or not. If it is seen, it is
        volatile."""
        if chance.random() < 0.5:
            return
        before = self._entries.get(path)
        with contextlib.suppress(OSError):
            change()
            if self._entries.get(path) is not None:
                self._durable.setdefault(path, before)

    def lose_power(self, chance: random.Random) -> None:
        """Decide every volatile entry and every volatile block."""
        for path, durable in self._durable.items():
            if chance.random() < 0.5:
                if durable is None:
                    del self._entries[path]
                else:
                    self._entries[path] = durable
        self._durable.clear()
        for file in self._entries.values():
            if file is not None:
                file.lose_power(chance)

    def _sync(self, directory: str) -> None:
        for path in list(self._durable):
            if posixpath.dirname(path) == directory:
                del self._durable[path]

    def check_parent(self, path: str) -> None:
        """Raise the system's error if the directory of `path` does not exist."""
        parent = posixpath.dirname(path)
        if parent not in self._entries:
            raise posix_error(errno.ENOENT, path)
        if self._entries[parent] is not None:
            raise posix_error(errno.ENOTDIR, path)

    def _check_space(self, path: str, more: int) -> None:
        limit = self._capacity_bytes
        if limit is not None and self.used_bytes + more > limit:
            raise posix_error(errno.ENOSPC, path)
