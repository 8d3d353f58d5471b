"""A range of a node's WAL rots while the node is down: the time until it is healed.

Appends go on all the time, so the range is not in LogsDB yet when the node is killed. The figure is
the time from the moment when the node listens again until its answers count again.

Source: docs/protocol/repair.md (records that a WAL lost).
"""

from __future__ import annotations

import asyncio
import os
from time import perf_counter

from cordwood.client.store import Store
from cordwood.errors import CordwoodError, OutcomeUnknown, Retryable, Unreachable
from cordwood.local_cluster import LocalCluster
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId

LOG = "bench/rebuild/range"
VALUE_BYTES = 4096
VALUES = 40
"""Records appended before the node is killed; the node's own ones are looked for in its WAL."""

KILLED_S = 10.0
HEALED_S = 120.0
LOOK_S = 0.02


async def time_wal_range(cluster: LocalCluster, store: Store, node: NodeId) -> float:
    """Seconds until a node is whole again after one range of its WAL rotted.

    Raises:
        Unreachable: no record was found in the node's WAL, or it is not healed in time.
        CordwoodError: an append failed.
    """
    values = [os.urandom(VALUE_BYTES) for _ in range(VALUES)]
    await store.create_log(LOG, attributes=LogAttributes(sticky_copysets=False))
    for value in values:
        await store.append(LOG, value)
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        going_on = tasks.create_task(_append_on(store, is_over))
        cluster.kill(node)
        process = cluster.nodes[node].process
        assert process is not None, "it was killed just now"
        async with asyncio.timeout(KILLED_S):
            await process.wait()
        path = os.path.join(cluster.nodes[node].directory, "wal")
        if not await asyncio.to_thread(_rot, path, values):
            raise Unreachable(f"node {node} has none of the records in its WAL")
        is_over.set()
        await going_on
    await cluster.start_node(node)
    began = perf_counter()
    while perf_counter() < began + HEALED_S:
        found = await store.rebuilding()
        answers = not isinstance(found.donors.get(node), CordwoodError | None)
        if answers and node not in found.heals:
            return perf_counter() - began
        await asyncio.sleep(LOOK_S)
    raise Unreachable(f"node {node} is not healed after {HEALED_S:g} s")


async def _append_on(store: Store, is_over: asyncio.Event) -> None:
    """Append all the time, because flushes begin when appends pause."""
    while not is_over.is_set():
        try:
            await store.append(LOG, b"on")
        except (OutcomeUnknown, Retryable):
            await asyncio.sleep(LOOK_S)


def _rot(path: str, values: list[bytes]) -> bool:
    """Flip a bit in the WAL, in the first of these values that it contains, except the last."""
    with open(path, "r+b") as file:
        data = file.read()
        places = sorted(place for value in values if (place := data.find(value)) >= 0)
        if len(places) < 2:
            return False
        file.seek(places[0] + VALUE_BYTES // 2)
        file.write(bytes([data[places[0] + VALUE_BYTES // 2] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
    return True
