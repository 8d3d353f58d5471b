"""A node that is started in another rack: old epochs stay judged by the racks of then.

Four nodes, two copies over two racks; 1 and 2 stand in rack a, 3 and 4 in rack b.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from scenarios import as_scenario
from swaps import swap_value

from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.layout.message import AskTail
from cordwood.lsn import Lsn
from cordwood.metadata.epoch_store import EpochRecord, EpochStore
from cordwood.nodes import NodeId
from cordwood.sequencer import log_watch
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.role import StorageRole

LOG = 1
RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}
NOWHERE = dict.fromkeys(RACKS, "")


async def acknowledged_above_the_lng(cluster: ClusterAtHand, store: Store) -> tuple[Lsn, list[int]]:
    """A record that no node knows to be released, its sequencer dead; and who holds it."""
    for n in (1, 2, 3):
        await store.append("log", b"%d" % n)
    await asyncio.sleep(0.3)
    with mock.patch("cordwood.sequencer.releases.Releases.send"):
        last = await store.append("log", b"acknowledged")
        sequencer = cluster.sequencer_of(LOG)
        cluster.kill(sequencer)
    await cluster.start(sequencer)
    holders = [n for n in cluster.numbers if any(f == last for f, _, _ in cluster.held(n, LOG))]
    return last, holders


async def restarted_in(cluster: ClusterAtHand, racks: dict[int, str]) -> None:
    for number, rack in racks.items():
        cluster.locations[number] = rack
        cluster.kill(number)
        await cluster.start(number)
    await asyncio.sleep(3)


async def record_of(cluster: ClusterAtHand) -> EpochRecord:
    record = await EpochStore(cluster.metadata).read(LOG)
    assert record is not None
    return record


async def asks_for_the_tail(store: Store, node: int) -> None:
    """Have `node` take the next epoch, whether or not it can recover."""
    try:
        await store._cluster.peers.call(NodeId(node), AskTail(LOG, True), timeout_s=20)
    except CordwoodError:
        return


Move = Callable[[list[int]], dict[int, str]]
MOVES: list[tuple[dict[int, str], Move]] = [
    (RACKS, lambda holders: {holders[1]: RACKS[holders[0]]}),
    # Without a location each node was a rack of its own, so two nodes of one rack are a copyset.
    (NOWHERE, lambda holders: dict.fromkeys(holders, "a")),
]


@pytest.mark.parametrize(("before", "move"), MOVES)
def test_a_record_outlives_that_its_holders_are_away_and_one_has_another_rack(before, move):
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            last, holders = await acknowledged_above_the_lng(cluster, store)
            await restarted_in(cluster, move(holders))
            others = [n for n in cluster.numbers if n not in holders]
            network = cluster.simulation.network
            network.partition([f"node-{n}" for n in holders], [f"node-{n}" for n in others])
            for other in others:
                await asks_for_the_tail(store, other)
            network.mend_all()
            await asyncio.sleep(5)
            assert (await store.append("log", b"after")).epoch > last.epoch
            kept = [each.value for each in await read_all(store, "log") if hasattr(each, "value")]
        assert kept == [b"1", b"2", b"3", b"acknowledged", b"after"]

    simulate(scenario, nodes=4, copies=2, racks=2, locations=before)


@as_scenario(simulate, nodes=4, copies=2, racks=2, locations=RACKS)
async def test_a_record_outlives_that_its_holders_answer_late_and_one_has_another_rack(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=20) as store:
        last, holders = await acknowledged_above_the_lng(cluster, store)
        await restarted_in(cluster, {holders[1]: RACKS[holders[0]]})
        right = StorageRole.seal

        async def late(role: StorageRole, call: Any) -> Any:
            if any(cluster.running[n]._storage is role for n in holders):
                await asyncio.sleep(0.4)
            return await right(role, call)

        with mock.patch.object(StorageRole, "seal", late):
            other = next(n for n in cluster.numbers if n not in holders)
            await asks_for_the_tail(store, other)
        assert (await store.append("log", b"after")).epoch > last.epoch
        kept = [each.value for each in await read_all(store, "log") if hasattr(each, "value")]
    assert kept == [b"1", b"2", b"3", b"acknowledged", b"after"]


def test_a_node_in_another_rack_takes_a_new_epoch_that_records_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
):
    swap_value(monkeypatch, lambda: log_watch.WATCH_S, 2.0)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("log", b"1")
            moved = next(n for n in cluster.numbers if n != cluster.sequencer_of(LOG))
            await restarted_in(cluster, {moved: "c"})
            sequencer = cluster.sequencer_of(LOG)
            appenders = cluster.running[sequencer]._sequencer.sequencing()
            await until(lambda: LOG in appenders and appenders[LOG].epoch > 1, timeout_s=20)
            await store.append("log", b"2")
            record = await record_of(cluster)
            now = {**RACKS, moved: "c"}
            assert record.history[0].locations == tuple(RACKS.values())
            assert record.history[-1].locations == tuple(now.values())
            assert appenders[LOG].nodeset.locations == tuple(now.values())
            told = cluster.running[sequencer].engine.nodesets(LOG)[1]
            assert [tuple(each.locations) for each in told] == [
                tuple(RACKS.values()),
                tuple(now.values()),
            ]
            epoch = appenders[LOG].epoch
            await asyncio.sleep(10)
            assert cluster.running[sequencer]._sequencer.sequencing()[LOG].epoch == epoch

    simulate(scenario, nodes=4, copies=2, racks=2, locations=RACKS)


@as_scenario(simulate, nodes=4, copies=2, racks=2, locations=RACKS)
async def test_a_reader_judges_each_epoch_by_the_racks_of_then(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        await restarted_in(cluster, {4: "a"})
        cluster.kill(cluster.sequencer_of(LOG))
        await asyncio.sleep(0.5)
        await store.append("log", b"2")
        info = await store._positions._fresh("log")
        found = [store._cluster.nodeset_of(info, epoch) for epoch in (1, info.epoch)]
        assert [each and each[0].locations for each in found] == [
            ("a", "a", "b", "b"),
            ("a", "a", "b", "a"),
        ]


@pytest.mark.parametrize("number", range(len(MOVES)))
def test_racks_of_today_are_noticed(number):
    with planted(find_bug("racks-of-today")), pytest.raises(AssertionError):
        test_a_record_outlives_that_its_holders_are_away_and_one_has_another_rack(*MOVES[number])


def test_racks_of_today_in_a_reader_are_noticed():
    with planted(find_bug("readers-racks-of-today")), pytest.raises(AssertionError):
        test_a_reader_judges_each_epoch_by_the_racks_of_then()


def test_a_move_that_takes_no_epoch_is_noticed(monkeypatch: pytest.MonkeyPatch):
    with planted(find_bug("move-unseen")), pytest.raises(TimeoutError):
        test_a_node_in_another_rack_takes_a_new_epoch_that_records_where_it_stands(monkeypatch)
