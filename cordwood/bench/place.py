"""Where a measurement happens: a cluster that is there, or a fresh one that goes away again.

A fresh one lies in a directory below the one it is given, so that the disk that is
measured is the caller's choice: a temporary directory is often in memory.
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
"""Of all copies together; each is written to the WAL and then to LogsDB on the same disk."""

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
    """A place for so many blocks, for the length of the block.

    Args:
        url: a cluster that runs; None starts a fresh one.
        directory: where files may lie.
        nodes: of a fresh cluster.
        blocks, block_bytes: what will be stored, at most; sizes a fresh cluster's WALs.
        storage: of a fresh cluster's nodes, None for the defaults.
    Raises:
        BadSetting: it does not fit.
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
    """A cluster each of whose WALs holds all blocks, as any node may be given any share.

    Raises:
        BadSetting: it would be too much for this machine's memory.
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
