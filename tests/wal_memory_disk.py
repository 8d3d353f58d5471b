"""A disk in memory for the WAL's tests: writes wait until told to end, and it can crash.

`MemoryDisk()` ends each write in the next tick; with `by_hand=True`
the test ends them, in any order. `crash` decides by chance what each write still in
flight left behind, sector by sector, and gives the disk that the next start sees.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.block import Buffer
from cordwood.host.seams import (
    DIRECT_OPS_IN_FLIGHT_MAX,
    DIRECT_WRITE_BYTES_MAX,
    DISK_BLOCK_BYTES,
    DirLock,
)

SECTOR_BYTES = 512


@dataclass
class PendingWrite:
    """A write in flight; `parts` are read when it ends, as a device may."""

    offset: int
    parts: Sequence[Buffer]
    future: asyncio.Future[None]

    def data(self) -> bytes:
        data = b"".join(self.parts)
        return data + bytes(-len(data) % DISK_BLOCK_BYTES)


class MemoryFile:
    """A `DirectFile` in memory."""

    def __init__(self, stable: bytearray, *, by_hand: bool) -> None:
        self.stable = stable
        self.by_hand = by_hand
        self.pending: list[PendingWrite] = []
        self.history: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.read_error: OSError | None = None
        self.closed = False

    @property
    def size(self) -> int:
        return len(self.stable)

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        length = sum(map(len, parts))
        assert not self.closed
        assert length > 0
        assert offset % DISK_BLOCK_BYTES == 0
        assert length <= DIRECT_WRITE_BYTES_MAX
        assert offset + length <= self.size
        assert len(self.pending) < DIRECT_OPS_IN_FLIGHT_MAX
        loop = asyncio.get_running_loop()
        write = PendingWrite(offset, parts, loop.create_future())
        self.pending.append(write)
        self.history.append((offset, length))
        if not self.by_hand:
            loop.call_soon(self.end, write)
        return write.future

    def end(self, write: PendingWrite, error: OSError | None = None) -> None:
        """Finish one write: its bytes are stable, or it failed and they are unknown."""
        self.pending.remove(write)
        if error is None:
            data = write.data()
            self.stable[write.offset : write.offset + len(data)] = data
            write.future.set_result(None)
        else:
            write.future.set_exception(error)

    def end_all(self) -> None:
        for write in list(self.pending):
            self.end(write)

    async def read(self, offset: int, length: int) -> bytes:
        assert not self.closed
        assert offset % DISK_BLOCK_BYTES == 0
        assert length % DISK_BLOCK_BYTES == 0
        self.reads.append((offset, length))
        if self.read_error is not None:
            raise self.read_error
        return bytes(self.stable[offset : offset + length])

    async def close(self) -> None:
        self.closed = True


class MemoryDisk:
    """A `Disk` of direct files, and of small ones that are replaced whole and durably."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.small: dict[str, bytes] = {}
        self.by_hand = by_hand

    @property
    def file(self) -> MemoryFile:
        """The only file."""
        (file,) = self.files.values()
        return file

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> MemoryFile:
        if create_bytes is not None:
            if path in self.files:
                raise FileExistsError(path)
            self.files[path] = MemoryFile(bytearray(create_bytes), by_hand=self.by_hand)
        elif path not in self.files:
            raise FileNotFoundError(path)
        else:
            # As a reopened file: same bytes, no writes in flight.
            self.files[path] = MemoryFile(self.files[path].stable, by_hand=self.by_hand)
        return self.files[path]

    def crash(self, chance: random.Random) -> MemoryDisk:
        """What a power cut leaves: of each write in flight none, all or some sectors."""
        after = MemoryDisk(by_hand=self.by_hand)
        after.small = dict(self.small)
        for path, file in self.files.items():
            stable = bytearray(file.stable)
            for write in chance.sample(file.pending, len(file.pending)):
                _leave_some(stable, write, chance)
            after.files[path] = MemoryFile(stable, by_hand=self.by_hand)
        return after

    async def read_file(self, path: str) -> bytes | None:
        return self.small.get(path)

    async def write_file(self, path: str, data: bytes) -> None:
        await asyncio.sleep(0)
        self.small[path] = bytes(data)

    async def make_dir(self, path: str) -> None:
        await asyncio.sleep(0)

    async def list_dir(self, path: str) -> list[str]:
        start = f"{path}/"
        return sorted(each.removeprefix(start) for each in self.small if each.startswith(start))

    async def space(self, path: str) -> tuple[int, int]:
        return 1 << 39, 1 << 40

    async def takes_direct(self, path: str) -> bool:
        return True

    def lock_dir(self, path: str, owner: str) -> DirLock:
        raise NotImplementedError


def _leave_some(stable: bytearray, write: PendingWrite, chance: random.Random) -> None:
    data = write.data()
    share = chance.choice((0.0, 0.3, 0.5, 0.9, 1.0))
    for start in range(0, len(data), SECTOR_BYTES):
        if chance.random() < share:
            at = write.offset + start
            stable[at : at + SECTOR_BYTES] = data[start : start + SECTOR_BYTES]
