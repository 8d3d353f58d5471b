"""A log that is kept by size: after each trim its bound is left, and it does not grow past it."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate

from cordwood.block import Gap, GapKind, Record
from cordwood.client.store import Store
from cordwood.log_attributes import LogAttributes
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted

LOG = 1
BOUND = 60_000
STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)


async def write(store: Store, seconds: int) -> None:
    for _ in range(seconds):
        await store.append("log", bytes(1000))
        await asyncio.sleep(1)


async def left_of(store: Store) -> tuple[int, list[GapKind]]:
    """How many records are left, and the gaps before them."""
    found = await read_all(store, "log")
    gaps = [item.kind for item in found if isinstance(item, Gap)]
    return sum(isinstance(item, Record) for item in found), gaps


@pytest.mark.slow
def test_after_each_trim_the_bound_is_left_and_the_log_never_grows_past_it() -> None:
    """Five times the bound comes in, while one node after another starts again."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await store.create_log("log", attributes=LogAttributes(backlog_bytes=BOUND))
            await write(store, 60)
            trims = set()
            for turn in range(1, 6):
                await write(store, 54)
                left, gaps = await left_of(store)
                assert 60 <= left <= 130, turn
                trims |= {node.engine.trim_of(LOG) for node in cluster.running.values()}
                assert max(n.engine.logs.stored_bytes for n in cluster.running.values()) < 170_000
                cluster.kill(turn % 5 + 1)
                await cluster.start(turn % 5 + 1)
            assert gaps[0] is GapKind.TRIM
            assert len(trims) >= 5, "it goes on trimming"

    simulate(scenario, nodes=5, copies=3, racks=2, storage=STORAGE)
    with planted(find_bug("space-is-endless")), pytest.raises(AssertionError):
        simulate(scenario, nodes=5, copies=3, racks=2, storage=STORAGE)
