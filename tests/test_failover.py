"""How long appends find no sequencer: killed, stopped, leaving, cut off. In simulated time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cordwood.errors import CordwoodError, OutcomeUnknown
from cordwood.settings import ClientSettings
from cordwood.testing.scenario import ScenarioRun

PATIENT = ClientSettings(timeout_s=20.0)


async def without_sequencer(cluster, store, strike) -> float:
    """Seconds from `strike` on the sequencer's node until an append is stored again."""
    await store.append("orders", b"before")
    (node,) = cluster.sequencers()
    struck = cluster.now_s
    strike(node)
    while True:
        try:
            await store.append("orders", b"after")
        except CordwoodError:
            continue
        return cluster.now_s - struck


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_sequencer_costs_less_than_a_second(seed: int):
    async def scenario(cluster):
        store = await cluster.connect()
        return await without_sequencer(cluster, store, cluster.crash)

    assert ScenarioRun(scenario, seed=seed, settings=PATIENT).run() < 1.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stopped_sequencer_costs_less_than_ten_seconds(seed: int):
    async def scenario(cluster):
        store = await cluster.connect()
        took_s = await without_sequencer(cluster, store, cluster.pause)
        cluster.resume(*cluster.nodes)
        await asyncio.sleep(5)
        await store.append("orders", b"later")
        assert len(cluster.sequencers()) == 1
        return took_s

    assert ScenarioRun(scenario, seed=seed, settings=PATIENT).run() < 6.0


def test_a_node_that_sees_nobody_stops_to_sequence():
    async def scenario(cluster):
        store = await cluster.connect()
        await store.append("orders", b"before")
        (node,) = cluster.sequencers()
        cluster.partition([node], [each for each in cluster.nodes if each != node])
        with pytest.raises(OutcomeUnknown):
            await store.append("orders", b"to nobody")
        await asyncio.sleep(6)
        assert node not in cluster.sequencers()
        await store.append("orders", b"elsewhere")

    ScenarioRun(scenario, settings=PATIENT).run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_log_that_comes_home_leaves_no_append_unknown(seed: int):
    """Its own node was away, another one sequenced, and a new client finds the first again."""

    async def scenario(cluster):
        first = await cluster.connect()
        await first.append("orders", b"before")
        (home,) = cluster.sequencers()
        cluster.crash(home)
        with contextlib.suppress(OutcomeUnknown):
            await first.append("orders", b"in between")
        await first.append("orders", b"away")
        (away,) = cluster.sequencers()
        assert away != home
        cluster.restart(home)
        await asyncio.sleep(5)
        appends = [asyncio.ensure_future(busy(first)) for _ in range(8)]
        await asyncio.sleep(0.5)
        second = await cluster.connect()
        await second.append("orders", b"home again")
        await asyncio.sleep(0.5)
        assert tuple(cluster.sequencers()) == (home,)
        for each in appends:
            each.cancel()
        ended = await asyncio.gather(*appends, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

    async def busy(store):
        while True:
            await store.append("orders", b"x")
            await asyncio.sleep(0.005)

    ScenarioRun(scenario, seed=seed, settings=PATIENT).run()
