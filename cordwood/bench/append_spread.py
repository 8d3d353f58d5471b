"""How evenly a burst on one log spreads over the nodes of its nodeset.

A log keeps a copyset for 32 MiB and then draws another copyset, sooner if a node has no free space.
So all nodes serve one hot log, and not only R of them: this is the purpose of free placement. The
figure is the bytes on the least used node, beside an even share.

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
"""Six times the bytes of one copyset, a second or two of appends."""

BURST_S = 60.0


async def bench_spread(*, directory: str, nodes: int, repeats: int, say: Say) -> Figure:
    """Append a burst to one log of a fresh cluster, and ask each node for its bytes.

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
