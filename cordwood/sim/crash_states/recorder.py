"""A `Disk` that records its operations and passes them to another disk.

It records the promises of `host.seams`, and not the way in which the disk below keeps them. A
direct write is durable when its future is done; before that any part of it may be there. A small
file is replaced whole. A new direct file is there whole or not at all. A directory is made before
its entries.

It follows one process, or several processes that each left nothing in flight. The next crash state
covers the remains of a killed process.

Source: `host.seams`; docs/sources/reliability.md §5.4.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from functools import partial

from cordwood.block import Buffer
from cordwood.host.direct_bounds import padded_bytes
from cordwood.host.seams import DirectFile, DirLock, Disk
from cordwood.sim.crash_states.content import DIRECTORY, FileBytes
from cordwood.sim.crash_states.disk_log import (
    Bytes,
    DiskLog,
    Effect,
    Names,
    Operation,
    Outcome,
    SyncNames,
)
from cordwood.sim.stored_tree import plain_path


class RecordingDisk:
    """`inner`, with all changes recorded in `log`.

    Args:
        inner: has the content of `log.base` when the recording starts.

    Attributes:
        syncs_names: whether files made by `write_file` and `open_direct` keep their names, as the
            seam promises. False is a disk that does not sync directories.
    """

    syncs_names = True

    def __init__(self, inner: Disk, log: DiskLog) -> None:
        self.inner = inner
        self.log = log

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> RecordingFile:
        place = plain_path(path)
        if create_bytes is None:
            file = await self.inner.open_direct(path)
        else:
            made = self.log.new_file(FileBytes(create_bytes))
            begun = self._begin(f"create {place}", place, made)
            try:
                file = await self.inner.open_direct(path, create_bytes=create_bytes)
            except OSError as error:
                refused = isinstance(error, FileExistsError | FileNotFoundError)
                self.log.end(begun, Outcome.REFUSED if refused else Outcome.FAILED)
                raise
            self.log.end(begun)
        number = self.log.target(place)
        assert number, f"{place} was opened, and nothing in the log made it"
        return RecordingFile(file, self.log, number, place)

    async def read_file(self, path: str) -> bytes | None:
        return await self.inner.read_file(path)

    async def write_file(self, path: str, data: bytes) -> None:
        place = plain_path(path)
        made = self.log.new_file(FileBytes.holding(bytes(data)))
        begun = self._begin(f"replace {place}", place, made)
        try:
            await self.inner.write_file(path, data)
        except OSError:
            self.log.end(begun, Outcome.FAILED)
            raise
        self.log.end(begun)

    async def make_dir(self, path: str) -> None:
        missing: list[str] = []
        at = plain_path(path)
        while self.log.target(at) is None:
            missing.append(at)
            at = posixpath.dirname(at)
        effects: list[Effect] = [Names(((each, DIRECTORY),)) for each in reversed(missing)]
        begun = self.log.begin(f"make directory {plain_path(path)}", effects)
        try:
            await self.inner.make_dir(path)
        except OSError:
            self.log.end(begun, Outcome.FAILED)
            raise
        self.log.end(begun)

    async def list_dir(self, path: str) -> list[str]:
        return await self.inner.list_dir(path)

    async def space(self, path: str) -> tuple[int, int]:
        return await self.inner.space(path)

    async def takes_direct(self, path: str) -> bool:
        return await self.inner.takes_direct(path)

    def lock_dir(self, path: str, owner: str) -> DirLock:
        lock = self.inner.lock_dir(path, owner)
        place = posixpath.join(plain_path(path), "lock")
        held = self.log.target(place)
        effect: Effect
        if held is None:
            effect = Names(((place, self.log.new_file(FileBytes.holding(owner.encode()))),))
        else:
            effect = Bytes(held, 0, owner.encode())
        self.log.end(self.log.begin(f"lock {place}", [effect], is_durable=False))
        return lock

    def _begin(self, words: str, path: str, target: int) -> Operation:
        named = Names(((path, target),))
        if not self.syncs_names:
            return self.log.begin(words, [named], is_durable=False)
        return self.log.begin(words, [named, SyncNames(posixpath.dirname(path))])


class RecordingFile:
    """A `DirectFile` of a `RecordingDisk`.

    Attributes:
        number: the file's in the log.
        is_durable: whether a write is on stable storage when it is done, as the seam
            promises. False is `O_DIRECT` without `O_DSYNC`.
    """

    is_durable = True

    def __init__(self, inner: DirectFile, log: DiskLog, number: int, path: str) -> None:
        self.number = number
        self._inner = inner
        self._log = log
        self._path = path

    @property
    def size(self) -> int:
        return self._inner.size

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        written = self._inner.write(offset, parts)
        length = padded_bytes(parts)
        data = b"".join(parts).ljust(length, b"\0")
        begun = self._log.begin(
            f"write {self._path} [{offset}, {offset + length})",
            [Bytes(self.number, offset, data)],
            is_durable=self.is_durable,
        )
        # The first callback of the future, so that the end comes before all later events.
        written.add_done_callback(partial(self._on_written, begun))
        return written

    def _on_written(self, begun: Operation, written: asyncio.Future[None]) -> None:
        if written.cancelled():
            return  # cancelled by its caller: the disk goes on with it, and its end is not reported
        failed = written.exception() is not None
        self._log.end(begun, Outcome.FAILED if failed else Outcome.DONE)

    async def read(self, offset: int, length: int) -> bytes:
        return await self._inner.read(offset, length)

    async def close(self) -> None:
        await self._inner.close()
