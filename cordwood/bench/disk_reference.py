"""The speed of the disk alone: the same copies, durable, without Cordwood.

One file for each copy, preallocated and written, opened through the same seam as a
node's WAL (O_DIRECT and O_DSYNC, or fdatasync where there is no O_DIRECT). A write
counts once it is durable in all files. It is an upper bound for copies on this disk:
no network, no numbering, no checksums, one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from time import perf_counter

from cordwood.host.real_disk import RealDisk
from cordwood.host.seams import DISK_BLOCK_BYTES, DirectFile

RING_BYTES_MIN = 64 << 20
"""As large as the working end of a busy WAL, so that blocks are not rewritten at once."""

WAVE_BYTES_MAX = 1 << 20
"""A sequencer's run of blocks is no longer than this either."""

MEASURE_S = 0.5
"""A few thousand writes, which is enough for a median."""


class DiskReference:
    """Files to write copies to; see the module. Made by `disk_reference`."""

    def __init__(self, files: list[DirectFile], write_bytes: int, lanes: int) -> None:
        self.write_bytes = write_bytes
        self._files = files
        self._lanes = lanes
        self._data = os.urandom(write_bytes)
        self._step = _aligned(write_bytes)

    async def bytes_per_second(self, seconds: float = MEASURE_S) -> float:
        """Bytes that became durable in every file, counted once, a second."""
        numbers = count()
        slots = self._files[0].size // self._step
        began = perf_counter()
        writes = 0

        async def lane() -> None:
            nonlocal writes
            while perf_counter() - began < seconds:
                offset = next(numbers) % slots * self._step
                await asyncio.gather(*(file.write(offset, [self._data]) for file in self._files))
                writes += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._lanes):
                tasks.create_task(lane())
        return writes * self.write_bytes / (perf_counter() - began)

    def describe(self) -> str:
        """One sentence for a report."""
        return (
            f"the disk alone: {self.write_bytes >> 10} KiB written durably to "
            f"{len(self._files)} files, {self._lanes} at a time"
        )


@asynccontextmanager
async def disk_reference(
    directory: str, *, copies: int, write_bytes: int, lanes: int
) -> AsyncIterator[DiskReference]:
    """Files in `directory` for the length of the block; they are removed at its end.

    Args:
        write_bytes: user bytes of one write.
        lanes: writes in flight.
    Raises:
        OSError: no space, no permission.
    """
    # One slot more than lanes, so that two writes in flight never meet on one block.
    ring = max(RING_BYTES_MIN, (lanes + 1) * _aligned(write_bytes))
    paths = [os.path.join(directory, f"reference-{number}") for number in range(copies)]
    disk = RealDisk()
    try:
        files: list[DirectFile] = [
            await disk.open_direct(path, create_bytes=_aligned(ring)) for path in paths
        ]
        yield DiskReference(files, write_bytes, lanes)
    finally:
        await disk.close()
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def _aligned(size: int) -> int:
    return -(-size // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES
