"""A node's WAL keeps to the budget that its settings name."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.settings import StorageSettings

IOPS = 50
APPENDS = 100


async def appended(cluster: ClusterAtHand) -> tuple[float, int]:
    """Seconds that appends take that each wait for the one before, and the WAL's writes."""
    async with cluster.client() as store:
        await store.append("log", b"the first finds its sequencer")
        wal = cluster.running[1].engine.wal
        writes, began = wal.device_counts[0], asyncio.get_running_loop().time()
        for _ in range(APPENDS):
            await store.append("log", b"value")
        seconds = asyncio.get_running_loop().time() - began
        return seconds, wal.device_counts[0] - writes


def run_with(wal_budget: str) -> tuple[float, int]:
    storage = StorageSettings(wal_budget=wal_budget)
    return simulate(appended, nodes=1, copies=1, storage=storage)


@pytest.mark.parametrize("budget", [f"{IOPS},125", f"{100 * IOPS},{IOPS * 4096 / 2**20}"])
def test_it_writes_no_more_a_second_than_it_may(budget: str) -> None:
    seconds, writes = run_with(budget)
    assert writes >= APPENDS
    burst = IOPS / 10 + 1
    assert writes <= IOPS * seconds + burst
    assert writes > 0.9 * IOPS * seconds, "and no less"


def test_without_a_budget_it_writes_as_fast_as_the_disk_does() -> None:
    seconds, writes = run_with("")
    assert writes >= APPENDS
    assert writes > 4 * IOPS * seconds
