"""Nodes come back with the only copies of entries that a repair passed over: none stays hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, lose_disk
from swaps import swap, swap_value
from test_kept_ledgers import COUNT, FLUSHED, are_empty, payloads, say_keep, stay_away
from test_ledger_autorecovery_cluster import marked

from cordwood.admin import ledger_autorecovery
from cordwood.client.admin.named_ledgers import NamedLedgers
from cordwood.client.ledgers.ledger_metadata_calls import LedgerMetadataCalls
from cordwood.client.ledgers.ledger_repair import _Copying, entry_words
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, TooFewNodes, Undecided, Unreachable
from cordwood.layout.ledger_records import LEDGERS_TABLE, entry_row_key
from cordwood.ledger import LedgerMetadata
from cordwood.metadata.ledger_marks import LedgerMarks
from cordwood.nodes import NodeId
from cordwood.protocol.ledger_autorecovery import GAPS_MAX
from cordwood.protocol.ledger_check import MISSING_MAX
from cordwood.settings import StorageSettings
from cordwood.sim.memory_logs import MemoryTables
from cordwood.sim.planted import find_bug, planted

CLUSTER: dict[str, Any] = {"nodes": 6, "rebuild_after_s": 10.0, "storage": FLUSHED}


async def until_unnamed(store: Store, ledger: int, nodes: set[NodeId]) -> LedgerMetadata:
    """Wait until no fragment names these nodes."""
    async with asyncio.timeout(1000):
        while True:
            found = await store.ledgers.metadata(ledger)
            if not nodes & {node for each in found.fragments for node in each.nodes}:
                return found
            await asyncio.sleep(2)


async def until_unmarked(cluster: ClusterAtHand) -> None:
    async with asyncio.timeout(2000):
        while await marked(cluster):  # noqa: ASYNC110 - a store has no event for it
            await asyncio.sleep(2)


async def back_with_its_ledgers(cluster: ClusterAtHand, node: NodeId) -> None:
    say_keep(cluster, node)
    cluster.keep_starting(node)
    await until(lambda: node in cluster.running, timeout_s=100)


async def a_stray_is_named_in_another_place(cluster: ClusterAtHand) -> None:
    """It has the only copies of entries that do not belong to its new place."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=3, write=2, ack=2)
        await made.append_many(payloads())
        await made.close()
        ledger = made.ledger_id
        await asyncio.sleep(5)
        first, second, third = (NodeId(node) for node in made.metadata.newest.nodes)
        await stay_away(cluster, (first, second))
        await until_unnamed(store, ledger, {first, second})
        # No other node is free, so the repair waits for the node that comes back.
        lose_disk(cluster, third)
        await call_lost(cluster, third)
        await asyncio.sleep(60)
        await back_with_its_ledgers(cluster, first)
        found = await until_unnamed(store, ledger, {second, third})
        assert first in found.newest.nodes
        await until_unmarked(cluster)
        opened = await store.ledgers.open(ledger)
        for entry, payload in enumerate(payloads()):
            (told,) = await opened.read(entry, entry)
            assert told.payload == payload


async def a_stray_has_more_than_a_reply_holds(cluster: ClusterAtHand) -> None:
    """No check calls an entry lost that a reader gets, and one check fills them all."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        for number in range(60):
            await made.append(b"%07d" % number * 15_000)
        await made.close()
        ledger = made.ledger_id
        await asyncio.sleep(5)
        first, second = (NodeId(node) for node in made.metadata.newest.nodes)
        await stay_away(cluster, (first, second))
        await until_unnamed(store, ledger, {first, second})
        await store.ledgers.switch_autorecovery(on=False)
        await back_with_its_ledgers(cluster, first)
        await asyncio.sleep(5)
        check = await store.ledgers.check(ledger)
        assert (check.short, check.lost, check.unread) == (60, 0, 0)
        opened = await store.ledgers.open(ledger)
        assert len(await opened.read(0, 59)) == 60
        check = await store.ledgers.check(ledger, fills=True)
        assert (check.lost, check.filled) == (0, 120)
        assert (await store.ledgers.check(ledger)).is_whole


async def a_stray_has_more_than_a_mark_names(cluster: ClusterAtHand) -> None:
    """The mark goes only when all entries have their copies: the stray may be replaced then."""
    with pytest.MonkeyPatch.context() as patched:
        # The weekly round of checks could fill them first.
        swap_value(patched, lambda: ledger_autorecovery.CHECKED_A_LOOK, 0)
        async with cluster.client(timeout_s=5) as store:
            made = await store.ledgers.create(ensemble=2, write=2, ack=2)
            await made.append_many(payloads(2 * GAPS_MAX + 88))
            await made.close()
            ledger = made.ledger_id
            await asyncio.sleep(5)
            first, second = (NodeId(node) for node in made.metadata.newest.nodes)
            await stay_away(cluster, (first, second))
            await until_unnamed(store, ledger, {first, second})
            found = await LedgerMarks(cluster.metadata).get(ledger)
            assert found is not None
            assert (found[0].gaps, found[0].has_more) == (tuple(range(GAPS_MAX)), True)
            await back_with_its_ledgers(cluster, first)
            await until_unmarked(cluster)
            assert await NamedLedgers(store.ledgers, first).look() == []
            assert (await store.ledgers.check(ledger)).is_whole


async def a_repair_by_hand_keeps_no_note(cluster: ClusterAtHand) -> None:
    """It names no other nodes. Auto-recovery does, and its mark tells which nodes may be needed."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        await made.append_many(payloads())
        await made.close()
        ledger = made.ledger_id
        await asyncio.sleep(5)
        first, second = (NodeId(node) for node in made.metadata.newest.nodes)
        await store.ledgers.switch_autorecovery(on=False)
        await stay_away(cluster, (first, second))
        with pytest.raises(Unreachable, match=rf"and {COUNT - 10} more .*nodes, .* may have one"):
            await store.ledgers.repair(ledger)
        assert {*(await store.ledgers.metadata(ledger)).newest.nodes} == {first, second}
        await store.ledgers.switch_autorecovery(on=True)
        await until_unnamed(store, ledger, {first, second})
        for node in (first, second):
            assert await NamedLedgers(store.ledgers, node).look() == [ledger]


async def no_node_told_a_lac(cluster: ClusterAtHand) -> None:
    """An entry of a settled fragment is there all the same, and is read once a stray is back."""
    async with cluster.client(timeout_s=5) as store:
        await store.ledgers.switch_autorecovery(on=False)
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        await made.append_many(payloads())
        await asyncio.sleep(5)
        nodes = first, second = tuple(NodeId(node) for node in made.metadata.newest.nodes)
        for node in nodes:
            cluster.kill(node)
        await made.append(b"on other nodes")
        await until(lambda: are_empty(cluster, (first, second)), timeout_s=120)

        async def note(entries: Sequence[int], silent: Collection[int]) -> None:
            assert len(entries) == COUNT

        # No node that is asked for these entries has heard of later ones.
        avoids = made.metadata.newest.nodes
        await store.ledgers.repair(made.ledger_id, older=True, avoids=avoids, on_unreadable=note)
        await until_unnamed(store, made.ledger_id, {first, second})
        opened = await store.ledgers.open(made.ledger_id)
        with pytest.raises(Unreachable):
            await opened.read_unconfirmed(3, 3)
        await back_with_its_ledgers(cluster, first)
        await asyncio.sleep(5)
        opened = await store.ledgers.open(made.ledger_id)
        (told,) = await opened.read_unconfirmed(3, 3)
        assert told.payload == payloads()[3]
        await made.close()


async def a_stray_tells_the_length(cluster: ClusterAtHand) -> None:
    """The writer ended right after a change of its ensemble: the new fragment has no entry."""
    async with cluster.client(timeout_s=5) as store:
        made = await store.ledgers.create(ensemble=2, write=2, ack=2)
        await made.append_many(payloads())
        await asyncio.sleep(5)
        first, second = (NodeId(node) for node in made.metadata.newest.nodes)
        made.abandon()
        held = await store.ledgers._calls.get(made.ledger_id)
        others = [node for node in cluster.running if node not in (first, second)]
        changed = held.metadata.with_ensemble(COUNT, (others[0], others[1]))
        assert (await store.ledgers._calls.set(held.version, changed))[1]
        await stay_away(cluster, (first, second))
        await until_unnamed(store, made.ledger_id, {first, second})
        with pytest.raises(Undecided, match=r"the nodes of this entry are .*under-replicated"):
            await store.ledgers.recover(made.ledger_id)
        await store.ledgers.switch_autorecovery(on=False)
        await back_with_its_ledgers(cluster, first)
        found = await store.ledgers.recover(made.ledger_id)
        assert (found.last, found.length) == (COUNT - 1, sum(map(len, payloads())))


async def a_named_node_restarts_while_a_stray_is_back(cluster: ClusterAtHand) -> None:
    """It has none of the entries that were passed over: the stray keeps one of two copies, and its
    directory is needed until that node has them, too."""
    with pytest.MonkeyPatch.context() as patched:
        # The weekly round of checks could fill them first.
        swap_value(patched, lambda: ledger_autorecovery.CHECKED_A_LOOK, 0)
        async with cluster.client(timeout_s=5) as store:
            made = await store.ledgers.create(ensemble=2, write=2, ack=2)
            await made.append_many(payloads())
            await made.close()
            ledger = made.ledger_id
            await asyncio.sleep(5)
            first, second = (NodeId(node) for node in made.metadata.newest.nodes)
            for node in (first, second):
                cluster.kill(node)
            await until(lambda: are_empty(cluster, (first, second)), timeout_s=900)
            found = await until_unnamed(store, ledger, {first, second})
            stays, restarts = (NodeId(node) for node in found.newest.nodes)
            cluster.kill(restarts)
            await back_with_its_ledgers(cluster, first)
            async with asyncio.timeout(1000):
                while (await store.ledgers.check(ledger)).lacking[stays]:  # noqa: ASYNC110 - a store has no event for it
                    await asyncio.sleep(2)
            await asyncio.sleep(60)
            assert await marked(cluster) == [ledger]
            assert await NamedLedgers(store.ledgers, first).look() == [ledger]
            await cluster.start(restarts)
            await until_unmarked(cluster)
            assert await NamedLedgers(store.ledgers, first).look() == []
            check = await store.ledgers.check(ledger)
            assert (check.is_whole, check.copies) == (True, 2 * COUNT)


SCENES: list[tuple[Callable[[ClusterAtHand], Awaitable[None]], dict[str, Any], str]] = [
    (a_stray_is_named_in_another_place, {"nodes": 5}, "ledger-strays-in-ensemble"),
    (
        a_stray_has_more_than_a_reply_holds,
        {"wal_bytes": 64 << 20},
        "ledger-check-one-stray-reply",
    ),
    (a_stray_has_more_than_a_mark_names, {}, "ledger-mark-names-all"),
    (
        a_named_node_restarts_while_a_stray_is_back,
        # The node that restarts is no lost node.
        {"rebuild_after_s": 600.0},
        "ledger-mark-believes-silence",
    ),
    (no_node_told_a_lac, {}, "ledger-settled-unconfirmed"),
    (a_stray_tells_the_length, {}, "ledger-recovery-hides-strays"),
    (a_repair_by_hand_keeps_no_note, {}, "ledger-repair-notes-nothing"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "options", "name"), SCENES)
def test_the_scene_holds(scene: Any, options: dict[str, Any], name: str) -> None:
    simulate(scene, **CLUSTER | options)


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "options", "name"), SCENES)
def test_the_scene_catches_the_bug(scene: Any, options: dict[str, Any], name: str) -> None:
    with planted(find_bug(name)), pytest.raises((AssertionError, TimeoutError, CordwoodError)):
        simulate(scene, **CLUSTER | options)


def rot(cluster: ClusterAtHand, node: NodeId, ledger: int, entry: int) -> None:
    tables = cluster.running[node].engine.logs.ledgers._tables
    assert isinstance(tables, MemoryTables)
    tables._tables[LEDGERS_TABLE].rotten.add(entry_row_key(ledger, entry))


async def back_with_a_rotten_entry(
    cluster: ClusterAtHand, store: Store
) -> tuple[LedgerMetadata, NodeId, NodeId]:
    """A ledger of which a node that is back has all entries but one; it is not named any more, nor
    is the node with the other copies, whose disk is lost."""
    made = await store.ledgers.create(ensemble=2, write=2, ack=2)
    await made.append_many(payloads())
    await made.close()
    await asyncio.sleep(5)
    first, second = (NodeId(node) for node in made.metadata.newest.nodes)
    await stay_away(cluster, (first, second))
    lose_disk(cluster, second)
    metadata = await until_unnamed(store, made.ledger_id, {first, second})
    assert await NamedLedgers(store.ledgers, first).look() == [made.ledger_id]
    await back_with_its_ledgers(cluster, first)
    rot(cluster, first, made.ledger_id, 5)
    return metadata, first, second


ROTTEN: dict[str, Any] = CLUSTER | {"storage": StorageSettings(flush_age_s=1.0, recent_bytes=0)}


@pytest.mark.slow
def test_a_node_that_is_back_without_the_entries_may_be_replaced() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as store:
            metadata, first, second = await back_with_a_rotten_entry(cluster, store)
            await asyncio.sleep(900)
            found = await LedgerMarks(cluster.metadata).get(metadata.ledger)
            assert found is not None
            # The other node is still away: with its old directory, as far as the nodes know.
            assert (found[0].gaps, found[0].strays) == ((5,), (second,))
            assert await NamedLedgers(store.ledgers, first).look() == []

    simulate(scenario, **ROTTEN)


def test_a_repair_passes_over_no_entry_of_a_stray() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as store:
            metadata, _, _ = await back_with_a_rotten_entry(cluster, store)
            await store.ledgers.switch_autorecovery(on=False)
            told: list[Sequence[int]] = []

            async def note(entries: Sequence[int], silent: Collection[int]) -> None:
                told.append(entries)

            lost, stays = metadata.newest.nodes
            moved = await store.ledgers.repair(metadata.ledger, nodes=[lost], on_unreadable=note)
            assert told == [[5]]
            found = (await store.ledgers.metadata(metadata.ledger)).newest.nodes
            assert found == (moved[lost], stays)

    simulate(scenario, **ROTTEN)


def test_a_batch_without_a_readable_entry_is_no_new_run_of_the_node() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(ensemble=2, write=2, ack=2)
            await made.append_many(payloads())
            await made.close()
            copies = await (await store.ledgers.open(made.ledger_id)).copies([0, 1])
            (spare,) = cluster.running.keys() - {*made.metadata.newest.nodes}
            copying = _Copying(store._cluster, made.metadata, spare)
            await copying.write([])
            assert await copying.is_kept()  # it has no copy to lose
            await copying.write(copies)
            await copying.write([])
            assert await copying.is_kept()

    simulate(scenario, nodes=3)


def test_a_repair_names_the_first_of_the_entries_that_it_passes_over() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as store:
            made = await store.ledgers.create(ensemble=2, write=2, ack=2)
            await made.append_many(payloads(2 * MISSING_MAX))
            await made.close()
            await store.ledgers.switch_autorecovery(on=False)
            first, second = (NodeId(node) for node in made.metadata.newest.nodes)
            await stay_away(cluster, (first, second))
            told: list[Sequence[int]] = []

            async def note(entries: Sequence[int], silent: Collection[int]) -> None:
                assert {*silent} == {first, second}
                told.append(entries)

            await store.ledgers.repair(made.ledger_id, on_unreadable=note)
            assert told == [[*range(MISSING_MAX)]] * 2
            words = entry_words(told[0])
            assert words.endswith(f"8, 9 and at least {MISSING_MAX - 10} more have")

    simulate(scenario, **CLUSTER)


def test_a_place_that_no_node_takes_does_not_end_the_repair_of_the_others() -> None:
    chooses, asked = LedgerMetadataCalls.choose_soon, list[object]()

    async def refuses_the_first(self: LedgerMetadataCalls, *args: Any, **more: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            raise TooFewNodes("no node takes the entries of this place")
        return await chooses(self, *args, **more)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=5) as store:
            made = await store.ledgers.create(ensemble=3, write=3, ack=2)
            await made.append_many(payloads())
            await made.close()
            first, second, third = made.metadata.newest.nodes
            with pytest.MonkeyPatch.context() as patched:
                swap(patched, LedgerMetadataCalls.choose_soon, refuses_the_first)
                with pytest.raises(TooFewNodes, match="of this place"):
                    await store.ledgers.repair(made.ledger_id, nodes=[first, second])
            found = (await store.ledgers.metadata(made.ledger_id)).newest.nodes
            assert (found[0], found[2]) == (first, third)
            assert found[1] not in (first, second, third)

    simulate(scenario, nodes=5)
