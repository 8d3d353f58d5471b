"""Runs of a striped ledger: each write set from one of its nodes, put in the order of entries."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from hypothesis import given
from hypothesis import strategies as st
from scenarios import as_scenario

from cordwood.client.ledgers.entry_reading import EntryReading
from cordwood.client.ledgers.run_reading import Opened, interleaved
from cordwood.client.store import Store
from cordwood.errors import AccessDenied
from cordwood.nodes import NodeId
from cordwood.sim.planted import find_bug, planted

COUNT = 5000
STRIPED = [(3, 2, 2), (3, 1, 1), (2, 1, 1)]


def payload_of(entry: int) -> bytes:
    return b"entry %d" % entry


@given(st.integers(2, 5), st.lists(st.integers(0, 4), min_size=5, max_size=5), st.integers(1, 12))
def test_entries_are_in_order_up_to_the_first_missing_one(step, given_by, count) -> None:
    parts = []
    for at in range(min(step, count)):
        some = [*range(at, count, step)][: given_by[at]]
        parts.append(Opened([payload_of(each) for each in some], some))
    found = interleaved(parts, step, count)
    have = {entry for part in parts for entry in part.lengths}
    whole = next(entry for entry in range(count + 1) if entry not in have)
    assert found.lengths == [*range(whole)]
    assert found.payloads == [payload_of(each) for each in range(whole)]


async def filled(store: Store, shape: tuple[int, int, int], count: int = COUNT) -> int:
    ensemble, write, ack = shape
    async with await store.ledgers.create(ensemble=ensemble, write=write, ack=ack) as made:
        await made.append_many([payload_of(each) for each in range(count)])
    return made.ledger_id


async def check(store: Store, ledger: int, count: int = COUNT) -> None:
    opened = await store.ledgers.open(ledger)
    length, entry = 0, 0
    async for each in opened:
        length += len(each.payload)
        assert (each.entry, each.payload, each.length) == (entry, payload_of(entry), length)
        entry += 1
    assert entry == count


@pytest.mark.parametrize("shape", STRIPED, ids=str)
@as_scenario(simulate)
async def test_a_striped_ledger_is_read_in_runs(
    cluster: ClusterAtHand, *, shape: tuple[int, int, int]
) -> None:
    """No entry is asked for by itself, whether memory or LogsDB has it."""
    one_by_one: list[int] = []

    async def asked(self: EntryReading, node: int, entries: list[int]) -> None:
        one_by_one.extend(entries)

    async with cluster.client() as store:
        ledger = await filled(store, shape)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EntryReading, "_ask", asked)
            await check(store, ledger)
            for node in cluster.running.values():
                await node.flush()
                for held in node.engine.ledgers.held.values():
                    held.runs.clear()
            await check(store, ledger)
    assert one_by_one == []


@as_scenario(simulate)
async def test_a_striped_ledger_is_read_while_a_node_is_away(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await filled(store, (3, 2, 2))
        opened = await store.ledgers.open(ledger)
        away = opened.metadata.newest.nodes[1]
        cluster.machine(away).pause()
        assert [each.payload async for each in opened] == [payload_of(n) for n in range(COUNT)]
        cluster.machine(away).resume()


@as_scenario(simulate)
async def test_a_read_that_is_denied_leaves_no_call_behind(cluster: ClusterAtHand) -> None:
    """Its calls to the other nodes ran on until their deadline."""
    async with cluster.client() as store:
        ledger = await filled(store, (3, 1, 1), 100)
        opened = await store.ledgers.open(ledger)
        denying, *silent = opened.metadata.newest.nodes
        cluster.running[NodeId(denying)].engine.ledgers.held[ledger].key = bytes(20)
        for node in silent:
            cluster.machine(node).pause()
        for read in (
            opened.read(0, 99),
            opened.read_batch(0),
            opened.try_read_last_add_confirmed(),
            opened.read_unconfirmed(0, 0),
            store.ledgers.check(ledger, settled=True),
        ):
            with pytest.raises(AccessDenied):
                await read
            assert [each for each in asyncio.all_tasks() if "_ask" in repr(each)] == []
        for node in silent:
            cluster.machine(node).resume()


async def nodes_lack_an_entry(cluster: ClusterAtHand) -> None:
    """The other write sets are whole, and their entries keep their numbers."""
    async with cluster.client() as store:
        ledger = await filled(store, (3, 2, 2), 100)
        opened = await store.ledgers.open(ledger)
        for node in opened.metadata.newest.nodes:
            held = cluster.running[NodeId(node)].engine.ledgers.held[ledger]
            held.runs.clear()
            held.entries.pop(31, None)
        found = await opened._read_part(0, 99, 1 << 20)
        assert [(each.entry, each.payload) for each in found] == [
            (entry, payload_of(entry)) for entry in range(31)
        ]


def test_what_follows_a_missing_entry_does_not_take_its_number() -> None:
    simulate(nodes_lack_an_entry)


def test_the_scene_catches_the_bug() -> None:
    with planted(find_bug("ledger-run-closes-up")), pytest.raises(AssertionError):
        simulate(nodes_lack_an_entry)
