"""Nodes are restarted one after the other, and never two at once."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.client.admin.rolling_restart import rolling_restart
from cordwood.errors import BadSetting, OutcomeUnknown, Rejected, Retryable, Unreachable
from cordwood.nodes import NodeId


@as_scenario(simulate, nodes=4)
async def test_all_nodes_are_restarted_one_at_a_time_and_appends_go_on(
    cluster: ClusterAtHand,
) -> None:
    said: list[str] = []

    async def restart(node: NodeId) -> None:
        assert len(cluster.running) == 4, "another one is still away"
        cluster.kill(node)
        asyncio.get_running_loop().call_later(5, cluster.keep_starting, node)

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        await rolling_restart(
            store, [1, 2, 3, 4], restart, user="ann", timeout_s=100, say=said.append
        )
        await store.append("a", b"value")
        assert await store.maintenance() == []
    assert [line.split(":")[0] for line in said[::2]] == [f"node {n}" for n in (1, 2, 3, 4)]


@as_scenario(simulate, nodes=3)
async def test_a_node_that_is_needed_is_left_alone(cluster: ClusterAtHand) -> None:
    async def restart(node: NodeId) -> None:
        raise AssertionError("it may not be restarted")

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        with pytest.raises(Retryable, match="writes would stop"):
            await rolling_restart(store, [1], restart, user="ann", timeout_s=5, say=print)
        assert await store.maintenance() == []
        with pytest.raises(BadSetting, match="no node 9"):
            await rolling_restart(store, [1, 9], restart, user="ann", timeout_s=5, say=print)


@as_scenario(simulate, nodes=4)
async def test_a_node_that_does_not_come_back_keeps_its_request(cluster: ClusterAtHand) -> None:
    async def restart(node: NodeId) -> None:
        cluster.kill(node)

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        with pytest.raises(Unreachable, match="node 2 is not back"):
            await rolling_restart(store, [2, 3], restart, user="ann", timeout_s=20, say=print)
        assert [each.nodes for each in await store.maintenance()] == [(2,)]


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (Rejected("no process"), []),
        (FileNotFoundError(), []),
        (OutcomeUnknown("it failed"), [(2,)]),
    ],
    ids=["refused", "not found", "failed"],
)
@as_scenario(simulate, nodes=4)
async def test_a_node_to_which_nothing_was_done_keeps_no_request(
    cluster: ClusterAtHand, *, error, stays
) -> None:
    """It stayed granted for an hour, and no other node was granted meanwhile."""

    async def restart(node: NodeId) -> None:
        raise error

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        with pytest.raises(type(error)):
            await rolling_restart(store, [2, 3], restart, user="ann", timeout_s=20, say=print)
        assert [each.nodes for each in await store.maintenance()] == stays


@as_scenario(simulate, nodes=3)
async def test_a_restart_that_is_given_up_before_its_grant_leaves_no_request(
    cluster: ClusterAtHand,
) -> None:
    """It was granted later, for nobody."""

    async def restart(node: NodeId) -> None:
        raise AssertionError("it may not be restarted")

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await rolling_restart(store, [1], restart, user="ann", timeout_s=60, say=print)
        assert await store.maintenance() == []
