"""Why a donor waits, as `cordwood rebuild` shows it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import lost, order, put_records
from scenarios import as_scenario
from swaps import swap

from cordwood.cli.rebuild import row_of
from cordwood.errors import Unreachable
from cordwood.layout.message_rebuilding import RebuildOrder
from cordwood.metadata.event_log import Holds, StoredEventLog
from cordwood.protocol.event_log import Outcome
from cordwood.rebuilding import IsRebuilt, RebuildEvent
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.donor_look import DonorLook


async def waits_for(cluster: ClusterAtHand, node: int) -> str:
    async with cluster.client(timeout_s=10) as store:
        found = await store.rebuilding()
    (row,) = (row_of(each, found) for each in found.lost if each.node == node)
    return str(row["blocked"])


@as_scenario(simulate, nodes=5)
async def test_a_donor_that_cannot_say_that_it_is_done_tells_why(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its log told it."""
    right = StoredEventLog.say

    async def say(self: StoredEventLog, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        if isinstance(event, IsRebuilt):
            raise Unreachable("the metadata store is away")
        return await right(self, event, holds)

    await put_records(cluster, records=3)
    with monkeypatch.context() as patched:
        swap(patched, right, say)
        await order(cluster, 4, RebuildOrder.DRAIN)
        await asyncio.sleep(10)
        words = "that rebuilding is done could not be said: the metadata store is away"
        assert words in await waits_for(cluster, 4)
    await until(lambda: not any(node._rebuild._donor.state().blocked for node in
                                cluster.running.values()))  # fmt: skip
    assert lost(cluster) == {4}


@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=3)
async def test_a_donor_tells_why_it_waits_while_it_looks_again(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """It told the reason only between two passes, and a pass may take minutes."""
    right = DonorLook.look_at_all

    async def slow(self, now, is_old) -> None:  # type: ignore[no-untyped-def]
        await asyncio.sleep(30)
        await right(self, now, is_old)

    swap(monkeypatch, right, slow)
    async with cluster.client(timeout_s=30) as store:
        await store.append("log", b"1")
        await order(cluster, 3, RebuildOrder.DRAIN, forced=True)
        await asyncio.sleep(60)
        told = []
        with planted(find_bug("donor-reason-of-pass")) if is_planted else nullcontext():
            for _ in range(20):
                await asyncio.sleep(3)
                told.append("have no place" in await waits_for(cluster, 3))
        assert all(told) is not is_planted
        await store.say_rebuild(3, "undrain")
        await asyncio.sleep(60)
        assert not any(node._rebuild._donor.state().blocked for node in cluster.running.values())
