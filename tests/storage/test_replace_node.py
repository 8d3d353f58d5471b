"""A node gets a new directory, in whole clusters and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext, suppress

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import lost, missing, put_records
from scenarios import as_scenario

from cordwood.admin.ledger_autorecovery import AUDITOR
from cordwood.admin.maintenance_calls import LOOK_S
from cordwood.client.admin.replace_node import replace_node
from cordwood.client.store import Store
from cordwood.errors import BadSetting, CordwoodError, Rejected, Unreachable
from cordwood.layout.message_maintenance import RemoveMaintenance
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted
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
        patch.setattr("cordwood.client.admin.replace_node.SETTLED_S", 0.0)
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


@pytest.mark.slow
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


def test_stopped_while_its_command_runs_it_goes_on() -> None:
    """It drained the new directory, and ran the command a second time."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        swap, begun, said = Swap(cluster, 2), [], list[str]()

        async def place() -> None:
            begun.append(True)
            await swap.place()
            await asyncio.sleep(60)

        def replaced() -> Coroutine[None, None, None]:
            return replace_node(
                store, 2, place, lambda: False, timeout_s=300, say=said.append,
                is_begun=lambda: bool(begun),
            )  # fmt: skip

        async with cluster.client(timeout_s=30) as store:
            task = asyncio.create_task(replaced())
            await until(lambda: swap.placed == 1 and 2 in cluster.running, timeout_s=300)
            await until(lambda: not lost(cluster), timeout_s=60)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await replaced()
            assert said[-1] == "node 2: it runs on the new directory"
            assert swap.placed == 1
            assert not (await store.rebuilding()).lost

    simulate(scenario, nodes=5)


async def closed_on(store: Store, *nodes: int) -> int:
    """A closed ledger of ten entries, each with one copy on each of these nodes."""
    count = len(nodes)
    while True:
        made = await store.ledgers.create(ensemble=count, write=count, ack=count)
        if {*made.metadata.newest.nodes} == {*nodes}:
            break
        await made.close()
        await store.ledgers.delete(made.ledger_id)
    await made.append_many([b"entry %d" % number for number in range(10)])
    await made.close()
    return made.ledger_id


@pytest.mark.slow
@as_scenario(simulate, nodes=5, rebuild_after_s=1200.0)
async def test_its_directory_stays_while_ledgers_name_it_and_are_not_repaired(
    cluster: ClusterAtHand,
) -> None:
    """The command waited for marks, which no auditor set, and took the only copies away."""
    async with cluster.client(timeout_s=30) as store:
        ledger = await closed_on(store, 2, 3)
        await store.ledgers.switch_autorecovery(on=False)
        swap, said = Swap(cluster, 2), list[str]()
        for _ in range(2):
            with pytest.raises(Rejected, match=r"1 ledgers .*`cordwood ledgers autorecovery on`"):
                await replace_node(
                    store, 2, swap.place, swap.is_placed, timeout_s=600, say=said.append
                )
        assert not swap.placed
        await store.ledgers.switch_autorecovery(on=True)
        for node in (2, 3):
            swap = Swap(cluster, node)
            await replace_node(
                store, node, swap.place, swap.is_placed, timeout_s=600, say=said.append
            )
            assert swap.placed == 1
            count = f"names it: 1 ledgers (the first is {ledger})"
            assert sum(each.startswith(f"node {node}") and count in each for each in said) == 1
        assert len(await (await store.ledgers.open(ledger)).read(0, 9)) == 10


@pytest.mark.slow
@as_scenario(simulate, nodes=5, rebuild_after_s=1200.0)
async def test_its_directory_stays_while_no_node_audits(cluster: ClusterAtHand) -> None:
    """The lease of an auditor that died stands for two minutes."""
    async with cluster.client(timeout_s=30) as store:
        assert await cluster.metadata.take_lease(AUDITOR, b"node 9", 100.0)
        ledger = await closed_on(store, 2)
        swap = Swap(cluster, 2)
        with pytest.raises(Unreachable, match=r"1 ledgers .*`cordwood ledgers list --node 2`"):
            await replace_node(store, 2, swap.place, swap.is_placed, timeout_s=20, say=print)
        assert not swap.is_placed()
        await replace_node(store, 2, swap.place, swap.is_placed, timeout_s=600, say=print)
        assert swap.is_placed()
        assert len(await (await store.ledgers.open(ledger)).read(0, 9)) == 10


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=6, copies=2, rebuild_after_s=7200.0, replicated_events=False)
async def test_a_drained_node_goes_on_when_a_node_ends_its_request_that_takes_it_for_full(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """No version of the set tells that a node is empty, so nodes hear of it one after another. The
    drained node stopped by itself, with the only copies of ledgers."""

    def is_empty(by: int) -> bool:
        entry = cluster.running[NodeId(by)]._rebuild.set.entry(3)
        return entry is not None and entry.is_empty

    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"value")
        made = await store.apply_maintenance([3], wanted="DRAINED", reason="a look", user="ann")
        await until(lambda: any(map(is_empty, cluster.running)))
        late = next(node for node in cluster.running if not is_empty(node) and node != 3)
        with planted(find_bug("request-end-by-old-set")) if is_planted else nullcontext():
            removes = RemoveMaintenance(made.number, "removed")
            await cluster.running[late]._maintenance.answer(removes)
            await asyncio.sleep(2 * LOOK_S)
        said = await store.status()
        assert isinstance(said[NodeId(3)], CordwoodError) == is_planted
        if is_planted:
            return
        assert [each.node for each in (await store.rebuilding()).lost] == [3]
        with pytest.raises(Rejected, match="node 3 is empty by now, so it stays drained"):
            await store.say_rebuild(3, "undrain", unless_empty=True)
        await store.say_rebuild(3, "undrain")
        assert not any(each.drain for each in (await store.rebuilding()).lost)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=6, copies=2, rebuild_after_s=7200.0)
async def test_drained_nodes_go_on_when_their_requests_are_removed(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """Both stopped by themselves with the only copies of acknowledged entries."""
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"value")
        await store.ledgers.switch_autorecovery(on=False)
        ledger = await closed_on(store, 2, 3)
        for node in (2, 3):
            await store.apply_maintenance([node], wanted="DRAINED", reason="a look", user="ann")
        async with asyncio.timeout(200):
            while {each.state for each in await store.maintenance()} != {"DRAINED"}:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(1)
        with planted(find_bug("request-end-stops-empty")) if is_planted else nullcontext():
            for each in await store.maintenance():
                await store.remove_maintenance(each.number)
            await asyncio.sleep(2 * LOOK_S)
        said = await store.status()
        down = {node for node, each in said.items() if isinstance(each, CordwoodError)}
        assert down == ({2, 3} if is_planted else set())
        if is_planted:
            return
        handle = await store.ledgers.open(ledger)
        assert len(await handle.read(0, 9)) == 10
        assert {each.node for each in (await store.rebuilding()).lost} == {2, 3}
        await store.ledgers.switch_autorecovery(on=True)
        async with asyncio.timeout(900):
            while {2, 3} & {*(await store.ledgers.metadata(ledger)).newest.nodes}:  # noqa: ASYNC110
                await asyncio.sleep(5)
        assert len(await (await store.ledgers.open(ledger)).read(0, 9)) == 10
