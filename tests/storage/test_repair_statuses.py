"""A repair on a node that knows others as empty, and has not heard that they are back."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, say_of_dead, simulate, until
from rebuild_scene import call_lost, put_records
from scenarios import as_scenario

from cordwood.lsn import EVENT_LOG, make_lsn
from cordwood.nodes import Authority, NodeId
from cordwood.sim.planted import find_bug, planted

FULL, EMPTY = Authority.FULLY_AUTHORITATIVE, Authority.AUTHORITATIVE_EMPTY
AWAY = (3, 4)
LOG = 1


@pytest.mark.parametrize("bug", ["", "repair-by-an-older-list"])
@as_scenario(simulate, nodes=4, copies=2)
async def test_a_range_is_not_whole_without_a_node_that_is_back(
    cluster: ClusterAtHand, *, bug: str
) -> None:
    """Two of four nodes were called empty, came back, and are down once more. The list of the
    node that repairs is from before their return."""
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"value")
        first = last = make_lsn(1, 1)
        running = cluster.running
        await until(lambda: all(running[n].engine.cache.log(LOG).readable >= last for n in (1, 2)))
        for node in AWAY:
            cluster.kill(node)
        for node in AWAY:
            await say_of_dead(store, node, EMPTY)
        repairs = cluster.running[NodeId(1)]._repairs
        old = dict(cluster.running[NodeId(1)]._members)
        assert {old[NodeId(node)].authority for node in AWAY} == {EMPTY}
        assert (await repairs._plan_range(LOG, first, last, None)).is_whole, "they are empty"
        await cluster.start(*AWAY)
        now = cluster.running[NodeId(1)]
        await until(lambda: all(now._members[NodeId(each)].authority is FULL for each in AWAY))
        for node in AWAY:
            cluster.kill(node)
        repairs._members = lambda: old
        with planted(find_bug(bug)) if bug else nullcontext():
            plan = await repairs._plan_range(LOG, first, last, None)
            assert plan.is_whole is bool(bug)
        cluster.metadata.is_out = True
        assert not (await repairs._plan_range(LOG, first, last, None)).is_whole


async def the_event_log_calls_nodes_empty(cluster: ClusterAtHand) -> None:
    """The member list does not say that they are empty."""
    await put_records(cluster, logs=1, records=3)
    running, away = cluster.running, (6, 7)
    for node in away:
        cluster.kill(node)
    await asyncio.sleep(5)
    for node in away:
        await call_lost(cluster, node)

    def are_empty() -> bool:
        entries = [running[NodeId(1)]._rebuild.set.entry(node) for node in away]
        return all(entry is not None and entry.is_empty for entry in entries)

    await until(are_empty, timeout_s=100)
    repairs = running[NodeId(5)]._repairs
    plan = await repairs._plan_range(EVENT_LOG, make_lsn(1, 1), make_lsn(1, 1), None)
    assert plan.is_whole, plan.waits


@pytest.mark.parametrize("bug", ["", "repair-of-events-by-the-list"])
def test_a_repair_of_the_event_log_does_without_nodes_that_it_calls_empty(bug: str) -> None:
    right = pytest.raises(AssertionError, match="do not say all") if bug else nullcontext()
    with planted(find_bug(bug)) if bug else nullcontext(), right:
        simulate(the_event_log_calls_nodes_empty, nodes=7, copies=3, replicated_events=True)
