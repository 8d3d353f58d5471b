"""The event log of a cluster whose root asks for more, or fewer, copies than the log can have."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, healed, lose_disk, lost, missing, order, put_records

from cordwood.errors import CordwoodError, Rejected, TooFewNodes, Unreachable
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import EVENT_LOG
from cordwood.metadata.epoch_store import (
    Configuration,
    Configure,
    EpochRecord,
    EpochStore,
    NodesetSince,
)
from cordwood.metadata.log_info import LogInfo
from cordwood.nodes import Member, NodeId, Replication
from cordwood.rebuilding import DonorProgress
from cordwood.sequencer.activation import Activation
from cordwood.sim.planted import find_bug, planted

ANOTHER_EPOCH_S = 90.0
"""The sequencer of the event log looks once a minute whether it needs another nodeset."""


async def begun(cluster: ClusterAtHand) -> None:
    """The events have moved, and the event log has a sequencer."""
    await put_records(cluster)
    await until(lambda: all(node._events.has_moved for node in cluster.running.values()))
    await cluster.running[1]._events.say(DonorProgress(1, 0, 0))


async def ask_of_root(cluster: ClusterAtHand, **across: int) -> None:
    async with cluster.client(timeout_s=30) as store:
        await store.log_tree.set_attributes("/", LogAttributes(replicate_across=across))
    await asyncio.sleep(ANOTHER_EPOCH_S)


async def replication(cluster: ClusterAtHand) -> Replication:
    record = await EpochStore(cluster.metadata).read(EVENT_LOG)
    assert record is not None, "it has a sequencer"
    return record.history[-1].replication


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.slow
def test_a_loss_is_recorded_although_the_root_asks_for_a_copy_on_every_node(
    is_planted: bool,
) -> None:
    """With five copies on five nodes no event could be added after a loss: also logs that have
    three copies were not rebuilt, and there was no way back to the metadata store."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        await ask_of_root(cluster, node=5)
        lose_disk(cluster, 5)
        if is_planted:
            with pytest.raises(TooFewNodes, match="wants 5 copies"):
                await call_lost(cluster, 5)
            return
        assert await replication(cluster) == Replication(3)
        await call_lost(cluster, 5)
        await until(lambda: lost(cluster) == {5})
        cluster.keep_starting(5)
        await healed(cluster)
        assert not await missing(cluster)

    with planted(find_bug("event-log-as-asked")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)


def test_events_keep_two_copies_although_the_root_asks_for_one() -> None:
    """With one copy a lost node would take events along."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        await ask_of_root(cluster, node=1)
        assert await replication(cluster) == Replication(2)

    simulate(scenario, nodes=5, replicated_events=True)


@pytest.mark.slow
def test_the_event_log_is_as_the_root_asks_again_once_the_nodes_can_keep_it() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        await ask_of_root(cluster, node=4)
        assert await replication(cluster) == Replication(3)
        cluster.add_nodes(2)
        await cluster.start(6, 7)
        await asyncio.sleep(ANOTHER_EPOCH_S)
        assert await replication(cluster) == Replication(4)

    simulate(scenario, nodes=5, replicated_events=True)


def is_empty(cluster: ClusterAtHand, node: int) -> bool:
    """Whether all nodes that run know that a node's data lies on other nodes."""
    sets = [each._rebuild.set for each in cluster.running.values()]
    return all((entry := each.entry(node)) is not None and entry.is_empty for each in sets)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_third_loss_is_recorded_with_two_of_five_nodes_drained_for_good(
    is_planted: bool,
) -> None:
    """Three copies have no place on the three nodes that are left, once one of them is lost."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        for node in (4, 5):
            await order(cluster, node, RebuildOrder.DRAIN)
            await until(lambda node=node: is_empty(cluster, node), timeout_s=300)
        await asyncio.sleep(ANOTHER_EPOCH_S)
        assert await replication(cluster) == Replication(3 if is_planted else 2)
        lose_disk(cluster, 3)
        if is_planted:
            with pytest.raises(TooFewNodes):
                await call_lost(cluster, 3)
            return
        await call_lost(cluster, 3)
        await until(lambda: lost(cluster) == {3, 4, 5})
        # With the drained nodes in service again, it has nodes for its copies.
        cluster.keep_starting(3)
        for node in (4, 5):
            await order(cluster, node, RebuildOrder.UNDRAIN)
            lose_disk(cluster, node)
            cluster.keep_starting(node)
        await healed(cluster)
        assert not await missing(cluster, 2)  # so many the event log had meanwhile

    with planted(find_bug("event-log-counts-empty")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)


def test_a_drain_after_which_no_event_could_be_stored_is_refused() -> None:
    """It could not be taken back: no order about nodes had a place any more."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        async with cluster.client(timeout_s=20) as store:
            for node in (4, 5):
                await store.say_rebuild(node, "drain", forced=True)
            with pytest.raises(Rejected, match="not even the end of this drain"):
                await store.say_rebuild(3, "drain", forced=True)
            await until(lambda: lost(cluster) == {4, 5})
            for node in (4, 5):
                await store.say_rebuild(node, "undrain")
            await until(
                lambda: all(
                    entry.node not in lost(cluster) or entry.is_empty
                    for entry in cluster.running[1]._rebuild.set.lost
                )
            )

    simulate(scenario, nodes=5, replicated_events=True)


@pytest.mark.parametrize("is_planted", [False, True])
def test_of_two_drains_at_once_the_one_without_a_place_is_refused(is_planted: bool) -> None:
    """Each had a place without the other, and two nodes checked them at the same time."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        async with cluster.client(timeout_s=20) as store:
            await store.say_rebuild(4, "drain", forced=True)
            await until(lambda: lost(cluster) == {4})
            said = await asyncio.gather(
                *(
                    cluster.running[via]._rebuild.answer(SayRebuild(node, RebuildOrder.DRAIN, True))
                    for via, node in ((1, 5), (2, 3))
                ),
                return_exceptions=True,
            )
            refused = [each for each in said if isinstance(each, Rejected)]
            if is_planted:
                assert not refused
                await asyncio.sleep(5)
                with pytest.raises(CordwoodError):
                    await store.say_rebuild(5, "undrain")
                return
            assert len(refused) == 1
            assert "not even the end of this drain" in str(refused[0])
            (node,) = lost(cluster) - {4}
            await store.say_rebuild(node, "undrain")
            await until(lambda: node not in lost(cluster))

    with planted(find_bug("event-log-drains-cross")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)


def test_a_node_that_is_back_orders_no_drain_without_a_place() -> None:
    """Its entry ended with its loss. Others were drained before it ordered its own drain again, and
    nothing checked that order."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await begun(cluster)
        rest = {1, 2, 3, 4, 5} - {cluster.sequencer_of(EVENT_LOG)}
        first, second, third, _ = sorted(rest)
        async with cluster.client(timeout_s=20) as store:
            await store.say_rebuild(second, "drain", forced=True)
            cluster.kill(second)
            await order(cluster, second, RebuildOrder.START)
            await cluster.start(second)
            back = cluster.running[second]._rebuild
            assert back.owes_drain
            back.owes_drain = False  # it looks a second later
            await until(lambda: not any(node._gossip.dead for node in cluster.running.values()))
            for node in (first, third):
                await store.say_rebuild(node, "drain", forced=True)
            back.owes_drain = True
            await asyncio.sleep(5)
            assert lost(cluster) == {first, third}, "with this drain it would have no place"
            for node in (first, third):
                await store.say_rebuild(node, "undrain")

    simulate(scenario, nodes=5, replicated_events=True)


def test_the_first_epoch_is_on_all_members_that_the_store_knows() -> None:
    """Seed 66001107. The events moved while the metadata store came back, and the member that took
    the first epoch knew one of four others. The log lay on these two; one of them lost its disk,
    and the log never recorded it."""
    every = {NodeId(n): Member(NodeId(n), f"node-{n}") for n in range(1, 6)}
    known = {NodeId(n): every[NodeId(n)] for n in (2, 4)}
    wanted: list[Configuration | None] = []

    class Epochs:
        async def take_epoch(self, log: int, *, configure: Configure, **how: object) -> None:
            record = EpochRecord(1, 0, 0, (NodesetSince(1, (2, 4), 2, 1),))
            wanted.append((await configure())(record))
            raise Unreachable("the test has seen enough")

    class Tree:
        async def described(self, log: int) -> LogInfo:
            own = LogAttributes(replicate_across={"node": 2})
            return LogInfo(EVENT_LOG, "the event log", own=own, attributes=own)

    async def refresh() -> None:
        known.update(every)

    made = Activation(
        NodeId(2), cast(Any, SimpleNamespace(epochs=Epochs())), cast(Any, None), lambda: known,
        lambda: tuple(known.values()), refresh, cast(Any, None), cast(Any, Tree()),
    )  # fmt: skip
    with pytest.raises(Unreachable, match="seen enough"):
        asyncio.run(made.activate(EVENT_LOG, cast(Any, None)))
    assert wanted[0] is not None
    assert len(wanted[0].nodes) >= 3
    assert wanted[0].replication == Replication(2)
