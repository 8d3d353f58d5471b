"""A small real cluster, run by a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path

from cordwood.local_cluster import ClusterShape, LocalCluster, local_cluster
from cordwood.nodes import NodeId
from cordwood.settings import MIB

NODES = 3
START_TIMEOUT_S = 60.0


class LiveCluster:
    """A local cluster, run by a thread of its own, for tests that have no loop."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._cluster: LocalCluster | None = None

    def __enter__(self) -> LiveCluster:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT_S), "the cluster did not start"
        assert self._cluster is not None, "the cluster did not start; its nodes' logs say why"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

    @property
    def url(self) -> str:
        assert self._cluster is not None
        return self._cluster.url

    def kill(self, node: NodeId) -> None:
        """SIGKILL a node."""
        assert self._cluster is not None
        self._cluster.kill(node)
        process = self._cluster.nodes[node].process
        assert process is not None
        self._call(process.wait())

    def start(self, node: NodeId) -> None:
        """Start a node that was killed, and wait until it is ready."""
        assert self._cluster is not None
        self._call(self._cluster.start_node(node))

    def _call(self, work: Coroutine[None, None, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    async def _run(self) -> None:
        shape = ClusterShape(nodes=NODES, racks=NODES, wal_bytes=16 * MIB)
        try:
            async with local_cluster(str(self._directory), shape) as self._cluster:
                self._ready.set()
                await self._done.wait()
        finally:
            self._ready.set()
