"""Rebuilding beside a node that lost records of its WAL, also once that loss was accepted.

Envelopes still name it as a holder of what it lost. It may be the first of a copyset, whose blocks
nobody else would give, or a later one, whose word would make another's copy look left over.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until, values
from rebuild_scene import call_lost, copies, healed, lose_disk, missing, order, put_records
from swaps import swap

from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.settings import StorageSettings
from cordwood.sim.damage import damage_wal
from cordwood.sim.stored_file import StoredFile
from cordwood.storage.identity import ACCEPT_LOSS, ACCEPTED
from cordwood.storage.repair.wal_healing import WalHealing

UNFLUSHED = StorageSettings(flush_age_s=3000.0)
"""So that there are records in the WAL that nothing else has."""

# The seeds are chosen for what the WAL has. With the event log's records there, seed 1 hits no
# block.

Block = tuple[int, int]


async def lose_records(cluster: ClusterAtHand, chance: random.Random) -> int:
    """A node's WAL rots while it is down; its number."""
    for node in chance.sample(list(cluster.numbers), len(cluster.numbers)):
        cluster.kill(node)
        hit = damage_wal(cluster.machine(node).disk, chance)
        await cluster.start(node)
        if hit:
            assert cluster.running[node].engine.damage
            return node
    raise AssertionError("no WAL has records that can be hit")


async def accept(cluster: ClusterAtHand, node: int) -> None:
    """As `cordwood nodes accept-loss` asks for it: all others are up, and all logs recovered."""
    for other in cluster.numbers:
        if other != node and cluster.running[other].sequencing:
            cluster.kill(other)
            await cluster.start(other)
    await asyncio.sleep(5)
    await put_records(cluster, logs=2, records=2)
    cluster.kill(node)
    word = StoredFile.holding(ACCEPTED)
    cluster.machine(node).disk.tree.put(f"/node/{ACCEPT_LOSS}", word)
    await cluster.start(node)
    assert not cluster.running[node].engine.damage


async def heal_nothing(healing: WalHealing) -> None:
    """What was lost stays so until somebody accepts it."""


async def lacking(cluster: ClusterAtHand) -> dict[Block, tuple[int, ...]]:
    """The blocks with too few copies, and their copysets."""
    found = await copies(cluster)
    return {place: next(iter(n.values())) for place, n in found.items() if len(n) < 3}


@pytest.mark.slow
@pytest.mark.parametrize("goes", ["first", "last", "drained"])
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_blocks_that_a_node_lost_get_their_copies_with_the_next_loss(
    goes: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is accepted before the node has healed it."""
    swap(monkeypatch, WalHealing.run, heal_nothing)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=2, records=25)
        lost_some = await lose_records(cluster, random.Random(seed))
        await accept(cluster, lost_some)
        short = await lacking(cluster)
        assert short
        copyset = next(iter(short.values()))
        others = [node for node in copyset if node != lost_some]
        leaves = others[0] if goes == "first" else others[-1]
        hurt = [place for place, nodes in short.items() if leaves in nodes]
        if goes == "drained":
            await order(cluster, leaves, RebuildOrder.DRAIN)
            role = cluster.running[lost_some]._rebuild
            await until(lambda: [each.is_empty for each in role.set.lost] == [True])
        else:
            lose_disk(cluster, leaves)
            await call_lost(cluster, leaves)
            cluster.keep_starting(leaves)
            await healed(cluster, timeout_s=60)
        found = await copies(cluster)
        assert [place for place in hurt if len(found[place]) < 3] == []

    simulate(scenario, nodes=5, storage=UNFLUSHED, seed=seed, replicated_events=False)


def test_no_record_is_lost_by_losses_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that was accepted before it was healed, then two disks, each made anew before the
    next thing happens."""
    swap(monkeypatch, WalHealing.run, heal_nothing)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, logs=2, records=25)
        lost_some = await lose_records(cluster, random.Random(1))
        await accept(cluster, lost_some)
        copyset = next(iter((await lacking(cluster)).values()))
        for node in [each for each in copyset if each != lost_some]:
            lose_disk(cluster, node)
            await call_lost(cluster, node)
            cluster.keep_starting(node)
            await healed(cluster, timeout_s=60)
        assert not await missing(cluster)
        async with cluster.client(timeout_s=30) as store:
            for log in (1, 2):
                wanted = [b"%d/%d" % (log, number) for number in [*range(25), 0, 1]]
                assert await values(store, f"log-{log}") == wanted

    simulate(scenario, nodes=5, storage=UNFLUSHED, replicated_events=False)
