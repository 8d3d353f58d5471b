"""What a node that is healed after a loss in its WAL does with what main storage lost."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from swaps import swap_value
from test_lost_in_main_storage import (
    STORAGE,
    TIER,
    TIERED,
    copyset_of,
    holders,
    lose_objects,
    write,
)

from cordwood.nodes import NodeId
from cordwood.sim import damage
from cordwood.sim.planted import find_bug, planted

IN_THE_WAL = replace(STORAGE, flush_age_s=3600.0, flush_quiet_s=60.0, scrub_bytes_s=0)
"""A node with these keeps its blocks in its WAL until a new start."""


def rot_wal(
    cluster: ClusterAtHand, node: NodeId, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL of a stopped node loses up to `most` records."""
    swap_value(monkeypatch, lambda: damage.RECORDS_MAX, most)
    assert damage.damage_wal(cluster.machine(node).disk, random.Random(2))


def test_a_node_lets_go_of_nothing_that_its_wal_lost_before_it_is_healed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It found no copy there and let go. Then it took none from the node that came back, and that
    node had the only copies."""

    async def scene(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, 20)
        damaged, other = await copyset_of(cluster, 1)
        await asyncio.sleep(3)
        cluster.kill(damaged)
        cluster.kill(other)
        rot_wal(cluster, damaged, 10**6, monkeypatch)
        first, last = await lose_objects(cluster, slice(1, 2))
        cluster.storages[damaged] = STORAGE
        await cluster.start(damaged)
        node = cluster.running[damaged]
        assert node.engine.damage
        assert not await holders(cluster, first, last)
        # It gets new blocks, so that a partition behind the lost range can go.
        async with cluster.client(timeout_s=30) as store:
            await write(store, 10)
        await asyncio.sleep(75)
        assert node.engine.damage
        await cluster.start(other)
        await until(lambda: not node.engine.damage, timeout_s=100)
        assert set(await holders(cluster, first, last)) == {damaged, other}

    def run() -> None:
        simulate(scene, nodes=3, copies=2, storage=IN_THE_WAL, tier=TIER, seed=1)

    run()
    with planted(find_bug("heal-after-local-drops")), pytest.raises(AssertionError):
        run()


@pytest.mark.slow
def test_a_node_is_not_healed_while_a_silent_node_may_have_what_main_storage_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another member had let go of it, and stood for the copyset. So the node counted as whole, and
    as the next donor it said that it had all of the third member's copies."""

    async def scene(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=TIERED)
            await write(store, 20)
            damaged, past, away = await copyset_of(cluster, 1)
            cluster.storages[past] = STORAGE
            cluster.kill(past)
            await cluster.start(past)
            await asyncio.sleep(1)
            await write(store, 10)
            await asyncio.sleep(75)
        first, last = await lose_objects(cluster, slice(1, 2))
        assert cluster.running[past].engine.gone_of(1) >= last
        before = await holders(cluster, first, last)
        assert set(before) == {damaged, away}
        cluster.kill(away)
        cluster.kill(damaged)
        rot_wal(cluster, damaged, 200, monkeypatch)
        await cluster.start(damaged)
        node = cluster.running[damaged]
        assert (await holders(cluster, first, last)).get(damaged, []) != before[damaged]
        await asyncio.sleep(10)
        waits = f"nodes [{away}] do not say all that they hold there, and main storage lost it"
        assert waits in node._rebuild._healing().waits
        assert "`cordwood rebuild gone`" in node._rebuild._healing().waits
        await cluster.start(away)
        await until(lambda: not node.engine.damage)
        assert await holders(cluster, first, last) == before

    def run() -> None:
        simulate(scene, nodes=5, copies=3, storage=IN_THE_WAL, tier=TIER, seed=1)

    run()
    with planted(find_bug("heal-believes-let-go")), pytest.raises(AssertionError):
        run()
