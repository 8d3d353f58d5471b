"""Drains of nodes that an epoch cannot do without: refused, or no hindrance to the epoch's end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress

import pytest
from cluster_at_hand import ClusterAtHand, read_all, simulate, values
from scenarios import as_scenario

from cordwood.block import Gap, GapKind, Record
from cordwood.errors import CordwoodError, OutcomeUnknown, Rejected
from cordwood.layout.message_rebuilding import RebuildOrder, SayRebuild
from cordwood.nodes import Authority, NodeId
from cordwood.recovery.recover_log import EMPTY_ATTEMPTS, empty_nodes
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted

EMPTY = Authority.AUTHORITATIVE_EMPTY
STORAGE = StorageSettings(flush_age_s=0.5, partition_age_s=2, retention_every_s=1)


def test_an_empty_node_that_answers_stores_no_end_after_some_attempts() -> None:
    statuses = {NodeId(1): EMPTY, NodeId(2): Authority.UNDER_REPLICATED}
    assert not empty_nodes(statuses, EMPTY_ATTEMPTS), "it may be about to clear it"
    assert empty_nodes(statuses, EMPTY_ATTEMPTS + 1) == {1}


async def grown(cluster: ClusterAtHand) -> None:
    """Three more nodes join; the epoch that goes on has the first three."""
    cluster.add_nodes(3)
    await cluster.start(4, 5, 6)
    await asyncio.sleep(5)


@as_scenario(simulate, nodes=3, copies=3)
async def test_a_drain_that_would_have_no_end_is_refused(cluster: ClusterAtHand) -> None:
    """It went on for ever. No recovery could store the end of the epoch before, so what was
    appended after the order was acknowledged, and no reader got it."""
    async with cluster.client(timeout_s=30) as store:
        await store.append_many("log", [b"1", b"2"])
        await grown(cluster)
        with pytest.raises(Rejected, match=r"node 1 is not drained: .* would stop for 1 logs"):
            await store.say_rebuild(1, "drain")
        assert not (await store.rebuilding()).lost
        await store.append("log", b"3")
        assert await values(store, "log") == [b"1", b"2", b"3"]
        await store.say_rebuild(1, "drain", forced=True)
        assert [each.node for each in (await store.rebuilding()).lost] == [1]
        await store.say_rebuild(1, "drain")  # as a call that is tried again


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("is_planted", [False, True])
def test_of_two_drains_at_once_that_would_have_no_end_one_is_taken(
    replicated: bool, is_planted: bool
) -> None:
    """Both were taken: each was checked by the set without the other. None ended, and no reader got
    what was appended after the orders."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=30) as store:
            await store.append_many("log", [b"1", b"2"])
            cluster.add_nodes(3)
            await cluster.start(5, 6, 7)
            await asyncio.sleep(5)
            calls = [
                cluster.running[NodeId(via)]._maintenance.obey_operator(
                    SayRebuild(node, RebuildOrder.DRAIN)
                )
                for via, node in ((5, 1), (6, 2))
            ]
            said = await asyncio.gather(*calls, return_exceptions=True)
            refused = [str(each) for each in said if isinstance(each, Rejected)]
            assert len(refused) == (0 if is_planted else 1)
            if is_planted:
                return
            assert "would not end" in refused[0]
            await store.append("log", b"3")
            async with asyncio.timeout(300):
                while not all(each.is_empty for each in (await store.rebuilding()).lost):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(1)
            assert await values(store, "log") == [b"1", b"2", b"3"]

    with planted(find_bug("drains-cross")) if is_planted else nullcontext():
        simulate(scenario, nodes=4, copies=3, replicated_events=replicated)


@as_scenario(simulate, nodes=3, copies=3)
async def test_a_drain_of_a_node_that_no_epoch_needs_is_taken(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=30) as store:
        await store.append_many("log", [b"1", b"2"])
        await grown(cluster)
        await store.say_rebuild(4, "drain")
        assert [each.node for each in (await store.rebuilding()).lost] == [4]


@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=3, copies=3, storage=STORAGE)
@pytest.mark.slow
async def test_an_empty_node_that_runs_keeps_no_epoch_from_its_end(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """Readers waited for as long as the drained node ran. All its records were trimmed, so the
    drain had ended at once."""
    async with cluster.client(timeout_s=120) as store:
        await store.append_many("log", [b"1", b"2"])
        await store.trim("log", "tail")
        await asyncio.sleep(10)
        await grown(cluster)
        drain = SayRebuild(1, RebuildOrder.DRAIN, forced=True)
        await cluster.running[NodeId(6)]._rebuild.answer(drain)
        for _ in range(60):
            await asyncio.sleep(1)
            members = cluster.running[NodeId(6)]._members
            if members[NodeId(1)].authority is EMPTY:
                break
        else:
            raise AssertionError("it is never empty")
        await asyncio.sleep(5)
        with pytest.raises(OutcomeUnknown):
            # The epoch that goes on has no place for it, and ends.
            await store.append("log", b"3")
        await store.append("log", b"4")
        with planted(find_bug("empty-nodes-end-epochs")) if is_planted else nullcontext():
            try:
                async with asyncio.timeout(30):
                    found = await read_all(store, "log")
            except (CordwoodError, TimeoutError):
                assert is_planted
                return
        assert not is_planted
        kinds = {item.kind for item in found if isinstance(item, Gap)}
        assert kinds <= {GapKind.TRIM, GapKind.BRIDGE, GapKind.HOLE}
        assert await values(store, "log") == [b"4"]


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@as_scenario(simulate, nodes=5, copies=3)
async def test_an_empty_node_that_runs_does_not_stand_for_a_copy(
    cluster: ClusterAtHand, *, is_planted: bool
) -> None:
    """Two nodes came back a minute after a power cut. The recovery had counted on an empty node,
    and then left it out: the end was on two nodes. With these two away, readers were told of a
    loss of acknowledged records."""
    async with cluster.client(timeout_s=60) as store:
        log = int((await store.create_log("log")).log_id)
        await store.append("log", b"1")
        drained = next(n for n in cluster.numbers if n != cluster.sequencer_of(log))
        await store.say_rebuild(drained, "drain")
        async with asyncio.timeout(300):
            while not all(each.is_empty for each in (await store.rebuilding()).lost):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(1)
        lsns = [await store.append("log", value) for value in (b"2", b"3", b"4")]
        before = int(cluster.sequencer_of(log))
        away = [before, next(n for n in cluster.numbers if n not in (before, drained))]
        others = [n for n in cluster.numbers if n not in (drained, *away)]
        cluster.add_nodes(3)
        for node in sorted(cluster.running):
            cluster.kill(node)
        with planted(find_bug("empty-nodes-stand-for-copies")) if is_planted else nullcontext():
            await cluster.start(*(n for n in cluster.numbers if n not in away))
            # It starts a sequencer. Appends go on, and the epoch before waits for its end.
            with suppress(CordwoodError):
                await store.append("log", b"5")
            await asyncio.sleep(60)
            await cluster.start(*away)
            await asyncio.sleep(60)
        for node in others:
            cluster.kill(node)
    async with cluster.client(timeout_s=60) as store:
        async with asyncio.timeout(60):
            found = await read_all(store, "log", until=lsns[-1])
        kinds = {item.kind for item in found if isinstance(item, Gap)}
        assert (GapKind.DATA_LOSS in kinds) == is_planted, found
        got = [item.value for item in found if isinstance(item, Record)]
        assert is_planted or got == [b"1", b"2", b"3", b"4"]
