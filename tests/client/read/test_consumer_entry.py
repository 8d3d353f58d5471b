"""A consumer's entry in the metadata store, as its readers meet it."""

from __future__ import annotations

import asyncio

from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.admin.consumer_calls import FORGOTTEN_MAX
from cordwood.layout.message import JoinConsumer, SaveCursors
from cordwood.lsn import make_lsn
from cordwood.metadata.consumers import LOGS_MAX


@as_scenario(simulate)
async def test_logs_that_were_deleted_make_room_for_new_ones(cluster: ClusterAtHand) -> None:
    """A consumer of a log for each day could save nothing after 4,000 days."""
    async with cluster.client() as store:
        await store.append("log", b"1")
        await store.append("old", b"1")
        older = {"2": 7} | {str(number): 5 for number in range(1000, 999 + LOGS_MAX)}
        await store._ask(SaveCursors("c", "", 0, older, {}, False))
        assert await store.cursors.save("c", {"log": make_lsn(1, 2)})
        positions = (await store.cursors.by_number("c")).positions
        assert positions["1"] == make_lsn(1, 2)
        assert positions["2"] == 7, "it is there"
        assert len(positions) == LOGS_MAX + 1 - FORGOTTEN_MAX


@as_scenario(simulate)
async def test_deleted_logs_of_members_that_were_killed_make_room_too(
    cluster: ClusterAtHand,
) -> None:
    """With no member left to say that they are gone, no member could join any more, for good."""
    async with cluster.client() as store:
        await store.append("log", b"1")
        gone = [str(number) for number in range(1000, 1000 + LOGS_MAX)]
        await store._ask(JoinConsumer("c", "killed", gone, 15_000))
        await asyncio.sleep(16)
        consumer = await store.consumer("c", "log", member="next")
        async with consumer:
            assert (await consumer.read(timeout_s=5)).records
        (group,) = await store.cursors.list("c")
        assert "killed" not in group.members
