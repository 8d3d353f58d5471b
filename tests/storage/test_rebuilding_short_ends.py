"""Losses of nodes whose epochs were ended on fewer nodes than the log has copies."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from rebuild_scene import copies, healed, lose_disk, lost, order
from scenarios import as_scenario
from test_lost_in_main_storage import STORAGE, TIER, TIERED

from cordwood.block import EnvelopeFlag, Gap, GapKind
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.log_attributes import LogAttributes
from cordwood.nodes import NodeId
from cordwood.sim.holdings import held_blocks
from cordwood.sim.planted import find_bug, planted


async def say_gone(cluster: ClusterAtHand, *nodes: int) -> None:
    await asyncio.sleep(5)
    for node in nodes:
        for said in (RebuildOrder.START, RebuildOrder.GONE):
            await order(cluster, node, said, forced=True)


async def fewest(cluster: ClusterAtHand) -> int:
    """The copies of the block that has the fewest."""
    return min(len(nodes) for nodes in (await copies(cluster)).values())


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=3, copies=3)
async def test_a_lost_node_stays_out_while_an_end_has_too_few_copies(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """No envelope named the lost node after the recovery, so it came in empty. With the two other
    nodes away it told readers of a loss of an acknowledged record."""
    async with cluster.client(timeout_s=60) as store:
        last = await store.append("log", b"1")
        for node in (1, 2, 3):
            cluster.kill(node)
        lose_disk(cluster, 3)
        cluster.add_nodes(2)
        with planted(find_bug("short-ends-forgotten")) if is_planted else nullcontext():
            await cluster.start(1, 2, 4, 5)
            await say_gone(cluster, 3)
            cluster.keep_starting(3)
            await asyncio.sleep(60)
        assert await fewest(cluster) == 2
        assert lost(cluster) == (set() if is_planted else {3})
        for node in (1, 2):
            cluster.kill(node)
    async with cluster.client(timeout_s=60) as store:
        try:
            async with asyncio.timeout(60):
                found = await read_all(store, "log", until=last)
        except TimeoutError:
            assert not is_planted
            return
    kinds = [item.kind for item in found if isinstance(item, Gap)]
    assert is_planted
    assert kinds == [GapKind.DATA_LOSS]


@as_scenario(simulate, nodes=4, copies=3)
async def test_an_end_gets_its_copies_when_a_node_of_its_nodeset_is_back(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=60) as store:
        last = await store.append("log", b"1")
        holders = set((await copies(cluster))[(1, last)])
        other = min(set(cluster.numbers) - holders)
        gone = max(holders)
        for node in sorted(cluster.running):
            cluster.kill(node)
        lose_disk(cluster, gone)
        cluster.add_nodes(3)
        await cluster.start(*(n for n in cluster.numbers if n not in (gone, other)))
        await say_gone(cluster, gone, other)
        await asyncio.sleep(30)
        assert await fewest(cluster) == 2
        cluster.keep_starting(gone)
        await asyncio.sleep(10)
        assert gone in lost(cluster)
        await cluster.start(other)
        await healed(cluster)
        await until(lambda: gone in cluster.running)
        assert await fewest(cluster) == 3
        assert [item.value for item in await read_all(store, "log", until=last)] == [b"1"]


async def with_a_joined_holder(cluster: ClusterAtHand) -> None:
    """A power cut after node 5 joined. Node 3 was lost before, and node 4 was away; then node 2 was
    given up, so recoveries ended the logs on nodes 1 and 5."""
    async with cluster.client(timeout_s=60) as store:
        cluster.kill(4)
        cluster.weights[4] = 0.0  # it takes no new records
        await cluster.start(4)
        await asyncio.sleep(3)
        cluster.kill(4)
        lose_disk(cluster, 3)
        await say_gone(cluster, 3)
        cluster.add_nodes(1)
        await cluster.start(5)
        await asyncio.sleep(5)
        names = [f"log-{number}" for number in range(8)]
        for name in names:
            await store.append(name, b"1")
        cluster.add_nodes(3)
        await cluster.start(6, 7, 8)
        await asyncio.gather(*(store.append(name, b"2") for name in names))
        for node in sorted(cluster.running):
            cluster.kill(node)
    await cluster.start(1, 5, 6, 7, 8)
    await say_gone(cluster, 2)
    await asyncio.sleep(60)


@pytest.mark.slow
@as_scenario(simulate, nodes=4, copies=3)
async def test_an_end_whose_first_holder_joined_after_the_loss_gets_its_copies(
    cluster: ClusterAtHand,
) -> None:
    """Node 5 is no donor for node 3. Node 1 waited for it for ever."""
    await with_a_joined_holder(cluster)
    assert {(1, 5), (5, 1)} <= {
        c for each in (await copies(cluster)).values() for c in each.values()
    }
    cluster.kill(5)
    await cluster.start(2)
    await asyncio.sleep(20)
    cluster.kill(2)
    await cluster.start(5)
    await asyncio.sleep(20)
    await cluster.start(2, 4)
    cluster.keep_starting(3)
    await healed(cluster)
    assert await fewest(cluster) == 3


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=3, copies=3)
async def test_a_lost_node_stays_out_if_all_holders_of_a_short_end_joined_after_its_loss(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """They were no donors for it, so it joined empty. With the holders away it told readers of a
    loss of acknowledged records."""
    names = [f"log-{number}" for number in range(6)]
    with planted(find_bug("short-ends-undonated")) if is_planted else nullcontext():
        async with cluster.client(timeout_s=60) as store:
            cluster.kill(2)
            cluster.weights[2] = 0.0  # it takes no new records
            await cluster.start(2)
            await asyncio.sleep(3)
            lose_disk(cluster, 3)
            cluster.kill(2)
            await say_gone(cluster, 3)
            cluster.add_nodes(2)
            await cluster.start(4, 5)
            await asyncio.sleep(5)
            for name in names:
                await store.append(name, b"1")
            cluster.add_nodes(3)
            await cluster.start(6, 7, 8)
            await asyncio.gather(*(store.append(name, b"2") for name in names))
            for node in sorted(cluster.running):
                cluster.kill(node)
        await cluster.start(4, 5, 6, 7, 8)
        await say_gone(cluster, 1)
        await asyncio.sleep(60)
        assert await fewest(cluster) == 2
        cluster.kill(4)
        await cluster.start(1)
        await asyncio.sleep(30)
        cluster.keep_starting(3)
        await cluster.start(2)
        await asyncio.sleep(60)
        assert lost(cluster) == (set() if is_planted else {3})
        if is_planted:
            return
        await cluster.start(4)
        await healed(cluster)
        assert await fewest(cluster) == 3


async def a_holder_let_go(cluster: ClusterAtHand, *, is_drained: bool) -> None:
    """Main storage has a log with a short end. One of its two holders let go of it, and is drained;
    a lost node waits for copies of it. No third node of the nodeset can take one."""
    async with cluster.client(timeout_s=60) as store:
        attributes = LogAttributes(tier_after_s=20).over(TIERED)
        await store.create_log("log", attributes=attributes)
        await store.append("log", b"1")
    for node in (1, 2, 3):
        cluster.kill(node)
    lose_disk(cluster, 3)
    cluster.add_nodes(4)
    for node in (1, 2):
        cluster.storages[node] = replace(STORAGE, retention_every_s=3000)
    await cluster.start(1, 2, 4, 5, 6, 7)
    await say_gone(cluster, 3)
    cluster.keep_starting(3)
    await asyncio.sleep(10)
    blocks = await held_blocks(cluster.running[NodeId(1)].engine, 1)
    *_, short = (b for b in blocks if b.envelope.flags & EnvelopeFlag.BY_RECOVERY)
    assert len(short.envelope.copyset) == 2
    past, holder = map(NodeId, short.envelope.copyset)
    assert 3 in lost(cluster)
    cluster.storages[past] = replace(STORAGE, retention_every_s=5)
    await cluster.stop(past)
    await cluster.start(past)
    await asyncio.sleep(3)
    if is_drained:
        await order(cluster, past, RebuildOrder.DRAIN, forced=True)
    engines = {node: cluster.running[node].engine for node in (past, holder)}
    await until(lambda: engines[past].gone_of(1) >= short.header.last, timeout_s=600)
    assert engines[holder].gone_of(1) == 0
    role = cluster.running[holder]._rebuild
    await until(lambda: all(entry.is_empty for entry in role.set.lost), timeout_s=60)
    assert is_drained == (role.set.entry(past) is not None)
    await until(lambda: 3 in cluster.running, timeout_s=60)


@pytest.mark.slow
@pytest.mark.parametrize("is_drained", [False, True])
def test_a_short_end_that_main_storage_has_holds_up_no_rebuilding(*, is_drained: bool) -> None:
    """The holder waited for copies of the node that had let go, and that node's drain for it."""

    def run() -> None:
        simulate(
            lambda cluster: a_holder_let_go(cluster, is_drained=is_drained),
            nodes=3, copies=3, storage=STORAGE, tier=TIER, seed=1,
        )  # fmt: skip

    run()
    with planted(find_bug("rebuild-waits-for-let-go")), pytest.raises(TimeoutError):
        run()


async def a_noted_move_has_no_place(cluster: ClusterAtHand) -> None:
    """A drained node noted moves, and the node that took the copies loses its disk. No third node
    is left. Main storage has the blocks, and their other holder lets go of them."""
    for node in (1, 2, 3):
        cluster.storages[node] = replace(STORAGE, retention_every_s=3000)
        await cluster.stop(node)
        await cluster.start(node)
    cluster.add_nodes(4)
    async with cluster.client(timeout_s=60) as store:
        attributes = LogAttributes(tier_after_s=20).over(TIERED)
        await store.create_log("log", attributes=attributes)
        for _ in range(4):
            last = await store.append("log", b"1")
    await asyncio.sleep(1)
    # The sequencer may be drained: the next epoch lies on other nodes too.
    await cluster.start(4, 5, 6, 7)
    await asyncio.sleep(2)
    old = cluster.sequencer_of(1)
    await cluster.stop(old)
    await cluster.start(old)
    async with cluster.client(timeout_s=60) as store:
        await store.append("log", b"later")
    await asyncio.sleep(3)
    found = (await copies(cluster))[(1, int(last))]
    leaving, other = map(NodeId, next(iter(found.values())))
    (taker,) = {1, 2, 3} - {leaving, other}
    cluster.storages[other] = replace(STORAGE, retention_every_s=1)
    await cluster.stop(other)
    await cluster.start(other)
    await asyncio.sleep(3)
    engine = cluster.running[leaving].engine

    def noted() -> bool:
        log = engine.cache.get(1)
        blocks = log._blocks if log is not None else ()
        return any(block.envelope.flags & EnvelopeFlag.MOVING for block in blocks)

    drain = asyncio.create_task(order(cluster, leaving, RebuildOrder.DRAIN, forced=True))
    async with asyncio.timeout(60):
        while not noted():  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
    cluster.kill(taker)
    await drain
    lose_disk(cluster, taker)
    await say_gone(cluster, taker)
    cluster.keep_starting(taker)
    blocks = await held_blocks(engine, 1)
    moving = [b.header.last for b in blocks if b.envelope.flags & EnvelopeFlag.MOVING]
    assert moving
    past = cluster.running[other].engine
    await until(lambda: past.gone_of(1) >= max(moving), timeout_s=600)
    assert engine.gone_of(1) == 0
    role = cluster.running[leaving]._rebuild
    await until(lambda: all(entry.is_empty for entry in role.set.lost), timeout_s=60)
    await until(lambda: taker in cluster.running, timeout_s=60)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_noted_move_without_a_place_that_main_storage_has_holds_up_no_drain(seed: int) -> None:
    """The drained node waited for nodes that could take copies, and the rebuilding for it."""

    def run() -> None:
        simulate(
            a_noted_move_has_no_place, nodes=3, copies=2, storage=STORAGE, tier=TIER, seed=seed
        )

    run()
    with planted(find_bug("rebuild-waits-for-noted")), pytest.raises(TimeoutError):
        run()
