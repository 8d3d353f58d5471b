"""Records the operations on the files of a real directory, for `CrashStates` to crash it.

The steps of `cordwood.durable` are recorded as they are called. Changes by Spark, pyarrow,
`deltalake` and `pyiceberg` are found by looking at the directory before and after each step. They
count as not synced, because these libraries sync nothing. SQLite syncs, so its changes count as
durable.

Source: Pillai et al., OSDI 2014 (ALICE); docs/simulator.md, "Crash states".
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cordwood import durable
from cordwood.sim.crash_states.content import DIRECTORY, Content, FileBytes
from cordwood.sim.crash_states.disk_log import (
    Bytes,
    DiskLog,
    Effect,
    Names,
    SyncFile,
    SyncNames,
)

STEPS = ("write_new", "sync_file", "sync_directory", "rename", "unlink", "make_directory")

_Mark = tuple[int, int, int]


def syncs_itself(name: str) -> bool:
    """Whether the writer of this file syncs it: SQLite syncs its database and its journal."""
    return name.startswith("catalog.db")


class FileRecorder:
    """A real directory, empty at first, and the log of its operations.

    Args:
        root: the `/` of the log.
    """

    def __init__(self, root: Path) -> None:
        self.log = DiskLog()
        self._root = root
        self._files: dict[str, _Mark] = {}
        self._directories: set[str] = set()

    @contextmanager
    def recording(self) -> Iterator[DiskLog]:
        """Record while the block runs; restores the steps in any case."""
        real = {name: getattr(durable, name) for name in STEPS}
        try:
            for name, step in real.items():
                setattr(durable, name, self._recorded(name, step))
            yield self.log
            self.look()
        finally:
            for name, step in real.items():
                setattr(durable, name, step)

    def look(self) -> None:
        """Record changes by other libraries since the last step."""
        directories, files = self._walk()
        for path in sorted(self._files.keys() - files.keys()):
            self._did(f"{path} went", [Names(((path, None),))], path)
            del self._files[path]
        for path in sorted(self._directories - directories, reverse=True):
            self._did(f"{path} went", [Names(((path, None),))], path)
            self._directories.remove(path)
        for path in sorted(directories - self._directories):
            self._did(f"{path} was made", [Names(((path, DIRECTORY),))], path)
            self._directories.add(path)
        changed = [path for path, mark in files.items() if self._files.get(path) != mark]
        # The content of a synced file names other files: these were there first.
        for path in sorted(changed, key=lambda each: (self._is_durable(each), each)):
            self._wrote(path, files[path])

    def _wrote(self, path: str, mark: _Mark) -> None:
        known = self._files.get(path)
        number = self.log.target(path) if known is not None and known[0] == mark[0] else None
        effects: list[Effect] = []
        if number is None:
            number = self.log.new_file(FileBytes())
            effects.append(Names(((path, number),)))
        data = (self._root / path[1:]).read_bytes()
        if data:
            effects.append(Bytes(number, 0, data))
        self._did(f"{path} was written", effects, path)
        self._files[path] = mark

    def _recorded(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.look()
            done = step(*arguments)
            # Only successful steps are recorded: a failed step raises.
            self._note(name, [self._path(each) for each in arguments[:2] if _is_path(each)])
            return done

        return run

    def _note(self, name: str, paths: Sequence[str]) -> None:
        path = paths[0]
        target = self.log.target(path)
        if name == "sync_file" and target:
            self._did(f"sync {path}", [SyncFile(target)], path)
        elif name == "sync_directory" and target == DIRECTORY:
            self._did(f"sync directory {path}", [SyncNames(path)], path)
        elif name == "rename" and target:
            renamed = Names(((path, None), (paths[1], target)))
            self._did(f"rename {path} to {paths[1]}", [renamed], paths[1])
            self._files[paths[1]] = self._files.pop(path)
        self.look()

    def _did(self, words: str, effects: Sequence[Effect], path: str) -> None:
        if effects:
            self.log.end(self.log.begin(words, effects, is_durable=self._is_durable(path)))

    def _is_durable(self, path: str) -> bool:
        return syncs_itself(posixpath.basename(path))

    def _walk(self) -> tuple[set[str], dict[str, _Mark]]:
        directories: set[str] = set()
        files: dict[str, _Mark] = {}
        for place, names, others in os.walk(self._root):
            directories.update(self._path(Path(place, name)) for name in names)
            for name in others:
                found = os.lstat(Path(place, name))
                mark = (found.st_ino, found.st_size, found.st_mtime_ns)
                files[self._path(Path(place, name))] = mark
        return directories, files

    def _path(self, path: str | os.PathLike[str]) -> str:
        relative = os.path.relpath(path, self._root)
        return "/" if relative == "." else f"/{relative}"


def _is_path(argument: object) -> bool:
    return isinstance(argument, str | os.PathLike)


def build(content: Content, root: Path) -> None:
    """Make a directory with exactly this content. Its former content is removed."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, number in content.in_reach():
        place = root / path[1:]
        if path == "/":
            continue
        if number == DIRECTORY:
            place.mkdir()
        else:
            file = content.files[number]
            place.write_bytes(file.read(0, file.size) if file.size else b"")
