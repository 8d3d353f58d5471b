"""Entries without a readable copy: a repair passes over them, and no others are lost with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk
from swaps import swap_value
from test_ledger_autorecovery_cluster import marked, payloads

from cordwood.admin import ledger_autorecovery
from cordwood.client.admin.named_ledgers import NamedLedgers
from cordwood.client.ledgers.ledger_repair import write_copies
from cordwood.client.store import Store
from cordwood.errors import Unreachable
from cordwood.layout.ledger_records import LEDGERS_TABLE, entry_row_key
from cordwood.ledger import LedgerMetadata, Striping
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_check import Copy
from cordwood.protocol.ledger_repair import unreadable
from cordwood.quorum.ensemble import write_set
from cordwood.settings import StorageSettings
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import find_bug, planted

COUNT = 60

ROTTEN = 31
"""In the middle of its fragment, where no sample of the ends finds it."""

FORGETFUL = StorageSettings(recent_bytes=0)
"""A flushed entry is read from the disk."""


async def damaged(cluster: ClusterAtHand, store: Store) -> tuple[LedgerMetadata, int, int]:
    """A closed ledger, the node whose copy of an entry rotted, and the node with the other one."""
    made = await store.ledgers.create(ensemble=3, write=2, ack=2)
    await made.append_many(payloads(COUNT))
    await made.close()
    for node in cluster.running.values():
        await node.flush()
    nodes = made.metadata.newest.nodes
    rotten, other = (nodes[place] for place in write_set(ROTTEN, Striping(3, 2, 2)))
    tables = cluster.running[NodeId(rotten)].engine.logs.ledgers._tables
    assert isinstance(tables, MemoryTables)
    tables._tables[LEDGERS_TABLE].rotten.add(entry_row_key(made.ledger_id, ROTTEN))
    return made.metadata, rotten, other


async def unread(cluster: ClusterAtHand, ledger: int) -> list[int]:
    """Entries that a reader does not get."""
    found = []
    async with cluster.client(timeout_s=3) as store:
        opened = await store.ledgers.open(ledger)
        for entry in range(COUNT):
            try:
                (told,) = await opened.read(entry, entry)
                assert told.payload == payloads(COUNT)[entry]
            except Unreachable:
                found.append(entry)
    return found


async def until_named(store: Store, ledger: int, lost: int) -> LedgerMetadata:
    """Wait until another node has the place of a lost one."""
    async with asyncio.timeout(1000):
        while True:
            found = await store.ledgers.metadata(ledger)
            if lost not in found.newest.nodes:
                return found
            await asyncio.sleep(2)


async def gaps(cluster: ClusterAtHand, ledger: int) -> tuple[int, ...] | None:
    found = await LedgerMarks(cluster.metadata).get(ledger)
    return None if found is None else found[0].gaps


async def an_entry_rotted_before_a_node_was_lost(cluster: ClusterAtHand) -> None:
    """All others get their copies, so that the next loss costs no more entries."""
    async with cluster.client() as store:
        metadata, rotten, lost = await damaged(cluster, store)
        ledger = metadata.ledger
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        await until_named(store, ledger, lost)
        await asyncio.sleep(900)
        check = await store.ledgers.check(ledger)
        assert (check.short, check.lost, check.first_lost) == (1, 1, ROTTEN)
        assert await gaps(cluster, ledger) == (ROTTEN,)
        (third,) = {*metadata.newest.nodes} - {rotten, lost}
        lose_disk(cluster, third)
        await call_lost(cluster, third)
    assert await unread(cluster, ledger) == [ROTTEN]


async def the_lost_node_is_back_with_its_entries(cluster: ClusterAtHand) -> None:
    """Its copy of the entry is the only one, and its place has gone to another node."""
    async with cluster.client() as store:
        metadata, _, away = await damaged(cluster, store)
        ledger = metadata.ledger
        opened = await store.ledgers.open(ledger)
        copies = await opened.copies([ROTTEN])
        lose_disk(cluster, away)
        await call_lost(cluster, away)
        await until_named(store, ledger, away)
        assert await gaps(cluster, ledger) == (ROTTEN,)
        assert await unread(cluster, ledger) == [ROTTEN]
        # `nodes replace` keeps its directory.
        assert await NamedLedgers(store.ledgers, NodeId(away)).look() == [ledger]
        cluster.keep_starting(away)
        await until(lambda: away in cluster.running, timeout_s=100)
        # It lost its disk: no copy can come back with it.
        assert await NamedLedgers(store.ledgers, NodeId(away)).look() == []
        await write_copies(store._cluster, metadata, away, copies)
        assert await unread(cluster, ledger) == []
        async with asyncio.timeout(1500):
            while await marked(cluster):  # noqa: ASYNC110 - a store has no event for it
                await asyncio.sleep(2)
        assert (await store.ledgers.check(ledger)).is_whole


async def an_entry_rots_in_the_middle(cluster: ClusterAtHand) -> None:
    """It is found and replaced while its other copy is there."""
    with pytest.MonkeyPatch.context() as patched:
        swap_value(patched, lambda: ledger_autorecovery.CHECK_S, 100.0)
        async with cluster.client() as store:
            metadata, _, _ = await damaged(cluster, store)
            assert not (await store.ledgers.check(metadata.ledger)).is_whole
            await asyncio.sleep(100 * (ledger_autorecovery.CHECK_TURNS + 2))
            assert (await store.ledgers.check(metadata.ledger)).is_whole


SCENES: list[tuple[Callable[[ClusterAtHand], Awaitable[None]], dict[str, Any], str]] = [
    (an_entry_rotted_before_a_node_was_lost, {"nodes": 6}, "ledger-repair-one-stops-all"),
    (the_lost_node_is_back_with_its_entries, {"nodes": 6}, "ledger-repair-hides-strays"),
    (an_entry_rots_in_the_middle, {"nodes": 3}, "ledger-check-ends-only"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "options", "name"), SCENES)
def test_the_scene_holds(scene: Any, options: dict[str, Any], name: str) -> None:
    simulate(scene, storage=FORGETFUL, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "options", "name"), SCENES)
def test_the_scene_catches_the_bug(scene: Any, options: dict[str, Any], name: str) -> None:
    with planted(find_bug(name)), pytest.raises((AssertionError, TimeoutError)):
        simulate(scene, storage=FORGETFUL, **options)


@pytest.mark.slow
def test_a_copy_on_a_node_that_is_merely_away_is_waited_for() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=3, write=2, ack=2)
            await made.append_many(payloads(COUNT))
            await made.close()
            before = made.metadata
            lost, away, _ = before.newest.nodes
            lose_disk(cluster, lost)
            await call_lost(cluster, lost)
            await asyncio.sleep(5)  # until the others have heard of it
            cluster.kill(away)
            await asyncio.sleep(200)
            found = await store.ledgers.metadata(made.ledger_id)
            assert found.newest.nodes == before.newest.nodes
            assert await gaps(cluster, made.ledger_id) == ()
            await cluster.start(away)
            await until_named(store, made.ledger_id, lost)
            assert (await store.ledgers.check(made.ledger_id)).is_whole

    simulate(scenario, nodes=6)


def test_a_repair_by_hand_names_the_entries_that_it_passed_over() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=3) as store:
            metadata, _, lost = await damaged(cluster, store)
            await store.ledgers.switch_autorecovery(on=False)
            lose_disk(cluster, lost)
            await call_lost(cluster, lost)
            await asyncio.sleep(10)  # until all nodes have heard of it
            with pytest.raises(Unreachable, match=f"entry {ROTTEN} has no readable copy"):
                await store.ledgers.repair(metadata.ledger)
            assert (await store.ledgers.check(metadata.ledger)).short == 1

    simulate(scenario, nodes=6, storage=FORGETFUL)


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ({1: Copy.WHOLE, 2: Copy.SILENT}, frozenset()),
        ({1: Copy.DAMAGED, 2: Copy.ABSENT}, {7}),
        ({1: Copy.DAMAGED, 2: Copy.SILENT}, None),
        ({1: Copy.DAMAGED, 9: Copy.SILENT}, {7}),
        ({1: Copy.LET_GO, 9: Copy.SILENT}, None),
    ],
)
def test_an_entry_is_passed_over_only_if_no_node_may_have_it(
    states: dict[int, Copy], wanted: set[int] | None
) -> None:
    found = unreadable({7: states}, lambda node: node == 9)
    assert found == (None if wanted is None else frozenset(wanted))
