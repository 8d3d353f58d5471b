"""A reader asks nodes for their trim points before it gives records of objects."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate
from test_tier_cluster import STORAGE, TIER, TIERED, gone, write

from cordwood.block import Record
from cordwood.sim.links import LinkSettings
from cordwood.sim.planted import find_bug, planted


async def a_node_that_missed_a_trim_answers_first(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        written = await write(store, "log", 60)
        await asyncio.sleep(20)
        tail = await store.tail("log")
        assert min(gone(cluster)) == tail
        away = next(number for number in cluster.running if number != cluster.sequencer_of(1))
        await cluster.stop(away)
        await asyncio.sleep(3)
        trim = int(tail) - 10
        await store.trim("log", trim)
        await cluster.start(away)
        await asyncio.sleep(5)
        assert cluster.running[away].engine.trim_of(1) < trim
    async with cluster.client() as store:
        await store.tail("log")
        await asyncio.sleep(1)
        name = f"client-{next(cluster._names) - 1}"
        cluster.simulation.network.links.change(
            [f"node-{number}" for number in cluster.running if number != away],
            [name],
            LinkSettings(delay_min_s=0.1, slow_chance=0, split_chance=0),
        )
        items = await read_all(store, "log", until=tail)
    assert [item.value for item in items if isinstance(item, Record)] == written[-10:]


@pytest.mark.slow
def test_no_record_of_an_object_is_given_before_the_trim_points_are_known() -> None:
    scenario = a_node_that_missed_a_trim_answers_first
    simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
    with planted(find_bug("tier-before-trims")), pytest.raises(AssertionError):
        simulate(scenario, nodes=3, storage=STORAGE, tier=TIER)
