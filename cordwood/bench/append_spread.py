"""How evenly a burst on one log spreads over the nodes of its nodeset.

A log keeps a copyset for 32 MiB and then draws another, sooner where a node has no room for
more: so one hot log is served by every node and not by R of them, which is what free placement
is for. The figure is what the least used node holds, beside
what it would hold if all held the same.

Source: docs/sources/logdevice.md 2.5 (copysets, nodesets); docs/design.md §4.
"""

from __future__ import annotations

import os

from cordwood import aio
from cordwood.bench.append import LOG, Say
from cordwood.bench.append_loops import Limit, append_batches, client_settings
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.place import bench_place
from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.nodes import NodeId

RECORD_BYTES = 1024
BATCH = 64
IN_FLIGHT = 16

BURST_RECORDS = 192_000
"""Six times what a copyset is kept for, a second or two of appends."""

BURST_S = 60.0


async def bench_spread(*, directory: str, nodes: int, repeats: int, say: Say) -> Figure:
    """Append a burst to one log of a fresh cluster, and ask each node what it holds.

    Raises:
        CordwoodError: the cluster did not start, an append failed, or a node was silent.
    """
    say(f"append_spread: starting {nodes} nodes")
    blocks = (BURST_RECORDS // BATCH + 1) * repeats
    async with (
        bench_place(
            None, directory, nodes=nodes, blocks=blocks, block_bytes=RECORD_BYTES * BATCH
        ) as place,
        await aio.connect(place.url, client_settings(RECORD_BYTES, IN_FLIGHT, BATCH)) as store,
    ):
        values = [os.urandom(RECORD_BYTES) for _ in range(BATCH)]
        before = dict.fromkeys(store.members, 0)
        samples = []
        for repeat in range(repeats):
            await append_batches(store, LOG, values, IN_FLIGHT, Limit(BURST_RECORDS, BURST_S))
            after = await held_bytes(store)
            gained = [after[node] - before[node] for node in before]
            before = after
            samples.append(Sample(min(gained) / 1e6, sum(gained) / len(gained) / 1e6))
            say(f"append_spread: {repeat + 1} of {repeats}")
    return make_figure(
        "append_spread", "MB", samples,
        reference_is="as much for each node of the nodeset",
        parameters={"nodes": nodes, "size": RECORD_BYTES, "batch": BATCH, "records": BURST_RECORDS},
    )  # fmt: skip


async def held_bytes(store: Store) -> dict[NodeId, int]:
    """Bytes of the benchmark's log on each node.

    Raises:
        CordwoodError: a node did not answer.
    """
    log_id = (await store.log(LOG)).log_id
    held: dict[NodeId, int] = {}
    for node, answer in (await store.status()).items():
        if isinstance(answer, CordwoodError):
            raise answer
        held[node] = sum(state.bytes for state in answer.logs if state.log == log_id)
    return held
