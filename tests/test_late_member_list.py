"""Two readings of the member list at once, of which the earlier one is answered last."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.metadata.membership import Membership
from cordwood.metadata.memory import MemoryMetadata
from cordwood.metadata.store import Versioned
from cordwood.nodes import Authority, NodeId
from cordwood.sim.planted import find_bug, planted


class LateAnswers:
    """A way to the metadata store whose next listing is answered late, with what was there."""

    def __init__(self, store: MemoryMetadata) -> None:
        self._list = store.list
        self.late_s = 2.0

    async def list(self, prefix: str) -> list[tuple[str, Versioned]]:
        late_s, self.late_s = self.late_s, 0.0
        found = await self._list(prefix)
        await asyncio.sleep(late_s)
        return found


async def a_late_list(cluster: ClusterAtHand) -> None:
    own = await cluster.start_with_own_way(1)
    node = cluster.running[NodeId(1)]
    members = Membership(cluster.metadata)
    await cluster.stop(3)
    await members.set_authority(NodeId(3), Authority.AUTHORITATIVE_EMPTY)
    own.list = LateAnswers(own).list  # type: ignore[method-assign]
    earlier = asyncio.create_task(node._refresh_members())
    await asyncio.sleep(0.5)
    await members.come_back(NodeId(3))
    statuses = await node._read_statuses(1)
    assert statuses[NodeId(3)] is Authority.UNAVAILABLE
    await earlier
    assert {m.node: m.authority for m in node._judged(1)}[NodeId(3)] is Authority.UNAVAILABLE


def test_a_late_answer_does_not_replace_a_later_one() -> None:
    """A recovery judged nodes by statuses from before its question."""
    simulate(a_late_list, nodes=4)
    with planted(find_bug("recovery-by-an-older-list")), pytest.raises(AssertionError):
        simulate(a_late_list, nodes=4)
