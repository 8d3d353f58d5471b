"""A log whose own node is cut off from the metadata store alone: other nodes sequence it."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.errors import CordwoodError
from cordwood.layout.message import TailReply
from cordwood.nodes import NodeId
from cordwood.quorum.sequencer_placement import sequencer_order
from cordwood.sequencer import role
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.repair.sequencer_question import ask_sequencer

LOGS = 8


async def with_an_owner_cut_off(cluster: ClusterAtHand) -> int:
    """Node 1 started again, and the metadata store does not answer it: a log that it should
    sequence. No node sequences this log."""
    async with cluster.client() as store:
        for log in range(1, LOGS + 1):
            await store.append(f"log-{log}", b"before")
    own = await cluster.start_with_own_way(1)
    await asyncio.sleep(5)
    own.is_out = True
    members = cluster.running[NodeId(1)]._members.values()
    return next(
        log
        for log in range(1, LOGS + 1)
        if sequencer_order(log, members)[0] == 1 and not cluster.sequencer_of(log)
    )


@as_scenario(simulate)
async def test_appends_go_on_with_another_node(cluster: ClusterAtHand) -> None:
    """The others saw node 1 alive, and sent each client to it for as long as it was cut off."""
    log = await with_an_owner_cut_off(cluster)
    async with cluster.client(timeout_s=20) as store:
        await store.append(f"log-{log}", b"after")
        assert await values(store, f"log-{log}") == [b"before", b"after"]
    assert cluster.sequencer_of(log) != 1


@as_scenario(simulate)
async def test_a_tail_is_told_by_another_node(cluster: ClusterAtHand) -> None:
    log = await with_an_owner_cut_off(cluster)
    async with cluster.client(timeout_s=20) as store:
        assert (await store.tail(f"log-{log}")).epoch == 2
    assert cluster.sequencer_of(log) != 1


@as_scenario(simulate)
async def test_a_tail_is_told_although_the_sequencer_is_cut_off(cluster: ClusterAtHand) -> None:
    """Appends went on there, and it could not tell whether it was replaced."""
    own = await cluster.start_with_own_way(1)
    await asyncio.sleep(5)
    async with cluster.client(timeout_s=3 * role.CUT_OFF_S) as store:
        for log in range(1, LOGS + 1):
            await store.append(f"log-{log}", b"before")
        log = next(log for log in range(1, LOGS + 1) if cluster.sequencer_of(log) == 1)
        own.is_out = True
        await store.append(f"log-{log}", b"after")
        assert cluster.sequencer_of(log) == 1
        assert (await store.tail(f"log-{log}")).epoch == 2
        assert cluster.sequencer_of(log) != 1
        assert await values(store, f"log-{log}") == [b"before", b"after"]


@as_scenario(simulate)
async def test_a_log_stays_where_it_is_while_the_store_is_away_for_some_seconds(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=60) as store:
        await store.append("log", b"before")
        sequencer = cluster.sequencer_of(1)
        cluster.metadata.is_out = True
        asking = asyncio.create_task(store.tail("log"))
        await asyncio.sleep(20)
        cluster.metadata.is_out = False
        assert (await asking).epoch == 1
        assert cluster.sequencer_of(1) == sequencer


@as_scenario(simulate)
async def test_a_storage_node_finds_a_sequencer(cluster: ClusterAtHand) -> None:
    """It heals what its WAL lost, or repairs rot on a log that no client uses."""
    log = await with_an_owner_cut_off(cluster)
    peers = cluster.running[NodeId(3)]._peers
    told = await ask_sequencer(peers, NodeId(3), frozenset, log)
    assert isinstance(told, TailReply)
    assert told.epoch == 2


def test_an_owner_that_names_no_other_node_is_caught() -> None:
    with planted(find_bug("owner-cut-off")), pytest.raises(CordwoodError):
        test_appends_go_on_with_another_node()
