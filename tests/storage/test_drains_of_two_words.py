"""A drain that an operator and a request for maintenance order: it ends with the request only if
no operator ordered it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import put_records

from cordwood.admin.maintenance_calls import MaintenanceCalls
from cordwood.client.store import Store
from cordwood.errors import Fenced
from cordwood.impact.maintenance import MaintenanceSet
from cordwood.layout.message_maintenance import (
    ApplyMaintenance,
    AskMaintenance,
    RemoveMaintenance,
)
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.nodes import NodeId
from cordwood.rebuilding import LostNode
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.order_events import Obeyed

DOWN, LEAVING = 4, 5
APPLIED = ApplyMaintenance((LEAVING,), (), "DRAINED", "a new disk", "ann", 0, "asked")


def entry(cluster: ClusterAtHand, node: int = LEAVING) -> LostNode | None:
    return cluster.running[NodeId(1)]._rebuild.set.entry(node)


def is_drained(cluster: ClusterAtHand, node: int = LEAVING) -> bool:
    found = entry(cluster, node)
    return found is not None and found.drain


def requests_of(cluster: ClusterAtHand, node: int) -> MaintenanceCalls:
    return cluster.running[NodeId(node)]._maintenance


def drain_as_seen(cluster: ClusterAtHand, node: int = LEAVING) -> SayRebuild:
    """An operator's drain as a client gives it now."""
    seen = cluster.running[NodeId(1)]._rebuild.set
    mark = seen.mark(node, of_drain=True)
    return SayRebuild(node, RebuildOrder.DRAIN, if_version=seen.version, if_mark=mark)


@asynccontextmanager
async def no_drain_ends(cluster: ClusterAtHand) -> AsyncIterator[Store]:
    """A client, while a donor is down."""
    await put_records(cluster, logs=1, records=3)
    cluster.kill(DOWN)
    await asyncio.sleep(15)  # the event log goes on without it, so requests are granted
    async with cluster.client(timeout_s=30) as store:
        yield store


async def end_request(store: Store) -> None:
    for each in await store.maintenance():
        await store.remove_maintenance(each.number)
    await asyncio.sleep(3)


async def drained_by_request(cluster: ClusterAtHand, store: Store) -> None:
    await store.apply_maintenance([LEAVING], wanted="DRAINED", reason="x", user="ann")
    await until(lambda: is_drained(cluster))


async def a_late_repeat(cluster: ClusterAtHand) -> bool:
    """A node gets an operator's drain late. Another node carried it out, the operator took it back,
    and a request ordered the next drain."""
    async with no_drain_ends(cluster) as store:
        late = drain_as_seen(cluster)
        await store.say_rebuild(LEAVING, "drain")
        await store.say_rebuild(LEAVING, "undrain")
        await drained_by_request(cluster, store)
        obeyed = requests_of(cluster, 2).obey_operator(late)
        (error,) = await asyncio.gather(obeyed, return_exceptions=True)
        assert error is None or "give it again if the node is to stay drained" in str(error)
        await end_request(store)
        return not is_drained(cluster)


async def a_pause_before_it_is_kept(cluster: ClusterAtHand) -> bool:
    """As `a_late_repeat`, but the late node itself carried out the first drain."""
    async with no_drain_ends(cluster) as store:
        calls, goes_on = requests_of(cluster, 2), asyncio.Event()
        obey = calls._obey

        async def then_paused(call: SayRebuild, *, anew: bool = False) -> Obeyed:
            done = await obey(call, anew=anew)
            await goes_on.wait()
            return done

        calls._obey = then_paused
        late = asyncio.create_task(calls.obey_operator(drain_as_seen(cluster)))
        await until(lambda: is_drained(cluster))
        await store.say_rebuild(LEAVING, "undrain")
        await drained_by_request(cluster, store)
        goes_on.set()
        (error,) = await asyncio.gather(late, return_exceptions=True)
        assert error is None or isinstance(error, Fenced)
        await end_request(store)
        return not is_drained(cluster)


async def a_note_under_way(cluster: ClusterAtHand) -> bool:
    """An operator orders a drain while a node is about to note it as a request's."""
    async with no_drain_ends(cluster) as store:
        calls = requests_of(cluster, 2)
        write = calls._store.write

        async def slow(value: MaintenanceSet, version: int) -> None:
            if value.drained:
                await asyncio.sleep(2)
            await write(value, version)

        calls._store.write = slow  # type: ignore[method-assign]
        applying = asyncio.create_task(calls.answer(APPLIED))
        await asyncio.sleep(1)
        await store.say_rebuild(LEAVING, "drain")
        await applying
        await end_request(store)
        return is_drained(cluster)


async def a_node_that_has_not_heard(cluster: ClusterAtHand) -> bool:
    """A node that has not heard of an operator's drain is asked for a request of the same drain."""
    async with no_drain_ends(cluster) as store:
        calls = requests_of(cluster, 2)
        rebuilding, refresh, before = calls._rebuilding, calls._refresh, calls._rebuilding()

        async def heard() -> None:
            await refresh()
            calls._rebuilding = rebuilding

        calls._rebuilding, calls._refresh = lambda: before, heard
        await store.say_rebuild(LEAVING, "drain")
        await calls.answer(APPLIED)
        calls._rebuilding = rebuilding
        await end_request(store)
        return is_drained(cluster)


async def an_end_under_way(cluster: ClusterAtHand) -> bool:
    """A node is about to end a request's drain, and an operator orders it meanwhile."""
    async with no_drain_ends(cluster) as store:
        await drained_by_request(cluster, store)
        calls, goes_on = requests_of(cluster, 2), asyncio.Event()
        obey = calls._obey

        async def late(call: SayRebuild, *, anew: bool = False) -> Obeyed:
            await goes_on.wait()
            return await obey(call, anew=anew)

        calls._obey = late
        (made,) = await store.maintenance()
        removing = asyncio.create_task(remove_at(calls, made.number))
        await asyncio.sleep(1)
        await store.say_rebuild(LEAVING, "drain")
        goes_on.set()
        await removing
        await asyncio.sleep(3)
        return is_drained(cluster)


async def remove_at(calls: MaintenanceCalls, number: int) -> None:
    await calls.answer(RemoveMaintenance(number, "removed"))


async def an_order_after_its_request(cluster: ClusterAtHand) -> bool:
    """A request is over before its drain is ordered, and an operator has ordered the drain."""
    async with no_drain_ends(cluster) as store:
        calls, goes_on = requests_of(cluster, 2), asyncio.Event()
        obey = calls._obey

        async def late(call: SayRebuild, *, anew: bool = False) -> Obeyed:
            if call.order is RebuildOrder.DRAIN:
                await goes_on.wait()
            return await obey(call, anew=anew)

        calls._obey = late
        applying = asyncio.create_task(calls.answer(APPLIED))
        await asyncio.sleep(1)
        await end_request(store)
        await store.say_rebuild(LEAVING, "drain")
        goes_on.set()
        await applying
        await asyncio.sleep(3)
        return is_drained(cluster)


async def a_late_end_of_a_lost_nodes_drain(cluster: ClusterAtHand) -> bool:
    """No version of the set tells that a lost node is to stay empty. A node is about to end its
    drain; another node ends it, and an operator orders the next one."""
    async with no_drain_ends(cluster) as store:
        await drained_by_request(cluster, store)
        cluster.kill(LEAVING)
        await asyncio.sleep(6)
        await store.say_rebuild(LEAVING, "start", forced=True)
        calls, goes_on = requests_of(cluster, 2), asyncio.Event()
        obey = calls._obey

        async def late(call: SayRebuild, *, anew: bool = False) -> Obeyed:
            await goes_on.wait()
            return await obey(call, anew=anew)

        calls._obey = late
        (made,) = await store.maintenance()
        removing = asyncio.create_task(remove_at(calls, made.number))
        await asyncio.sleep(1)
        assert is_drained(cluster)
        await requests_of(cluster, 3).answer(AskMaintenance())
        await asyncio.sleep(1)
        assert not is_drained(cluster)
        await store.say_rebuild(LEAVING, "drain")
        goes_on.set()
        await removing
        await asyncio.sleep(3)
        return is_drained(cluster)


SCENES = (
    (a_late_repeat, "late-drain-kept"),
    (a_pause_before_it_is_kept, "late-drain-kept"),
    (a_note_under_way, "kept-drain-unwritten"),
    (a_node_that_has_not_heard, "drain-noted-unheard"),
    (an_end_under_way, "kept-drain-not-anew"),
    (an_order_after_its_request, "drain-taken-as-begun"),
    (a_late_end_of_a_lost_nodes_drain, "late-order-of-version"),
)


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize(("scene", "bug"), SCENES)
def test_a_drain_ends_with_a_request_if_no_operator_ordered_it(
    scene, bug, *, replicated: bool, is_planted: bool
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        assert await scene(cluster) is not is_planted

    with planted(find_bug(bug)) if is_planted else nullcontext():
        simulate(scenario, nodes=7, replicated_events=replicated)
