"""The note "seals are owed" in the member list, beside the refreshes of the node itself."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import put_records
from swaps import swap

from cordwood.admin.replicated_events import ClusterEvents
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.metadata.epoch_store import EpochStore
from cordwood.metadata.event_log import Holds
from cordwood.metadata.membership import Membership
from cordwood.nodes import Authority, NodeId
from cordwood.protocol.event_log import Outcome
from cordwood.rebuilding import Aborted, NeedsRebuild, RebuildEvent, Unrecoverable
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted


async def epochs_without(cluster: ClusterAtHand, node: int) -> dict[int, int]:
    """Have every log take an epoch that a node which runs does not hear of."""
    network = cluster.simulation.network
    rest = [other for other in cluster.numbers if other != node]
    network.partition([f"node-{node}"], [*(f"node-{other}" for other in rest), "client-2"])
    store = EpochStore(cluster.metadata)
    before = await store.newest()
    for other in rest:
        if cluster.running[NodeId(other)].sequencing:
            cluster.kill(other)
            await cluster.start(other)
    await put_records(cluster, records=1)
    after = await store.newest()
    assert all(after[log] > epoch for log, epoch in before.items())
    network.mend_all()
    return after


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("bug", ["", "owed-seals-forgotten"])
def test_the_note_stays_while_the_set_has_the_node_s_entry(
    monkeypatch: pytest.MonkeyPatch, bug: str, paused: bool, replicated: bool
) -> None:
    """A node that runs was called lost and gone, and `Aborted` is on its way. Epochs are taken
    without it, and it dies before it can seal them. Its next start does."""
    back, asked = 5, 1
    slow = StorageSettings(rebuild_bytes_s=2000)  # it is back before its data is made anew
    right = ClusterEvents.say
    goes_on = asyncio.Event()

    async def held(self: ClusterEvents, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        if isinstance(event, Aborted):
            await goes_on.wait()
        return await right(self, event, holds)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        members = Membership(cluster.metadata)

        async def status() -> Authority:
            return next(m.authority for m in await members.members() if m.node == back)

        role = cluster.running[NodeId(asked)]._rebuild
        if paused:
            cluster.machine(back).pause()
        swap(monkeypatch, ClusterEvents.say, held)
        await role._say(NeedsRebuild(back, tuple(map(int, cluster.numbers)), forced=True))
        await role._say(Unrecoverable(back))
        ordered = asyncio.create_task(role.answer(SayRebuild(back, RebuildOrder.ABORT)))
        await asyncio.sleep(0.5)
        if paused:
            cluster.machine(back).resume()
        await asyncio.sleep(3)
        newest = await epochs_without(cluster, back)
        assert (await status() is Authority.UNAVAILABLE) is not bool(bug)
        cluster.kill(back)
        goes_on.set()
        await ordered
        await until(lambda: not any(n._rebuild.set.entry(back) for n in cluster.running.values()))
        await cluster.start(back)
        engine = cluster.running[NodeId(back)].engine
        assert all(engine.sealed(log) >= epoch for log, epoch in newest.items()) is not bool(bug)
        await asyncio.sleep(5)
        assert await status() is Authority.FULLY_AUTHORITATIVE

    with planted(find_bug(bug)) if bug else nullcontext():
        simulate(scenario, nodes=5, storage=slow, replicated_events=replicated)
