"""Orders about a rebalance that come late to a node."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import late_at_first, lost, mend, put_records
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import Fenced, Rejected
from cordwood.layout.message_rebuilding import SayRebalance
from cordwood.protocol.event_log import replay
from cordwood.rebuilding import PARTS, Gave, NeedsRebuild, Rebalance, Rebalancing, Transfer
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.rebalance_orders import is_rebalanced

SHARES = (Transfer(3, 4, PARTS // 2),)
OTHERS = (Transfer(2, 4, PARTS // 2),)
BEGUN = (10, Rebalance(SHARES))
STOPPED = (11, Rebalance(()))
GAVE = (12, Gave(3, 10))
DRAIN = (13, NeedsRebuild(2, (1, 2, 3, 4), drain=True))


async def known(store: Store) -> Rebalancing | None:
    return (await store.rebuilding(donors=False)).rebalancing


async def a_late_end(cluster: ClusterAtHand, how: str) -> bool:
    """The first node got the end of a rebalance late, and another node carried it out. Then the
    next rebalance began. Returns whether it goes on."""
    async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
        cluster.machine(3).pause()  # so no rebalance ends
        await other.rebalance(SHARES)
        late_at_first(cluster, store, how, SayRebalance)
        await store.rebalance(())
        cluster.machine(3).resume()
        await until_over(other)
        cluster.machine(2).pause()
        await other.rebalance(OTHERS)
        mend(cluster, how)
        await asyncio.sleep(20)
        found = await known(other)
        return found is not None and not found.is_stopped


async def a_late_begin(cluster: ClusterAtHand, how: str) -> bool:
    """The first node got a plan late, another node carried it out, and the operator ended it.
    Returns whether it did not begin again."""
    async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
        late_at_first(cluster, store, how, SayRebalance)
        await store.rebalance(SHARES)
        begun = await known(other)
        await until_over(other)
        mend(cluster, how)
        await asyncio.sleep(20)
        found = await known(other)
        assert begun is not None
        assert found is not None
        return found.version == begun.version


async def until_over(store: Store) -> None:
    while True:
        found = await known(store)
        if found is not None and not found.left:
            return
        await asyncio.sleep(0.5)


async def a_late_begin_after_a_refusal(cluster: ClusterAtHand, how: str) -> bool:
    """The first node got a plan late, and another node refused it because a node was drained. The
    drain is over, and no version of the set tells. Returns whether the plan did not begin."""
    async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
        cluster.machine(2).pause()  # so no drain ends
        await other.say_rebuild(6, "drain")
        late_at_first(cluster, store, how, SayRebalance)
        with pytest.raises(Rejected, match="nodes are being rebuilt or drained"):
            await store.rebalance(SHARES)
        cluster.machine(2).resume()

        def is_empty() -> bool:
            entry = cluster.running[3]._rebuild.set.entry(6)
            return entry is not None and entry.is_empty

        await until(is_empty, timeout_s=60)
        mend(cluster, how)
        await asyncio.sleep(20)
        return await known(other) is None


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize(
    ("scene", "how"),
    [
        (a_late_end, "paused"),
        (a_late_begin, "paused"),
        (a_late_begin, "cut off"),
        (a_late_begin_after_a_refusal, "cut off"),
    ],
)
def test_a_late_order_about_a_rebalance_does_nothing(
    scene, how: str, *, replicated: bool, is_planted: bool
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=5)
        assert await scene(cluster, how) is not is_planted

    with planted(find_bug("late-rebalance")) if is_planted else nullcontext():
        simulate(scenario, nodes=7, replicated_events=replicated)


@as_scenario(simulate, nodes=6)
async def test_an_order_about_a_rebalance_is_done_once_and_may_be_given_again(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster, records=5)
    async with cluster.client(timeout_s=30) as store:
        cluster.machine(3).pause()  # so no rebalance ends
        through = cluster.running[2]._rebuild.set.through
        begin = SayRebalance(((3, 4, PARTS // 2),), if_mark=through)
        for _ in range(2):
            await store._cluster.call_any(begin, timeout_s=10)
        found = await known(store)
        assert found is not None
        for _ in range(2):
            await store._cluster.call_any(SayRebalance((), if_mark=found.version), timeout_s=10)
        assert (await known(store)) is not None
        with pytest.raises(Fenced, match="another node may have carried it out"):
            await store._cluster.call_any(begin, timeout_s=10)
        with pytest.raises(Rejected, match="another rebalance is under way"):
            await store.rebalance(OTHERS)
        assert not lost(cluster)


@pytest.mark.parametrize(
    ("events", "to_begin", "to_end"),
    [
        ([], 0, 0),
        ([BEGUN], 10, 10),
        ([BEGUN, STOPPED], 11, 10),
        ([BEGUN, STOPPED, GAVE], 12, 10),
        ([BEGUN, STOPPED, GAVE, DRAIN], 13, 10),
    ],
)
def test_what_an_order_about_a_rebalance_names(
    events: list,
    to_begin: int,
    to_end: int,  # type: ignore[type-arg]
) -> None:
    found = replay(events)
    assert found.rebalance_mark(begins=True) == to_begin
    assert found.rebalance_mark(begins=False) == to_end


@pytest.mark.parametrize(
    ("events", "is_begun", "is_ended"),
    [
        ([], False, True),
        ([BEGUN], True, False),
        ([BEGUN, STOPPED], False, True),
        ([BEGUN, GAVE], False, True),
    ],
)
def test_an_order_about_a_rebalance_is_carried_out_if_it_changes_nothing(
    events: list,
    *,
    is_begun: bool,
    is_ended: bool,  # type: ignore[type-arg]
) -> None:
    assert is_rebalanced(replay(events), Rebalance(SHARES)) is is_begun
    assert is_rebalanced(replay(events), Rebalance(())) is is_ended
    assert not is_rebalanced(replay(events), Rebalance(OTHERS))
