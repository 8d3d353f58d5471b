"""Checks of ledgers on a cluster in virtual time: what lacks, what is lost, and what is filled."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.errors import AccessDenied, BadSetting, TooFewNodes, UnknownLedger
from cordwood.nodes import NodeId
from cordwood.quorum.ensemble_choice import Placement

COUNT = 600

THREE_RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
TWO_RACKS = {1: "a", 2: "a", 3: "b", 4: "b"}


async def made(store: Store, **more: object) -> WritableLedger:
    ledger = await store.ledgers.create(ensemble=3, write=3, ack=2, **more)
    await ledger.append_many([b"entry %d" % number for number in range(COUNT)])
    return ledger


def forget(cluster: ClusterAtHand, ledger: int, node: int, *entries: int) -> None:
    """A node lost these entries, without a word."""
    held = cluster.running[NodeId(node)].engine.ledgers.held[ledger]
    for entry in entries:
        del held.entries[entry]


@as_scenario(simulate, nodes=4)
async def test_a_whole_ledger_is_whole_and_progress_is_told(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await made(store)
        await ledger.close()
        told: list[int] = []
        check = await store.ledgers.check(ledger.ledger_id, on_progress=told.append)
        assert check.is_whole
        assert (check.entries, check.copies, check.last) == (COUNT, 3 * COUNT, COUNT - 1)
        assert told == [256, 512, 600]
        sample = await store.ledgers.check(ledger.ledger_id, share=0)
        assert (sample.is_whole, sample.entries) == (True, 6)


@as_scenario(simulate, nodes=4)
async def test_what_a_node_lacks_is_told_and_filled(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await made(store)
        await ledger.close()
        number, nodes = ledger.ledger_id, ledger.metadata.newest.nodes
        forget(cluster, number, nodes[1], 7, 300)
        forget(cluster, number, nodes[2], 300)
        check = await store.ledgers.check(number)
        assert (check.short, check.first_short, check.lost) == (2, 7, 0)
        assert check.lacking == {nodes[1]: 2, nodes[2]: 1}
        assert check.copies == 3 * COUNT - 3
        filled = await store.ledgers.check(number, fills=True)
        assert (filled.short, filled.filled) == (2, 3)
        assert (await store.ledgers.check(number)).is_whole
        # The fragments stay.
        assert (await store.ledgers.metadata(number)).newest.nodes == nodes


@as_scenario(simulate, nodes=4)
async def test_an_entry_that_nobody_has_is_lost_and_one_of_a_silent_node_is_not(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        ledger = await made(store)
        await ledger.close()
        number, nodes = ledger.ledger_id, ledger.metadata.newest.nodes
        for node in nodes:
            forget(cluster, number, node, 9)
        check = await store.ledgers.check(number, fills=True)
        assert (check.short, check.lost, check.first_lost, check.filled) == (1, 1, 9, 0)
        cluster.kill(nodes[0])
        check = await store.ledgers.check(number)
        assert (check.short, check.lost, check.unread) == (1, 0, 1)
        assert check.silent == {nodes[0]}


@as_scenario(simulate, nodes=4)
async def test_an_open_ledger_is_checked_as_far_as_it_is_confirmed(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await made(store)
        await asyncio.sleep(1)  # the writer tells its last LAC a tenth of a second later
        nodes = ledger.metadata.newest.nodes
        forget(cluster, ledger.ledger_id, nodes[0], 5)
        check = await store.ledgers.check(ledger.ledger_id, fills=True)
        assert (check.is_whole, check.is_closed, check.filled) == (True, False, 0)
        assert check.entries == COUNT
        forget(cluster, ledger.ledger_id, nodes[1], 5)
        check = await store.ledgers.check(ledger.ledger_id, fills=True)
        assert (check.short, check.lacking, check.filled) == (1, {nodes[0]: 1, nodes[1]: 1}, 0)


@as_scenario(simulate, nodes=4)
async def test_wrong_calls_say_so(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await made(store, password=b"secret")
        with pytest.raises(AccessDenied):
            await store.ledgers.check(ledger.ledger_id, b"other")
        with pytest.raises(BadSetting, match="0 to 1"):
            await store.ledgers.check(ledger.ledger_id, b"secret", share=1.5)
        with pytest.raises(UnknownLedger):
            await store.ledgers.check(12345)


class TestPlacement:
    @as_scenario(simulate, nodes=6, locations=THREE_RACKS)
    async def test_a_repair_keeps_to_the_placement_of_the_writer(
        self, cluster: ClusterAtHand
    ) -> None:
        """It knew of none, and put two copies of an entry where the writer may not."""
        async with cluster.client() as store:
            enforced = Placement(is_enforced=True)
            ledger = await made(store, placement=enforced)
            await ledger.close()
            number = ledger.ledger_id
            known = await store.ledgers.metadata(number)
            assert (known.scope, known.is_enforced) == ("rack", True)
            (lost, *others) = known.newest.nodes
            (took,) = (await store.ledgers.repair(number, nodes=[lost])).values()
            assert (await store.ledgers.check(number)).narrow == []
            assert len({THREE_RACKS[node] for node in (took, *others)}) >= 2

    @as_scenario(simulate, nodes=4, locations=TWO_RACKS)
    async def test_a_repair_that_would_break_an_enforced_placement_is_refused(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            ledger = await store.ledgers.create(
                ensemble=2, write=2, ack=2, placement=Placement(is_enforced=True)
            )
            await ledger.append(b"x")
            await ledger.close()
            one, two = ledger.metadata.newest.nodes
            for node, rack in TWO_RACKS.items():
                if rack == TWO_RACKS[one] and node != one:
                    cluster.kill(node)
            await asyncio.sleep(30)  # until it is known to be dead
            with pytest.raises(TooFewNodes, match="two domains"):
                await store.ledgers.repair(ledger.ledger_id, nodes=[one])
            assert (await store.ledgers.metadata(ledger.ledger_id)).newest.nodes == (one, two)

    @as_scenario(simulate, nodes=4, locations=TWO_RACKS)
    async def test_entries_in_one_domain_are_told(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            ledger = await store.ledgers.create(ensemble=2, write=2, ack=2)
            await ledger.append(b"x")
            await ledger.close()
            number = ledger.ledger_id
            one, _ = ledger.metadata.newest.nodes
            assert (await store.ledgers.check(number)).narrow == []
            for node, rack in TWO_RACKS.items():
                if rack == TWO_RACKS[one] and node != one:
                    cluster.kill(node)
            await store.ledgers.repair(number, nodes=[one])
            check = await store.ledgers.check(number)
            assert (check.narrow, check.is_whole) == ([0], True)
