"""The place of a measurement: an existing cluster, or a fresh one that is removed at the end.

A fresh cluster is in a directory below the given one, so that the caller chooses the measured disk:
a temporary directory is often in memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cordwood.errors import BadSetting
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.settings import MIB, StorageSettings

KEPT_BYTES_MAX = 8 << 30
"""Most bytes of all copies together; each copy is written to the WAL and then to LogsDB on the same
disk."""

PREFIX = ".cordwood-bench-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where to measure.

    Attributes:
        url: the cluster.
        directory: for files of the measurement itself; removed at the end.
    """

    url: str
    directory: str


@asynccontextmanager
async def bench_place(
    url: str | None,
    directory: str,
    *,
    nodes: int,
    blocks: int,
    block_bytes: int,
    storage: StorageSettings | None = None,
) -> AsyncIterator[Place]:
    """A place for this many blocks, for the length of the `with` block.

    Args:
        url: a running cluster; None starts a fresh one.
        directory: for files.
        nodes: of a fresh cluster.
        blocks, block_bytes: most blocks that will be stored, and their size; decide the size of a
            fresh cluster's WALs.
        storage: of a fresh cluster's nodes, None for the defaults.
    Raises:
        BadSetting: the blocks do not fit.
        Unreachable: a node did not start.
    """
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    try:
        if url is not None:
            yield Place(url, below)
            return
        shape = bench_shape(nodes, blocks, block_bytes)
        async with local_cluster(below, shape, storage=storage) as cluster:
            yield Place(cluster.url, below)
    finally:
        shutil.rmtree(below, ignore_errors=True)


def bench_shape(nodes: int, blocks: int, block_bytes: int) -> ClusterShape:
    """A cluster in which each WAL can hold all blocks, because any node may get any share.

    Raises:
        BadSetting: the WALs would be too much for this machine's memory.
    """
    copies, racks = min(3, nodes), min(3, nodes)
    # Each block has a header and an envelope, and may come alone in a 4 KiB write.
    stored = blocks * (-(-(block_bytes + 512) // 4096) * 4096)
    if stored * copies > KEPT_BYTES_MAX:
        raise BadSetting(
            f"{stored * copies / MIB:,.0f} MiB of copies would be kept in memory, over the "
            f"{KEPT_BYTES_MAX // MIB:,} MiB that a benchmark takes: fewer --records or --seconds"
        )
    wal_bytes = max(64 * MIB, -(-stored * 5 // 4 // MIB) * MIB)
    return ClusterShape(nodes, racks, copies, min(2, racks), wal_bytes)
