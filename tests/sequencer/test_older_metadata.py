"""An older copy of the metadata store was put back: no epoch begins a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from cluster_at_hand import ClusterAtHand, at, simulate, until, values

from cordwood.lsn import Lsn
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.store import Versioned
from cordwood.sim.planted import find_bug, planted

FLUSHED_S = 300
"""By then the blocks are in LogsDB alone."""


def copied(cluster: ClusterAtHand) -> dict[str, Versioned]:
    return dict(cluster.metadata.data.values)


def put_back(cluster: ClusterAtHand, older: Mapping[str, Versioned]) -> None:
    data = cluster.metadata.data
    data.values.clear()
    data.values.update(older)
    data.tell_watches()


async def restart_with(cluster: ClusterAtHand, older: Mapping[str, Versioned]) -> None:
    for node in cluster.numbers:
        await cluster.stop(node)
    put_back(cluster, older)
    await cluster.start()


async def append(cluster: ClusterAtHand, *those: bytes, log: str = "log") -> list[Lsn]:
    async with cluster.client(timeout_s=30) as store:
        return [await store.append(log, value) for value in those]


async def found(cluster: ClusterAtHand, log: str = "log") -> list[bytes]:
    async with cluster.client(timeout_s=30) as store:
        return await values(store, log)


async def with_a_second_epoch(cluster: ClusterAtHand) -> dict[str, Versioned]:
    """Epoch 2 of log 1 has two records. Returns the metadata store as of epoch 1."""
    await append(cluster, b"1")
    await asyncio.sleep(2)
    older, first = copied(cluster), cluster.sequencer_of(1)
    await cluster.stop(first)
    await cluster.start(first)
    assert await append(cluster, b"2", b"3") == [at(1, 2), at(2, 2)]
    return older


async def all_nodes_start_with_it(cluster: ClusterAtHand, rest_s: float = 1) -> list[bytes]:
    older = await with_a_second_epoch(cluster)
    await asyncio.sleep(rest_s)
    is_cached = [bool(node.engine.cache.log(1).last) for node in cluster.running.values()]
    assert is_cached == [rest_s < FLUSHED_S] * 3
    await restart_with(cluster, older)
    await append(cluster, b"4", b"5")
    return await found(cluster)


@pytest.mark.parametrize("rest_s", [1, FLUSHED_S])
def test_the_records_of_both_are_read(rest_s: float) -> None:
    """The new sequencer began epoch 2 again, and gave its LSNs to other records."""
    read = simulate(lambda cluster: all_nodes_start_with_it(cluster, rest_s))
    assert read == [b"1", b"2", b"3", b"4", b"5"]


def test_an_epoch_that_begins_again_hides_acknowledged_records() -> None:
    with planted(find_bug("epoch-begun-again")):
        assert simulate(all_nodes_start_with_it) == [b"1", b"2", b"3"]


def test_records_that_are_trimmed_count() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        older = await with_a_second_epoch(cluster)
        async with cluster.client(timeout_s=30) as store:
            await store.trim("log", at(2, 2))
        await asyncio.sleep(FLUSHED_S)
        await restart_with(cluster, older)
        assert await append(cluster, b"4") == [at(1, 3)]
        assert await found(cluster) == [b"4"]

    simulate(scenario)


async def the_nodes_go_on_with_it(cluster: ClusterAtHand) -> list[bytes]:
    """The sequencer of epoch 2 notes in the older copy that epoch 1 is recovered."""
    put_back(cluster, await with_a_second_epoch(cluster))
    await asyncio.sleep(1)
    record = await EpochStore(cluster.metadata).read(1)
    assert record is not None
    assert (record.next_epoch, record.clean_epoch, record.clean_seal) == (2, 1, 2)
    cluster.kill(cluster.sequencer_of(1))
    await append(cluster, b"4", b"5")
    return await found(cluster)


def test_the_sequencer_of_before_goes_on_for_a_while() -> None:
    """Epoch 1 was recovered, so nothing was sealed for the epoch above it."""
    read = simulate(the_nodes_go_on_with_it, copies=2)
    assert read == [b"1", b"2", b"3", b"4", b"5"]


def test_an_epoch_that_has_recovered_others_and_is_taken_again_is_caught() -> None:
    with planted(find_bug("shown-epoch-taken")):
        assert simulate(the_nodes_go_on_with_it, copies=2) == [b"1", b"2", b"3"]


def test_the_records_are_on_nodes_that_the_copy_does_not_name() -> None:
    """The nodes that it names heard of the release of the later epoch."""

    async def scenario(cluster: ClusterAtHand) -> list[bytes]:
        await append(cluster, b"1")
        cluster.weights.update({4: 0, 5: 0, 6: 0})
        cluster.add_nodes(3)
        await cluster.start(4, 5, 6)
        await asyncio.sleep(5)
        older = copied(cluster)
        cluster.weights.update({1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1})
        for node in cluster.numbers:
            await cluster.stop(node)
            await cluster.start(node)
            await asyncio.sleep(3)
        assert await append(cluster, b"2") == [at(1, 2)]
        assert [cluster.running[node].engine.sealed(1) for node in cluster.numbers[3:]] == [0] * 3
        await asyncio.sleep(1)
        await restart_with(cluster, older)
        await append(cluster, b"3")
        return await found(cluster)

    assert simulate(scenario, copies=2) == [b"1", b"2", b"3"]


async def a_first_epoch_is_forgotten(cluster: ClusterAtHand) -> list[bytes]:
    await append(cluster, b"other", log="other")
    older = copied(cluster)
    assert await append(cluster, b"1", b"2") == [at(1), at(2)]
    await restart_with(cluster, older)
    await append(cluster, b"3", b"4", b"5")
    return await found(cluster)


def test_a_first_epoch_does_not_begin_again_either() -> None:
    """Nothing is sealed for it: the nodes that are told its nodeset look for records."""
    assert simulate(a_first_epoch_is_forgotten) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_first_epoch_that_begins_again_hides_acknowledged_records() -> None:
    with planted(find_bug("first-epoch-begun-again")):
        assert simulate(a_first_epoch_is_forgotten) == [b"1", b"2", b"5"]


def test_a_first_epoch_that_waits_for_nodes_is_not_taken_for_an_old_one() -> None:
    """A node that was told its nodeset in vain knows no record."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await append(cluster, b"other", log="other")
        role = cluster.running[cluster.sequencer_of(1)]._sequencer
        away = [node for node in cluster.numbers if node != cluster.sequencer_of(1)]
        for node in away:
            cluster.kill(node)
        appending = asyncio.create_task(append(cluster, b"1"))
        await until(lambda: bool(role._table._activation._taken))
        await asyncio.sleep(5)
        await cluster.start(*away)
        assert await appending == [at(1)]

    simulate(scenario)
