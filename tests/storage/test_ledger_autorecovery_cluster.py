"""Ledgers whose nodes are lost have all their copies again, on simulated nodes."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk, order
from scenarios import as_scenario
from swaps import swap

from cordwood.admin.ledger_autorecovery import REPAIR_S, LedgerAutorecovery, MarkedWork
from cordwood.client.admin.named_ledgers import NamedLedgers
from cordwood.client.store import Store
from cordwood.errors import Malformed, Rejected, TooFewNodes
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.ledger import LedgerMetadata, LedgerState
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_autorecovery import Mark
from cordwood.quorum.ensemble import is_written_to
from cordwood.settings import StorageSettings

UNFLUSHED = StorageSettings(flush_age_s=3600.0)
"""What a node holds is looked for in its memory."""

E3 = {"ensemble": 3, "write": 3, "ack": 2}


def payloads(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def lacking(cluster: ClusterAtHand, metadata: LedgerMetadata) -> list[tuple[int, int]]:
    """Entries of settled fragments that a node which they name does not have, with these nodes."""
    found = []
    for entry in range(metadata.settled_last + 1):
        nodes = metadata.nodes_at(entry)
        for place, node in enumerate(nodes):
            if is_written_to(place, entry, metadata.striping):
                running = cluster.running.get(node)
                held = running and running.engine.ledgers.held.get(metadata.ledger)
                if not held or entry not in held.entries:
                    found.append((entry, node))
    return found


async def marked(cluster: ClusterAtHand) -> list[int]:
    return [ledger async for ledger in LedgerMarks(cluster.metadata).all()]


async def until_whole(
    cluster: ClusterAtHand, store: Store, *ledgers: int, timeout_s: float = 400
) -> None:
    async with asyncio.timeout(timeout_s):
        for ledger in ledgers:
            while True:
                found = await store.ledgers.metadata(ledger)
                is_closed = found.state is LedgerState.CLOSED
                if is_closed and not lacking(cluster, found):
                    break
                await asyncio.sleep(2)
        while {*await marked(cluster)} & {*ledgers}:  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(2)


async def until_settled_whole(
    cluster: ClusterAtHand, store: Store, ledger: int, timeout_s: float = 400
) -> None:
    """Wait until the older fragments of an open ledger have all their copies, and no mark is
    left."""
    async with asyncio.timeout(timeout_s):
        while lacking(cluster, await store.ledgers.metadata(ledger)):  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(2)
        while ledger in await marked(cluster):  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(2)


class TestLostNode:
    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_closed_and_abandoned_ledgers_have_their_copies_again(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            closed, left, lives = [await store.ledgers.create(**E3) for _ in range(3)]
            lost = closed.metadata.newest.nodes[0]
            for made in (closed, left, lives):
                await made.append_many(payloads(30))
            await closed.close()
            left.abandon()
            lose_disk(cluster, lost)
            await lives.append_many(payloads(30))
            await call_lost(cluster, lost)
            await until_whole(cluster, store, closed.ledger_id, left.ledger_id)
            found = await store.ledgers.metadata(closed.ledger_id)
            assert lost not in found.newest.nodes
            # Its writer lives and has gone on elsewhere.
            assert await lives.append(b"more") == 60
            await lives.close()
            numbers = [made.ledger_id for made in (closed, left, lives)]
            await until_whole(cluster, store, *numbers)
            for number, count in zip(numbers, (30, 30, 61), strict=True):
                opened = await store.ledgers.open(number)
                assert len(await opened.read(0, count - 1)) == count

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_a_node_that_was_let_in_again_empty_does_not_hide_what_it_lacks(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            closed, idle = [await store.ledgers.create(**E3) for _ in range(2)]
            for made in (closed, idle):
                await made.append_many(payloads(30))
            await closed.close()
            lost = closed.metadata.newest.nodes[0]
            lose_disk(cluster, lost)
            await call_lost(cluster, lost)
            cluster.keep_starting(lost)
            # It is back before anybody looked.
            await until(lambda: lost in cluster.running, timeout_s=25)
            numbers = [made.ledger_id for made in (closed, idle)]
            await until_whole(cluster, store, *numbers)

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_two_nodes_are_taken_out_one_after_the_other(
        self, cluster: ClusterAtHand
    ) -> None:
        """As the documentation says: each is drained, and stopped when no ledger names it."""
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=2, write=2, ack=2)
            await made.append_many(payloads(30))
            await made.close()
            for node in made.metadata.newest.nodes:
                await order(cluster, node, RebuildOrder.DRAIN)
                naming = NamedLedgers(store.ledgers, NodeId(node))
                async with asyncio.timeout(200):
                    while await naming.look():  # noqa: ASYNC110 - a store has no event for it
                        await asyncio.sleep(2)
                lost = (await store.rebuilding(donors=False)).lost
                (entry,) = (each for each in lost if each.node == node)
                assert entry.is_empty
                lose_disk(cluster, node)
            opened = await store.ledgers.open(made.ledger_id)
            assert [each.payload for each in await opened.read(0, 29)] == payloads(30)

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED, rebuild_after_s=1200.0)
    async def test_a_node_that_is_lost_again_is_looked_for_at_once(
        self, cluster: ClusterAtHand
    ) -> None:
        """Ledgers that were made in between were marked up to ten minutes later."""
        async with cluster.client() as store:
            first = await store.ledgers.create(**E3)
            await first.append_many(payloads(3))
            await first.close()
            lost = first.metadata.newest.nodes[0]
            for _ in range(2):
                lose_disk(cluster, lost)
                await call_lost(cluster, lost)
                await until_whole(cluster, store, first.ledger_id, timeout_s=200)
                cluster.keep_starting(lost)
                await until(lambda: lost in cluster.running, timeout_s=200)
                await asyncio.sleep(35)  # the auditor looks while it is back
                await store.ledgers.delete(first.ledger_id)
                while lost not in first.metadata.newest.nodes or first.is_ended:
                    first = await store.ledgers.create(**E3)
                await first.append_many(payloads(3))
                await first.close()

    @pytest.mark.slow
    @as_scenario(simulate, nodes=6, storage=UNFLUSHED)
    async def test_ledgers_are_marked_while_all_nodes_work_at_large_ones(
        self, cluster: ClusterAtHand
    ) -> None:
        """A node looked for lost nodes again when its repairs were over, hours later."""

        async def takes_long(
            self: LedgerAutorecovery, work: MarkedWork, *, older: bool = False
        ) -> None:
            while True:
                work.extend()
                await asyncio.sleep(REPAIR_S / 2)

        async with cluster.client() as store:
            with pytest.MonkeyPatch.context() as patched:
                swap(patched, LedgerAutorecovery._copy, takes_long)
                for _ in range(16):
                    made = await store.ledgers.create(**E3)
                    await made.append(b"one")
                    await made.close()
                lost, next_lost = made.metadata.newest.nodes[:2]
                lose_disk(cluster, lost)
                await call_lost(cluster, lost)
                await asyncio.sleep(200)
                before = await marked(cluster)
                assert len(await cluster.metadata.leases("ledger-repair/")) >= 5, "all nodes work"
                while next_lost not in made.metadata.newest.nodes or made.ledger_id in before:
                    made = await store.ledgers.create(**E3)
                    await made.append(b"one")
                    await made.close()
                    before = await marked(cluster)
                lose_disk(cluster, next_lost)
                await call_lost(cluster, next_lost)
                await asyncio.sleep(150)
                assert made.ledger_id in await marked(cluster)

    @as_scenario(simulate, nodes=6, storage=UNFLUSHED)
    @pytest.mark.slow
    async def test_it_goes_on_where_the_node_that_repaired_stops(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            numbers = []
            for _ in range(6):
                made = await store.ledgers.create(**E3)
                await made.append_many(payloads(30))
                await made.close()
                numbers.append(made.ledger_id)
            lose_disk(cluster, 1)
            await call_lost(cluster, 1)
            await until(lambda: any(
                key.startswith("leases/ledger-repair") for key in cluster.metadata.data.values
            ))  # fmt: skip
            leases = dict(await cluster.metadata.leases("ledger-repair"))
            worker = int(next(iter(leases.values())).split()[1])
            cluster.kill(worker)
            await asyncio.sleep(3)
            await cluster.start(worker)
            await until_whole(cluster, store, *numbers)

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_nothing_is_repaired_while_it_is_switched_off(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(3))
            await made.close()
            assert (await store.ledgers.autorecovery()).on
            await store.ledgers.switch_autorecovery(on=False)
            lost = made.metadata.newest.nodes[0]
            lose_disk(cluster, lost)
            await call_lost(cluster, lost)
            await asyncio.sleep(200)
            assert lost in (await store.ledgers.metadata(made.ledger_id)).newest.nodes
            assert not (await store.ledgers.autorecovery()).on
            await store.ledgers.switch_autorecovery(on=True)
            await until_whole(cluster, store, made.ledger_id)

    @as_scenario(simulate, nodes=3, storage=UNFLUSHED)
    async def test_a_node_that_is_back_empty_is_filled_where_no_other_is_to_spare(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            closed, left = [await store.ledgers.create(**E3) for _ in range(2)]
            for made in (closed, left):
                await made.append_many(payloads(30))
            await closed.close()
            left.abandon()
            for _ in range(2):
                lose_disk(cluster, 2)
                await call_lost(cluster, 2)
                cluster.keep_starting(2)
                await until(lambda: 2 in cluster.running, timeout_s=600)
                await until_whole(cluster, store, closed.ledger_id, left.ledger_id)
            found = await store.ledgers.metadata(closed.ledger_id)
            assert found.fragments == closed.metadata.fragments

    @as_scenario(simulate, nodes=3)
    async def test_what_lacks_copies_is_told_where_no_node_is_to_spare(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(3))
            await made.close()
            lose_disk(cluster, 2)
            await call_lost(cluster, 2)
            await asyncio.sleep(120)
            told = [each async for each in store.ledgers.under_replicated()]
            assert [(each.ledger, each.nodes) for each in told] == [(made.ledger_id, (2,))]
            assert (await store.ledgers.autorecovery()).auditor.startswith("node ")

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_a_drained_node_gets_no_copies(self, cluster: ClusterAtHand) -> None:
        """It was named then, and its drain began anew."""
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=3, write=3, ack=2)
            await made.append_many(payloads(30))
            await made.close()
            lost, *others = made.metadata.newest.nodes
            drained, spare = {1, 2, 3, 4, 5} - {lost, *others}
            cluster.kill(spare)
            cluster.kill(lost)
            await asyncio.sleep(30)  # until it is known to be dead
            for more in ({"nodes": [lost, drained]}, {"nodes": [lost], "avoids": [drained]}):
                with pytest.raises(TooFewNodes):
                    await store.ledgers.repair(made.ledger_id, **more)
            assert await store.ledgers.repair(made.ledger_id, nodes=[lost]) == {lost: drained}

    @as_scenario(simulate, nodes=6, storage=UNFLUSHED)
    async def test_so_does_a_node_that_is_still_being_drained(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=3, write=3, ack=2)
            await made.append_many(payloads(30))
            await made.close()
            lost, *others = made.metadata.newest.nodes
            drained, *spares = sorted({1, 2, 3, 4, 5, 6} - {lost, *others})
            for spare in spares:
                cluster.kill(spare)
            for node in cluster.running.values():
                # As while its blocks are still moved elsewhere.
                role = node._ledgers._autorecovery
                role._leaving = lambda: frozenset({NodeId(drained)})
            lose_disk(cluster, lost)
            await LedgerMarks(cluster.metadata).add(Mark(made.ledger_id, (lost,), 0))
            await asyncio.sleep(200)
            found = await store.ledgers.metadata(made.ledger_id)
            assert found.newest.nodes == made.metadata.newest.nodes
            assert await marked(cluster) == [made.ledger_id]


class TestOpenLedger:
    """Its older fragments are repaired while its writer goes on."""

    @as_scenario(simulate, nodes=6, storage=UNFLUSHED)
    async def test_older_fragments_are_repaired_while_the_writer_changes_its_ensemble(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(30))
            lost = made.metadata.newest.nodes[0]
            lose_disk(cluster, lost)
            await made.append_many(payloads(30))
            await call_lost(cluster, lost)
            await until(lambda: bool(cluster.metadata.data.listed("ledger-marks/")), timeout_s=200)
            # The writer does not know the repair's metadata, and its own change meets it.
            await until_settled_whole(cluster, store, made.ledger_id)
            assert lost not in {n for each in made.metadata.fragments[1:] for n in each.nodes}
            away = made.metadata.newest.nodes[1]
            cluster.kill(away)
            assert len(await made.append_many(payloads(30))) == 30
            await asyncio.sleep(10)
            assert await made.append(b"more") == 90
            found = await store.ledgers.metadata(made.ledger_id)
            assert found == made.metadata
            assert found.state is LedgerState.OPEN
            assert len(found.fragments) >= 3
            assert (found.joining, found.fragments[0].nodes.count(lost)) == ((), 0)
            await made.close()
            opened = await store.ledgers.open(made.ledger_id)
            assert [each.payload for each in await opened.read(0, 29)] == payloads(30)

    @as_scenario(simulate, nodes=4, storage=UNFLUSHED)
    async def test_a_recovery_beside_the_repair_ends_the_ledger(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client(timeout_s=60) as store, cluster.client(timeout_s=60) as other:
            for _ in range(6):
                made = await store.ledgers.create(**E3)
                await made.append_many(payloads(300))
                lost = made.metadata.newest.nodes[0]
                cluster.kill(lost)
                await made.append_many(payloads(30))
                await asyncio.sleep(10)
                await made.append_many(payloads(30))
                assert lost not in made.metadata.newest.nodes
                repaired, ended = await asyncio.gather(
                    store.ledgers.repair(made.ledger_id, nodes=[lost], older=True),
                    other.ledgers.recover(made.ledger_id),
                    return_exceptions=True,
                )
                assert isinstance(ended, LedgerMetadata)
                assert isinstance(repaired, dict | Rejected)
                assert ended.last == 359
                await store.ledgers.repair(made.ledger_id, nodes=[lost])
                found = await store.ledgers.metadata(made.ledger_id)
                assert (found.joining, lacking(cluster, found)) == ((), [])
                assert all(lost not in each.nodes for each in found.fragments)
                await cluster.start(lost)

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_the_last_fragment_is_left_to_the_writer(self, cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(30))
            before = await store.ledgers.metadata(made.ledger_id)
            lost = before.newest.nodes[0]
            cluster.kill(lost)
            assert await store.ledgers.repair(made.ledger_id, nodes=[lost], older=True) == {}
            assert await store.ledgers.metadata(made.ledger_id) == before

    @as_scenario(simulate, nodes=5, storage=UNFLUSHED)
    async def test_the_auditor_fills_copies_that_older_fragments_lack(
        self, cluster: ClusterAtHand
    ) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(30))
            away = made.metadata.newest.nodes[0]
            cluster.kill(away)
            await made.append_many(payloads(30))
            await asyncio.sleep(10)
            await made.append_many(payloads(30))
            await cluster.start(away)
            found = await store.ledgers.metadata(made.ledger_id)
            assert away not in found.newest.nodes
            node = found.fragments[0].nodes[1]
            held = cluster.running[NodeId(node)].engine.ledgers.held[made.ledger_id]
            del held.entries[0], held.entries[10]
            assert lacking(cluster, found)
            await until_settled_whole(cluster, store, made.ledger_id)
            assert await made.append(b"more") == 90


class TestMarks:
    @as_scenario(simulate)
    async def test_a_mark_that_grew_meanwhile_stays(self, cluster: ClusterAtHand) -> None:
        marks = LedgerMarks(cluster.metadata)
        for ledger in (7, 2**40):
            await marks.add(Mark(ledger, (1,), 5))
            found = await marks.get(ledger)
            assert found is not None
            await marks.add(Mark(ledger, (2,), 6))
            assert not await marks.finish(ledger, found[1])
            again = await marks.get(ledger)
            assert again is not None
            assert again[0] == Mark(ledger, (1, 2), 6)
        assert await marked(cluster) == [7, 2**40]
        assert await marks.page(7, 9) == [2**40]
        assert await marks.finish(ledger, again[1])
        assert await marked(cluster) == [7]

    @pytest.mark.parametrize("value", [b"", b"[]", b'{"nodes": [1], "since_us": 1, "more": 2}'])
    @as_scenario(simulate)
    async def test_a_value_that_is_no_mark_is_named(
        self, cluster: ClusterAtHand, *, value: bytes
    ) -> None:
        marks = LedgerMarks(cluster.metadata)
        await marks.add(Mark(7, (1,), 5))
        ((key, found),) = cluster.metadata.data.listed("ledger-marks/")
        await cluster.metadata.compare_and_set(key, value, found.version)
        with pytest.raises(Malformed, match="ledger-marks"):
            await marks.get(7)


@pytest.mark.slow
@as_scenario(simulate, nodes=5, storage=StorageSettings(rebuild_bytes_s=50_000))
async def test_ledgers_leave_a_node_that_is_drained_again_within_one_look(
    cluster: ClusterAtHand,
) -> None:
    """The same nodes were drained at both looks, so ledgers that were made in between stayed for
    ten minutes."""

    async def closed_there(store: Store) -> int:
        """The client hears after some seconds that the node takes ledgers again."""
        while True:
            made = await store.ledgers.create(**E3)
            await made.append_many(payloads(3))
            await made.close()
            if leaves in made.metadata.newest.nodes:
                return made.ledger_id
            await asyncio.sleep(0.5)

    leaves = NodeId(4)
    async with cluster.client(timeout_s=30) as store:
        for _ in range(600):  # so much that the drain goes on for minutes
            await store.append("log-1", bytes(20_000))
        await order(cluster, leaves, RebuildOrder.DRAIN)
        await asyncio.sleep(65)  # it was looked for
        await order(cluster, leaves, RebuildOrder.UNDRAIN)
        ledger = await closed_there(store)
        await order(cluster, leaves, RebuildOrder.DRAIN)
        async with asyncio.timeout(150):
            while leaves in (await store.ledgers.metadata(ledger)).newest.nodes:  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(1)
        assert not cluster.running[NodeId(1)]._rebuild.set.lost[0].is_empty
