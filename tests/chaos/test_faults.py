"""What a fault does to a cluster, on one that is made up."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from swaps import swap_value

from cordwood.chaos import current_sequencer
from cordwood.chaos.faults import TURNS, Faults
from cordwood.errors import Unreachable
from cordwood.nodes import NodeId

NODES = [1, 2, 3]


class MadeUpCluster:
    """Nodes that die and start at once; a log that nobody sequences for a while after a death."""

    def __init__(self, unruled: int) -> None:
        self.nodes = {node: SimpleNamespace(process=None) for node in NODES}
        self.killed: list[NodeId] = []
        self.started: list[NodeId] = []
        self._unruled = unruled
        self._asked = 0

    def kill(self, node: NodeId) -> None:
        self.killed.append(node)
        self._asked = 0

    async def start_node(self, node: NodeId) -> None:
        self.started.append(node)

    async def sequencer(self) -> NodeId | None:
        self._asked += 1
        if self._asked <= self._unruled:
            return None
        return NODES[len(self.killed) % len(NODES)]

    async def wait_acked(self) -> None:
        """Another log's appends go on meanwhile."""


def struck(cluster: MadeUpCluster) -> Faults:
    return Faults(cast(Any, cluster), None, None, cluster.sequencer, cluster.wait_acked)


def test_ping_pong_waits_for_the_next_sequencer() -> None:
    """Seed 1295880195 of the chaos run: an ack of another log came before this log was
    sequenced."""
    cluster = MadeUpCluster(unruled=2)
    asyncio.run(struck(cluster).play("ping-pong", [1, 2, 3], 0.0, random.Random(1)))
    assert cluster.killed == cluster.started == [1, 2, 3]
    assert len(cluster.killed) == TURNS


def test_ping_pong_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: current_sequencer.TIMEOUT_S, 0.1)
    cluster = MadeUpCluster(unruled=1_000_000)
    with pytest.raises(Unreachable, match="no node says that it sequences"):
        asyncio.run(struck(cluster).play("ping-pong", [1, 2, 3], 0.0, random.Random(1)))
    assert cluster.killed == []
