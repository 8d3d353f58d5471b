"""Seals from far above: what they cost is bounded by what is held, and they must be true."""

from __future__ import annotations

import asyncio
import random

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from made_blocks import LOG, Made, run
from scenarios import as_scenario

from cordwood.client.append.producer import Producer
from cordwood.errors import Rejected
from cordwood.layout.message import Seal, SealReply
from cordwood.lsn import EPOCH_MAX, make_lsn
from cordwood.metadata.epoch_store import JUMP_MAX, EpochStore
from cordwood.metadata.memory import MemoryMetadata
from cordwood.nodes import NodeId, Replication
from cordwood.storage.unheard import SEAL_AHEAD_MAX


def test_an_answer_tells_of_the_epochs_that_are_held_and_no_others() -> None:
    """One number from outside used to make a table of four billion epochs."""

    async def scenario() -> SealReply:
        made = await Made.new()
        made.engine.release(LOG, make_lsn(3, 9))
        return await made.engine.seal(LOG, EPOCH_MAX, 0)

    assert run(scenario) == SealReply({3: make_lsn(3, 9)}, 0, begun=3)


@as_scenario(simulate)
async def test_a_seal_that_was_never_handed_out_is_refused_and_the_log_goes_on(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        number = next(n for n in cluster.running if n != cluster.sequencer_of(1))
        role = cluster.running[number]._storage
        with pytest.raises(Rejected, match="has handed out none above 1"):
            await role.seal(Seal(1, EPOCH_MAX, 0))
        assert cluster.running[number].engine.sealed(1) <= 1
        await store.append("log", b"2")
        assert await values(store, "log") == [b"1", b"2"]


@pytest.mark.slow
@as_scenario(simulate)
async def test_seals_lead_no_further_one_after_the_other(cluster: ClusterAtHand) -> None:
    """Each was measured from the one before. The fifth was so far above the metadata store that
    no sequencer could pass over it: the log was lost for good."""
    async with cluster.client(timeout_s=60) as store:
        await store.append("log", b"1")
        number = next(n for n in cluster.running if n != cluster.sequencer_of(1))
        role = cluster.running[number]._storage
        await role.seal(Seal(1, SEAL_AHEAD_MAX, 0))
        with pytest.raises(Rejected, match="has handed out none above"):
            await role.seal(Seal(1, 2 * SEAL_AHEAD_MAX, 0))
        assert cluster.running[number].engine.sealed(1) == SEAL_AHEAD_MAX
        await asyncio.sleep(1)
        await store.append("log", b"2", producer=Producer(7))
        assert (await store.append("log", b"3")).epoch > SEAL_AHEAD_MAX


@as_scenario(simulate)
async def test_an_activation_goes_above_the_seal_that_it_is_told(cluster: ClusterAtHand) -> None:
    """It used to take one epoch after the other, and nobody could append or read meanwhile."""
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"1")
        old = cluster.sequencer_of(1)
        cluster.kill(old)
        await cluster.start(old)
        for node in cluster.running.values():
            await node._storage.seal(Seal(1, 40, 0))
        assert (await store.append("log", b"2")).epoch == 41
        record = await EpochStore(cluster.metadata).read(1)
        assert record is not None
        assert record.next_epoch == 42
        while record.clean_epoch < 40:
            await asyncio.sleep(0.1)
            record = await EpochStore(cluster.metadata).read(1)
            assert record is not None
        assert await values(store, "log") == [b"1", b"2"]


@pytest.mark.parametrize(
    ("above", "epoch"), [(0, 1), (1, 2), (40, 41), (JUMP_MAX, JUMP_MAX + 1), (JUMP_MAX + 2, None)]
)
def test_epochs_are_passed_over_as_far_as_is_sane(above: int, epoch: int | None) -> None:
    async def scenario() -> int | None:
        epochs = EpochStore(MemoryMetadata(random.Random(1)))
        await epochs.create(1, [NodeId(1)], Replication(1, 1))
        try:
            return (await epochs.take_epoch(1, above=above))[0]
        except Rejected:
            return None

    assert asyncio.run(scenario()) == epoch


def test_what_a_node_does_not_ask_about_activations_pass_over() -> None:
    assert SEAL_AHEAD_MAX < JUMP_MAX
