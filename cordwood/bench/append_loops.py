"""The two loops that append as fast as they can and time it.

Both keep a fixed number in flight, check every answer, and take a latency for each.

Source: docs/sources/hotpath.md §6 (a client's futures and tasks are its ceiling). Measured on
2 cores, 5 nodes, 256 B, 2,048 in flight: this window 310,000 appends a second, a
callback on each future 246,000, a task for each in flight 211,000.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter

from cordwood.client.append.open_log import Appending
from cordwood.client.store import Store
from cordwood.lsn import Lsn
from cordwood.settings import MIB, ClientSettings


@dataclass(frozen=True, slots=True)
class Limit:
    """The end of a loop: after a number of records, or after a number of seconds."""

    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AppendRun:
    """The result of one loop.

    Attributes:
        seconds: from the first append to the last answer.
        records: appended and acknowledged.
        latencies_s: of each append, or of each batch, in order of their ends.
    """

    seconds: float
    records: int
    latencies_s: list[float]


async def append_singles(
    logs: Sequence[Appending], value: bytes, in_flight: int, limit: Limit
) -> AppendRun:
    """Append one by one with a window of futures, to each of the logs in turn.

    Appends to one log are acknowledged in LSN order, so the window is a queue: wait for its
    oldest, take every answer that came with it, fill up again.

    Raises:
        CordwoodError: an append failed.
    """
    window: deque[tuple[asyncio.Future[Lsn], float]] = deque()
    latencies: list[float] = []
    turn = cycle([log.append_nowait for log in logs])
    began = now = perf_counter()
    left = limit.records
    while True:
        if now - began < limit.seconds:
            room = min(in_flight - len(window), left)
            left -= room
            window.extend((append(value), now) for append in islice(turn, room))
        if not window:
            return AppendRun(now - began, len(latencies), latencies)
        await window[0][0]
        now = perf_counter()
        while window and window[0][0].done():
            future, submitted = window.popleft()
            future.result()
            latencies.append(now - submitted)


async def append_batches(
    store: Store, log: str, values: Sequence[bytes], in_flight: int, limit: Limit
) -> AppendRun:
    """Append the same batch again and again, with a worker for each batch in flight.

    Raises:
        CordwoodError: an append failed.
    """
    latencies: list[float] = []
    began = perf_counter()
    left = max(1, limit.records // len(values))

    async def work() -> None:
        nonlocal left
        while left > 0 and (submitted := perf_counter()) - began < limit.seconds:
            left -= 1
            await store.append_many(log, values)
            latencies.append(perf_counter() - submitted)

    async with asyncio.TaskGroup() as workers:
        for _ in range(in_flight):
            workers.create_task(work())
    return AppendRun(perf_counter() - began, len(latencies) * len(values), latencies)


def client_settings(size: int, in_flight: int, batch: int) -> ClientSettings:
    """A client whose window never holds a loop up, and whose blocks are its batches.

    Args:
        size: bytes of a record.
        in_flight: records, or batches, in flight.
        batch: records of a batch, 0 for single records.
    """
    usual = ClientSettings()
    records = in_flight * (batch or 1)
    return ClientSettings(
        window_bytes=min(1024 * MIB, max(usual.window_bytes, 2 * records * size)),
        window_records=max(usual.window_records, 2 * records),
        block_bytes=max(1, batch * size) if batch else max(usual.block_bytes, size),
        block_records=batch or usual.block_records,
    )
