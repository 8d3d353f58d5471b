"""A client that trims is not believed how far a log is released."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.errors import Rejected, Unreachable
from cordwood.layout.log_questions import Trim
from cordwood.lsn import ESN_MAX, Lsn, make_lsn
from cordwood.nodes import NodeId

LOG = 1
FAR = [make_lsn(1, 1000), make_lsn(9, 1), make_lsn(1 << 30, ESN_MAX)]


@pytest.mark.parametrize("until", FAR)
@as_scenario(simulate)
async def test_a_release_that_a_client_makes_up_is_not_taken(
    cluster: ClusterAtHand, *, until: Lsn
) -> None:
    """It was, for good: nodes took what no sequencer had released for released."""
    async with cluster.client() as store:
        await store.append_many("log", [b"1", b"2", b"3"])
        await asyncio.sleep(1)
        known = [node.engine.cache.log(LOG).released for node in cluster.running.values()]
        for node in map(NodeId, cluster.numbers):
            call = Trim(LOG, int(make_lsn(1, 1)), int(until))
            with pytest.raises((Unreachable, Rejected), match=r"released|handed out"):
                await store._cluster.call_node(node, call, timeout_s=5)
        now = [node.engine.cache.log(LOG).released for node in cluster.running.values()]
        assert now == known


@pytest.mark.parametrize("lsn", FAR)
@as_scenario(simulate)
async def test_records_to_come_are_not_trimmed(cluster: ClusterAtHand, *, lsn: Lsn) -> None:
    async with cluster.client() as store:
        await store.append("log", b"1")
        await asyncio.sleep(1)
        for node in map(NodeId, cluster.numbers):
            with pytest.raises((Unreachable, Rejected), match=r"released|handed out"):
                await store._cluster.call_node(node, Trim(LOG, int(lsn), int(lsn)), timeout_s=5)
        await store.append("log", b"2")
        assert await values(store, "log") == [b"1", b"2"]


@as_scenario(simulate)
async def test_what_was_appended_just_now_is_trimmed_on_every_node(cluster: ClusterAtHand) -> None:
    """The client may be there before the sequencer's release."""
    async with cluster.client() as store:
        for _ in range(20):
            done = await store.trim("log", await store.append("log", b"gone"))
            assert (len(done.nodes), done.missing) == (3, {})
