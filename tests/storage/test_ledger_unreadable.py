"""One ledger whose metadata cannot be read: the work on all others goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate
from rebuild_scene import call_lost, lose_disk
from scenarios import as_scenario

from cordwood.admin import ledger_autorecovery
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.errors import ChecksumMismatch, Corrupt, LedgerFenced, OutcomeUnknown
from cordwood.layout.ledger_metadata import ledger_key
from cordwood.layout.object_names import LEDGERS
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted

TIER = TierSettings(
    BUCKET, look_s=1.0, tend_s=1.0, grace_s=5.0, ledger_keep_s=3.0, ledger_bytes_s=1 << 30
)
QUICK = StorageSettings(flush_age_s=0.5, retention_every_s=1.0)


async def closed(store: Store, *, tier: bool = False) -> WritableLedger:
    made = await store.ledgers.create(ensemble=3, write=3, ack=2, tier=tier)
    await made.append_many([b"one", b"two"])
    await made.close()
    return made


def damage(cluster: ClusterAtHand, ledger: int) -> None:
    """A byte of the ledger's value changes."""
    values, key = cluster.metadata.data.values, f"ledgers/{ledger_key(ledger)}"
    value = bytearray(values[key].value)
    value[-1] ^= 1
    values[key] = replace(values[key], value=bytes(value))


async def a_node_is_lost_beside_it(cluster: ClusterAtHand) -> None:
    """Nobody marked a ledger, and none had its copies made anew."""
    async with cluster.client() as store:
        damaged, made = await closed(store), await closed(store)
        damage(cluster, damaged.ledger_id)
        lost = made.metadata.newest.nodes[0]
        lose_disk(cluster, lost)
        await call_lost(cluster, lost)
        await asyncio.sleep(200)
        assert lost not in (await store.ledgers.metadata(made.ledger_id)).newest.nodes
        assert (await store.ledgers.check(made.ledger_id)).is_whole


@pytest.mark.slow
def test_lost_copies_of_others_are_made_anew() -> None:
    simulate(a_node_is_lost_beside_it, nodes=5)


@pytest.mark.slow
def test_an_auditor_that_stops_there_is_caught() -> None:
    with planted(find_bug("ledger-unreadable-stops-all")), pytest.raises(AssertionError):
        simulate(a_node_is_lost_beside_it, nodes=5)


@pytest.mark.slow
@as_scenario(simulate)
async def test_copies_of_others_are_checked(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        damaged = await closed(store)
        for _ in range(3 * ledger_autorecovery.CHECKED_A_LOOK):
            await closed(store)
        damage(cluster, damaged.ledger_id)
        await asyncio.sleep(400)
        checked = [node._ledgers._autorecovery.checked for node in cluster.running.values()]
        assert max(checked) >= 3 * ledger_autorecovery.CHECKED_A_LOOK


@as_scenario(simulate, nodes=4, tier=TIER, storage=QUICK)
async def test_others_go_to_main_storage_and_their_objects_are_collected(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        damaged = (await closed(store, tier=True)).ledger_id
        await asyncio.sleep(5)
        assert (await store.ledgers.metadata(damaged)).is_tiered
        damage(cluster, damaged)
        number, deleted = [(await closed(store, tier=True)).ledger_id for _ in range(2)]
        await asyncio.sleep(15)
        for node in cluster.running.values():
            held = node.engine.ledgers.held.get(number)
            assert held is None or held.flags.is_empty
        await store.ledgers.delete(deleted)
        await asyncio.sleep(20)
        left = {int(name.removeprefix(LEDGERS)[:16], 16) for name in cluster.bucket.names()
                if name.startswith(LEDGERS)}  # fmt: skip
        assert left == {damaged, number}, "of the damaged one nobody knows what counts"


@as_scenario(simulate)
async def test_it_is_named_and_can_be_deleted(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=5) as store:
        damaged = (await closed(store)).ledger_id
        damage(cluster, damaged)
        for call in (store.ledgers.open, store.ledgers.recover, store.ledgers.check):
            with pytest.raises(ChecksumMismatch, match=f"ledger {damaged}: the metadata"):
                await call(damaged)
        await store.ledgers.delete(damaged)
        assert [each async for each in store.ledgers.list()] == []


@as_scenario(simulate)
async def test_a_node_that_lost_records_does_not_leave_it_out(cluster: ClusterAtHand) -> None:
    """It may name this node, whose missing entries would count as absent."""
    async with cluster.client() as store:
        damage(cluster, (await closed(store)).ledger_id)
        with pytest.raises(Corrupt):
            await cluster.running[1]._ledgers.note_loss(is_anew=False)


@as_scenario(simulate, nodes=5)
async def test_its_writer_ends_once_it_has_to_change_the_metadata(cluster: ClusterAtHand) -> None:
    """It tried five times a second, until its client closed."""
    async with cluster.client(timeout_s=30) as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=3)
        await made.append(b"one")
        damage(cluster, made.ledger_id)
        cluster.kill(made.metadata.newest.nodes[0])
        with pytest.raises(OutcomeUnknown, match="cannot be changed"):
            await made.append(b"two")
        assert made.is_ended
        with pytest.raises(LedgerFenced, match="cannot be changed"):
            await made.close()
