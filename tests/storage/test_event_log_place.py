"""The event log of a cluster whose root asks for more, or fewer, copies than the log can have."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, healed, lose_disk, lost, missing, put_records

from cordwood.errors import TooFewNodes
from cordwood.log_attributes import LogAttributes
from cordwood.lsn import EVENT_LOG
from cordwood.metadata.epoch_store import EpochStore
from cordwood.nodes import Replication
from cordwood.rebuilding import DonorProgress
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
