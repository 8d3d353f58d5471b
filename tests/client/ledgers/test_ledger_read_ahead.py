"""Readers in order: parts are read ahead, and whatever a node lacks comes from another."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from made_blocks import run
from scenarios import as_scenario
from swaps import swap_value
from test_ledger_damage import DAMAGED, Damage, damaged, flip, rot

from cordwood.client.ledgers import read_ahead
from cordwood.client.ledgers.read_ahead import FEW, PARTS, ReadAhead
from cordwood.client.ledgers.readable_ledger import LedgerEntry
from cordwood.client.store import Store
from cordwood.errors import Unreachable
from cordwood.layout.message_ledgers import READ_ENTRIES_MAX, RUN_ENTRIES_MAX

COUNT = 2 * RUN_ENTRIES_MAX + READ_ENTRIES_MAX


async def filled(store: Store, count: int = COUNT) -> int:
    """A closed ledger of so many entries; its number."""
    async with await store.ledgers.create(ensemble=3, write=3, ack=2) as made:
        await made.append_many([b"%d" % number for number in range(count)])
    return made.ledger_id


async def check(store: Store, ledger: int, count: int = COUNT) -> list[int]:
    """Read all of it; the entries of each batch."""
    batches: list[int] = []
    found: list[LedgerEntry] = []
    async for batch in (await store.ledgers.open(ledger)).batches():
        batches.append(len(batch))
        found += batch
    assert [(e.ledger, e.entry, e.payload) for e in found] == [
        (ledger, number, b"%d" % number) for number in range(count)
    ]
    assert found[-1].length == sum(len(each.payload) for each in found)
    return batches


@as_scenario(simulate)
async def test_small_entries_come_by_thousands(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await filled(store)
        assert await check(store, ledger) == [FEW, *2 * [RUN_ENTRIES_MAX], READ_ENTRIES_MAX - FEW]


@as_scenario(simulate)
async def test_what_logs_db_has_and_what_memory_has_are_one_run(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=3)
        for first in range(0, COUNT, COUNT // 4):
            some = range(first, first + COUNT // 4)
            await made.append_many([b"%d" % number for number in some])
            if first < COUNT // 2:
                for node in cluster.running.values():
                    await node.flush()
        await made.close()
        await check(store, made.ledger_id, COUNT)


@pytest.mark.parametrize("away", [1, 2])
@as_scenario(simulate)
async def test_thousands_of_entries_are_read_while_nodes_are_away(
    cluster: ClusterAtHand, *, away: int
) -> None:
    """All of them may be asked of one node then, which takes no more than so many at once."""
    async with cluster.client() as store:
        ledger = await filled(store)
        await asyncio.sleep(1.0)  # the last node has them too
        opened = await store.ledgers.open(ledger)
        for node in opened.metadata.newest.nodes[:away]:
            cluster.machine(node).pause()
        found = [each.payload async for each in opened]
        assert found == [b"%d" % number for number in range(COUNT)]
        for node in opened.metadata.newest.nodes[:away]:
            cluster.machine(node).resume()


@pytest.mark.parametrize("damage", [rot, flip])
@as_scenario(simulate)
async def test_a_damaged_copy_is_read_from_another_node(
    cluster: ClusterAtHand, *, damage: Damage
) -> None:
    ledger = await damaged(cluster, damage, closed=True)
    async with cluster.client() as store:
        opened = await store.ledgers.open(ledger)
        for _ in range(3):  # each read begins with another node
            found = await opened.read(0, DAMAGED + 5)
            assert [each.payload for each in found] == [b"entry %d" % n for n in range(DAMAGED + 6)]


@as_scenario(simulate)
async def test_a_batch_has_about_so_many_bytes_whatever_came_before(
    cluster: ClusterAtHand,
) -> None:
    large = bytes(100_000)
    async with cluster.client() as store:
        async with await store.ledgers.create(ensemble=3, write=3, ack=2) as made:
            await made.append_many([b"small"] * 500 + [large] * 50)
        sizes = []
        async for batch in (await store.ledgers.open(made.ledger_id)).batches():
            sizes.append([len(each.payload) for each in batch])
        assert sum(map(len, sizes)) == 550
        assert max(map(sum, sizes)) <= read_ahead.PART_BYTES


@as_scenario(simulate)
async def test_a_reader_that_stops_leaves_nothing_under_way(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger = await filled(store, (PARTS + 1) * RUN_ENTRIES_MAX)
        before = asyncio.all_tasks()
        batches = (await store.ledgers.open(ledger)).batches()
        await anext(batches)
        assert len(asyncio.all_tasks() - before) == PARTS
        await batches.aclose()
        assert asyncio.all_tasks() - before == set()
        async for _ in await store.ledgers.open(ledger):
            break
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() - before == set()


def made_up(first: int, last: int, size: int) -> list[LedgerEntry]:
    return [LedgerEntry(1, entry, bytes(size), 0) for entry in range(first, last + 1)]


@as_scenario(run)
async def test_parts_are_taken_in_order_whichever_comes_first() -> None:
    under_way = most = 0

    async def read(first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001 * (first % 3))
        under_way -= 1
        return made_up(first, min(last, first + 4), 10_000)

    async with ReadAhead(read, 7) as ahead:
        found: list[int] = []
        while len(found) < 500:
            found += [each.entry for each in await ahead.take(1000)]
    assert found == [*range(7, 7 + len(found))]
    assert most == PARTS


@as_scenario(run)
async def test_what_a_read_raises_is_told_at_its_place(*, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: read_ahead.RUN_ENTRIES_MAX, 10)

    async def read(first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        if first > 30:
            raise Unreachable("no node answers")
        return made_up(first, last, 10)

    async with ReadAhead(read, 0) as ahead:
        assert [len(await ahead.take(100)) for _ in range(3)] == [FEW, 10, 10]
        with pytest.raises(Unreachable, match="no node"):
            await ahead.take(100)


@as_scenario(run)
async def test_nothing_is_read_above_what_is_confirmed() -> None:
    async def read(first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        return made_up(first, last, 10)

    async with ReadAhead(read, 0) as ahead:
        assert [each.entry for each in await ahead.take(2)] == [0, 1, 2]
        assert [each.entry for each in await ahead.take(3)] == [3]
        assert [each.entry for each in await ahead.take(9)] == [*range(4, 10)]


async def nothing(first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
    return []


@as_scenario(run)
async def test_a_read_that_gives_no_entry_is_an_error_that_says_so() -> None:
    async with ReadAhead(nothing, 0) as ahead:
        with pytest.raises(Unreachable, match="no node has a whole copy"):
            await ahead.take(10)
