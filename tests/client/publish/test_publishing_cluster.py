"""Staging and publishing on a whole cluster: a batch is in its logs once, whole, or not at all."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import msgspec
import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from scenarios import as_scenario
from swaps import swap

from cordwood.client.publish import publishing
from cordwood.client.publish.staging import StagedRef
from cordwood.client.store import Store
from cordwood.errors import (
    BadSetting,
    CordwoodError,
    Fenced,
    OutcomeUnknown,
    RecordTooLarge,
    Retryable,
    StageExpired,
    UnknownLog,
)
from cordwood.layout.message_staging import BeginPublish, CommitPublish, PublicationReply
from cordwood.settings import MIB, SequencerSettings

Q = "sink-1"


def records(batch: int, count: int = 20) -> list[bytes]:
    return [b"%d/%03d" % (batch, at) for at in range(count)]


def staged_blocks(cluster: ClusterAtHand) -> dict[int, int]:
    """By node that runs: staged blocks."""
    return {n: len(node.engine.staged.blocks) for n, node in sorted(cluster.running.items())}


@as_scenario(simulate)
async def test_nothing_is_published_into_a_log_that_was_deleted_and_made_again(
    cluster: ClusterAtHand,
) -> None:
    """Each batch counted as published, and none of its records was anywhere."""
    async with cluster.client() as task, cluster.client() as driver:
        await driver.publish(Q, 0, [await task.stage("a", records(0))])
        staged = await task.stage("a", records(1))
        await driver.log_tree.delete("a")
        await driver.create_log("a")
        for _ in range(2):
            with pytest.raises(UnknownLog, match=r"nothing is published\. Stage them again"):
                await driver.publish(Q, 1, [staged])
        await asyncio.sleep(1.5)
        published = await driver.publish(Q, 1, [await task.stage("a", records(1))])
        assert published.spans.keys() == {"/a"}
        assert await values(driver, "a") == records(1)


@pytest.mark.parametrize("logs", [1, 20])
@as_scenario(simulate)
async def test_what_was_staged_for_a_log_that_is_renamed_is_published(
    cluster: ClusterAtHand, *, logs: int
) -> None:
    async with cluster.client() as task, cluster.client() as driver:
        staged = [await task.stage(f"a{number}", records(number)) for number in range(logs)]
        await driver.log_tree.rename("a0", "b")
        await driver.publish(Q, 0, staged)
        assert await values(driver, "b") == records(0)


@as_scenario(simulate)
async def test_batches_of_several_tasks_and_logs_are_published_in_order(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(block_records=3) as task, cluster.client() as driver:
        for batch in range(3):
            first = await task.stage("a", records(batch), keys=[b"k"] * 20, timestamps=5)
            other = await task.stage("b", records(batch, 7))
            last = await task.stage("a", [b"end"])
            refs = [json.loads(json.dumps(ref.to_json())) for ref in (first, other, last)]
            assert await values(driver, "a") == [
                v for b in range(batch) for v in (*records(b), b"end")
            ], "nothing that is only staged is read"
            published = await driver.publish(Q, batch, refs)
            assert not published.is_repeat
            low, high = published.spans["/a"]
            assert high - low == 20
            assert published.spans.keys() == {"/a", "/b"}
            assert await driver.published(Q) == published
        wanted = [v for b in range(3) for v in (*records(b), b"end")]
        assert await values(driver, "a") == wanted
        assert await values(driver, "b") == [v for b in range(3) for v in records(b, 7)]
        one = await anext(aiter(await driver.read("a")))
        assert (one.key, one.timestamp_us) == (b"k", 5)
        assert set(staged_blocks(cluster).values()) == {0}, "what is published is let go of"


@as_scenario(simulate)
async def test_a_batch_that_was_published_keeps_what_it_was_published_with(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        first = await store.publish(Q, 4, [await store.stage("log", records(4))])
        other = await store.stage("log", [b"other"])
        again = await store.publish(Q, 4, [other])
        assert (again.spans, again.is_repeat) == (first.spans, True)
        before = await store.publish(Q, 3, [other])
        assert (before.spans, before.is_repeat) == ({}, True)
        empty = await store.publish(Q, 9, [])
        assert (empty.spans, empty.is_repeat) == ({}, False)
        elsewhere = await store.publish("another query", 0, [other])
        assert elsewhere.spans.keys() == {"/log"}
        assert await values(store, "log") == [*records(4), b"other"]


@as_scenario(simulate)
async def test_a_reference_is_the_same_in_another_process_and_nonsense_is_refused(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(block_records=3) as store:
        ref = await store.stage("log", records(0))
        assert (ref.records, len(ref.blocks)) == (20, 7)
        assert pickle.loads(pickle.dumps(ref)) == ref
        assert StagedRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref
        wrong: list[dict[str, Any]] = [{}, {**ref.to_json(), "blocks": [["00", [1], 1, 1]]}]
        for value in wrong:
            with pytest.raises(BadSetting):
                await store.publish(Q, 0, [value])
        with pytest.raises(BadSetting, match="twice"):
            await store.publish(Q, 0, [ref, ref])
        with pytest.raises(BadSetting, match="name"):
            await store.publish("", 0, [ref])
        with pytest.raises(BadSetting, match="ttl_s"):
            await store.stage("log", [b"x"], ttl_s=0)
        assert await values(store, "log") == []


@as_scenario(simulate)
async def test_what_nobody_published_in_time_is_gone_and_publishes_nothing(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        short = await store.stage("log", [b"short"], ttl_s=2)
        long = await store.stage("log", [b"long"], ttl_s=500)
        await asyncio.sleep(2.5)
        with pytest.raises(StageExpired):
            await store.publish(Q, 0, [long, short])
        await asyncio.sleep(10)
        assert set(staged_blocks(cluster).values()) == {1}, "expired ones are swept"
        # What the failed attempt pinned beside it may be published by the next one.
        assert (await store.publish(Q, 0, [long])).spans
        assert await values(store, "log") == [b"long"]
        dropped = await store.stage("log", [b"dropped"])
        await store.unstage([dropped])
        assert set(staged_blocks(cluster).values()) == {0}
        with pytest.raises(StageExpired):
            await store.publish(Q, 1, [dropped])


@as_scenario(simulate)
async def test_what_a_dead_publisher_pinned_goes_and_it_cannot_commit_any_more(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        ref = await store.stage("log", [b"pinned"], ttl_s=30)
        shares = publishing._shares([ref])
        begun = await store._ask(BeginPublish(Q, 0))
        assert isinstance(begun, PublicationReply)
        await store._publisher._copies.pin(Q, begun.attempt, shares)
        await store.unstage([ref])
        await asyncio.sleep(45)
        assert set(staged_blocks(cluster).values()) == {1}, "a pin outlives its time"
        await asyncio.sleep(120)
        assert set(staged_blocks(cluster).values()) == {0}
        with pytest.raises(Fenced):
            await store._ask(CommitPublish(Q, 0, begun.attempt, shares))
        assert (await store.publish(Q, 0, [await store.stage("log", [b"new"])])).spans
        assert await values(store, "log") == [b"new"]


async def commit_only(store: Store, batch: int, refs: list[StagedRef]) -> None:
    """Publish as far as the commit, and die there."""
    shares = publishing._shares(refs)
    begun = await store._ask(BeginPublish(Q, batch))
    assert isinstance(begun, PublicationReply)
    await store._publisher._copies.pin(Q, begun.attempt, shares)
    await store._ask(CommitPublish(Q, batch, begun.attempt, shares))


@as_scenario(simulate)
async def test_a_commit_whose_publisher_died_is_finished_by_the_next_one(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        await commit_only(store, 0, [await store.stage("log", records(0), ttl_s=5)])
        assert await store.published(Q) is None
        await asyncio.sleep(200)  # what a commit names does not expire
        next_one = await store.publish(Q, 1, [await store.stage("log", records(1))])
        assert not next_one.is_repeat
        await commit_only(store, 2, [await store.stage("log", records(2))])
        again = await store.publish(Q, 2, [await store.stage("log", [b"other"])])
        assert again.is_repeat
        assert again.spans
        wanted = [value for batch in range(3) for value in records(batch)]
        assert await values(store, "log") == wanted


@as_scenario(simulate)
async def test_two_that_finish_one_commit_store_it_once(cluster: ClusterAtHand) -> None:
    async with cluster.client() as one, cluster.client() as two:
        for batch in range(4):
            await commit_only(one, batch, [await one.stage("log", records(batch))])
            spans = await asyncio.gather(*(each.publish(Q, batch, []) for each in (one, two, one)))
            assert len({each.spans["/log"] for each in spans}) == 1
        assert await values(one, "log") == [v for b in range(4) for v in records(b)]


@as_scenario(simulate)
async def test_of_two_publishers_of_one_batch_one_wins_and_nothing_is_doubled(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as one, cluster.client() as two:
        for batch in range(6):
            refs = [await each.stage("log", records(batch)) for each in (one, two)]
            ended = await asyncio.gather(
                one.publish(Q, batch, refs[:1]), two.publish(Q, batch, refs[1:]),
                return_exceptions=True,
            )  # fmt: skip
            assert all(
                not isinstance(e, Exception) or isinstance(e, Fenced | Retryable) for e in ended
            )
            await one.publish(Q, batch, refs[:1])
        assert await values(one, "log") == [v for b in range(6) for v in records(b)]


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_sequencers_node_dies_after_the_publish_and_before_its_reply(seed: int) -> None:
    """The commit is made, the group is on its way or stored, and the node that numbers it dies."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(block_records=3, timeout_s=20) as store:
            await store.publish(Q, 0, [await store.stage("log", records(0))])
            call = asyncio.ensure_future(
                store.publish(Q, 1, [await store.stage("log", records(1, 60))])
            )
            node = cluster.sequencer_of(1)
            appender = cluster.running[node]._sequencer.sequencing()[1]
            await until_turn(lambda: appender.in_flight > 0)
            for _ in range(seed * 3):
                await asyncio.sleep(0.0001)
            cluster.kill(node)
            published = await call
            low, high = published.spans["/log"]
            assert high - low == 59
            assert await values(store, "log") == [*records(0), *records(1, 60)]
            again = await store.publish(Q, 1, [])
            assert again.spans == published.spans

    simulate(scenario, nodes=5, copies=3, seed=seed)


async def until_turn(condition: Any) -> None:
    """Look every 100 virtual µs until it holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await asyncio.sleep(0.0001)


@as_scenario(simulate)
async def test_what_is_staged_survives_a_kill_of_every_node_flushed_or_not(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=30) as store:
        refs = [await store.stage("log", records(0))]
        for node in cluster.running.values():
            await node.flush()
        refs.append(await store.stage("log", records(1)))
        await commit_only(store, 0, refs)
        for number in list(cluster.running):
            cluster.kill(number)
        await cluster.start()
        assert set(staged_blocks(cluster).values()) == {2}
        published = await store.publish(Q, 0, [])
        assert published.is_repeat
        assert await values(store, "log") == [*records(0), *records(1)]
        for node in cluster.running.values():
            await node.flush()
        for number in list(cluster.running):
            cluster.kill(number)
        await cluster.start()
        assert set(staged_blocks(cluster).values()) == {0}, "what went stays gone"


@as_scenario(simulate, nodes=5, copies=3)
async def test_a_node_that_is_down_refuses_a_commit_and_stops_no_end_of_one(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("log", b"0")
        ref = await store.stage("log", records(1))
        victim = next(n for n in ref.blocks[0].nodes if n != cluster.sequencer_of(1))
        cluster.kill(victim)
        with pytest.raises(Retryable):
            await store.publish(Q, 0, [ref])
        assert await values(store, "log") == [b"0"]
        again = await store.stage("log", records(2))
        assert victim not in again.blocks[0].nodes
        await commit_only(store, 0, [again])
        other = next(n for n in again.blocks[0].nodes if n != cluster.sequencer_of(1))
        await cluster.start(victim)
        cluster.kill(other)
        assert (await store.publish(Q, 0, [])).is_repeat
        assert await values(store, "log") == [b"0", *records(2)]


@as_scenario(simulate)
async def test_a_share_that_no_group_holds_is_refused_before_the_commit(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        refs = [await store.stage("log", [bytes(MIB // 4)]) for _ in range(10)]
        with pytest.raises(RecordTooLarge, match="smaller batches"):
            await store.publish(Q, 0, refs)
        assert (await store.publish(Q, 0, refs[:4])).spans
        assert len(await values(store, "log")) == 4


SMALL_GROUPS = SequencerSettings(group_bytes_max=8192)
"""A `large_share` comes in 16 groups; of a producer's places a log remembers the last five."""


def large_share(batch: int, blocks: int = 31) -> list[bytes]:
    return [b"%d/%03d" % (batch, at) * 80 for at in range(blocks)]


async def stage_each(store: Store, values_: list[bytes]) -> list[StagedRef]:
    return [await store.stage("log", [value]) for value in values_]


class Died(Exception):
    """A publisher was killed."""


def die_at_group(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """The publisher dies once it has appended so many groups; how many were begun."""
    append_group, begun = publishing.Publisher.append_one_group, []

    async def dying(self: Any, *arguments: Any) -> int:
        if len(begun) == number:
            raise Died
        begun.append(number)
        return await append_group(self, *arguments)

    swap(monkeypatch, publishing.Publisher.append_one_group, dying)
    return begun


@as_scenario(simulate, sequencer=SMALL_GROUPS)
async def test_a_share_that_no_group_holds_comes_in_several_where_that_is_allowed(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store:
        first, second = large_share(0), large_share(1)
        published = await store.publish(Q, 0, await stage_each(store, first), whole=False)
        low, high = published.spans["/log"]
        assert high - low == len(first) - 1
        await store.append("log", b"between")
        await store.publish(Q, 1, await stage_each(store, second), whole=False)
        again = await store.publish(Q, 1, await stage_each(store, first), whole=False)
        assert again.is_repeat
        assert await values(store, "log") == [*first, b"between", *second]
        assert set(staged_blocks(cluster).values()) <= {len(first)}


@pytest.mark.parametrize("number", [0, 1, 5, 6, 15, 16])
@pytest.mark.parametrize("other_cut", [False, True])
@as_scenario(simulate, sequencer=SMALL_GROUPS)
async def test_a_publisher_that_dies_between_groups_is_followed_by_one_that_goes_on(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch, number: int, other_cut: bool
) -> None:
    """Also where the log forgot the first groups, or the next one cuts them in another way."""
    async with cluster.client() as one, cluster.client() as two:
        wanted = large_share(0)
        refs = await stage_each(one, wanted)
        with monkeypatch.context() as patch:
            begun = die_at_group(patch, number)
            call = one.publish(Q, 0, refs, whole=False)
            if number == 16:
                patch.setattr(publishing, "FinishPublish", AskFailing)
            with pytest.raises((Died, OutcomeUnknown)):
                await call
        assert len(begun) == number
        if other_cut:
            end = publishing.group_end
            swap(
                monkeypatch,
                publishing.group_end,
                lambda sizes, at, _: min(end(sizes, at, 1), len(sizes)),
                within=publishing,
            )
        published = await two.publish(Q, 0, [], whole=False)
        assert published.is_repeat
        assert published.spans["/log"][1] == await two.tail("log")
        assert await values(two, "log") == wanted


@pytest.mark.parametrize("group_bytes_max", [4096, 16384, 65536])
@as_scenario(simulate, sequencer=SMALL_GROUPS)
async def test_a_batch_goes_on_where_it_was_left_though_the_limit_of_groups_changed(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch, group_bytes_max: int
) -> None:
    """A larger group began with what was stored and ended above it. So it was neither new nor a
    repeat, the committed batch never came whole, and the query stopped for good."""
    async with cluster.client() as one, cluster.client() as two:
        wanted = large_share(0)
        refs = await stage_each(one, wanted)
        with monkeypatch.context() as patch:
            die_at_group(patch, 3)
            with pytest.raises(Died):
                await one.publish(Q, 0, refs, whole=False)
        cluster._sequencer = SequencerSettings(group_bytes_max=group_bytes_max)
        for number in cluster.numbers:
            cluster.kill(number)
        await cluster.start()
        published = await two.publish(Q, 0, [], whole=False)
        assert published.is_repeat
        assert published.spans["/log"][1] == await two.tail("log")
        assert await values(two, "log") == wanted


def AskFailing(*_: object) -> None:  # noqa: N802 - stands for a message
    raise Retryable("the node was gone before it noted that the commit is done")


def test_a_sequencer_with_lower_limits_is_given_smaller_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its WAL is smaller than that of the node that was asked: the query was stuck for good."""
    call = publishing.Publisher.call_store

    async def boasts(self: Any, asked: Any) -> PublicationReply:
        return msgspec.structs.replace(await call(self, asked), group_bytes_max=MIB)

    swap(monkeypatch, publishing.Publisher.call_store, boasts)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            wanted = large_share(0)
            await store.publish(Q, 0, await stage_each(store, wanted))
            assert await values(store, "log") == wanted

    simulate(scenario, sequencer=SMALL_GROUPS)


@as_scenario(simulate)
async def test_what_is_staged_stays_until_the_commit_is_noted_as_done(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as two:
        with monkeypatch.context() as patch:
            patch.setattr(publishing, "FinishPublish", AskFailing)
            with pytest.raises(OutcomeUnknown):
                await one.publish(Q, 0, [await one.stage("log", records(0))])
        assert min(staged_blocks(cluster).values()) == 1
        assert (await two.publish(Q, 0, [])).is_repeat
        assert await values(two, "log") == records(0)


@as_scenario(simulate, sequencer=SequencerSettings(esns=5))
async def test_a_commit_that_its_sequencer_finds_too_large_is_not_told_as_refused(
    cluster: ClusterAtHand,
) -> None:
    """Swarm seed 7143: of two logs one had its share already, and the call said that nothing
    was published. Only a sequencer with lower limits than the node that was asked does it."""
    async with cluster.client() as store:
        refs = [await store.stage("a", [b"fits"]), await store.stage("b", records(0, 8))]
        with pytest.raises(OutcomeUnknown, match="is committed and cannot be brought"):
            await store.publish(Q, 0, refs)
        assert await values(store, "a") == [b"fits"]


@as_scenario(simulate)
async def test_a_log_that_was_deleted_after_the_commit_does_not_stop_the_query(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=10) as store:
        refs = [await store.stage(log, records(0)) for log in ("gone", "stays")]
        await commit_only(store, 0, refs)
        await store.log_tree.delete("gone")
        published = await store.publish(Q, 0, [])
        assert published.spans.keys() == {"/stays"}
        assert await values(store, "stays") == records(0)


def sweep(cluster: ClusterAtHand, number: int) -> asyncio.Task[None]:
    """A sweep in the node's own process: only there callbacks run in the order of its WAL."""
    process = cluster.machine(number).process
    assert process is not None
    staging = cluster.running[number]._staging
    return cluster.simulation.loop.spawn(process, staging.drop(staging.expired()))


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_pin_that_was_answered_holds_whatever_the_sweep_was_doing(seed: int) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            for batch in range(30):
                ref = await store.stage("log", records(batch), ttl_s=1.0)
                expires_us = max(
                    held.head.expires_us
                    for node in cluster.running.values()
                    for held in node.engine.staged.blocks.values()
                )
                now_us = next(iter(cluster.running.values())).host.clock.now_us()
                await asyncio.sleep((expires_us - now_us) / 1e6 - 0.003 + 0.0003 * (batch % 10))
                sweeps = [sweep(cluster, number) for number in cluster.running]
                try:
                    await store.publish(Q, batch, [ref])
                except StageExpired:
                    await store.publish(Q, batch, [await store.stage("log", records(batch))])
                await asyncio.gather(*sweeps)
            assert await values(store, "log") == [v for b in range(30) for v in records(b)]

    simulate(scenario, seed=seed)


def test_errors_of_staging_are_the_documented_kinds() -> None:
    assert issubclass(StageExpired, CordwoodError)
    assert not issubclass(StageExpired, Retryable)


@as_scenario(simulate)
async def test_two_logs_that_had_one_name_have_a_span_each(cluster: ClusterAtHand) -> None:
    """Their blocks were staged before and after a rename. One of the spans was left out."""
    async with cluster.client() as store:
        await store.append("x", b"old")
        before = await store.stage("x", [b"1", b"2"])
        await store.log_tree.rename("x", "y")
        await store.append("x", b"new")
        after = await store.stage("x", [b"3"])
        done = await store.publish("q", 0, [before, after])
        spans = {name: (str(first), str(last)) for name, (first, last) in done.spans.items()}
        assert spans == {"/y": ("e1n2", "e1n3"), "/x": ("e1n2", "e1n2")}
        assert await values(store, "y", until="tail") == [b"old", b"1", b"2"]
        assert await values(store, "x", until="tail") == [b"new", b"3"]
        told = await store.published("q")
        assert told is not None
        assert told.spans == done.spans


@as_scenario(simulate)
async def test_a_log_whose_old_name_another_one_has_now_has_a_span_too(
    cluster: ClusterAtHand,
) -> None:
    """Two logs with one name were told apart by a name under which a third one was staged."""
    async with cluster.client() as store:
        await store.append("y", b"third")
        third = await store.stage("y", [b"1"])
        await store.append("x", b"first")
        first = await store.stage("x", [b"2", b"3"])
        await store.log_tree.rename("y", "z")
        await store.log_tree.rename("x", "y")
        await store.append("x", b"second")
        second = await store.stage("x", [b"4", b"5", b"6"])
        done = await store.publish("q", 0, [third, first, second])
        counts = {name: last - first + 1 for name, (first, last) in done.spans.items()}
        assert counts == {"/x": 3, "/y": 2, "/z": 1}
