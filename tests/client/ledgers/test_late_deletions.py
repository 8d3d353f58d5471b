"""The deletion of a ledger that is not there yet: no ledger with its id is lost or left later."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.errors import CordwoodError, LedgerExists, UnknownLedger
from cordwood.sim.planted import find_bug, planted

E2 = {"ensemble": 2, "write": 2, "ack": 2}


async def a_deletion_that_a_stopped_node_does_late(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=15) as store, cluster.client() as other:
        await other.ledgers.page()
        cluster.machine(1).pause()
        await store.ledgers.delete(777)  # another node answers
        acked = None
        try:
            made = await other.ledgers.create(**E2, ledger=777)
            acked = await made.append_many([b"entry %d" % at for at in range(100)])
            await made.close()
        except LedgerExists:
            pass
        cluster.machine(1).resume()
        await asyncio.sleep(5)
        if acked is not None:
            assert len(await (await other.ledgers.open(777)).read(0, 99)) == len(acked)


async def a_creation_that_is_written_after_the_deletion(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store, cluster.client(timeout_s=2) as slow:
        await store.ledgers.page()
        cluster.metadata.delay_s = (6.0, 6.0)
        making = asyncio.ensure_future(slow.ledgers.create(**E2, ledger=777))
        await asyncio.sleep(0.5)
        cluster.metadata.delay_s = (0.0, 0.0)
        with pytest.raises(CordwoodError):
            await making
        await store.ledgers.delete(777)
        await asyncio.sleep(20)
        with pytest.raises(UnknownLedger):
            await store.ledgers.metadata(777)


async def allot_after_deletions_in_vain(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        for number in range(1000, 1100):
            await store.ledgers.delete(number)
        for number in (*range(130), 200):
            await store.ledgers.delete(number)
        began = asyncio.get_running_loop().time()
        made = [(await store.ledgers.create(**E2)).ledger_id for _ in range(71)]
        assert made == [*range(130, 200), 201]
        assert asyncio.get_running_loop().time() - began < 2


def test_ids_that_were_deleted_in_vain_are_not_allotted() -> None:
    simulate(allot_after_deletions_in_vain, nodes=4, create_logs=False)


SCENES = (
    a_deletion_that_a_stopped_node_does_late,
    a_creation_that_is_written_after_the_deletion,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_no_ledger_is_lost_or_left(scene) -> None:
    simulate(scene, nodes=4, create_logs=False)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_deletion_in_vain_that_leaves_the_id_free_shows(scene) -> None:
    failed = (UnknownLedger, AssertionError, pytest.fail.Exception)
    with planted(find_bug("ledger-deleted-in-vain")), pytest.raises(failed):
        simulate(scene, nodes=4, create_logs=False)
