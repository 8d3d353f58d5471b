"""Deletions and renames of logs that had no answer, and are made again: the log may have lost its
name to another one since."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import UnknownLog, Unreachable
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_rights import DeleteLog, RenameLog
from cordwood.sim.planted import find_bug, planted

CHANGES = ["delete", "rename"]


async def make(store: Store, change: str, log_id: int | None = None) -> None:
    if change == "delete":
        await store.log_tree.delete("a", log_id)
    else:
        await store.log_tree.rename("/a", "b", log_id)


async def make_unanswered(cluster: ClusterAtHand, store: Store, change: str) -> None:
    """The change is done, and its answer is lost."""
    nodes = [cluster.machine(n).name for n in cluster.numbers]
    call_any = store._cluster.call_any

    async def cut_first(message: Call, *, timeout_s: float) -> Reply:
        if isinstance(message, DeleteLog | RenameLog):
            cluster.simulation.network.cut(nodes, ["client-1"])
        return await call_any(message, timeout_s=timeout_s)

    store._cluster.call_any = cut_first  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        await make(store, change)
    store._cluster.call_any = call_any  # type: ignore[method-assign]
    cluster.simulation.network.mend_all()
    await asyncio.sleep(10)


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_made_again_leaves_alone_a_log_that_took_the_name(
    change: str, *, is_planted: bool
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store, cluster.client() as other:
            await other.append("a", b"old")
            await make_unanswered(cluster, store, change)
            if change == "rename":
                await other.log_tree.rename("b", "c")
            made = await other.create_log("a")
            await other.append("a", b"new")
            if is_planted:
                await make(store, change)
                with pytest.raises(UnknownLog):
                    await other.log("a")
                return
            with pytest.raises(UnknownLog, match="a is not log 1 any more: nothing was"):
                await make(store, change)
            assert (await other.log("a")).log_id == made.log_id
            assert await values(other, "a") == [b"new"]
            await make(store, change)  # The caller was told, and means the log that is there.
            with pytest.raises(UnknownLog):
                await other.log("a")

    with planted(find_bug("repeat-by-new-name")) if is_planted else nullcontext():
        simulate(scenario)


@pytest.mark.parametrize("change", CHANGES)
@as_scenario(simulate)
async def test_a_change_that_was_done_is_done_when_it_is_made_again(
    cluster: ClusterAtHand, *, change: str
) -> None:
    async with cluster.client(timeout_s=3) as store, cluster.client() as other:
        await other.append("a", b"old")
        await make_unanswered(cluster, store, change)
        await make(store, change)
        await make(other, change, log_id=1)
        assert [each.name for each in await other.logs()] == ["/b"] * (change == "rename")
        with pytest.raises(UnknownLog):
            await make(store, change)


@pytest.mark.parametrize("change", CHANGES)
@as_scenario(simulate)
async def test_a_log_that_the_store_made_since_is_the_one_that_is_meant(
    cluster: ClusterAtHand, *, change: str
) -> None:
    async with cluster.client(timeout_s=3) as store, cluster.client() as other:
        await other.append("a", b"old")
        await make_unanswered(cluster, store, change)
        if change == "rename":
            await other.log_tree.rename("b", "c")
        made = await store.create_log("a")
        await make(store, change)
        assert not store._cluster.unanswered
        assert (await other.log_tree.names()).get(made.log_id) == {"rename": "/b"}.get(change)


@as_scenario(simulate)
async def test_a_rename_by_number_leaves_another_log_alone(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        first = await store.create_log("a")
        await store.log_tree.rename("a", "c", first.log_id)
        await store.create_log("a")
        with pytest.raises(UnknownLog, match="nothing was renamed"):
            await store.log_tree.rename("a", "d", first.log_id)
        assert sorted((await store.log_tree.names()).values()) == ["/a", "/c"]
