"""Looks every second at what nodes hold, for the checker of their limits (L6).

Source: docs/sources/reliability.md §3 (L6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from cordwood.node import Node
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.cluster import SimCluster
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.node_events import Gauged
from cordwood.sim.process import ProcessState
from cordwood.wire import arrivals as arrivals_module
from cordwood.wire import server

LOOK_EVERY_S = 1.0

FLUSH_SLACK_S = 5.0
"""How late a flush may be while nothing fails: the flush before it may take this long."""

LATE_SLACK_S = 2.0
"""A node with little time of its processor looks later, by this much, for frames that were
begun."""


class Gauges:
    """See the module; `run` looks until it is cancelled.

    Attributes:
        flushing: nodes that can flush now, as no fault prevents it.
    """

    def __init__(self, cluster: SimCluster, recorder: HistoryRecorder) -> None:
        self.flushing: frozenset[NodeId] = frozenset()
        self._since_s = 0.0
        self._cluster = cluster
        self._recorder = recorder
        self._highest: dict[tuple[NodeId, str], int] = {}

    def all_well(self, nodes: Collection[NodeId]) -> None:
        """From now on no fault keeps these nodes from flushing; none if a fault strikes again."""
        self.flushing = frozenset(nodes)
        self._since_s = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Record each value that is higher than any value before."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for number, node in sorted(self._cluster.running.items()):
                for what, value, limit in self._values(number, node):
                    if value > self._highest.get((number, what), 0):
                        self._highest[number, what] = value
                        event = Gauged(self._recorder.now_us, number, what, value, limit)
                        self._recorder.add(event)

    def _values(self, number: NodeId, node: Node) -> Iterator[tuple[str, int, int]]:
        settings: StorageSettings = self._cluster.options.storage
        engine = node.engine
        yield "wal_bytes", engine.wal.used_bytes, engine.wal.capacity_bytes
        yield "cache_bytes", engine.cache.bytes, engine.cache_bytes_max
        arrivals, process = node.server.arrivals, self._cluster.machine(number).process
        yield "strangers", node.server.strangers, server.STRANGERS_MAX
        yield "begun_bytes", arrivals.bytes, arrivals_module.UNFINISHED_BYTES_MAX
        if process is not None and process.state is ProcessState.RUNNING:
            late_s = arrivals.late_s(asyncio.get_running_loop().time())
            limit_s = server.LATE_EVERY_S + LATE_SLACK_S
            yield "begun_late_us", round(late_s * 1e6), round(limit_s * 1e6)
        batch = engine.cache.batch
        if number in self.flushing and batch is not None:
            waits_s = asyncio.get_running_loop().time() - max(batch.since_s, self._since_s)
            limit_s = settings.flush_age_s + FLUSH_SLACK_S
            yield "unflushed_us", max(0, round(waits_s * 1e6)), round(limit_s * 1e6)
