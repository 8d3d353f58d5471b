"""A rebalance on a whole cluster: copies move to a node that holds too little, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import call_lost, copies, healed, lose_disk, lost, missing, order, put_records
from scenarios import as_scenario

from cordwood.block import EnvelopeFlag
from cordwood.errors import BadSetting, Rejected
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.rebuilding import PARTS, Rebalancing, Transfer
from cordwood.sim.holdings import held_blocks
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.storage.rebuild.moves import Moves

LOGS, RECORDS = 3, 40


def known(cluster: ClusterAtHand) -> Rebalancing | None:
    """The rebalance, as the nodes that run know it."""
    told = [node._rebuild.set for node in cluster.running.values()]
    return max(told, key=lambda each: each.through).rebalancing


def is_over(cluster: ClusterAtHand) -> bool:
    found = known(cluster)
    return found is not None and not found.left


async def held(cluster: ClusterAtHand) -> Counter[int]:
    """Copies that count, by node."""
    found: Counter[int] = Counter()
    for nodes in (await copies(cluster)).values():
        found.update(nodes.keys())
    return found


async def empty_node(cluster: ClusterAtHand, node: int) -> None:
    """A node that is back with an empty disk, beside nodes that hold all."""
    await put_records(cluster, LOGS, RECORDS)
    await asyncio.sleep(1)
    lose_disk(cluster, node)
    await call_lost(cluster, node)
    cluster.keep_starting(node)
    await healed(cluster)
    assert not (await held(cluster))[node]


async def all_there(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        for log in range(1, LOGS + 1):
            wanted = [b"%d/%d" % (log, number) for number in range(RECORDS)]
            assert await values(store, f"log-{log}") == wanted


@as_scenario(simulate, nodes=5)
async def test_a_node_that_came_back_empty_gets_its_share_of_old_records(
    cluster: ClusterAtHand,
) -> None:
    await empty_node(cluster, 2)
    async with cluster.client() as store:
        plan = await store.rebalance_plan()
        gets = Counter[int]()
        for (_, target), size in plan.moves.items():
            gets[target] += size
        assert gets.most_common(1)[0][0] == 2
        assert {each.target for each in (await store.rebalance_plan([2])).shares} == {2}
        with pytest.raises(BadSetting, match="there is no node 9"):
            await store.rebalance_plan([9])
        assert not (await held(cluster))[2], "a plan moves nothing"
        await store.rebalance((await store.rebalance_plan([2])).shares)
        await until(lambda: is_over(cluster))
        told = (await store.rebuilding()).rebalancing
        assert told is not None
        assert sum(each.blocks for each in told.gave) == (await held(cluster))[2]
    found = await held(cluster)
    even = found.total() / 5
    assert 0.6 * even < found[2] < 1.4 * even
    assert not await missing(cluster)
    await all_there(cluster)


@as_scenario(simulate, nodes=5)
async def test_a_rebalance_goes_on_where_it_was_after_deaths_of_donor_and_target(
    cluster: ClusterAtHand,
) -> None:
    await empty_node(cluster, 2)
    async with cluster.client() as store:
        shares = (await store.rebalance_plan()).shares
        await store.rebalance(shares)
        await store.rebalance(shares)  # the first answer was lost
        for node in (2, shares[0].source, 2, shares[-1].source):
            await asyncio.sleep(0.02)
            cluster.kill(node)
            await asyncio.sleep(2)
            await cluster.start(node)
        await until(lambda: is_over(cluster))
    assert (await held(cluster))[2] > 10
    assert not await missing(cluster)
    await all_there(cluster)


@as_scenario(simulate, nodes=5)
async def test_what_a_lost_node_was_to_give_or_get_is_left_out(cluster: ClusterAtHand) -> None:
    await put_records(cluster, LOGS, RECORDS)
    await asyncio.sleep(1)
    async with cluster.client() as store:
        cluster.kill(2)
        cluster.kill(4)
        await store.rebalance(
            [Transfer(1, 2, PARTS // 2), Transfer(3, 5, PARTS // 2), Transfer(4, 5, 9)]
        )
        await asyncio.sleep(5)
        assert not is_over(cluster), "they wait for nodes that are away"
        await cluster.start(4)
        for node in (2, 4):
            lose_disk(cluster, node)
            await call_lost(cluster, node)
            cluster.keep_starting(node)
            await healed(cluster)
        await until(lambda: is_over(cluster))
    assert not await missing(cluster)
    await all_there(cluster)


@as_scenario(simulate, nodes=5)
async def test_one_at_a_time_and_none_beside_a_drain(cluster: ClusterAtHand) -> None:
    await put_records(cluster, LOGS, RECORDS)
    shares = [Transfer(1, 2, PARTS // 3)]

    async def slow(right: Any, self: Moves, *args: Any, **how: Any) -> Any:
        await asyncio.sleep(3)
        return await right(self, *args, **how)

    async with cluster.client() as store:
        delay = PlantedBug("slow", "a move takes its time", at(Moves._send).around(slow))
        with planted(delay):
            await store.rebalance(shares)
            with pytest.raises(Rejected, match="another rebalance"):
                await store.rebalance([Transfer(3, 2, 1)])
            await store.rebalance([])
            await until(lambda: is_over(cluster))
        found = known(cluster)
        assert found is not None
        assert found.is_stopped
        await order(cluster, 5, RebuildOrder.DRAIN)
        await asyncio.sleep(0)
        with pytest.raises((Rejected, BadSetting)):
            await store.rebalance([Transfer(1, 9, 1)])
    assert not await missing(cluster)
    await all_there(cluster)


@as_scenario(simulate, nodes=6, racks=3, locations={n: f"r{n % 3}" for n in range(1, 7)})
async def test_copies_stay_spread_over_racks(cluster: ClusterAtHand) -> None:
    await put_records(cluster, LOGS, RECORDS)
    await asyncio.sleep(1)
    async with cluster.client() as store:
        await store.rebalance([Transfer(1, 2, PARTS)])
        await until(lambda: is_over(cluster))
        told = known(cluster)
    assert told is not None
    assert told.gave[0].kept > 0
    for nodes in (await copies(cluster)).values():
        assert len({node % 3 for node in nodes}) == 3
    await all_there(cluster)


async def noted(cluster: ClusterAtHand) -> int:
    """Moves that their donors noted and did not finish."""
    found = 0
    for node in cluster.running.values():
        for log in sorted(node.engine.cache.logs):
            blocks = await held_blocks(node.engine, log)
            found += sum(bool(each.envelope.flags & EnvelopeFlag.MOVING) for each in blocks)
    return found


async def _untold(right: Any, self: Moves, node: int, wires: Any, *, amends: bool) -> Any:
    """The other holders are not told of a noted move."""
    is_told = amends and node != self._me
    return "it is away" if is_told else await right(self, node, wires, amends=amends)


async def taken_back(cluster: ClusterAtHand, *, restarts: bool) -> None:
    """A drain is taken back after its node noted moves, and before it told the other holders."""
    await put_records(cluster, LOGS, RECORDS)
    await asyncio.sleep(1)
    stopped = PlantedBug("untold", "moves stop half-way", at(Moves._send).around(_untold))
    with planted(stopped):
        await order(cluster, 5, RebuildOrder.DRAIN)
        async with asyncio.timeout(60):
            while not await noted(cluster):  # noqa: ASYNC110 - what it looks at has no event
                await asyncio.sleep(0.1)
        await order(cluster, 5, RebuildOrder.UNDRAIN)
        await until(lambda: not lost(cluster))
        if restarts:
            cluster.kill(5)
    if restarts:
        await cluster.start(5)
    await asyncio.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_noted_move_is_finished_although_its_drain_was_taken_back(
    is_planted: bool, restarts: bool
) -> None:
    """The donor has no work by the set any more. It kept such a block under an envelope that no
    other node knew, as one copy more, until the next node was lost."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await taken_back(cluster, restarts=restarts)
        if is_planted:
            assert await noted(cluster)
            return
        assert not await noted(cluster)
        assert not await missing(cluster)
        await all_there(cluster)

    with planted(find_bug("noted-move-left")) if is_planted else nullcontext():
        simulate(scenario, nodes=5)
