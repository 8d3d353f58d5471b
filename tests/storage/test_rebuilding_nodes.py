"""Whole clusters that lose a disk, or drain a node, and make its copies anew."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until, values
from rebuild_scene import (
    call_lost,
    copies,
    healed,
    lose_disk,
    lost,
    missing,
    order,
    put_records,
    with_either_log,
)
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.block import Gap, GapKind, Record
from cordwood.errors import NotOurCluster, Rejected
from cordwood.layout.ledger_records import LedgerFlag
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.nodes import Authority, NodeId
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.sim.stored_tree import StoredTree
from cordwood.storage.rebuild import donor
from cordwood.storage.rebuild.donor import Donor
from cordwood.storage.rebuild.moves import Moves


async def all_there(cluster: ClusterAtHand, logs: int = 3, records: int = 20) -> None:
    async with cluster.client() as store:
        for log in range(1, logs + 1):
            wanted = [b"%d/%d" % (log, number) for number in range(records)]
            assert await values(store, f"log-{log}") == wanted


def known_empty(cluster: ClusterAtHand, node: int) -> bool:
    """Whether all nodes that run call a node empty."""
    found = [other._members[node].authority for other in cluster.running.values()]
    return set(found) == {Authority.AUTHORITATIVE_EMPTY}


@as_scenario(with_either_log, nodes=5)
async def test_a_lost_disk_is_made_anew_by_the_others_and_its_node_comes_in_empty(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await asyncio.sleep(1)
    assert not await missing(cluster)
    before = await copies(cluster)
    assert sum(2 in nodes for nodes in before.values()) > 10
    lose_disk(cluster, 2)
    await call_lost(cluster, 2)
    cluster.keep_starting(2)
    await healed(cluster)
    assert not await missing(cluster)
    after = await copies(cluster)
    assert after.keys() >= before.keys()
    assert not any(2 in nodes for place, nodes in after.items() if place in before)
    await all_there(cluster)


@as_scenario(with_either_log, nodes=5)
async def test_all_donors_hear_of_a_loss_before_they_read_the_member_list_again(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    lose_disk(cluster, 2)
    await call_lost(cluster, 2)
    await asyncio.sleep(0.1)  # the member list is read every half second
    assert lost(cluster) == {2}
    heard = [node._rebuild.set.entry(NodeId(2)) for node in cluster.running.values()]
    assert None not in heard
    judged = [node._members[NodeId(2)].authority for node in cluster.running.values()]
    assert Authority.FULLY_AUTHORITATIVE not in judged, "sequencers go by it too"


@as_scenario(with_either_log, nodes=5, rebuild_after_s=10.0)
async def test_a_node_that_is_dead_for_long_is_lost_without_a_word_of_an_operator(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    lose_disk(cluster, 3)
    await asyncio.sleep(8)
    assert not lost(cluster)
    await until(lambda: known_empty(cluster, 3), timeout_s=30)
    assert not await missing(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("drains", [False, True])
def test_two_of_five_nodes_are_made_anew_although_one_is_the_others_donor(
    drains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of the second node was refused, as two of five are more than the share that may be
    rebuilt, and the first one waited for it as a donor: neither was ever rebuilt."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        if drains:
            lose_disk(cluster, 5)
            await asyncio.sleep(8)
            await order(cluster, 4, RebuildOrder.DRAIN)
        else:
            lose_disk(cluster, 4)
            await asyncio.sleep(30)
            lose_disk(cluster, 5)
        up = cluster.running[NodeId(1)]._rebuild

        def are_empty() -> bool:
            return [(e.node, e.is_empty) for e in up.set.lost] == [(4, True), (5, True)]

        await until(are_empty, timeout_s=600)
        few = [nodes for nodes in (await copies(cluster)).values() if len(nodes.keys() - {4}) < 3]
        assert few == []

    with_either_log(scenario, nodes=5, rebuild_after_s=60.0)
    told = [each.message for each in caplog.records if "node 5 is lost" in each.message]
    assert len(told) == 2, "once for each of the two logs"


@pytest.mark.slow
@as_scenario(simulate, nodes=8, rebuild_after_s=20.0)
async def test_a_report_that_is_refused_is_told_once(
    cluster: ClusterAtHand, *, caplog: pytest.LogCaptureFixture
) -> None:
    """It is repeated each second, by the living nodes in turn."""
    await put_records(cluster)
    for node in (6, 7, 8):
        cluster.kill(node)
    await asyncio.sleep(100)
    told = [each.message for each in caplog.records if "too many nodes" in each.message]
    assert len(told) == 5, "once by each living node"
    assert "cordwood rebuild start 8 --force" in told[0]


@as_scenario(simulate, nodes=5, rebuild_after_s=10.0)
async def test_a_loss_is_reported_if_the_first_node_is_cut_off_from_the_metadata_store(
    cluster: ClusterAtHand,
) -> None:
    """The other nodes saw node 1 alive, and left the report to it for as long as it was cut off."""
    await put_records(cluster)
    own = await cluster.start_with_own_way(1)
    own.is_out = True
    lose_disk(cluster, 3)
    await asyncio.sleep(60)
    assert lost(cluster) == {3}
    own.is_out = False
    await until(lambda: known_empty(cluster, 3), timeout_s=30)
    assert not await missing(cluster)


@as_scenario(with_either_log, nodes=5)
async def test_no_disk_after_the_other_takes_a_record(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    for node in (1, 2, 3):
        lose_disk(cluster, node)
        await call_lost(cluster, node)
        cluster.keep_starting(node)
        await healed(cluster)
        assert not await missing(cluster)
    await all_there(cluster)


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5)
async def test_no_disk_after_the_other_takes_a_trim_point(cluster: ClusterAtHand) -> None:
    """Donors tell it to a node that began anew, so that nobody takes what was trimmed for lost."""
    await put_records(cluster, logs=1)
    async with cluster.client() as store:
        records = [item async for item in await store.read("log-1")]
        await store.trim("log-1", records[9].lsn)
    for node in cluster.numbers:
        lose_disk(cluster, node)
        await call_lost(cluster, node)
        cluster.keep_starting(node)
        await healed(cluster)
    async with cluster.client() as store:
        first, *kept = await read_all(store, "log-1")
    assert isinstance(first, Gap)
    assert (first.kind, first.last) == (GapKind.TRIM, records[9].lsn)
    assert [item.value for item in kept if isinstance(item, Record)] == [
        b"1/%d" % number for number in range(10, 20)
    ]


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5)
async def test_a_node_that_is_back_with_its_data_stays_as_it_was(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    await asyncio.sleep(1)
    before = await copies(cluster)
    donor_waits_for = next(max({*n} - {2}) for n in before.values() if 2 in n)
    cluster.kill(2)
    cluster.kill(donor_waits_for)
    await call_lost(cluster, 2)
    await asyncio.sleep(3)
    assert lost(cluster) == {2}
    # Once the last donor is up, the rebuilding may end before the node has said that it is back.
    await cluster.start(2)
    await cluster.start(donor_waits_for)
    await healed(cluster)
    after = await copies(cluster)
    assert all(2 in after[place] for place, nodes in before.items() if 2 in nodes)
    await all_there(cluster)


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5)
async def test_a_node_whose_data_lies_elsewhere_does_not_start_with_its_old_disk(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    cluster.kill(2)
    await call_lost(cluster, 2)
    await until(lambda: known_empty(cluster, 2))
    with pytest.raises(NotOurCluster, match="move /node away"):
        await cluster.start_once(2)
    cluster.machine(2).kill()
    cluster.machine(2).disk.tree = StoredTree()
    cluster.keep_starting(2)
    await healed(cluster)
    assert not await missing(cluster)
    await all_there(cluster)


@as_scenario(with_either_log, nodes=5)
async def test_an_empty_disk_is_not_let_in_before_the_data_lies_elsewhere(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    lose_disk(cluster, 2)
    with pytest.raises(NotOurCluster, match="rebuild start 2"):
        await cluster.start_once(2)
    cluster.machine(2).kill()
    assert not lost(cluster)


def test_a_donor_that_dies_half_way_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies when the new copies are there and the others are not told yet."""
    right = Moves._send
    dead: list[int] = []

    async def scenario(cluster: ClusterAtHand) -> None:
        async def send(self, node, wires, *, amends):
            if amends and node != self._me and not dead:
                dead.append(self._me)
                cluster.kill(self._me)
                await asyncio.sleep(60)
            return await right(self, node, wires, amends=amends)

        await put_records(cluster)
        lose_disk(cluster, 2)
        swap(monkeypatch, Moves._send, send)
        await call_lost(cluster, 2)
        await until(lambda: bool(dead))
        await asyncio.sleep(2)
        await cluster.start(*dead)
        cluster.keep_starting(2)
        await healed(cluster)
        assert not await missing(cluster)
        await all_there(cluster)

    simulate(scenario, nodes=5)


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5)
async def test_a_deleted_log_whose_end_is_open_holds_nobody_up(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    async with cluster.client() as store:
        lanes = [f"gone-{number}" for number in range(6)]
        for log in lanes:
            await store.append(log, b"last words")
        await asyncio.sleep(12)  # until releases are not said again
        for node in cluster.running.values():  # as if nobody had heard of their ends
            for log, held in node.engine.cache.logs.items():
                if log > 3:
                    held.released, held.lngs = 0, {}
        for log in lanes:
            await store.log_tree.delete(log)
    lose_disk(cluster, 2)
    await call_lost(cluster, 2)
    await until(lambda: known_empty(cluster, 2), timeout_s=60)


@pytest.mark.slow
def test_a_log_that_cannot_be_settled_takes_no_turn_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each pass asked for the tails of the same logs first. The others were never asked for."""
    right = Donor._stir
    stuck: dict[NodeId, int] = {}
    asked: dict[NodeId, set[int]] = {}

    async def stir(self: Donor, log: int) -> None:
        asked.setdefault(self._me, set()).add(log)
        if log != stuck.setdefault(self._me, log):  # the first one has no sequencer for now
            await right(self, log)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=12, records=1)
        await asyncio.sleep(12)  # until releases are not said again
        for node in cluster.running.values():  # as if nobody had heard of their ends
            for held in node.engine.cache.logs.values():
                held.released, held.lngs = 0, {}
        lose_disk(cluster, 2)
        await call_lost(cluster, 2)
        await asyncio.sleep(30)
        assert stuck, "some log was not settled"
        assert max(map(len, asked.values())) > 1
        others = {log for logs in asked.values() for log in logs} - {*stuck.values()}
        assert all(
            node.engine.cache.log(log).released
            for node in cluster.running.values()
            for log in others
        )

    swap(monkeypatch, Donor._stir, stir)
    swap_value(monkeypatch, lambda: donor.STIRRED_MAX, 1)
    simulate(scenario, nodes=5)


@as_scenario(simulate, nodes=5)
async def test_a_node_that_joins_while_an_order_waits_is_a_donor(cluster: ClusterAtHand) -> None:
    """The order named the members from before it waited until the node was taken for dead."""
    await put_records(cluster)
    lose_disk(cluster, 2)
    ordered = asyncio.create_task(call_lost(cluster, 2))
    cluster.add_nodes(1)
    await cluster.start(6)
    await ordered
    entry = cluster.running[NodeId(1)]._rebuild.set.entry(2)
    assert entry is not None
    assert entry.donors == (1, 3, 4, 5, 6)


@as_scenario(simulate, nodes=5)
async def test_a_node_that_is_up_is_not_called_lost(cluster: ClusterAtHand) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1)
    began = loop.time()
    with pytest.raises(Rejected, match="node 2 is up"):
        await call_lost(cluster, 2)
    assert loop.time() - began < 2
    assert lost(cluster) == set()


@as_scenario(with_either_log, nodes=5)
async def test_a_drained_node_gives_all_its_copies_and_serves_until_then(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await asyncio.sleep(1)
    await order(cluster, 2, RebuildOrder.DRAIN)
    await until(lambda: known_empty(cluster, 2))
    await all_there(cluster)
    cluster.kill(2)  # what it keeps nobody counts on
    assert not await missing(cluster)
    await all_there(cluster)


async def take_no_records(cluster: ClusterAtHand, node: int, *, is_full: bool) -> None:
    """An operator makes a node read-only, or its disk is nearly full."""
    if is_full:
        cluster.machine(node).disk.free_bytes = 1
    else:
        async with cluster.client() as store:
            await store.set_storage(node, read_only=True)
    engine = cluster.running[NodeId(node)].engine
    await until(lambda: bool(engine.low_space or engine.read_only))


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_lost_disk_is_made_anew_beside_a_node_that_takes_no_records(
    is_planted: bool, is_full: bool
) -> None:
    """Every node is a donor, and holds blocks of which another node is the donor. Such a node was
    never done as a donor, and refused the envelopes of others: no rebuilding ended."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, 9, 10)
        await asyncio.sleep(1)
        assert any({1, 2} <= nodes.keys() for nodes in (await copies(cluster)).values())
        await take_no_records(cluster, 1, is_full=is_full)
        lose_disk(cluster, 2)
        await call_lost(cluster, 2)
        cluster.keep_starting(2)
        if is_planted:
            with pytest.raises(TimeoutError):
                await healed(cluster, timeout_s=120)
            return
        await healed(cluster)
        assert not await missing(cluster)
        await all_there(cluster, 9, 10)

    with planted(find_bug("read-only-keeps-envelopes")) if is_planted else nullcontext():
        simulate(scenario, nodes=5)


@pytest.mark.slow
@pytest.mark.parametrize("is_full", [False, True])
def test_a_node_that_takes_no_records_is_drained(is_full: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, 9, 10)
        await asyncio.sleep(1)
        await take_no_records(cluster, 2, is_full=is_full)
        await order(cluster, 2, RebuildOrder.DRAIN)
        await until(lambda: known_empty(cluster, 2))
        cluster.kill(2)
        assert not await missing(cluster)
        await all_there(cluster, 9, 10)

    simulate(scenario, nodes=5)


async def _slow(right: Any, self: Moves, *args: Any, **how: Any) -> Any:
    await asyncio.sleep(20)
    return await right(self, *args, **how)


SLOW = PlantedBug("slow", "a move takes its time", at(Moves._send).around(_slow))


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5, rebuild_after_s=10.0)
async def test_a_node_that_is_lost_while_it_is_drained_is_made_anew(
    cluster: ClusterAtHand,
) -> None:
    """No node reported it. Its drain waited for it for ever, and so did the rebuilding of the next
    lost node, of whose blocks it was a donor."""
    await put_records(cluster)
    await asyncio.sleep(1)
    with planted(SLOW):
        await order(cluster, 2, RebuildOrder.DRAIN)
        await asyncio.sleep(2)
        lose_disk(cluster, 2)
    starting = cluster.start_once(2)
    with pytest.raises(NotOurCluster, match="cordwood rebuild start 2"):
        await starting
    cluster.machine(2).kill()
    await until(lambda: known_empty(cluster, 2))
    assert not await missing(cluster)
    await order(cluster, 2, RebuildOrder.UNDRAIN)
    cluster.keep_starting(2)
    await healed(cluster)
    await all_there(cluster)


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5, rebuild_after_s=10.0)
async def test_a_drain_goes_on_when_its_node_is_back_after_it_was_called_lost(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await asyncio.sleep(1)
    with planted(SLOW):
        await order(cluster, 2, RebuildOrder.DRAIN)
        await asyncio.sleep(2)
        cluster.kill(2)
        await until(lambda: lost_for_good(cluster, 2))
        await cluster.start(2)
    await until(lambda: known_empty(cluster, 2))
    assert all(node._rebuild.set.entry(2).drain for node in cluster.running.values())
    cluster.kill(2)
    assert not await missing(cluster)
    await all_there(cluster)


def lost_for_good(cluster: ClusterAtHand, node: int) -> bool:
    """Whether a node counts as lost, and gives nothing any more."""
    entries = [each._rebuild.set.entry(node) for each in cluster.running.values()]
    return all(entry is not None and not entry.relocates for entry in entries)


@pytest.mark.slow
@as_scenario(with_either_log, nodes=5)
async def test_a_node_that_begins_anew_says_of_ledgers_that_it_does_not_know(
    cluster: ClusterAtHand,
) -> None:
    """Entries and fences of ledgers are not made anew: an empty node that counted as sure would let
    an old writer go on, or cut a ledger short."""
    await put_records(cluster)
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=5, write=3, ack=2)
        await made.append_many([b"entry"] * 5)
        lose_disk(cluster, 2)
        await call_lost(cluster, 2)
        cluster.keep_starting(2)
        await healed(cluster)
        held = cluster.running[2]._ledgers._store.index.get(made.ledger_id)
        assert held is not None
        assert held.flags == LedgerFlag.FENCED | LedgerFlag.LIMBO
