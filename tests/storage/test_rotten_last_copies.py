"""Rebuilding beside rotten copies of blocks that no other node has any more."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from rebuild_scene import call_lost, copies, lose_disk, lost, order, put_records
from test_repairs import SCRUBBED, flushed, ranges, rot

from cordwood.block import Gap, GapKind
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.rebuilding import LostNode
from cordwood.sim.planted import find_bug, planted


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("replicated", [False, True])
def test_a_rotten_last_copy_ends_a_rebuilding_by_an_operators_word(
    *, replicated: bool, is_planted: bool
) -> None:
    """The donor waited for a repair that could not come, and the lost node never joined again."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=2, records=12)
        await flushed(cluster)
        blocks = await copies(cluster)
        place = next(each for each in sorted(blocks) if each[0] == 1)
        lost_one, holder = sorted(next(iter(blocks[place].values())))[:2]
        assert rot(cluster, holder, 1, most=1)
        lose_disk(cluster, lost_one)
        await call_lost(cluster, lost_one)
        await asyncio.sleep(60)
        assert lost(cluster) == {lost_one}
        entry = cluster.running[holder]._rebuild.set.lost[0]
        assert not entry.is_empty, "the lost node may come back with a good copy"
        await order(cluster, lost_one, RebuildOrder.GONE)
        await until(lambda: cluster.running[holder]._rebuild.set.lost[0].is_empty, timeout_s=120)
        cluster.keep_starting(lost_one)
        await until(lambda: not lost(cluster), timeout_s=120)
        assert ranges(cluster, holder)
        async with cluster.client(timeout_s=20) as store:
            found = await read_all(store, "log-1", gaps=True)
            gaps = [each for each in found if isinstance(each, Gap)]
            assert [each.kind for each in gaps].count(GapKind.DATA_LOSS) <= 1
            assert len(await read_all(store, "log-2")) == 12

    caught = pytest.raises(TimeoutError) if is_planted else nullcontext()
    with planted(find_bug("last-rot-waited-for")) if is_planted else nullcontext(), caught:
        simulate(scenario, nodes=5, copies=2, storage=SCRUBBED, replicated_events=replicated)


@pytest.mark.slow
@pytest.mark.parametrize("next_loss", ["same", "other", "drain"])
def test_a_rotten_last_copy_ends_the_next_rebuilding_too(next_loss: str) -> None:
    """The other nodes of its copyset joined empty, so no operator's word tells of them any more.
    The donor waited for a repair by them that could not come."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=2, records=12)
        await flushed(cluster)
        blocks = await copies(cluster)
        place = next(each for each in sorted(blocks) if each[0] == 1)
        holder, one, other = next(iter(blocks[place].values()))
        assert rot(cluster, holder, 1, most=1)

        async def give_up(*nodes: int) -> None:
            for node in nodes:
                lose_disk(cluster, node)
            await asyncio.sleep(5)
            for node in nodes:
                await order(cluster, node, RebuildOrder.START, forced=True)
                await order(cluster, node, RebuildOrder.GONE)

        def entries() -> list[LostNode]:
            return list(cluster.running[holder]._rebuild.set.lost)

        await give_up(one, other)
        await until(lambda: all(each.is_empty for each in entries()), timeout_s=300)
        cluster.keep_starting(one)
        if next_loss != "other":
            cluster.keep_starting(other)
        stays_out = {other} if next_loss == "other" else set()
        await until(lambda: lost(cluster) == stays_out, timeout_s=120)
        assert ranges(cluster, holder)
        third = min({*cluster.running} - {holder, one, other})
        node = third if next_loss == "other" else one
        if next_loss == "drain":
            async with cluster.client(timeout_s=30) as store:
                await store.say_rebuild(node, "drain")
        else:
            await give_up(node)
        await until(lambda: node in {e.node for e in entries() if e.is_empty}, timeout_s=300)

    simulate(scenario, nodes=7, copies=3, storage=SCRUBBED)
