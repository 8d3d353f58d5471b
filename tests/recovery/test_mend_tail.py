"""Mending: a node that has no room just now is asked again, and one that never has is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cordwood.errors import Fenced, NoSequencer
from cordwood.host.seams import Host
from cordwood.layout.waves import Refusal, StoreRefusal
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.recovery import mend_tail
from cordwood.recovery.mend_tail import FULL_TRIES, MendJob
from cordwood.sim.loop import SimLoop
from cordwood.wire.store_channel import StoreChannel

LOG = 5
NODES = (NodeId(1), NodeId(2), NodeId(3))


class Channel:
    """Nodes that answer each store from a list; without one, it is stored."""

    def __init__(self, answers: dict[int, list[Refusal]], lost: int = 0) -> None:
        self.answers = answers
        self.lost = lost
        self.sent: list[NodeId] = []

    def send(
        self,
        node: NodeId,
        parts: Sequence[object],
        crc: int,
        settled: Callable[[NodeId, Sequence[StoreRefusal] | None], None],
    ) -> bool:
        self.sent.append(node)
        waiting = self.answers.get(node, [])
        refusals = [StoreRefusal(1, LOG, waiting.pop(0), 9)] if waiting else []
        if node == self.lost:
            asyncio.get_running_loop().call_soon(settled, node, None)
            return True
        asyncio.get_running_loop().call_soon(settled, node, refusals)
        return True


def store(channel: Channel) -> float:
    """Store one wave; the seconds that it took."""
    job = MendJob(
        log=LOG,
        seal=4,
        lng=0,
        nodes=NODES,
        nodeset=Nodeset(tuple(Member(node, f"node-{node}:1") for node in NODES)),
        replication=Replication(3, 1),
        append_time_us=0,
        run_bytes=1 << 20,
    )
    host = cast(Host, SimpleNamespace(random=random.Random(1)))

    async def main() -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await mend_tail.store_wave(job, [], cast(StoreChannel, cast(Any, channel)), host)
        return loop.time() - begin

    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        return runner.run(main())


def test_who_was_full_is_asked_again_and_nobody_else() -> None:
    channel = Channel({2: [Refusal.FULL, Refusal.FULL]})
    took_s = store(channel)
    assert sorted(channel.sent) == [1, 2, 2, 2, 3]
    assert 0 < took_s < 1


def test_who_stays_full_is_told_of() -> None:
    channel = Channel({2: [Refusal.FULL] * 100})
    with pytest.raises(NoSequencer, match=r"nodes \[2\] have no room"):
        store(channel)
    assert channel.sent.count(NodeId(2)) == FULL_TRIES


def test_a_node_whose_connection_is_lost_has_not_stored_it() -> None:
    """Taken for stored, the epoch would be called clean with a copy too few."""
    with pytest.raises(NoSequencer, match="node 2 went away"):
        store(Channel({}, lost=2))


@pytest.mark.parametrize(
    ("refusal", "error"), [(Refusal.SEALED, Fenced), (Refusal.FAILED, NoSequencer)]
)
def test_another_refusal_ends_it_at_once(refusal: Refusal, error: type[Exception]) -> None:
    channel = Channel({1: [refusal]})
    with pytest.raises(error):
        store(channel)
    assert len(channel.sent) == 3
