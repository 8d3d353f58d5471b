"""The memory of a storage node for an idle log, and for an idle partition.

LogsDB alone: blocks are flushed into many logs of one partition, then into many partitions of one
log, and then into as many of both, each log in one partition. The growth of the process is measured
after all transient memory is free. Each case runs in a separate process, because a second case
would reuse the free memory of the first without growing. The filled LogsDB is opened again, as at a
node's start.

As a program this module is one of those processes: `python -m cordwood.bench.idle DIR LOGS
PARTITIONS` fills a LogsDB in DIR with LOGS logs in each of PARTITIONS partitions and prints the
cost.

Source: docs/design.md §5 (thousands of partitions and 100,000 logs stay cheap).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from time import perf_counter
from typing import NamedTuple

from crc32c import crc32c

from cordwood.bench.alone import resident_bytes, run_alone
from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.block import BlockHeader, Envelope
from cordwood.host.real import real_host
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.logs_db import LogState
from cordwood.layout.waves import StoredBlock
from cordwood.lsn import LogId, make_lsn
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.logs_db.rocks_logs import rocks_tables

BODY = bytes(100)

LOGS_A_FLUSH = 10_000
"""Number of blocks in a flush, which then has a few megabytes, as a real flush."""

FILES_MAX = 10_000
"""More bytes than any of these cases, so that one partition takes all."""

LOGS = "idle_log"
PARTITIONS = "idle_partition"
BOTH = "idle_logs_and_partitions"

FILL_TIMEOUT_S = 1800.0
"""Time limit for one partition, which takes some 10 ms to make, and ten times that on a busy
machine."""


class _Cost(NamedTuple):
    """The cost of a fill: growth of the process in bytes, seconds of the fill, seconds of a start
    after it."""

    grown: int
    seconds: float
    start_s: float


async def bench_idle(*, logs: int, partitions: int, directory: str, say: Say) -> list[Figure]:
    """Measure both, each in a separate LogsDB, and then together.

    Args:
        logs: number of logs, of one block each.
        partitions: number of partitions, of one file each.
        directory: for the databases; removed at the end.
    Raises:
        CordwoodError: LogsDB failed.
    """
    figures: list[Figure] = []

    def add(name: str, value: float, unit: str, **parameters: int | float | str) -> None:
        figures.append(
            make_figure(
                name, unit, [Sample(value, None)],
                reference_is="none: what the process grew by, or took", parameters=parameters,
            )
        )  # fmt: skip

    say(f"{logs:,} logs")
    cost = await _cost(directory, logs, 1)
    add(f"{LOGS}_bytes", cost.grown / logs, "B", count=logs)
    add(f"{LOGS}_us_to_make", cost.seconds / logs * 1e6, "us", count=logs)
    say(f"{partitions:,} partitions")
    cost = await _cost(directory, 1, partitions)
    add(f"{PARTITIONS}_bytes", cost.grown / partitions, "B", count=partitions)
    add(f"{PARTITIONS}_us_to_make", cost.seconds / partitions * 1e6, "us", count=partitions)
    say(f"{logs:,} logs in {partitions:,} partitions")
    each = max(1, logs // partitions)
    cost = await _cost(directory, each, partitions)
    shape = {"logs": each * partitions, "partitions": partitions}
    add(f"{BOTH}_bytes", cost.grown, "B", **shape)
    add(f"{BOTH}_us_to_flush", cost.seconds / partitions * 1e6, "us", **shape)
    add(f"{BOTH}_ms_to_open", cost.start_s * 1e3, "ms", **shape)
    return figures


async def _cost(directory: str, logs: int, partitions: int) -> _Cost:
    """Fill a LogsDB in a separate process.

    Args:
        logs: in each partition.
    """
    printed = await run_alone(
        "cordwood.bench.idle", logs, partitions, directory=directory, timeout_s=FILL_TIMEOUT_S
    )
    return _Cost(*json.loads(printed))


async def _fill(directory: str, logs: int, partitions: int) -> _Cost:
    settings = StorageSettings(partition_files=FILES_MAX if partitions == 1 else 1)
    path = os.path.join(directory, "logsdb")
    async with real_host() as host:
        tables = rocks_tables(path, settings, host)
        store, _ = await LogsStore.open(tables, settings, NodeId(1))
        try:
            await store.flush([_block(1, 1)], {1: LogState()}, 1, 1)
            before, began = resident_bytes(), perf_counter()
            if partitions == 1:
                await _fill_logs(store, logs)
            else:
                await _fill_partitions(store, partitions, logs)
            grown, seconds = resident_bytes() - before, perf_counter() - began
        finally:
            await tables.close()
        tables = rocks_tables(path, settings, host)
        began = perf_counter()
        try:
            await LogsStore.open(tables, settings, NodeId(1))
            return _Cost(grown, seconds, perf_counter() - began)
        finally:
            await tables.close()


async def _fill_logs(store: LogsStore, count: int) -> None:
    """All into one partition: that of the first flush."""
    for start in range(2, count + 2, LOGS_A_FLUSH):
        logs = range(start, min(count + 2, start + LOGS_A_FLUSH))
        blocks = [_block(log, 2) for log in logs]
        await store.flush(blocks, {log: LogState() for log in logs}, store.offset + 1, 1)


async def _fill_partitions(store: LogsStore, count: int, logs: int) -> None:
    """One flush each; where there are several logs, each has others."""
    for number in range(2, count + 2):
        time_us = number * 1_000_000
        first = 1 if logs == 1 else number * logs
        some = range(first, first + logs)
        states = dict.fromkeys(some, LogState(append_time_us=time_us))
        blocks = [_block(log, number) for log in some]
        await store.flush(blocks, states, store.offset + 1, time_us)


def _block(log: int, number: int) -> StoredBlock:
    crc, size = crc32c(BODY), len(BODY)
    header = BlockHeader(
        LogId(log), make_lsn(1, number), 1, number * 1_000_000,
        stored_bytes=size, raw_bytes=size, stored_crc=crc, raw_crc=crc,
    )  # fmt: skip
    envelope = Envelope((1, 2, 3))
    return StoredBlock(header, envelope, pack_header(header) + pack_envelope(envelope), BODY)


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(asyncio.run(_fill(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    )
