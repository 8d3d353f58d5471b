"""A recovery that takes longer than callers wait for an answer ends all the same."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import Retryable
from cordwood.lsn import Lsn, make_lsn
from cordwood.quorum.sequencer_placement import sequencer_order
from cordwood.recovery.recover_log import LowerEpochs
from cordwood.sequencer import role
from cordwood.sim.links import LinkSettings
from cordwood.sim.planted import find_bug, planted


async def put(store: Store) -> None:
    for number in range(20):
        await store.append("log", b"%d" % number)


async def tail_at_last(store: Store, timeout_s: float) -> Lsn:
    """The tail, asked for again and again as a reader does."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return await store.tail("log")
            except Retryable:
                await asyncio.sleep(0.5)


@as_scenario(simulate, nodes=5)
async def test_a_recovery_of_some_seconds_ends_while_clients_ask(cluster: ClusterAtHand) -> None:
    """Each client waited 5 s for an answer, and had the next node sequence the log then. The
    recovery began anew there, with one more epoch, and never ended."""
    async with cluster.client() as store:
        await put(store)
        hosts = [address.partition(":")[0] for address in cluster.addresses]
        far = LinkSettings(delay_min_s=0.5, slow_chance=0.0)
        cluster.simulation.network.links.change(hosts, hosts, far)
        await asyncio.sleep(2)
        cluster.kill(cluster.sequencer_of(1))
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        assert await tail_at_last(store, 120) == make_lsn(2, 0)
        assert asyncio.get_running_loop().time() > began + 5, "it takes longer than a client waits"
        assert len(await values(store, "log")) == 20


def test_a_sequencer_that_is_silent_until_it_has_recovered_is_caught() -> None:
    with planted(find_bug("silent-recovery")), pytest.raises(TimeoutError):
        test_a_recovery_of_some_seconds_ends_while_clients_ask()


@as_scenario(simulate, nodes=5)
async def test_a_recovery_that_does_not_end_is_given_to_another_node(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node may be cut off from nodes that the next one reaches."""

    async def hangs(lower: LowerEpochs) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async with cluster.client() as store:
        await put(store)
        first = cluster.sequencer_of(1)
        members = cluster.running[first]._members.values()
        owner = next(node for node in sequencer_order(1, members) if node != first)
        monkeypatch.setattr(cluster.running[owner]._sequencer._activation, "recover", hangs)
        cluster.kill(first)
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        assert await tail_at_last(store, 2 * role.RECOVERS_S) > make_lsn(2, 0)
        assert asyncio.get_running_loop().time() > began + role.RECOVERS_S
        assert cluster.sequencer_of(1) != owner
