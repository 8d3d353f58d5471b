"""Nodes are restarted one after the other, and never two at once."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from scenarios import as_scenario

from cordwood.client.admin.rolling_restart import nodes_in_service, rolling_restart
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


@as_scenario(simulate, nodes=6, copies=2)
async def test_a_node_that_was_taken_out_is_left_out(cluster: ClusterAtHand) -> None:
    """The run waited for it for ever, with the nodes behind it not restarted."""
    said: list[str] = []
    leaves = NodeId(3)

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        await store.say_rebuild(leaves, "drain")
        await until(lambda: (
            (entry := cluster.running[NodeId(1)]._rebuild.set.entry(leaves)) is not None
            and entry.is_empty
        ))  # fmt: skip
        assert await nodes_in_service(store, said.append) == [1, 2, 3, 4, 5, 6], "it runs"
        assert said == []
        cluster.kill(leaves)
        cluster.kill(5)
        assert await nodes_in_service(store, said.append) == [1, 2, 4, 5, 6], "5 may come back"
        assert said == ["node 3: it is empty and does not run, so it is left out"]


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


@pytest.mark.parametrize("after_s", [0.0005, 0.001, 0.002, 0.01, 0.3, 6.0, 8.0])
@as_scenario(simulate, nodes=4)
async def test_an_interruption_leaves_no_request_once_the_node_runs(
    cluster: ClusterAtHand, *, after_s: float
) -> None:
    """It stayed for an hour after an interruption while the request was made, or after the node was
    back."""
    said: list[str] = []

    async def restart(node: NodeId) -> None:
        cluster.kill(node)
        cluster.keep_starting(node)
        await asyncio.sleep(5)  # such as a command that waits for the node

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        work = asyncio.create_task(
            rolling_restart(store, [2], restart, user="ann", timeout_s=60, say=said.append)
        )
        await asyncio.sleep(after_s)
        work.cancel()
        await asyncio.wait([work])
        left = [each.number for each in await store.maintenance()]
        # If its node was away by then, the run said so.
        assert left == ([1] if said[-1:] and said[-1].endswith("remove 1`") else [])
        assert not left or after_s < 6, "the node is back by then"


@as_scenario(simulate, nodes=4)
async def test_an_interruption_while_a_node_is_away_says_which_request_stays_and_it_ends_soon(
    cluster: ClusterAtHand,
) -> None:
    said: list[str] = []

    async def restart(node: NodeId) -> None:
        cluster.kill(node)

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await rolling_restart(
                    store, [2], restart, user="ann", timeout_s=30, say=said.append
                )
        (made,) = await store.maintenance()
        assert said[-1].endswith(f"`cordwood maintenance remove {made.number}`")
        cluster.keep_starting(2)
        await asyncio.sleep(2 * 30 + 60)
        assert await store.maintenance() == []


@as_scenario(simulate, nodes=4)
async def test_a_wait_says_what_it_waits_for(cluster: ClusterAtHand) -> None:
    """It was silent until its timeout."""
    said: list[str] = []

    async def restart(node: NodeId) -> None:
        cluster.kill(node)
        cluster.keep_starting(node)

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        other = await store.apply_maintenance([1], reason="a new disk", user="bob")
        work = asyncio.create_task(
            rolling_restart(store, [2], restart, user="ann", timeout_s=60, say=said.append)
        )
        await asyncio.sleep(3)
        assert len(said) == 1
        assert "writes would stop for 1 logs, such as log 1: bring back nodes 1" in said[0]
        assert f"{other.number} takes nodes 1 (a new disk, by bob)" in said[0]
        await store.remove_maintenance(other.number)
        await work
        assert await store.maintenance() == []


@as_scenario(simulate, nodes=4)
async def test_a_request_stands_for_as_long_as_the_run_may_take(cluster: ClusterAtHand) -> None:
    """It ended after an hour, also where the run might wait for two hours for its grant."""
    found: list[float] = []

    async def restart(node: NodeId) -> None:
        (made,) = await store.maintenance()
        found.append((made.ends_us - made.made_us) / 1e6)
        cluster.kill(node)
        cluster.keep_starting(node)

    async with cluster.client(timeout_s=30) as store:
        await store.append("a", b"value")
        await rolling_restart(store, [2], restart, user="ann", timeout_s=7200, say=print)
    assert found == [2 * 7200 + 60]
