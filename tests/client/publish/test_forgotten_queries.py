"""What becomes of batches whose query a log has no more memory for, here of one query for 15 s."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap_value
from test_publishing_cluster import Q, commit_only, records

from cordwood.client.append.producer import QueryProducer
from cordwood.client.store import Store
from cordwood.errors import OutcomeUnknown, UnknownProducer
from cordwood.layout.message_staging import AskPublication, PublicationReply
from cordwood.protocol import producers
from cordwood.protocol.producers import QUERY_PRODUCERS, Budget
from cordwood.sim.planted import find_bug, planted

OTHER = "other"
"""Another query."""

IDLE_S = 16.0
"""Longer than a query is remembered for at least."""


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: producers.QUERIES, Budget(1, 15_000_000))


async def committed(store: Store, *logs: str) -> PublicationReply:
    """Commit batch 0 with a part for each log, and die."""
    await commit_only(store, 0, [await store.stage(log, records(0)) for log in logs])
    return await store._publisher.call_store(AskPublication(Q))


async def a_commit_waits_for_a_log(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=5) as store:
        known = await committed(store, "a", "b")
        # Its publisher dies when the batch is in one of the two logs.
        await store._publisher.append_share(Q, known, known.shares[0])
        await asyncio.sleep(IDLE_S)
        with pytest.raises(OutcomeUnknown, match="would be stored twice"):
            await store.publish(OTHER, 0, [await store.stage("a", [b"other"])])
        assert (await store.publish(Q, 0, [])).is_repeat
        await asyncio.sleep(IDLE_S)
        assert (await store.publish(OTHER, 0, [])).is_repeat
        assert await values(store, "a") == [*records(0), b"other"]
        assert await values(store, "b") == records(0)


async def a_publisher_wakes_up_late(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=5) as store:
        known = await committed(store, "a")
        (share,) = known.shares
        producer = QueryProducer(
            known.producer, known.commits, late_at=asyncio.get_running_loop().time() + IDLE_S / 2
        )
        parts = await store._publisher._read(share.blocks)
        assert (await store.publish(Q, 0, [])).is_repeat
        await asyncio.sleep(IDLE_S)
        await store.publish(OTHER, 0, [await store.stage("a", [b"other"])])
        await asyncio.sleep(IDLE_S)
        # It sends what it had read before another publisher was done.
        with pytest.raises(UnknownProducer, match="may have been stored so long ago"):
            await store._appends.log(share.log, producer).add_group(parts, 1000)
        assert await values(store, "a") == [*records(0), b"other"]


def test_a_query_is_not_forgotten_while_its_commit_waits_for_another_log() -> None:
    """Seed 95000043. After an idle time the log took another query in its place, and then the
    batch once more."""
    simulate(a_commit_waits_for_a_log)


def test_a_publisher_that_wakes_up_late_stores_nothing_twice() -> None:
    simulate(a_publisher_wakes_up_late)


@as_scenario(simulate)
async def test_a_late_batch_that_was_never_appended_comes_into_a_log_that_forgot_others(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=5) as store:
        await committed(store, "a")
        await store.publish(OTHER, 0, [await store.stage("a", [b"other"])])
        await asyncio.sleep(IDLE_S)
        assert (await store.publish(Q, 0, [])).is_repeat
        assert await values(store, "a") == [b"other", *records(0)]


@as_scenario(simulate)
async def test_a_producer_that_no_query_has_is_forgotten_for_a_query(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=5) as store:
        await store.append("a", b"stray", producer=QueryProducer(QUERY_PRODUCERS + 7))
        await asyncio.sleep(IDLE_S)
        await store.publish(Q, 0, [await store.stage("a", records(0))])
        assert await values(store, "a") == [b"stray", *records(0)]


@pytest.mark.parametrize(
    ("bug", "scene"),
    [
        ("query-forgotten-early", a_commit_waits_for_a_log),
        ("late-unsaid", a_publisher_wakes_up_late),
    ],
)
def test_planted_bugs_are_caught(bug: str, scene) -> None:
    with planted(find_bug(bug)), pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        simulate(scene)
