"""The cost of a hundred readers at the tail for appends.

Records are appended as fast as possible beside one reader, and then beside a hundred readers that
each take every block. The readers are one client in a separate process, because appending and
reading programs seldom share a process. A run is over when the last record is acknowledged and
every reader has it, including readers that fell behind.

As a program this module is those readers: `python -m cordwood.bench.fan_out URL READERS RECORDS`
prints a line when all readers are at the tail, and another line when each has this many records.

Source: docs/sources/logdevice.md 2.10 and 4; docs/design.md §4.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter

from cordwood import aio
from cordwood.bench.append_loops import Limit, append_batches, client_settings
from cordwood.bench.figure import Sample
from cordwood.client.read.read_stream import ReadStream
from cordwood.errors import Unreachable
from cordwood.protocol.gap_detection import Delivery

LOG = "bench/fan-out"

IN_FLIGHT = 8
BATCH = 64

TIMEOUT_S = 120.0


async def fan_out(url: str, readers: int, records: int, size: int) -> Sample:
    """Records appended and read a second beside this many readers, and just before that beside one.

    Raises:
        CordwoodError: an append or a read failed, or the readers did not get all in time.
    """
    one = await _beside(url, 1, records, size)
    return Sample(await _beside(url, readers, records, size), one)


async def _beside(url: str, readers: int, records: int, size: int) -> float:
    settings = client_settings(size, IN_FLIGHT, BATCH)
    values = [os.urandom(size) for _ in range(BATCH)]
    count = max(1, records // BATCH) * BATCH
    async with await aio.connect(url, settings) as store:
        await store.append(LOG, bytes(8))
        async with _readers(url, readers, count) as all_have_it:
            began = perf_counter()
            await append_batches(store, LOG, values, IN_FLIGHT, Limit(count, TIMEOUT_S))
            await all_have_it()
            return count / (perf_counter() - began)


@asynccontextmanager
async def _readers(
    url: str, readers: int, records: int
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Start a process with this many readers and wait until they are at the tail. Gives a function
    that waits until all readers have all records."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cordwood.bench.fan_out", url, str(readers), str(records),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip

    async def told() -> None:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise Unreachable(f"{readers} readers did not get all records within {TIMEOUT_S:g} s")

    try:
        await told()
        yield told
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(url: str, readers: int, records: int) -> None:
    async with await aio.connect(url) as store:
        streams = [await store.read(LOG, "tail", None) for _ in range(readers)]
        _tell("reading")
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(_follow(stream, records))
        _tell("done")


async def _follow(stream: ReadStream, records: int) -> None:
    while records > 0:
        taken = await stream.next()
        if isinstance(taken, Delivery):
            records -= taken.last - taken.first + 1


def _tell(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_read(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
