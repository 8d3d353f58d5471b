"""A node that does a switch of the auto-recovery of ledgers late undoes no later switch."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.errors import CordwoodError, Fenced, Malformed
from cordwood.layout.ledger_metadata import ledger_key
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_ledgers import AskAutorecovery, AutorecoveryReply, SwitchAutorecovery
from cordwood.sim.planted import find_bug, planted
from cordwood.wire.connection import Connection

LATE_S = 20.0
"""Longer than a node works on a call."""


async def switched_late(cluster: ClusterAtHand, *, on: bool, is_paused: bool) -> None:
    """The first node got the order and did not answer, so the second one was asked. The contrary
    was ordered after that, and acknowledged."""
    async with cluster.client(timeout_s=20) as store, cluster.client(timeout_s=20) as other:
        await store.ledgers.switch_autorecovery(on=not on)
        await other.ledgers.page()
        first = cluster.machine(1)
        ask_any = store._cluster.ask_any

        async def call_late(message: Call, *, timeout_s: float, asked: list[Connection]) -> Reply:
            if isinstance(message, SwitchAutorecovery):
                if is_paused:
                    first.pause()
                else:
                    cluster.simulation.network.partition(["client-1"], [first.name])
            return await ask_any(message, timeout_s=timeout_s, asked=asked)

        store._cluster.ask_any = call_late  # type: ignore[method-assign]
        await store.ledgers.switch_autorecovery(on=on)
        assert (await other.ledgers.autorecovery()).on is on
        await other.ledgers.switch_autorecovery(on=not on)
        if is_paused:
            first.resume()
        cluster.simulation.network.mend_all()
        await asyncio.sleep(LATE_S)
        assert (await other.ledgers.autorecovery()).on is not on


async def switched_without_an_answer(cluster: ClusterAtHand) -> None:
    """Nothing was switched when the contrary was ordered, and it was acknowledged."""
    nodes = [cluster.machine(node).name for node in cluster.running]
    async with cluster.client(timeout_s=2) as store, cluster.client(timeout_s=20) as other:
        await store.ledgers.page()
        seen = await other._cluster.call_any(AskAutorecovery(-1, 1), timeout_s=5)
        assert isinstance(seen, AutorecoveryReply)
        cluster.simulation.network.partition(["client-1"], nodes)
        with pytest.raises(CordwoodError):
            await store._cluster.call_any(SwitchAutorecovery(False, seen.version), timeout_s=2)
        await other.ledgers.switch_autorecovery(on=True)
        cluster.simulation.network.mend_all()
        await asyncio.sleep(LATE_S)
        assert (await other.ledgers.autorecovery()).on


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_late_switch_undoes_no_later_one(*, is_planted: bool, on: bool, is_paused: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await switched_late(cluster, on=on, is_paused=is_paused)

    if not is_planted:
        simulate(scenario, nodes=4, create_logs=False)
        return
    with planted(find_bug("ledger-switch-late")), pytest.raises(AssertionError):
        simulate(scenario, nodes=4, create_logs=False)


def test_a_switch_that_changes_nothing_shuts_earlier_orders_out() -> None:
    simulate(switched_without_an_answer, nodes=4, create_logs=False)


def test_a_switch_that_is_not_written_again_shows() -> None:
    with planted(find_bug("ledger-switch-unwritten")), pytest.raises(AssertionError):
        simulate(switched_without_an_answer, nodes=4, create_logs=False)


async def a_mark_cannot_be_read(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        mark = b'{"nodes":[1],"since_us":1,"of_a_newer_version":1}'
        await cluster.metadata.compare_and_set("ledger-marks/" + ledger_key(7), mark, 0)
        for on in (True, False):
            await store.ledgers.switch_autorecovery(on=on)
            found = await cluster.metadata.get("ledger-autorecovery")
            assert found is not None
            assert found.value == (b"on" if on else b"off")


def test_repairs_are_switched_while_a_mark_cannot_be_read() -> None:
    """A newer version may have written it."""
    simulate(a_mark_cannot_be_read, create_logs=False)


def test_a_switch_that_needs_the_marks_shows() -> None:
    with planted(find_bug("ledger-switch-by-marks")), pytest.raises(Malformed):
        simulate(a_mark_cannot_be_read, create_logs=False)


@as_scenario(simulate, nodes=3, create_logs=False)
async def test_a_switch_may_be_repeated_until_the_contrary_was_ordered(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        call_any = store._cluster.call_any

        async def version() -> int:
            told = await call_any(AskAutorecovery(-1, 1), timeout_s=5)
            assert isinstance(told, AutorecoveryReply)
            return told.version

        assert await version() == 0
        order = SwitchAutorecovery(False, 0)
        await call_any(order, timeout_s=5)
        first = await version()
        await call_any(order, timeout_s=5)  # another node has done it
        assert await version() > first > 0
        await store.ledgers.switch_autorecovery(on=True)
        with pytest.raises(Fenced, match=r"by another order.*`cordwood ledgers autorecovery`"):
            await call_any(order, timeout_s=5)
        assert (await store.ledgers.autorecovery()).on
        older = SwitchAutorecovery(False)
        await call_any(older, timeout_s=5)
        assert not (await store.ledgers.autorecovery()).on


@as_scenario(simulate, nodes=3, create_logs=False)
async def test_a_switch_that_meets_another_one_is_given_again(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, cluster.client() as other:
        for on in (False, True):
            await asyncio.gather(
                store.ledgers.switch_autorecovery(on=on),
                other.ledgers.switch_autorecovery(on=not on),
            )
            told = {(await each.ledgers.autorecovery()).on for each in (store, other)}
            assert len(told) == 1
