"""A log read from the disk, beside the same log read from memory.

The log is filled and read. This is the reference, because new records are in the nodes' memory.
Then the nodes are stopped, their files are dropped from the machine's page cache, the nodes start
again, and the log is read once more. Blocks that no flush had taken are in the WAL, which a start
reads anyway: `unflushed_share` is their share.

Source: docs/reading.md, "How fast readers are" (from the disk: 0.6 of from memory).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from time import perf_counter

from cordwood import aio
from cordwood.bench.append import Say
from cordwood.bench.append_loops import Limit, append_batches, client_settings
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.place import PREFIX, bench_shape
from cordwood.client.store import Store
from cordwood.errors import Corrupt
from cordwood.layout.message import StatusReply
from cordwood.local_cluster import local_cluster
from cordwood.lsn import Lsn
from cordwood.protocol.gap_detection import Delivery

LOG = "bench/cold"

SIZE, BATCH, BLOCKS = 1024, 64, 4000
"""A quarter of a gigabyte: with three copies on five nodes several flushes on each."""

FILL_IN_FLIGHT = 8
FILL_TIMEOUT_S = 300.0


async def bench_cold(*, directory: str, nodes: int, repeats: int, say: Say) -> Figure:
    """Read from memory and from the disk, with a fresh cluster for each repeat.

    Raises:
        CordwoodError: the cluster did not start, or a read failed.
    """
    name = "read_64KiB_blocks_cold"
    samples: list[Sample] = []
    unflushed = 0.0
    for repeat in range(repeats):
        below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
        try:
            sample, share = await _sample(below, nodes)
        finally:
            shutil.rmtree(below, ignore_errors=True)
        samples.append(sample)
        unflushed = max(unflushed, share)
        say(f"{name}: {repeat + 1} of {repeats}")
    return make_figure(
        name, "MB/s", samples,
        reference_is="the same log from memory, just after it was written",
        parameters={
            "size": SIZE, "batch": BATCH, "blocks": BLOCKS, "nodes": nodes,
            "cores": os.cpu_count() or 0, "unflushed_share": round(unflushed, 3),
        },
    )  # fmt: skip


async def _sample(directory: str, nodes: int) -> tuple[Sample, float]:
    """One repeat, and the share of the stored bytes that was still in the WAL."""
    shape = bench_shape(nodes, BLOCKS, SIZE * BATCH)
    async with local_cluster(directory, shape) as cluster:
        settings = client_settings(SIZE, FILL_IN_FLIGHT, BATCH)
        values = [os.urandom(SIZE) for _ in range(BATCH)]
        async with await aio.connect(cluster.url, settings) as store:
            before = await store.append(LOG, b"what is read comes after this")
            limit = Limit(BLOCKS * BATCH, FILL_TIMEOUT_S)
            await append_batches(store, LOG, values, FILL_IN_FLIGHT, limit)
            last = await store.tail(LOG)
            share = await _unflushed(store)
        cached = await _read(cluster.url, Lsn(before + 1), last)
        await cluster.stop()
        _leave_page_cache(directory)
        await cluster.start()
        cold = await _read(cluster.url, Lsn(before + 1), last)
    return Sample(cold, cached), share


async def _unflushed(store: Store) -> float:
    answers = [each for each in (await store.status()).values() if isinstance(each, StatusReply)]
    copies = (await store.log(LOG)).replication.copies
    return sum(each.cache_bytes for each in answers) / (copies * SIZE * BATCH * BLOCKS)


async def _read(url: str, first: Lsn, last: Lsn) -> float:
    """MB/s of the whole log."""
    records = 0
    async with await aio.connect(url) as store:
        began = perf_counter()
        stream = await store.read(LOG, first, last)
        while (taken := await stream.next()) is not None:
            if isinstance(taken, Delivery):
                records += taken.last - taken.first + 1
        seconds = perf_counter() - began
    if records != BATCH * BLOCKS:
        raise Corrupt(f"{records} records were read of the {BATCH * BLOCKS} that {LOG} was given")
    return records * SIZE / seconds / 1e6


def _leave_page_cache(directory: str) -> None:
    """Drop the machine's cache of all files below."""
    os.sync()
    for path, _, files in os.walk(directory):
        for name in files:
            fd = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
