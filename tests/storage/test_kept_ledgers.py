"""Nodes with the only copies of entries of ledgers are away for long, and come back with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, until
from rebuild_scene import copies, healed, lose_disk, missing, put_records
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.errors import NotOurCluster, UnknownLedger
from cordwood.layout.ledger_records import LedgerFlag
from cordwood.ledger import LedgerState
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.nodes import Authority, NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.damage import damage_wal
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.stored_file import StoredFile
from cordwood.storage.data_directory import DataDirectory
from cordwood.storage.identity import ACCEPTED, KEEP_LEDGERS
from cordwood.storage.logs_db.log_drops import drop_logs
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.rebuild import kept_ledgers
from cordwood.storage.rebuild.admission import ANEW, DROPPING, Admission

RECORDS = 20

COUNT = 30
"""Entries of each ledger."""

UNFLUSHED = StorageSettings(flush_age_s=3600.0)

FLUSHED = StorageSettings(flush_age_s=1.0)

CLUSTER: dict[str, Any] = {"nodes": 6, "rebuild_after_s": 10.0}
"""Two of five lost nodes would be too many at the same time."""

Pair = tuple[NodeId, NodeId]


def payloads(count: int = COUNT) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


async def ledger_on(store: Store, pair: Pair | None) -> Any:
    """A ledger that has entries on two nodes only, on this pair if one is given."""
    while True:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        if pair is None or {*made.metadata.newest.nodes} == {*pair}:
            await made.append_many(payloads())
            return made
        await made.close()


async def make_ledgers(store: Store) -> tuple[Pair, Any, Any, Any]:
    """A closed ledger, one that its writer left open, and one that is fenced, on the same two
    nodes."""
    closed = await ledger_on(store, None)
    first, second = (NodeId(node) for node in closed.metadata.newest.nodes)
    left, fenced = [await ledger_on(store, (first, second)) for _ in range(2)]
    await closed.close()
    left.abandon()
    await store.ledgers.fence(fenced.ledger_id)
    fenced.abandon()
    return (first, second), closed, left, fenced


def are_empty(cluster: ClusterAtHand, nodes: Pair) -> bool:
    """Whether all nodes that run call these nodes empty."""
    found = [n._members[node].authority for n in cluster.running.values() for node in nodes]
    return {*found} == {Authority.AUTHORITATIVE_EMPTY}


async def stay_away(cluster: ClusterAtHand, nodes: Pair) -> None:
    for node in nodes:
        cluster.kill(node)
    await until(lambda: are_empty(cluster, nodes), timeout_s=120)


def say_keep(cluster: ClusterAtHand, node: int) -> None:
    """As `cordwood nodes keep-ledgers` does."""
    cluster.machine(node).disk.tree.put(f"/node/{KEEP_LEDGERS}", StoredFile.holding(ACCEPTED))


async def come_back(cluster: ClusterAtHand, nodes: Pair) -> None:
    for node in nodes:
        say_keep(cluster, node)
        cluster.keep_starting(node)
    await healed(cluster)


async def logs_are_right(cluster: ClusterAtHand, store: Store, rounds: int = 1) -> None:
    """Each record comes once, and no reader is told of a loss."""
    for log in range(1, 4):
        items = await read_all(store, f"log-{log}", gaps=True)
        wanted = [b"%d/%d" % (log, number) for number in range(RECORDS)] * rounds
        assert [item.value for item in items if isinstance(item, Record)] == wanted
        assert not [
            item for item in items if isinstance(item, Gap) and item.kind is GapKind.DATA_LOSS
        ]
    assert not await missing(cluster)


async def entries_are_read(store: Store, *ledgers: int) -> None:
    for ledger in ledgers:
        opened = await store.ledgers.open(ledger, recovery=True)
        assert [each.payload for each in await opened.read(0, COUNT - 1)] == payloads()


async def both_come_back(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    async with cluster.client(timeout_s=30) as store:
        nodes, closed, left, fenced = await make_ledgers(store)
        await asyncio.sleep(3)  # until a flush, if there is one
        before = await copies(cluster)
        await stay_away(cluster, nodes)
        await put_records(cluster)  # the logs go on without them
        for node in nodes:
            with pytest.raises(NotOurCluster, match="keep-ledgers /node"):
                await cluster.start_once(node)
            cluster.machine(node).kill()
        await come_back(cluster, nodes)
        after = await copies(cluster)
        assert after.keys() >= before.keys()
        assert not any(node in after[place] for place in before for node in nodes)
        for node in nodes:
            held = cluster.running[node].engine.ledgers.held
            stays = held.get(fenced.ledger_id)
            assert stays is not None, "its entries are acknowledged"
            assert stays.flags & LedgerFlag.FENCED
            assert not any(each.flags & LedgerFlag.LIMBO for each in held.values())
        await entries_are_read(store, closed.ledger_id, left.ledger_id, fenced.ledger_id)
        await logs_are_right(cluster, store, rounds=2)
        # What was marked as lacking copies gets them, from the copies that are back.
        marks = LedgerMarks(cluster.metadata)
        async with asyncio.timeout(900):
            while [each async for each in marks.all()]:  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(5)
        metadata = await store.ledgers.metadata(left.ledger_id)
        assert metadata.state is LedgerState.CLOSED


@pytest.mark.slow
@pytest.mark.parametrize("storage", [UNFLUSHED, FLUSHED], ids=["in the WAL", "in LogsDB"])
@pytest.mark.parametrize("replicated", [False, True], ids=["metadata store", "event log"])
def test_every_acknowledged_entry_is_read_when_both_are_back(storage, replicated: bool) -> None:
    simulate(both_come_back, storage=storage, replicated_events=replicated, **CLUSTER)


def test_entries_that_only_the_wal_has_are_missed() -> None:
    bug = find_bug("ledgers-dropped-with-wal")
    with planted(bug), pytest.raises(AssertionError, match="its entries are acknowledged"):
        simulate(both_come_back, storage=UNFLUSHED, **CLUSTER)


def test_copies_of_logs_that_were_rebuilt_are_found() -> None:
    with planted(find_bug("logs-kept-with-ledgers")), pytest.raises(AssertionError):
        simulate(both_come_back, storage=FLUSHED, **CLUSTER)


STEPS: dict[str, Callable[..., Awaitable[Any]]] = {
    "noted": Admission.note_dropping,
    "flushed": LogsStore.flush,
    "losses kept": LogsStore.keep_lost,
    "partition dropped": MemoryTables.drop,
    "dropped": drop_logs,
    "noted again": Admission.note_dropped,
    "claimed": DataDirectory.claim,
    "let in": Admission.complete,
}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_a_crash_in_the_middle_of_the_return_loses_nothing(
    step: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = STEPS[step]
    crashes: list[NodeId] = []

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=8)  # each node has blocks of some
        async with cluster.client(timeout_s=30) as store:
            nodes, closed, left, fenced = await make_ledgers(store)
            await asyncio.sleep(3)  # until a flush
            await put_records(cluster)
            late = await ledger_on(store, nodes)
            await stay_away(cluster, nodes)

            async def crash(*args: Any, **named: Any) -> Any:
                found = await right(*args, **named) if is_done else None
                for node in nodes:
                    # The node that is being started: the other one is not up yet.
                    if cluster.machine(node).is_up and node not in (*crashes, *cluster.running):
                        crashes.append(node)
                        cluster.machine(node).kill()
                        await asyncio.sleep(60)
                return found if is_done else await right(*args, **named)

            within = kept_ledgers if right is drop_logs else None
            swap(monkeypatch, right, crash, within=within)
            for number, node in enumerate(nodes, start=1):
                say_keep(cluster, node)
                cluster.start_once(node)
                await until(lambda number=number: len(crashes) == number)
                cluster.keep_starting(node)
                await until(lambda node=node: node in cluster.running)
            await healed(cluster)
            ledgers = [each.ledger_id for each in (closed, left, fenced, late)]
            await entries_are_read(store, *ledgers)
            await logs_are_right(cluster, store, rounds=2)

    simulate(scenario, storage=FLUSHED, **CLUSTER)
    assert len(crashes) == 2


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_nodes_that_are_away_twice_keep_their_ledgers(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    async with cluster.client(timeout_s=30) as store:
        await store.ledgers.switch_autorecovery(on=False)  # its copies stay where they are
        nodes, closed, *_ = await make_ledgers(store)
        for _ in range(2):
            await stay_away(cluster, nodes)
            with pytest.raises(NotOurCluster, match="keep-ledgers"):
                await cluster.start_once(nodes[0])  # an earlier word has no effect
            cluster.machine(nodes[0]).kill()
            await come_back(cluster, nodes)
        await entries_are_read(store, closed.ledger_id)
        await logs_are_right(cluster, store)


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_a_node_that_kept_its_ledgers_may_begin_empty_later(cluster: ClusterAtHand) -> None:
    """An operator empties the directory, and leaves the notes of earlier starts in it."""
    async with cluster.client(timeout_s=30) as store:
        nodes, *_ = await make_ledgers(store)
        await stay_away(cluster, nodes)
        await come_back(cluster, nodes)
        await stay_away(cluster, nodes)
        for node in nodes:
            notes = cluster.machine(node).disk.tree
            kept = {name: notes.content(f"/node/{name}") for name in (ANEW, DROPPING)}
            lose_disk(cluster, node)
            tree = cluster.machine(node).disk.tree
            tree.make_dirs("/node")
            for name, content in kept.items():
                assert content
                tree.put(f"/node/{name}", StoredFile.holding(content))
            cluster.keep_starting(node)
        await healed(cluster)
        for node in nodes:
            cluster.kill(node)
            await cluster.start(node)


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_a_half_dropped_directory_waits_while_its_node_is_not_called_empty(
    cluster: ClusterAtHand,
) -> None:
    """As if the event log had lost that the node was empty."""
    await put_records(cluster)
    cluster.kill(2)
    cluster.machine(2).disk.tree.put(f"/node/{DROPPING}", StoredFile.holding(b"7"))
    with pytest.raises(NotOurCluster, match="began to drop"):
        await cluster.start_once(2)


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_a_directory_that_was_replaced_does_not_come_back(cluster: ClusterAtHand) -> None:
    """It lacks what the node has promised since, fences of ledgers among it."""
    await put_records(cluster)
    async with cluster.client(timeout_s=30) as store:
        nodes, *_ = await make_ledgers(store)
        node = nodes[0]
        await stay_away(cluster, nodes)
        old = cluster.machine(node).disk.tree.copy()
        for each in nodes:
            lose_disk(cluster, each)
            cluster.keep_starting(each)
        await healed(cluster)
        cluster.kill(node)
        await until(lambda: are_empty(cluster, (node, node)), timeout_s=120)
        cluster.machine(node).disk.tree = old
        say_keep(cluster, node)
        with pytest.raises(NotOurCluster, match="older copy"):
            await cluster.start_once(node)
        assert old.content("/node/dropping") is None


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_a_node_whose_wal_rotted_meanwhile_does_not_call_entries_absent(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30) as store:
        nodes, closed, left, fenced = await make_ledgers(store)
        await stay_away(cluster, nodes)
        rotten = nodes[0]
        assert damage_wal(cluster.machine(rotten).disk, random.Random(1))
        await come_back(cluster, nodes)
        held = cluster.running[rotten].engine.ledgers.held
        for each in (left, fenced):
            assert held[each.ledger_id].flags & LedgerFlag.LIMBO
        assert all(each.flags & LedgerFlag.FENCED for each in held.values())
        await entries_are_read(store, closed.ledger_id, left.ledger_id, fenced.ledger_id)


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_a_ledger_that_was_deleted_meanwhile_goes(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=30) as store:
        nodes, closed, *_ = await make_ledgers(store)
        await stay_away(cluster, nodes)
        await store.ledgers.delete(closed.ledger_id)
        await come_back(cluster, nodes)
        with pytest.raises(UnknownLedger):
            await store.ledgers.open(closed.ledger_id)
        for node in nodes:
            await cluster.running[node]._ledgers.sweep()
            held = cluster.running[node].engine.ledgers.held[closed.ledger_id]
            assert held.flags & LedgerFlag.GONE


@as_scenario(simulate, storage=UNFLUSHED, **CLUSTER)
async def test_a_word_for_a_node_that_was_not_rebuilt_has_no_effect(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    cluster.kill(2)
    say_keep(cluster, 2)
    await cluster.start(2)
    assert not cluster.machine(2).disk.tree.content(f"/node/{KEEP_LEDGERS}")
    async with cluster.client(timeout_s=30) as store:
        await logs_are_right(cluster, store)
