"""Nodes with WALs of different sizes: what the smallest can never store is not numbered."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import RecordTooLarge
from cordwood.settings import MIB, StorageSettings

LARGE = 16 * MIB
SMALL = {3: MIB}
"""Its WAL takes records of half a megabyte; the others' take eight."""


async def append(store: Store, size: int, kind: str) -> None:
    if kind == "block":
        await store.append("a", os.urandom(size))
    else:
        await store.append_many("a", [os.urandom(size // 20)] * 20, atomic=kind == "group")


@pytest.mark.parametrize("kind", ["block", "run", "group"])
@as_scenario(simulate, wal_bytes=LARGE, wals=SMALL)
async def test_a_log_takes_on_appends_where_one_was_too_large_for_its_smallest_node(
    cluster: ClusterAtHand, *, kind: str
) -> None:
    """It was numbered, no wave of it was stored, and every append behind it was refused for
    good: also by the next sequencer, whose recovery stored it again."""
    async with cluster.client(codec="none") as store:
        with pytest.raises(RecordTooLarge):
            await append(store, 800_000, kind)
        await append(store, 200_000, kind)
        await store.append("a", b"behind it")
        sequencer = cluster.sequencer_of(1)
        cluster.kill(sequencer)
        await cluster.start(sequencer)
        assert (await values(store, "a"))[-1] == b"behind it"


@as_scenario(simulate, wal_bytes=LARGE, wals=SMALL)
async def test_many_small_blocks_make_no_run_that_the_smallest_node_cannot_store(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(codec="none", block_records=1) as store:
        await store.append_many("a", [os.urandom(20_000)] * 100)
        assert len(await values(store, "a")) == 100


@pytest.mark.parametrize(
    "options",
    [
        {"wal_bytes": LARGE, "wals": SMALL},
        {"wal_bytes": LARGE, "storage": StorageSettings(cache_bytes=2 * MIB, flush_bytes=MIB)},
    ],
    ids=["a smaller WAL", "small caches"],
)
def test_a_batch_that_no_group_holds_is_refused_before_its_commit(options: dict[str, Any]) -> None:
    """It was committed, and each publish of the query ended as unknown from then on."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(codec="none") as store:
            records = [[os.urandom(60_000) for _ in range(3)] for _ in range(14)]
            refs = [await store.stage("a", each) for each in records]
            with pytest.raises(RecordTooLarge, match="publish smaller batches"):
                await store.publish("q", 0, refs)
            await store.publish("q", 0, refs, whole=False)
            assert await values(store, "a") == [value for each in records for value in each]

    simulate(scenario, **options)


@as_scenario(simulate, wal_bytes=3 * MIB)
async def test_a_block_that_no_append_takes_is_not_staged(cluster: ClusterAtHand) -> None:
    """A WAL of 3 MiB staged a megabyte and appends take less: the batch was committed, and the
    query stopped for good."""
    async with cluster.client(codec="none", block_bytes=2 * MIB) as store:
        records = [os.urandom(50_000) for _ in range(30)]
        with pytest.raises(RecordTooLarge, match="stage with a lower block_bytes"):
            await store.stage("a", records)
        await store.publish("q", 0, [await store.stage("a", records[:15])])
        assert await values(store, "a") == records[:15]


@pytest.mark.parametrize("whole", [True, False])
@as_scenario(simulate, wal_bytes=LARGE)
async def test_a_staged_block_that_a_new_member_does_not_take_is_refused_before_its_commit(
    cluster: ClusterAtHand, *, whole: bool
) -> None:
    """A node with a smaller WAL joined after the block was staged: the batch was committed, and the
    query stood still for as long as the node was a member."""
    async with cluster.client(codec="none", block_bytes=2 * MIB) as store:
        records = [os.urandom(50_000) for _ in range(24)]
        refs = [await store.stage("a", records)]
        cluster.wals[4] = 3 * MIB
        await cluster.start(4)
        await asyncio.sleep(10)  # until all nodes have read the list of members
        with pytest.raises(RecordTooLarge, match="with a lower block_bytes"):
            await store.publish("q", 0, refs, whole=whole)
        parts = [await store.stage("a", records[at : at + 12]) for at in (0, 12)]
        await store.publish("q", 0, parts)
        assert await values(store, "a") == records
