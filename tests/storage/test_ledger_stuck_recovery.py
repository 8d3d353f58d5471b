"""Ledgers that cannot be ended: all that is settled gets its copies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk
from swaps import swap, swap_value
from test_kept_ledgers import are_empty, payloads
from test_ledger_autorecovery_cluster import marked
from test_ledger_strays import back_with_its_ledgers, rot, until_unmarked, until_unnamed

from cordwood.admin import ledger_autorecovery
from cordwood.client.ledgers import ledger_check, ledger_repair
from cordwood.client.ledgers.ledger_repair import write_copies
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, Undecided
from cordwood.ledger import LedgerMetadata, LedgerState
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.nodes import NodeId
from cordwood.quorum.ensemble import write_set
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted

COUNT = 30


async def until_settled_without(store: Store, ledger: int, node: int) -> LedgerMetadata:
    """Wait until there are settled fragments, and none names a node."""
    async with asyncio.timeout(1000):
        while True:
            found = await store.ledgers.metadata(ledger)
            if found.settled and all(node not in each.nodes for each in found.settled):
                return found
            await asyncio.sleep(2)


async def entries_are_read(store: Store, ledger: int, count: int) -> None:
    opened = await store.ledgers.open(ledger)
    for entry, payload in enumerate(payloads(count)):
        (told,) = await opened.read_unconfirmed(entry, entry)
        assert told.payload == payload


async def two_nodes_of_the_last_fragment_are_lost(cluster: ClusterAtHand) -> None:
    """No recovery can end the ledger. Of its first fragment only one node is lost."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many(payloads(COUNT))
        stays, *others = made.metadata.newest.nodes
        await asyncio.sleep(3)
        for node in others:
            cluster.kill(node)
        await made.append_many(payloads(COUNT))
        await cluster.start(*others)
        made.abandon()
        assert made.metadata.newest.nodes[0] == stays
        assert not {*others} & {*made.metadata.newest.nodes}
        for node in made.metadata.newest.nodes[:2]:
            lose_disk(cluster, node)
            await call_lost(cluster, node)
        found = await until_settled_without(store, made.ledger_id, stays)
        assert (found.state, found.newest) == (LedgerState.IN_RECOVERY, made.metadata.newest)
        check = await store.ledgers.check(made.ledger_id, settled=True)
        assert (check.entries, check.short, check.silent) == (COUNT, 0, set())
        assert await marked(cluster) == [made.ledger_id]
        lose_disk(cluster, others[0])
        await entries_are_read(store, made.ledger_id, COUNT)


async def the_last_confirmed_entry_is_unreadable(cluster: ClusterAtHand) -> None:
    """It would tell the length. All others get their copies, and the ledger gets its end once the
    node with the other copy is back."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many(payloads(COUNT))
        ledger, last, nodes = made.ledger_id, COUNT - 1, made.metadata.newest.nodes
        await asyncio.sleep(5)  # until the nodes have heard of the LAC
        made.abandon()
        for running in cluster.running.values():
            await running.flush()
        away, rotten = (NodeId(nodes[place]) for place in write_set(last, made.metadata.striping))
        rot(cluster, rotten, ledger, last)
        cluster.kill(away)
        await until(lambda: are_empty(cluster, (away, away)), timeout_s=120)
        found = await until_settled_without(store, ledger, away)
        # Nothing is said about the end.
        assert found.state is LedgerState.IN_RECOVERY
        assert [each.first for each in found.fragments] == [0, COUNT]
        assert found.newest.nodes == nodes
        mark = await LedgerMarks(cluster.metadata).get(ledger)
        assert mark is not None
        assert (mark[0].gaps, mark[0].strays) == ((last,), (away,))
        with pytest.raises(Undecided, match="under-replicated"):
            await store.ledgers.recover(ledger)
        assert (await store.ledgers.metadata(ledger)).fragments == found.fragments
        (third,) = {*nodes} - {away, rotten}
        lose_disk(cluster, third)
        await entries_are_read(store, ledger, last)
        await back_with_its_ledgers(cluster, away)
        await until_unmarked(cluster)
        found = await store.ledgers.metadata(ledger)
        assert (found.state, found.last) == (LedgerState.CLOSED, last)
        assert found.length == sum(map(len, payloads(COUNT)))
        await entries_are_read(store, ledger, COUNT)
        assert (await store.ledgers.check(ledger, entries=[last])).copies == 2


async def a_stray_is_back_before_the_end(cluster: ClusterAtHand) -> None:
    """It has the only copies of entries that a repair passed over. The nodes named for them get
    them, though the ledger cannot be ended."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        await made.append_many(payloads(COUNT))
        await asyncio.sleep(5)
        ledger = made.ledger_id
        first, second = (NodeId(node) for node in made.metadata.newest.nodes)
        for node in (first, second):
            cluster.kill(node)
        await made.append_many(payloads(COUNT))
        last_nodes = made.metadata.newest.nodes
        assert not {first, second} & {*last_nodes}
        await until_unnamed(store, ledger, {first, second})
        mark = await LedgerMarks(cluster.metadata).get(ledger)
        assert mark is not None
        assert mark[0].gaps == tuple(range(COUNT))
        await asyncio.sleep(5)
        made.abandon()
        for running in cluster.running.values():
            await running.flush()
        for node in last_nodes:
            rot(cluster, node, ledger, 2 * COUNT - 1)
        with pytest.raises(Undecided, match="no readable copy of its last confirmed entry"):
            await store.ledgers.recover(ledger)
        await back_with_its_ledgers(cluster, first)
        await until_copied(store, ledger, COUNT)
        assert (await store.ledgers.metadata(ledger)).state is LedgerState.IN_RECOVERY
        # The end is looked for still.
        assert await marked(cluster) == [ledger]
        lose_disk(cluster, first)
        await entries_are_read(store, ledger, COUNT)


async def no_other_node_is_free(cluster: ClusterAtHand) -> None:
    """A node that is back with an empty disk gets its copies, though the ledger cannot be ended."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many(payloads(COUNT))
        ledger, last, nodes = made.ledger_id, COUNT - 1, made.metadata.newest.nodes
        await asyncio.sleep(5)  # until the nodes have heard of the LAC
        made.abandon()
        for running in cluster.running.values():
            await running.flush()
        rotten, empty = (NodeId(nodes[place]) for place in write_set(last, made.metadata.striping))
        rot(cluster, rotten, ledger, last)
        lose_disk(cluster, empty)
        await call_lost(cluster, empty)
        cluster.keep_starting(empty)
        await until(lambda: empty in cluster.running, timeout_s=100)
        await until_copied(store, ledger, last)
        found = await store.ledgers.metadata(ledger)
        assert found.state is LedgerState.IN_RECOVERY
        assert [each.first for each in found.fragments] == [0, COUNT]
        (third,) = {*nodes} - {rotten, empty}
        lose_disk(cluster, third)
        await entries_are_read(store, ledger, last)


async def a_node_is_filled_once(cluster: ClusterAtHand) -> None:
    """It is back with an empty disk, and the ledger cannot be ended."""
    copied: list[int] = []

    async def counted(cluster: Any, metadata: Any, node: int, copies: Any) -> int:
        copied.extend([node] * len(copies))
        return await write_copies(cluster, metadata, node, copies)

    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        await made.append_many(payloads(COUNT))
        await asyncio.sleep(3)
        stays, empty = (NodeId(node) for node in made.metadata.newest.nodes)
        lose_disk(cluster, empty)
        await made.append_many(payloads(COUNT))
        await asyncio.sleep(3)
        (away,) = {NodeId(node) for node in made.metadata.newest.nodes} - {stays}
        made.abandon()
        for running in cluster.running.values():
            await running.flush()
        ledger = made.ledger_id
        rot(cluster, stays, ledger, 2 * COUNT - 1)
        with pytest.MonkeyPatch.context() as patched:
            for module in (ledger_repair, ledger_check):
                swap(patched, write_copies, counted, within=module)
            await call_lost(cluster, empty)
            await asyncio.sleep(3)
            cluster.keep_starting(empty)
            await until(lambda: empty in cluster.running, timeout_s=100)
            cluster.kill(away)
            with pytest.raises(Undecided):
                await store.ledgers.recover(ledger)
            await asyncio.sleep(300)
        found = await store.ledgers.metadata(ledger)
        assert (found.state, found.fragments[0].nodes) == (LedgerState.IN_RECOVERY, (stays, empty))
        assert await marked(cluster) == [ledger]
        assert copied == [empty] * COUNT


async def its_writer_closes_it(cluster: ClusterAtHand) -> None:
    """The writer is idle. It knows the end that no recovery finds, and did not hear of them."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many(payloads(COUNT))
        await asyncio.sleep(5)
        for running in cluster.running.values():
            await running.flush()
        ledger, last, nodes = made.ledger_id, COUNT - 1, made.metadata.newest.nodes
        away, rotten = (NodeId(nodes[place]) for place in write_set(last, made.metadata.striping))
        rot(cluster, rotten, ledger, last)
        cluster.kill(away)
        with pytest.raises(Undecided, match="no readable copy of its last confirmed entry"):
            await store.ledgers.recover(ledger)
        found = await store.ledgers.metadata(ledger)
        assert [each.first for each in found.fragments] == [0, COUNT]
        await made.close()
        found = await store.ledgers.metadata(ledger)
        assert (found.state, found.last) == (LedgerState.CLOSED, last)
        assert found.length == sum(map(len, payloads(COUNT)))


async def more_is_settled_after_a_look(cluster: ClusterAtHand) -> None:
    """A node is back with an empty disk. All that was settled got its copies there, and then a
    recovery settles more."""
    network = cluster.simulation.network
    clients = [f"client-{number}" for number in range(1, 50)]
    for node in (5, 6):
        await cluster.stop(node)
        cluster.weights[node] = 0.0
        await cluster.start(node)
    await asyncio.sleep(3)
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=2)
        await made.append_many(payloads(COUNT))
        await asyncio.sleep(3)
        down = NodeId(made.metadata.newest.nodes[1])
        cluster.kill(down)
        await made.append_many(payloads(COUNT))
        await asyncio.sleep(8)
        empty, away, third = (NodeId(node) for node in made.metadata.newest.nodes)
        assert down not in made.metadata.newest.nodes
        network.partition(clients, [f"node-{third}"])  # it does not get the last entry
        last = await made.append(b"last")
        await asyncio.sleep(0.7)
        made.abandon()
        network.reset(clients, [f"node-{third}"])
        await asyncio.sleep(1)
        network.mend_all()
        await cluster.start(down)
        await asyncio.sleep(3)
        for running in cluster.running.values():
            await running.flush()
        lose_disk(cluster, empty)
        await asyncio.sleep(1)
        await call_lost(cluster, empty)
        await asyncio.sleep(3)
        cluster.keep_starting(empty)
        await until(lambda: empty in cluster.running, timeout_s=200)
        others = [f"node-{node}" for node in range(1, 7) if node != away]
        network.partition([f"node-{away}"], others + clients)
        ledger = made.ledger_id
        await until_copied(store, ledger, COUNT, copies=2)
        await asyncio.sleep(900)  # every node has looked
        assert (await store.ledgers.metadata(ledger)).settled_last == COUNT - 1
        cluster.kill(down)
        rot(cluster, away, ledger, last)
        network.mend_all()
        await asyncio.sleep(1000)
        found = await store.ledgers.metadata(ledger)
        assert (found.state, found.settled_last) == (LedgerState.IN_RECOVERY, last)
        assert cluster.running[empty].engine.ledgers.held[ledger].last == last - 1


async def until_copied(store: Store, ledger: int, count: int, copies: int = 2) -> None:
    """Wait until the first entries have their copies on the nodes that are named for them."""
    async with asyncio.timeout(900):
        while True:
            check = await store.ledgers.check(ledger, entries=range(count), settled=True)
            if check.copies >= copies * count:
                return
            await asyncio.sleep(20)


SCENES: list[tuple[Callable[[ClusterAtHand], Awaitable[None]], int, str]] = [
    (two_nodes_of_the_last_fragment_are_lost, 9, "ledger-repair-waits-for-end"),
    (the_last_confirmed_entry_is_unreadable, 9, "ledger-recovery-settles-nothing"),
    (a_stray_is_back_before_the_end, 9, "ledger-repair-strays-wait-for-end"),
    (no_other_node_is_free, 3, "ledger-repair-empty-waits-for-end"),
    (its_writer_closes_it, 6, "ledger-close-shut-out-by-settling"),
]

CLUSTER: dict[str, Any] = {
    "rebuild_after_s": 10.0,
    "storage": StorageSettings(flush_age_s=1.0, recent_bytes=0),
}


@pytest.fixture(autouse=True)
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weekly round of checks could fill what a repair leaves out."""
    swap_value(monkeypatch, lambda: ledger_autorecovery.CHECKED_A_LOOK, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "nodes", "name"), SCENES)
def test_the_scene_holds(scene: Any, nodes: int, name: str) -> None:
    simulate(scene, nodes=nodes, **CLUSTER)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "nodes", "name"), SCENES)
def test_the_scene_catches_the_bug(scene: Any, nodes: int, name: str) -> None:
    with planted(find_bug(name)), pytest.raises((AssertionError, TimeoutError, CordwoodError)):
        simulate(scene, nodes=nodes, **CLUSTER)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
def test_entries_that_are_settled_after_a_look_get_their_copies(*, is_planted: bool) -> None:
    options = {**CLUSTER, "rebuild_after_s": 30_000.0}
    if not is_planted:
        simulate(more_is_settled_after_a_look, nodes=6, **options)
        return
    with planted(find_bug("ledger-fills-what-was-settled")), pytest.raises(AssertionError):
        simulate(more_is_settled_after_a_look, nodes=6, **options)


def test_a_node_that_is_back_is_filled_once_while_a_recovery_fails() -> None:
    simulate(a_node_is_filled_once, nodes=3, **{**CLUSTER, "rebuild_after_s": 3000.0})
