"""A drain after main storage lost a range of which other nodes let go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from rebuild_scene import lose_disk, order
from test_lost_in_main_storage import (
    STORAGE,
    TIER,
    TIERED,
    copyset_of,
    holders,
    lose_objects,
    losses,
    write,
)

from cordwood.block import Record
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted


async def drained(cluster: ClusterAtHand, leaving: NodeId, other: NodeId) -> None:
    """Drain a node, and wait until the other node calls it empty."""
    await order(cluster, leaving, RebuildOrder.DRAIN)
    role = cluster.running[other]._rebuild
    await until(lambda: (entry := role.set.entry(leaving)) is not None and entry.is_empty)


async def a_member_began_anew(
    cluster: ClusterAtHand, places: Sequence[int], *, lost: slice, wait_s: float
) -> None:
    """One member let go of a range while a second one, which is drained now, was away. The third
    member lost its disk, and began anew: main storage had the range. Then it lost the range.

    Args:
        places: in the copyset, of the member that let go, of that which began anew, and of the
            drained one.
        lost: which objects main storage lost.
        wait_s: before the drain.
    """
    async with cluster.client() as store:
        await store.create_log("log", attributes=TIERED)
        await write(store, 15)
        tail = await store.tail("log")
    copyset = await copyset_of(cluster, 1)
    past, anew, leaving = (copyset[place] for place in places)
    await asyncio.sleep(1)
    cluster.kill(leaving)
    await asyncio.sleep(110)
    await cluster.start(leaving)
    await asyncio.sleep(1)
    assert cluster.running[past].engine.gone_of(1)
    lose_disk(cluster, anew)
    await order(cluster, anew, RebuildOrder.START)
    role = cluster.running[leaving]._rebuild
    await until(lambda: (entry := role.set.entry(anew)) is not None and entry.is_empty)
    first, last = await lose_objects(cluster, lost)
    await cluster.start(anew)
    await until(lambda: role.set.entry(anew) is None)
    held = await holders(cluster, first, last)
    assert len(held[leaving]) > 1
    assert anew not in held
    await asyncio.sleep(wait_s)
    await drained(cluster, leaving, past)
    await cluster.stop(leaving)
    async with cluster.client() as store:
        items = await read_all(store, "log", until=tail)
    assert losses(items) == []
    assert sum(isinstance(each, Record) for each in items) == 15


ANEW = replace(STORAGE, retention_every_s=30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "lost", "wait_s", "bug"),
    [
        ((0, 1, 2), slice(1, None), 15, "rebuild-counts-on-no"),
        ((1, 0, 2), slice(1, None), 0, "rebuild-by-old-looks"),
        ((2, 0, 1), slice(0, None), 15, "rebuild-no-is-no-doubt"),
    ],
)
def test_a_member_that_began_anew_is_not_left_what_main_storage_lost_since(
    places: tuple[int, ...], lost: slice, wait_s: float, bug: str
) -> None:
    """It was taken for the donor, and said NO. The drained node had the only copies."""

    async def scene(cluster: ClusterAtHand) -> None:
        await a_member_began_anew(cluster, places, lost=lost, wait_s=wait_s)

    def run() -> None:
        simulate(scene, nodes=6, copies=3, storage=ANEW, tier=TIER, seed=1)

    run()
    with planted(find_bug(bug)), pytest.raises(AssertionError):
        run()
