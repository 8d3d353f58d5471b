"""An older copy of the metadata store does not know that a ledger is in main storage, and the
ledger's objects are the only copies. They stay, so that a newer copy gives the entries again."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, simulate, until

from cordwood.errors import Unreachable
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted

TIER = TierSettings(BUCKET, tend_s=1.0, grace_s=10.0, ledger_keep_s=5.0)
COUNT = 50


async def put_back(cluster: ClusterAtHand, values: dict) -> None:
    """Stop all nodes, put a copy of the metadata back, and start them again."""
    for number in sorted(cluster.running):
        cluster.kill(number)
    await asyncio.sleep(1)
    data = cluster.metadata.data
    data.values.clear()
    data.values.update(values)
    data.tell_watches()
    for number in cluster.numbers:
        cluster.keep_starting(number)
    await until(lambda: len(cluster.running) == len(cluster.numbers))


async def an_older_copy_is_put_back(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=2, tier=True)
        other = await store.ledgers.create(ensemble=3, write=3, ack=2, tier=True)
        await other.append(b"x")  # it has an attempt in the older copy
        await other.close()
        await made.append_many([b"%d" % at for at in range(COUNT)])
        await made.close()
        number = made.ledger_id
        older = dict(cluster.metadata.data.values)
        await asyncio.sleep(60)
        assert (await store.ledgers.metadata(number)).is_tiered
        newer = dict(cluster.metadata.data.values)
    await put_back(cluster, older)
    async with cluster.client() as store:
        await asyncio.sleep(100)
        found = await store.ledgers.metadata(number)
        assert found.tier is not None, "another attempt has begun"
        assert not found.is_tiered
        with pytest.raises(Unreachable):
            await (await store.ledgers.open(number)).read(0, COUNT - 1)
    await put_back(cluster, newer)
    async with cluster.client() as store:
        assert len(await (await store.ledgers.open(number)).read(0, COUNT - 1)) == COUNT


def run() -> None:
    simulate(
        an_older_copy_is_put_back, nodes=4, create_logs=False, tier=TIER,
        storage=StorageSettings(flush_age_s=1.0),
    )  # fmt: skip


def test_the_only_copies_stay() -> None:
    run()


@pytest.mark.slow
def test_a_finished_attempt_that_counts_as_abandoned_shows() -> None:
    with planted(find_bug("ledger-tier-collects-finished")), pytest.raises(Unreachable):
        run()
