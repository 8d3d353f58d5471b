"""A log with `tier=off` keeps what main storage has of it; trims and retention hold for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cluster_at_hand import BUCKET, ClusterAtHand, read_all, simulate, until, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind
from cordwood.client.store import Store
from cordwood.log_attributes import LogAttributes
from cordwood.settings import StorageSettings, TierSettings
from cordwood.sim.planted import find_bug, planted

STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)
TENDED = TierSettings(BUCKET, look_s=1.0, tend_s=3.0, grace_s=5.0)
TIERED = LogAttributes(tier=True, local_retention=0, tier_after_s=0)
OFF = LogAttributes(tier=False)


def objects(cluster: ClusterAtHand) -> list[str]:
    return [name for name in cluster.bucket.names() if name.endswith(".parquet")]


async def write_and_switch_off(
    cluster: ClusterAtHand, store: Store, asks: LogAttributes
) -> list[bytes]:
    """A log of which all nodes let go, and which asks for main storage no more."""
    await store.create_log("log", attributes=asks)
    written = [b"%d" % n for n in range(30)]
    for value in written:
        last = await store.append("log", value)
        await asyncio.sleep(0.3)
    await until(lambda: min(node.engine.gone_of(1) for node in cluster.running.values()) >= last)
    await store.log_tree.set_attributes("log", OFF)
    return written


async def is_trimmed(store: Store) -> bool:
    return [item.kind for item in await read_all(store, "log") if isinstance(item, Gap)] == [
        GapKind.TRIM
    ] and not await values(store, "log")


@as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
async def test_it_is_read_and_once_it_is_trimmed_its_objects_go(cluster: ClusterAtHand) -> None:
    """They stayed for good: whoever may read the store went on reading them."""
    async with cluster.client() as store:
        written = await write_and_switch_off(cluster, store, TIERED)
        await asyncio.sleep(20)
        assert objects(cluster)
        assert await values(store, "log") == written
        await store.trim("log", "tail")
        await until(lambda: not objects(cluster))
        assert await is_trimmed(store)


@as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
async def test_retention_goes_on(cluster: ClusterAtHand) -> None:
    """Nodes hold nothing of the log, so none of them would trim it."""
    async with cluster.client() as store:
        await write_and_switch_off(cluster, store, LogAttributes(backlog_s=30).over(TIERED))
        await asyncio.sleep(60)
        assert await is_trimmed(store)
        assert not objects(cluster)


@pytest.mark.slow
@as_scenario(simulate, nodes=3, storage=STORAGE, tier=TENDED)
async def test_so_it_does_where_all_nodes_start_again(cluster: ClusterAtHand) -> None:
    """No log asks for main storage by then: nodes know by what they let go of that it is used."""
    async with cluster.client() as store:
        await write_and_switch_off(cluster, store, TIERED)
        for node in cluster.numbers:
            await cluster.stop(node)
            await cluster.start(node)
        await store.trim("log", "tail")
        await until(lambda: not objects(cluster))


@pytest.mark.slow
def test_the_planted_bug_is_caught() -> None:
    with planted(find_bug("tier-off-is-forgotten")), pytest.raises(TimeoutError):
        test_it_is_read_and_once_it_is_trimmed_its_objects_go()


QUICK = replace(STORAGE, deleted_keep_s=30)


@pytest.mark.parametrize("is_deleted", [True, False])
@as_scenario(simulate, nodes=3, storage=QUICK, tier=TENDED)
async def test_after_a_restart_the_last_logs_objects_are_tended(
    cluster: ClusterAtHand, *, is_deleted: bool
) -> None:
    """No node let go of anything, and no log asked for main storage any more: nobody looked."""
    async with cluster.client() as store:
        kept = LogAttributes(tier=True, local_retention=1000, tier_after_s=0)
        await store.create_log("log", attributes=kept)
        for number in range(10):
            await store.append("log", b"%d" % number)
            await asyncio.sleep(0.3)
        await until(lambda: objects(cluster))
        await asyncio.sleep(5)
        if is_deleted:
            await store.log_tree.delete("log")
        else:
            await store.log_tree.set_attributes("log", OFF)
            await store.trim("log", "tail")
        # Before a pass sees it.
        for number in list(cluster.running):
            await cluster.stop(number)
        await cluster.start()
        assert objects(cluster)
        await until(lambda: not objects(cluster))
