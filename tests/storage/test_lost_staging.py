"""Staged blocks of nodes that are lost, or drained: they have all their copies again, pins too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import call_lost, healed, lose_disk, order
from scenarios import as_scenario

from cordwood.client.publish import publishing
from cordwood.client.publish.staging import StagedRef
from cordwood.client.store import Store
from cordwood.errors import OutcomeUnknown, Retryable, StageExpired
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.layout.message_staging import BeginPublish, CommitPublish, PublicationReply
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.storage.rebuild.staged_moves import StagedMoves

Q = "query"


async def commit_only(store: Store, batch: int, refs: list[StagedRef]) -> None:
    """Publish as far as the commit, and die there."""
    shares = publishing._shares(refs)
    begun = await store._ask(BeginPublish(Q, batch))
    assert isinstance(begun, PublicationReply)
    await store._publisher._copies.pin(Q, begun.attempt, shares)
    await store._ask(CommitPublish(Q, batch, begun.attempt, shares))


def holders(cluster: ClusterAtHand, ref: StagedRef) -> set[int]:
    """The running nodes that hold all that was staged."""
    return {
        number
        for number, node in cluster.running.items()
        if all(node.engine.staged.get(block.stage) is not None for block in ref.blocks)
    }


async def lose_and_heal(cluster: ClusterAtHand, node: int) -> None:
    lose_disk(cluster, node)
    await call_lost(cluster, node)
    cluster.keep_starting(node)
    await healed(cluster)


@as_scenario(simulate, nodes=5)
async def test_what_was_staged_on_a_lost_node_is_published_after_it_was_rebuilt(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"0")
        staged = await store.stage("log", [b"1", b"2"])
        await lose_and_heal(cluster, staged.blocks[0].nodes[0])
        assert len(holders(cluster, staged)) == 3
        await store.publish(Q, 0, [staged])
        assert await values(store, "log") == [b"0", b"1", b"2"]


async def outlives(cluster: ClusterAtHand) -> None:
    """A committed batch is published after all nodes that held it were lost, one after the other,
    each long after the time of what was staged."""
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"0")
        staged = await store.stage("log", [b"1", b"2"], ttl_s=20)
        await commit_only(store, 0, [staged])
        for node in staged.blocks[0].nodes:
            await lose_and_heal(cluster, node)
            await asyncio.sleep(80)
        await store.publish(Q, 1, [await store.stage("log", [b"3"])])
        assert await values(store, "log") == [b"0", b"1", b"2", b"3"]
        await asyncio.sleep(150)
        assert not holders(cluster, staged), "what is published goes, also from its new nodes"


@pytest.mark.slow
@as_scenario(simulate, nodes=5)
async def test_a_committed_batch_outlives_all_nodes_that_held_it_lost_one_after_the_other(
    cluster: ClusterAtHand,
) -> None:
    """Nobody could bring it into its log any more, and the query stood still for good."""
    await outlives(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["staged-left-behind", "moved-without-pin"])
@as_scenario(simulate, nodes=5)
async def test_a_committed_batch_does_not_with_a_bug(cluster: ClusterAtHand, *, bug: str) -> None:
    with planted(find_bug(bug)), pytest.raises(OutcomeUnknown, match="cannot be brought into"):
        await outlives(cluster)


@as_scenario(simulate, nodes=5)
async def test_a_publish_waits_for_a_move_and_pins_where_the_copies_are_then(
    cluster: ClusterAtHand,
) -> None:
    """A pin between the look at a block and its new copy would be on the old copies only."""
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def give(right: Any, self: StagedMoves, *args: Any) -> None:
        began.set()
        await goes_on.wait()
        await right(self, *args)

    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"0")
        staged = await store.stage("log", [b"1"])
        slow = PlantedBug("slow", "a move takes its time", at(StagedMoves._give).around(give))
        with planted(slow):
            await order(cluster, staged.blocks[0].nodes[1], RebuildOrder.DRAIN)
            await began.wait()
            publishing_it = asyncio.ensure_future(store.publish(Q, 0, [staged]))
            await asyncio.sleep(2)
            assert not publishing_it.done()
            goes_on.set()
            await publishing_it
        assert await values(store, "log") == [b"0", b"1"]


@as_scenario(simulate, nodes=5)
async def test_a_drained_node_gives_what_is_staged_and_pinned_there(cluster: ClusterAtHand) -> None:
    def is_empty(node: int) -> bool:
        entry = cluster.running[1]._rebuild.set.entry(node)
        return entry is not None and entry.is_empty

    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"0")
        staged = await store.stage("log", [b"1"])
        await commit_only(store, 0, [staged])
        late = await store.stage("log", [b"2"])
        node = next(n for n in staged.blocks[0].nodes if n != 1)
        await order(cluster, node, RebuildOrder.DRAIN)
        await until(lambda: is_empty(node), timeout_s=60)
        for each in (staged, late):
            assert node not in holders(cluster, each)
            assert len(holders(cluster, each)) == 3
        await store.publish(Q, 1, [late])
        assert await values(store, "log") == [b"0", b"1", b"2"]


@as_scenario(simulate, nodes=3, copies=1)
async def test_what_was_staged_on_a_lost_node_alone_is_refused_with_one_error(
    cluster: ClusterAtHand,
) -> None:
    """While the node may come back, the error says: again. Then it says: stage it again."""
    async with cluster.client(timeout_s=2) as store:
        staged = await store.stage("log", [b"1"])
        (node,) = staged.blocks[0].nodes
        lose_disk(cluster, node)
        with pytest.raises(Retryable):
            await store.publish(Q, 0, [staged])
        await call_lost(cluster, node)
        await order(cluster, node, RebuildOrder.GONE)
        await asyncio.sleep(20)
        for _ in range(2):
            with pytest.raises(StageExpired, match="was lost with node"):
                await store.publish(Q, 0, [staged])
        await store.publish(Q, 0, [await store.stage("log", [b"2"])])
        assert await values(store, "log") == [b"2"]
