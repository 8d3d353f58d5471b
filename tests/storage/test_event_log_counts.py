"""What counts in a replicated event log: an event beside a restatement, a node that is let in."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, healed, lose_disk, lost, put_records
from swaps import swap

from cordwood.admin.replicated_events import ReplicatedEventLog
from cordwood.client.store import Store
from cordwood.errors import Retryable
from cordwood.layout.rebuild_events import read_record
from cordwood.lsn import EVENT_LOG, Lsn
from cordwood.metadata.event_log import StoredEventLog
from cordwood.protocol.event_log import Verdict
from cordwood.rebuilding import DonorProgress, NeedsRebuild, RebuildingSet, Restated
from cordwood.sim.planted import find_bug, planted

EVERY = (1, 2, 3, 4, 5)


def moved(cluster: ClusterAtHand) -> bool:
    return all(node._events.has_moved for node in cluster.running.values())


async def base_of(cluster: ClusterAtHand) -> RebuildingSet:
    found = await StoredEventLog(cluster.metadata).read_base()
    assert found is not None, "the events have moved"
    return found.set


@pytest.mark.parametrize("is_planted", [False, True])
def test_an_event_counts_that_comes_just_before_a_restatement(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """Node 1 is about to append the set that it knows, and node 2 drains node 3. An operator was
    told that this counts."""
    right = Store.append
    is_said = False

    async def scenario(cluster: ClusterAtHand) -> None:
        async def after_an_event(self: Store, log, value, **how) -> Lsn:
            nonlocal is_said
            if log == EVENT_LOG and not is_said and isinstance(read_record(value), Restated):
                is_said = True
                drain = NeedsRebuild(3, EVERY, drain=True)
                said = await cluster.running[2]._events.say(drain)
                assert said.verdict is Verdict.TAKEN
            return await right(self, log, value, **how)

        def sets() -> list[RebuildingSet]:
            return [node._rebuild.set for node in cluster.running.values()]

        await until(lambda: moved(cluster))
        events = cluster.running[1]._events
        await events.say(DonorProgress(1, 0, 0))  # it has a sequencer
        for number in (2, 3, 4, 5):
            cluster.running[number]._events.replicated.restating = None
        swap(monkeypatch, Store.append, after_an_event)
        cluster.metadata.is_out = True
        await events.say(NeedsRebuild(4, EVERY, drain=True))
        cluster.metadata.is_out = False
        await StoredEventLog(cluster.metadata).fence(1)
        with pytest.raises(Retryable, match="being restated"):
            await events.keep()
        await until(lambda: all(each.restated for each in sets()))
        assert is_said
        await until(lambda: len({*map(repr, sets())}) == 1)
        assert lost(cluster) == ({4} if is_planted else {3, 4})

    with planted(find_bug("restated-anywhere")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)


@pytest.mark.parametrize("is_planted", [False, True])
def test_the_base_has_the_word_of_a_node_before_the_node_counts(
    monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """Nothing else writes it in time here. By an older base the node would be left out of
    recoveries, if the log lost the word."""

    async def not_now(self: ReplicatedEventLog) -> None:
        return

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster)
        await until(lambda: moved(cluster))
        lose_disk(cluster, 5)
        await call_lost(cluster, 5)

        async def is_empty() -> bool:
            entry = (await base_of(cluster)).entry(5)
            return entry is not None and entry.is_empty

        async with asyncio.timeout(120):
            while not await is_empty():  # noqa: ASYNC110 - what it looks at has no event
                await asyncio.sleep(0.1)
        swap(monkeypatch, ReplicatedEventLog.keep_on, not_now)
        cluster.keep_starting(5)
        await healed(cluster)
        assert ((await base_of(cluster)).entry(5) is not None) is is_planted

    with planted(find_bug("admitted-unkept")) if is_planted else nullcontext():
        simulate(scenario, nodes=5, replicated_events=True)
