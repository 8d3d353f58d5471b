"""What a storage node keeps in memory for a log, and for a partition, that nobody touches.

LogsDB alone, in this process: blocks are flushed, once into many logs of one partition and
once into many partitions of one log, and what the process has grown by is counted after all
that is transient was let go of.

Source: design.md §5 (thousands of partitions and 100,000 logs stay cheap).
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from time import perf_counter

from crc32c import crc32c

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.block import BlockHeader, Envelope
from cordwood.host.real import real_host
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.logs_db import LogState
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import make_lsn
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.storage.logs_store import LogsStore
from cordwood.storage.rocks_logs import rocks_tables

BODY = bytes(100)

LOGS_A_FLUSH = 10_000
"""So many that a flush is a few megabytes, as a real one is."""

LOGS = "idle_log"
PARTITIONS = "idle_partition"

Fill = Callable[[LogsStore, int], Awaitable[None]]


async def bench_idle(*, logs: int, partitions: int, directory: str, say: Say) -> list[Figure]:
    """Measure both, each in a LogsDB of its own.

    Args:
        logs: how many, of one block each.
        partitions: how many, of one file each.
        directory: where they may lie; removed at the end.
    Raises:
        CordwoodError: LogsDB failed.
    """
    figures: list[Figure] = []
    for name, count, fill in ((LOGS, logs, _fill_logs), (PARTITIONS, partitions, _fill_partitions)):
        say(f"{name}: {count:,}")
        grown, seconds = await _grown(directory, count, fill)
        parameters: dict[str, int | float | str] = {"count": count}
        for unit, value in (("bytes", grown / count), ("us_to_make", seconds / count * 1e6)):
            figures.append(
                make_figure(
                    f"{name}_{unit}", "B" if unit == "bytes" else "us", [Sample(value, None)],
                    reference_is="none: what the process grew by", parameters=parameters,
                )
            )  # fmt: skip
    return figures


async def _grown(directory: str, count: int, fill: Fill) -> tuple[int, float]:
    """Bytes that this process grew by, and the seconds that it took."""
    settings = StorageSettings(partition_files=1 if fill is _fill_partitions else 10_000)
    below = tempfile.mkdtemp(prefix=".cordwood-bench-", dir=directory)
    try:
        async with real_host() as host:
            tables = rocks_tables(os.path.join(below, "logsdb"), settings, host)
            store, _ = await LogsStore.open(tables, settings, NodeId(1))
            try:
                await store.flush([_block(1, 1)], {1: LogState()}, 1, 1)
                before, began = _resident_bytes(), perf_counter()
                await fill(store, count)
                return _resident_bytes() - before, perf_counter() - began
            finally:
                await tables.close()
    finally:
        shutil.rmtree(below, ignore_errors=True)


async def _fill_logs(store: LogsStore, count: int) -> None:
    for start in range(2, count + 2, LOGS_A_FLUSH):
        logs = range(start, min(count + 2, start + LOGS_A_FLUSH))
        blocks = [_block(log, 2) for log in logs]
        await store.flush(blocks, {log: LogState() for log in logs}, store.offset + 1, 1)


async def _fill_partitions(store: LogsStore, count: int) -> None:
    for number in range(2, count + 2):
        time_us = number * 1_000_000
        state = LogState(append_time_us=time_us)
        await store.flush([_block(1, number)], {1: state}, store.offset + 1, time_us)


def _block(log: int, number: int) -> StoredBlock:
    crc, size = crc32c(BODY), len(BODY)
    header = BlockHeader(
        log, make_lsn(1, number), 1, number * 1_000_000,
        stored_bytes=size, raw_bytes=size, stored_crc=crc, raw_crc=crc,
    )  # fmt: skip
    envelope = Envelope((1, 2, 3))
    return StoredBlock(header, envelope, pack_header(header) + pack_envelope(envelope), BODY)


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
