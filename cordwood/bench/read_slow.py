"""The throughput of a reader of a whole log when one node is a hundred times slower.

The node is stopped, and runs only for a few milliseconds of each half second: it exists, it
answers, and it is of no use. A reader notices that its windows take longer there than elsewhere and
lets other nodes send in its place (`protocol.slow_nodes`). The figure is for the second half of the
log, after this has happened, beside the same half read from healthy nodes.

Source: docs/reading.md, "How fast readers are" (beside a slow node).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

from cordwood import aio
from cordwood.bench.append import Say
from cordwood.bench.append_loops import Limit, append_batches, client_settings
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.place import PREFIX, bench_shape
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.read.senders import SenderView
from cordwood.errors import Corrupt
from cordwood.local_cluster import LocalCluster, local_cluster
from cordwood.lsn import Lsn
from cordwood.nodes import NodeId
from cordwood.protocol.gap_detection import Delivery

LOG = "bench/slow"

RUNS_S, STANDS_S = 0.005, 0.495
"""The slow node's share of each half second: a hundredth."""

FILL_IN_FLIGHT = 8
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class SlowProfile:
    """The records to read: `blocks` of `batch` records of `size` bytes."""

    size: int = 1024
    batch: int = 64
    blocks: int = 4000


async def bench_slow(
    profile: SlowProfile, *, directory: str, nodes: int, repeats: int, say: Say
) -> Figure:
    """Read with all nodes healthy and then with one slow node, in turn.

    Raises:
        CordwoodError: the cluster did not start, or a read failed or did not give all.
    """
    name = "read_beside_a_slow_node"
    say(f"{name}: starting")
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    samples: list[Sample] = []
    slow_nodes: set[int] = set()
    try:
        shape = bench_shape(nodes, profile.blocks, profile.size * profile.batch)
        async with local_cluster(below, shape) as cluster:
            first, last = await _fill(cluster.url, profile)
            for repeat in range(repeats):
                healthy, views = await _second_half(cluster.url, profile, first, last)
                # The node that sent most: its absence costs most.
                node = max(views, key=lambda each: each.blocks).node
                slow_nodes.add(int(node))
                async with _slow(cluster, node):
                    beside, _ = await _second_half(cluster.url, profile, first, last)
                samples.append(Sample(beside, healthy))
                say(f"{name}: {repeat + 1} of {repeats}")
    finally:
        shutil.rmtree(below, ignore_errors=True)
    return make_figure(
        name, "MB/s", samples,
        reference_is="the same with all nodes healthy",
        parameters={
            "size": profile.size, "batch": profile.batch, "blocks": profile.blocks,
            "nodes": nodes, "cores": os.cpu_count() or 0,
            "slow": ", ".join(map(str, sorted(slow_nodes))),
        },
    )  # fmt: skip


async def _fill(url: str, profile: SlowProfile) -> tuple[Lsn, Lsn]:
    settings = client_settings(profile.size, FILL_IN_FLIGHT, profile.batch)
    values = [os.urandom(profile.size) for _ in range(profile.batch)]
    async with await aio.connect(url, settings) as store:
        before = await store.append(LOG, b"what is read comes after this")
        limit = Limit(profile.blocks * profile.batch, TIMEOUT_S)
        await append_batches(store, LOG, values, FILL_IN_FLIGHT, limit)
        return Lsn(before + 1), await store.tail(LOG)


async def _second_half(
    url: str, profile: SlowProfile, first: Lsn, last: Lsn
) -> tuple[float, list[SenderView]]:
    """Read everything. Returns MB/s of the second half, and the bytes of each sender."""
    async with await aio.connect(url) as store:
        stream = await store.read(LOG, first, last)
        async with asyncio.timeout(TIMEOUT_S):
            half = profile.blocks // 2
            half = await _take(stream, half)
            began = perf_counter()
            taken = await _take(stream, profile.blocks - half)
            seconds = perf_counter() - began
        if half + taken != profile.blocks:
            raise Corrupt(f"{half + taken} blocks were read of the {profile.blocks} in {LOG}")
        views = stream.senders.views()
        stream.close()
    return taken * profile.size * profile.batch / seconds / 1e6, views


async def _take(stream: ReadStream, blocks: int) -> int:
    left = blocks
    while left and (taken := await stream.next()) is not None:
        left -= isinstance(taken, Delivery)
    return blocks - left


@asynccontextmanager
async def _slow(cluster: LocalCluster, node: NodeId) -> AsyncIterator[None]:
    """For the length of the block, a node runs only a hundredth of the time."""

    async def hold_up() -> None:
        while True:
            cluster.send_signal(node, signal.SIGSTOP)
            await asyncio.sleep(STANDS_S)
            cluster.send_signal(node, signal.SIGCONT)
            await asyncio.sleep(RUNS_S)

    async with asyncio.TaskGroup() as tasks:
        holding = tasks.create_task(hold_up())
        try:
            yield
        finally:
            holding.cancel()
            cluster.send_signal(node, signal.SIGCONT)
