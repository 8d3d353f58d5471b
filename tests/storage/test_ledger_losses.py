"""Nodes that lost a disk or some records, or begin anew, and the ledgers that they knew of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk
from scenarios import as_scenario
from swaps import swap

from cordwood.errors import OutcomeUnknown, Undecided
from cordwood.layout.ledger_records import LedgerFlag
from cordwood.ledger import Versioned
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.metadata.ledgers import LedgerMetadataStore
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.settings import StorageSettings

E3 = {"ensemble": 3, "write": 3, "ack": 2}


class TestLostRecords:
    @as_scenario(simulate, storage=StorageSettings(flush_age_s=3.0))
    async def test_a_start_that_died_before_it_noted_its_loss_leaves_that_to_the_next(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=5) as writer, cluster.client(timeout_s=5) as other:
            patient = WriterLimits(delays_change=True)
            made = await writer.ledgers.create(**E3, limits=patient)
            whole, rotten, late = made.metadata.newest.nodes
            network = cluster.simulation.network
            network.partition(["client-1"], [f"node-{late}"])
            acked = await made.append_many([b"acknowledged-%d" % n for n in range(20)])
            made.abandon()  # before any node was told a LAC
            for _ in range(30):
                await other.ledgers.create(**E3)
            more = await other.ledgers.create(ensemble=3, write=3, ack=3)
            await more.append_many([b"behind it in the WAL"] * 2)
            cluster.kill(rotten)
            disk = cluster.machine(rotten).disk
            stored = disk.tree.content("/node/wal")
            assert stored is not None
            at = stored.index(b"acknowledged-7")
            disk.rot("/node/wal", at, at + 14)
            # It reads one ledger a second, so a flush takes what shows the loss out of the WAL
            # before the ledgers are fenced.
            cluster.metadata.delay_s = (1.0, 1.0)
            cluster.start_once(rotten)
            await asyncio.sleep(25)
            assert rotten not in cluster.running
            cluster.machine(rotten).kill()
            cluster.metadata.delay_s = (0.001, 0.001)
            await cluster.start(rotten)
            engine = cluster.running[rotten].engine
            assert not engine.has_lost, "the WAL does not show it any more"
            held = engine.ledgers.held[made.ledger_id]
            assert held.flags == LedgerFlag.FENCED | LedgerFlag.LIMBO
            network.partition(["client-2"], [f"node-{whole}"])
            with pytest.raises(Undecided):
                await other.ledgers.recover(made.ledger_id)
            network.mend_all()
            assert (await other.ledgers.recover(made.ledger_id)).last == acked[-1]

    @as_scenario(simulate)
    async def test_what_was_noted_once_is_not_noted_again(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            before = await store.ledgers.create(ensemble=3, write=3, ack=3)
            await before.append_many([b"acknowledged-%d" % n for n in range(2)])
            await before.append(b"behind it")
            cluster.kill(2)
            disk = cluster.machine(2).disk
            stored = disk.tree.content("/node/wal")
            assert stored is not None
            at = stored.index(b"acknowledged-1")
            disk.rot("/node/wal", at, at + 14)
            await cluster.start(2)
            await cluster.running[2].flush()
            after = await store.ledgers.create(ensemble=3, write=3, ack=3)
            await after.append(b"one")
            cluster.kill(2)
            await cluster.start(2)
            held = cluster.running[2].engine.ledgers.held
            assert held[before.ledger_id].flags == LedgerFlag.FENCED | LedgerFlag.LIMBO
            assert not held[after.ledger_id].flags
            assert await after.append(b"two") == 1


class TestBegunAnew:
    @as_scenario(simulate, nodes=5)
    async def test_a_node_that_was_replaced_in_a_closed_ledger_takes_nothing_of_its_writer(
        self, cluster: ClusterAtHand
    ) -> None:
        """BookKeeper #4812, where the metadata does not name the node any more."""
        network = cluster.simulation.network
        async with cluster.client() as writer, cluster.client() as other:
            made = await writer.ledgers.create(**E3)
            await made.append_many([b"one", b"two", b"three"])
            await asyncio.sleep(1)
            cut_off, unfenced, lost = made.metadata.newest.nodes
            network.partition(["client-2"], [f"node-{unfenced}"])
            assert (await other.ledgers.recover(made.ledger_id)).last == 2
            assert not cluster.running[unfenced].engine.ledgers.held[made.ledger_id].flags
            lose_disk(cluster, lost)
            await call_lost(cluster, lost)
            async with cluster.client() as third:
                moved = await third.ledgers.repair(made.ledger_id, nodes=[lost])
                assert moved.keys() == {lost}
            cluster.keep_starting(lost)
            await until(lambda: lost in cluster.running, timeout_s=600)
            await asyncio.sleep(5)
            # Its writer knows of nothing, and both of these have lost or never had the fence.
            network.partition(["client-1"], [f"node-{cut_off}"])
            with pytest.raises(OutcomeUnknown):
                await made.append(b"behind the end")


@as_scenario(simulate, nodes=5)
async def test_a_ledger_that_an_empty_node_fences_is_marked(cluster: ClusterAtHand) -> None:
    """A writer with an old member list named the node while it listed the ledgers. The node fenced
    the ledger, and no mark led to its end."""
    right = LedgerMetadataStore.all
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=2)
        await made.append(b"one")
        nodes = made.metadata.newest.nodes
        empty = next(NodeId(n) for n in range(1, 6) if n not in nodes)
        held = await store.ledgers._calls.get(made.ledger_id)
        await asyncio.sleep(5)  # until all nodes know all others
        lose_disk(cluster, empty)
        await call_lost(cluster, empty)

        async def lists(self: LedgerMetadataStore) -> AsyncIterator[Versioned]:
            async for each in right(self):
                yield each
            changed = held.metadata.with_ensemble(1, (empty, *nodes[1:]))
            await store.ledgers._calls.set(held.version, changed)

        with pytest.MonkeyPatch.context() as patched:
            swap(patched, LedgerMetadataStore.all, lists)
            cluster.keep_starting(empty)
            await until(lambda: empty in cluster.running, timeout_s=300)
        found = await store.ledgers.metadata(made.ledger_id)
        assert empty in found.newest.nodes
        here = cluster.running[empty].engine.ledgers.get(made.ledger_id)
        is_fenced = here is not None and bool(here.flags & LedgerFlag.FENCED)
        marks = [each async for each in LedgerMarks(cluster.metadata).all()]
        assert not is_fenced or marks == [made.ledger_id]
