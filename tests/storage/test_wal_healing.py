"""A node whose WAL lost records is healed from the others, in whole clusters in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import missing, put_records
from scenarios import as_scenario
from swaps import swap

from cordwood.errors import OutcomeUnknown
from cordwood.layout.message_rebuilding import AskRebuilding, RebuildingReply
from cordwood.protocol.repair_plan import RepairPlan
from cordwood.protocol.wal_heal import is_settled
from cordwood.settings import StorageSettings
from cordwood.sim.damage import damage_wal
from cordwood.storage.repair import wal_healing
from cordwood.storage.repair.repairs import Repairs

UNFLUSHED = StorageSettings(flush_age_s=3600.0, flush_quiet_s=60.0, scrub_bytes_s=0)


async def rot_wal(cluster: ClusterAtHand, node: int, seed: int) -> None:
    """A node stops, some durable records of its WAL rot, and it starts again."""
    cluster.kill(node)
    assert damage_wal(cluster.machine(node).disk, random.Random(seed))
    await cluster.start(node)
    assert cluster.running[node].engine.damage


async def knows_again(cluster: ClusterAtHand, node: int, *, timeout_s: float = 60) -> None:
    await until(lambda: not cluster.running[node].engine.damage, timeout_s=timeout_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_a_node_is_healed_within_five_seconds_and_knows_what_it_holds(
    cluster: ClusterAtHand, *, seed: int
) -> None:
    await put_records(cluster)
    await rot_wal(cluster, 2, seed)
    await knows_again(cluster, 2, timeout_s=5)
    assert not await missing(cluster)
    assert (await cluster.running[2].engine.seal(1, 99, 1)).is_sure
    cluster.kill(2)
    await cluster.start(2)
    assert not cluster.running[2].engine.damage, "a restart finds nothing lost any more"
    async with cluster.client() as store:
        for log in (1, 2, 3):
            wanted = [b"%d/%d" % (log, number) for number in range(20)]
            assert await values(store, f"log-{log}") == wanted


@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_a_read_only_node_is_healed_too(cluster: ClusterAtHand) -> None:
    """It takes no records, and its silence proved nothing until it took some again."""
    await put_records(cluster)
    async with cluster.client() as store:
        await store.set_storage(2, read_only=True)
    await asyncio.sleep(2)
    await rot_wal(cluster, 2, 1)
    await until(lambda: bool(cluster.running[2].engine.read_only))
    await knows_again(cluster, 2)
    assert not await missing(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_what_rots_after_a_healing_is_found_and_healed_too(
    cluster: ClusterAtHand, *, seed: int
) -> None:
    """A healing that took all of the WAL for healed hid what rotted there later: the node served,
    and lacked blocks that it should have (seed 1 of the scenario WAL_LOST)."""
    for turn in range(3):
        await put_records(cluster)
        await rot_wal(cluster, 2, 10 * seed + turn)
        await knows_again(cluster, 2)
        assert not await missing(cluster)


@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_it_is_told_while_it_goes_on(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    others = [3, 4, 5]
    for node in others:
        cluster.kill(node)
    await rot_wal(cluster, 2, 1)
    await asyncio.sleep(20)
    reply = await cluster.running[2]._rebuild.answer(AskRebuilding())
    assert isinstance(reply, RebuildingReply)
    assert "cannot be read" in reply.heal.lost
    assert reply.heal.logs_left == 3
    assert reply.heal.waits.startswith("log 1: ")
    for node in others:
        await cluster.start(node)
    await knows_again(cluster, 2, timeout_s=120)
    reply = await cluster.running[2]._rebuild.answer(AskRebuilding())
    assert isinstance(reply, RebuildingReply)
    assert reply.heal.lost == ""


@pytest.mark.slow
@as_scenario(simulate, nodes=1, copies=1, racks=1, storage=UNFLUSHED)
async def test_a_store_of_one_node_has_nobody_to_be_healed_from(cluster: ClusterAtHand) -> None:
    await put_records(cluster, logs=1)
    await rot_wal(cluster, 1, 1)
    await asyncio.sleep(300)
    assert cluster.running[1].engine.damage


@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_two_nodes_that_lost_records_are_healed_from_the_others(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    await rot_wal(cluster, 2, 1)
    await rot_wal(cluster, 3, 2)
    await knows_again(cluster, 2)
    await knows_again(cluster, 3)
    assert not await missing(cluster)


@pytest.mark.slow
@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_appends_go_on_meanwhile(cluster: ClusterAtHand) -> None:
    await put_records(cluster)
    acked: list[bytes] = []

    async def append() -> None:
        async with cluster.client(timeout_s=30) as store:
            for number in itertools.count():
                value = b"more/%d" % number
                with contextlib.suppress(OutcomeUnknown):
                    await store.append("log-1", value)
                    acked.append(value)

    async with asyncio.TaskGroup() as tasks:
        appending = tasks.create_task(append())
        await asyncio.sleep(1)
        await rot_wal(cluster, 2, 3)
        await knows_again(cluster, 2, timeout_s=30)
        appending.cancel()
    await asyncio.sleep(2)
    assert not await missing(cluster)
    async with cluster.client() as store:
        found = await values(store, "log-1")
    assert [value for value in found if value in set(acked)] == acked


@as_scenario(simulate, nodes=5, storage=UNFLUSHED)
async def test_a_log_that_was_begun_and_never_written_keeps_nobody_waiting(
    cluster: ClusterAtHand,
) -> None:
    await put_records(cluster)
    async with cluster.client() as store:
        await store.create_log("empty", copies=3)
        await store.tail("empty")
        await rot_wal(cluster, 2, 1)
        await knows_again(cluster, 2)


@pytest.mark.parametrize("waits", ["its end is not settled yet", "a node does not say"])
def test_a_log_that_is_deleted_meanwhile_keeps_nobody_waiting(
    waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tier seed 9620257: its end was to be settled by a sequencer that never came again. Seed
    9810639: a node was to learn how its epochs ended, and nobody told it."""

    async def restore(self: Repairs, log: int, first: int, last: int) -> RepairPlan:
        return RepairPlan(first, (), False, waits)

    async def scenario(cluster: ClusterAtHand) -> None:
        if waits == "a node does not say":
            swap(monkeypatch, Repairs.restore, restore)
        else:
            swap(monkeypatch, is_settled, lambda bound, readable: False, within=wal_healing)
        await put_records(cluster, logs=1)
        await rot_wal(cluster, 2, 1)
        healing = cluster.running[2]._healing
        await until(lambda: healing.state().waits.endswith(waits))
        async with cluster.client() as store:
            await store.log_tree.delete("log-1")
        await knows_again(cluster, 2)

    simulate(scenario, nodes=5, storage=UNFLUSHED)
