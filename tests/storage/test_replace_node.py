"""A node gets a new directory, in whole clusters and in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import lost, missing, put_records
from scenarios import as_scenario

from cordwood.admin.maintenance_calls import LOOK_S
from cordwood.client.admin.replace_node import replace_node
from cordwood.errors import BadSetting, Rejected, Unreachable
from cordwood.sim.stored_tree import StoredTree


class Swap:
    """The disk of a node, and an empty one for it."""

    def __init__(self, cluster: ClusterAtHand, node: int) -> None:
        self.placed = 0
        self._cluster = cluster
        self._node = node

    async def place(self) -> None:
        if self._node in self._cluster.running:
            self._cluster.kill(self._node)
        self._cluster.machine(self._node).disk.tree = StoredTree()
        self._cluster.keep_starting(self._node)
        self.placed += 1

    def is_placed(self) -> bool:
        return bool(self.placed)


@pytest.mark.parametrize("is_up", [True, False])
@as_scenario(simulate, nodes=5)
async def test_its_data_goes_to_the_others_and_it_joins_empty(
    cluster: ClusterAtHand, *, is_up: bool
) -> None:
    await put_records(cluster)
    if not is_up:
        cluster.kill(2)
    swap, said = Swap(cluster, 2), []
    async with cluster.client(timeout_s=30) as store:
        for _ in range(40):  # until the others take it for dead
            try:
                await replace_node(
                    store, 2, swap.place, swap.is_placed, timeout_s=600, say=said.append
                )
            except Rejected:
                continue
            break
    assert swap.placed == 1
    assert said[-1] == "node 2: it runs on the new directory"
    await until(lambda: not lost(cluster), timeout_s=5)  # all have heard
    assert not await missing(cluster)
    async with cluster.client() as store:
        for log in (1, 2, 3):
            assert len(await values(store, f"log-{log}")) == 20


def test_given_again_it_goes_on_where_it_was_stopped() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        swap, said = Swap(cluster, 2), []
        async with cluster.client(timeout_s=30) as store:
            for _ in range(100):
                try:
                    await replace_node(
                        store, 2, swap.place, swap.is_placed, timeout_s=3, say=said.append
                    )
                except Unreachable:
                    continue
                break
        assert swap.placed == 1
        assert sum("have it give" in each for each in said) == 1
        assert not await missing(cluster)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordwood.client.admin.replace_node.AUDITED_S", 0.0)
        simulate(scenario, nodes=5)


@as_scenario(simulate, nodes=3)
async def test_a_node_that_logs_cannot_do_without_is_left_alone(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    swap = Swap(cluster, 2)
    async with cluster.client(timeout_s=30) as store:
        with pytest.raises(Rejected, match="would stop"):
            await replace_node(store, 2, swap.place, swap.is_placed, timeout_s=60, say=print)
        with pytest.raises(BadSetting, match="no node 9"):
            await replace_node(store, 9, swap.place, swap.is_placed, timeout_s=60, say=print)
    assert not lost(cluster)
    assert not swap.placed


@as_scenario(simulate, nodes=5)
async def test_a_request_that_drains_the_node_is_removed_first(cluster: ClusterAtHand) -> None:
    """It drained the new directory as well."""
    await put_records(cluster)
    swap = Swap(cluster, 2)
    async with cluster.client(timeout_s=30) as store:
        made = await store.apply_maintenance([2], wanted="DRAINED", reason="old", user="ann")
        with pytest.raises(Rejected, match=f"maintenance remove {made.number}"):
            await replace_node(store, 2, swap.place, swap.is_placed, timeout_s=600, say=print)
        with pytest.raises(Rejected, match=f"maintenance remove {made.number}"):
            await store.say_rebuild(2, "undrain")
        assert not swap.placed
        await store.remove_maintenance(made.number)
        await replace_node(store, 2, swap.place, swap.is_placed, timeout_s=600, say=print)
        await asyncio.sleep(2 * LOOK_S)
        assert not (await store.rebuilding()).lost
        assert await store.maintenance() == []


@as_scenario(simulate, nodes=5)
async def test_a_request_that_comes_meanwhile_is_not_fought(cluster: ClusterAtHand) -> None:
    """The command took the drain back, and the request ordered it again."""
    await put_records(cluster)
    swap = Swap(cluster, 2)
    async with cluster.client(timeout_s=30) as store:
        work = asyncio.create_task(
            replace_node(store, 2, swap.place, swap.is_placed, timeout_s=600, say=print)
        )
        await until(lambda: bool(lost(cluster)), timeout_s=30)
        made = await store.apply_maintenance([2], wanted="DRAINED", reason="old", user="ann")
        with pytest.raises(Rejected, match=f"maintenance remove {made.number}"):
            await work
        assert not swap.placed
        await store.remove_maintenance(made.number)
        await replace_node(store, 2, swap.place, swap.is_placed, timeout_s=600, say=print)
        assert not (await store.rebuilding()).lost
