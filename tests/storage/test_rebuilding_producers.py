"""What a log remembers of producers outlives all disks that are lost one after the other, though no
node holds their blocks any more."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, others, read_all, simulate, values
from rebuild_scene import call_lost, copies, healed, lose_disk
from scenarios import as_scenario
from swaps import swap

from cordwood.block import Record
from cordwood.client.append.producer import Producer
from cordwood.errors import Overloaded, Rejected
from cordwood.layout.message import DoneReply
from cordwood.layout.message_rebuilding import TellProducers
from cordwood.log_attributes import LogAttributes
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.role import StorageRole

PRODUCER = 7


async def lose_disks(cluster: ClusterAtHand, nodes: list[int]) -> None:
    """One after the other; each is made anew, and its node let in, before the next is lost."""
    for node in nodes:
        lose_disk(cluster, node)
        await call_lost(cluster, node)
        cluster.keep_starting(node)
        await healed(cluster)


@as_scenario(simulate, nodes=5)
async def test_no_disk_after_the_other_takes_how_an_epoch_ended(cluster: ClusterAtHand) -> None:
    """The producer wrote into an epoch that is over, and trimmed."""
    async with cluster.client(timeout_s=30) as store:
        stored = await store.append("log", b"once", producer=Producer(PRODUCER))
        before = cluster.sequencer_of(1)
        cluster.kill(before)
        await asyncio.sleep(5)
        last = await store.append("log", b"in the next epoch")
        assert last >> 32 > stored >> 32
        await cluster.start(before)
        await asyncio.sleep(3)
        await store.trim("log", last)
    await lose_disks(cluster, [*others(cluster), cluster.sequencer_of(1)])
    async with cluster.client(timeout_s=30) as store:
        assert await store.append("log", b"once", producer=Producer(PRODUCER)) == stored


@as_scenario(simulate, nodes=5)
async def test_no_disk_after_the_other_takes_who_wrote_into_an_epoch(
    cluster: ClusterAtHand,
) -> None:
    """The epoch goes on: only the nodes that held the block know of the producer."""
    async with cluster.client(timeout_s=30) as store:
        stored = await store.append("log", b"once", producer=Producer(PRODUCER))
        last = await store.append("log", b"another")
        await asyncio.sleep(3)
        (holders,) = {tuple(sorted(nodes)) for nodes in (await copies(cluster)).values()}
        await store.trim("log", last)
    sequencer = cluster.sequencer_of(1)
    await lose_disks(cluster, [*(set(holders) - {sequencer}), *(set(holders) & {sequencer})])
    if sequencer not in holders:
        cluster.kill(sequencer)
        await cluster.start(sequencer)
    async with cluster.client(timeout_s=30) as store:
        assert await store.append("log", b"once", producer=Producer(PRODUCER)) == stored
        assert await store.append("log", b"more", producer=Producer(PRODUCER, 1)) > last


@pytest.mark.slow
def test_what_main_storage_holds_is_not_stored_again() -> None:
    """Nodes let go of it, and readers would read the repeat as another record."""
    moved = LogAttributes(tier=True, local_retention=0, tier_after_s=0)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            await store.create_log("log", attributes=moved)
            stored = await store.append("log", b"once", producer=Producer(PRODUCER))
            await store.append("log", b"another")
            for _ in range(60):
                await asyncio.sleep(1)
                if all(node.engine.gone_of(1) >= stored for node in cluster.running.values()):
                    break
                await store.append("log", b"another")
            assert not any(first == stored for _, first in await copies(cluster))
        await lose_disks(cluster, [*others(cluster), cluster.sequencer_of(1)])
        async with cluster.client(timeout_s=30) as store:
            assert await store.append("log", b"once", producer=Producer(PRODUCER)) == stored
            assert (await values(store, "log")).count(b"once") == 1

    storage = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
    simulate(scenario, nodes=5, storage=storage, tier=TierSettings(BUCKET, look_s=1.0))


@as_scenario(simulate, nodes=5)
async def test_no_disk_after_the_other_has_append_time_fall(cluster: ClusterAtHand) -> None:
    """The clock of the node that sequenced was ahead, and no block is left to say so."""
    hour_us = 3_600_000_000
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"1")
        sequencer = cluster.sequencer_of(1)
        cluster.machine(sequencer).clock.step(hour_us)
        last = await store.append("log", b"2")
        found = await store.tail_attributes("log")
        await asyncio.sleep(3)
        await store.trim("log", last)
        cluster.machine(sequencer).clock.step(-hour_us)
    await lose_disks(cluster, [*others(cluster), sequencer])
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"3")
        (item,) = [each for each in await read_all(store, "log") if isinstance(each, Record)]
    assert item.append_time_us >= found.append_time_us


@as_scenario(simulate, nodes=5)
async def test_what_was_told_outlives_a_start_of_the_node(cluster: ClusterAtHand) -> None:
    """It is in the WAL, and in what a flush writes."""
    async with cluster.client(timeout_s=30) as store:
        stored = await store.append("log", b"once", producer=Producer(PRODUCER))
        last = await store.append("log", b"another")
        await asyncio.sleep(3)
        (holders,) = {tuple(sorted(nodes)) for nodes in (await copies(cluster)).values()}
        await store.trim("log", last)
    stranger = next(n for n in cluster.running if n not in holders)
    await lose_disks(cluster, [next(n for n in holders if n != cluster.sequencer_of(1))])

    def known() -> list[int]:
        log = cluster.running[stranger].engine.cache.log(1)
        return [place.first for each in log.wrote_in(1) for place in each.places]

    assert known() == [stored]
    for end in (cluster.kill, cluster.stop):
        stopped = end(stranger)
        if stopped is not None:
            await stopped
        await cluster.start(stranger)
        assert known() == [stored]


def test_a_node_that_refuses_one_log_is_told_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trim points, too: perhaps nobody who is left knows them."""

    async def refuse(self: StorageRole, call: TellProducers) -> DoneReply:
        raise Rejected("this is not believed")

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            for log in ("a", "b"):
                last = await store.append(log, b"1", producer=Producer(PRODUCER))
                await asyncio.sleep(2)
                await store.trim(log, last)
        swap(monkeypatch, StorageRole.tell_producers, refuse)
        await lose_disks(cluster, [1, 2])
        assert all(cluster.running[1].engine.trim_of(log) for log in (1, 2))

    simulate(scenario, nodes=5)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["", "refused-not-told-again"])
def test_nodes_that_refuse_for_a_while_are_told_again(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """All WALs were full for some seconds as a donor was done. It reported that, and its own disk
    was lost next."""
    is_full = False
    right = StorageRole.tell_producers

    async def refuse(self: StorageRole, call: TellProducers) -> DoneReply:
        if is_full:
            raise Overloaded("the WAL is full")
        return await right(self, call)

    async def scenario(cluster: ClusterAtHand) -> None:
        nonlocal is_full
        async with cluster.client(timeout_s=30) as store:
            stored = await store.append("log", b"once", producer=Producer(PRODUCER))
            before = cluster.sequencer_of(1)
            cluster.kill(before)
            await asyncio.sleep(5)
            last = await store.append("log", b"in the next epoch")
            await cluster.start(before)
            await asyncio.sleep(3)
            await store.trim("log", last)
        swap(monkeypatch, StorageRole.tell_producers, refuse)
        for node in [*others(cluster), cluster.sequencer_of(1)]:
            is_full = True
            lose_disk(cluster, node)
            await call_lost(cluster, node)
            await asyncio.sleep(10)
            is_full = False
            cluster.keep_starting(node)
            await healed(cluster)
        async with cluster.client(timeout_s=30) as store:
            again = await store.append("log", b"once", producer=Producer(PRODUCER))
        assert (again == stored) is not bool(bug)

    with planted(find_bug(bug)) if bug else nullcontext():
        simulate(scenario, nodes=5)


def test_the_planted_bug_is_caught() -> None:
    """Donors that say nothing of producers: a repeat is stored a second time."""
    with planted(find_bug("producers-untold")), pytest.raises(AssertionError):
        test_no_disk_after_the_other_takes_how_an_epoch_ended()
