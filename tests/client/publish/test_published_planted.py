"""Planted bugs of groups and publishing, each in the scene that shows it, caught by S22 and S29."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from swaps import swap
from test_publishing_cluster import (
    SMALL_GROUPS,
    Q,
    commit_only,
    large_share,
    records,
    stage_each,
)

from cordwood.block import Gap
from cordwood.client.publish.staging import StagedRef
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, OutcomeUnknown, Rejected, Retryable, StageExpired
from cordwood.layout.message_staging import AskPublication, FinishPublish
from cordwood.lsn import make_lsn
from cordwood.metadata.publications import Publications
from cordwood.settings import SequencerSettings
from cordwood.sim.checkers import check_all
from cordwood.sim.history import Batch, EndReason, HistoryRecorder
from cordwood.sim.knobs import KNOBS, turned
from cordwood.sim.payload import make_payload
from cordwood.sim.planted import find_bug, planted
from cordwood.sim.streams import stream

LOGS = ("/a", "/b")


class Scene:
    """A query's publisher whose history is written down."""

    def __init__(self, store: Store, recorder: HistoryRecorder) -> None:
        self.store = store
        self.recorder = recorder
        self.numbers: dict[str, int] = {}
        self.chance = stream(1, "payloads")
        self.made = 0

    def payloads(self, count: int) -> list[bytes]:
        self.made += count
        return [
            make_payload("w", number, 100, self.chance)
            for number in range(self.made - count, self.made)
        ]

    async def stage(self, batch: int, trial: int) -> tuple[list[StagedRef], list[int]]:
        """Stage a part of a batch for each log; the references, and the calls' numbers."""
        refs, ops = [], []
        for log in LOGS:
            payloads = self.payloads(4)
            refs.append(await self.store.stage(log, payloads))
            self.numbers[log] = refs[-1].log_id
            ops.append(
                self.recorder.append_invoked(
                    "w", refs[-1].log_id, payloads, atomic=True, published=Batch(Q, batch, trial)
                )
            )
        return refs, ops

    def lost(self, ops: Sequence[int]) -> None:
        for op in ops:
            self.recorder.append_raised(op, OutcomeUnknown("the publisher died"))

    async def publish(self, batch: int, trial: int) -> None:
        refs, ops = await self.stage(batch, trial)
        try:
            published = await self.store.publish(Q, batch, refs)
        except CordwoodError as error:
            for op in ops:
                self.recorder.append_raised(op, error)
            return
        for ref, op in zip(refs, ops, strict=True):
            if published.is_repeat:
                self.recorder.append_raised(op, Rejected("a try before this one is in"))
            else:
                low, high = published.spans[ref.log]
                self.recorder.append_ok(op, range(low, high + 1))

    async def die_after_appending(self, batch: int, logs: int) -> None:
        """Commit a batch, append it to so many of its logs, and say to nobody that it is done."""
        refs, ops = await self.stage(batch, 0)
        await commit_only(self.store, batch, refs)
        known = await self.store._publisher.call_store(AskPublication(Q))
        for share in known.shares[:logs]:
            await self.store._publisher.append_share(Q, known, share)
        self.lost(ops)

    async def read(self) -> list[str]:
        """Read every log to its tail; the promises that were broken."""
        for at, log in enumerate(self.numbers):
            await read_whole(self.store, log, self.recorder, f"r{at}", self.numbers[log])
        return sorted({violation.invariant for violation in check_all(self.recorder.events)})


async def read_whole(
    store: Store, log: str, recorder: HistoryRecorder, reader: str, number: int
) -> None:
    recorder.read_started(reader, number, (1 << 32) | 1)
    async for item in await store.read(log, (1 << 32) | 1):
        if isinstance(item, Gap):
            recorder.gap_delivered(reader, item.first, item.last, item.kind)
        else:
            recorder.record_delivered(reader, item.lsn, item.value)
    recorder.read_ended(reader, EndReason.TAIL)


async def finished_twice(scene: Scene) -> None:
    await scene.die_after_appending(0, logs=2)
    await scene.publish(0, 1)


async def left_half_done(scene: Scene) -> None:
    await scene.die_after_appending(0, logs=1)
    await scene.publish(1, 1)


async def plain(scene: Scene) -> None:
    await scene.publish(0, 0)
    await scene.publish(1, 1)


SCENES = [
    ("publish-as-nobody", finished_twice),
    ("next-batch-first", left_half_done),
    ("one-log-of-a-batch", plain),
]


@pytest.mark.parametrize("bug", [True, False], ids=["planted", "right"])
@pytest.mark.parametrize(("name", "play"), SCENES, ids=[name for name, _ in SCENES])
def test_a_batch_that_is_published_wrongly_is_seen(name, play, bug: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> list[str]:
        loop = asyncio.get_running_loop()
        async with cluster.client(block_records=3) as store:
            scene = Scene(store, HistoryRecorder(lambda: round(loop.time() * 1e6)))
            await play(scene)
            return await scene.read()

    with planted(find_bug(name)) if bug else contextlib.nullcontext():
        broken = simulate(scenario)
    assert ("S29" in broken) == bug, broken
    assert bug or not broken


def test_what_expired_is_published_by_a_wrong_pin_and_then_lost() -> None:
    async def scenario(cluster: ClusterAtHand) -> type[BaseException]:
        async with cluster.client(timeout_s=3) as store:
            ref = await store.stage("log", records(0), ttl_s=1)
            await asyncio.sleep(15)
            try:
                await store.publish(Q, 0, [ref])
            except CordwoodError as error:
                return type(error)
            raise AssertionError("what is gone was published")

    assert simulate(scenario) is StageExpired
    with planted(find_bug("publish-expired")):
        assert simulate(scenario) is OutcomeUnknown, "a commit that nobody can ever finish"


@pytest.mark.parametrize("name", ["groups-of-one-place", "first-group-alone"])
def test_a_large_share_that_is_published_wrongly_lacks_records(name: str) -> None:
    async def scenario(cluster: ClusterAtHand) -> bool:
        async with cluster.client() as store:
            wanted = large_share(0, blocks=30)  # groups of like counts, which repeats look like
            await store.publish(Q, 0, await stage_each(store, wanted), whole=False)
            return await values(store, "log") == wanted

    assert simulate(scenario, sequencer=SMALL_GROUPS)
    with planted(find_bug(name)):
        assert not simulate(scenario, sequencer=SMALL_GROUPS)


def test_what_goes_before_its_commit_is_noted_as_done_stops_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: ClusterAtHand) -> type[BaseException] | None:
        async with cluster.client(timeout_s=3) as store:
            finish, failed = Publications._decide, []

            def dies(self, call):
                if isinstance(call, FinishPublish) and not failed:
                    failed.append(call)
                    raise Retryable("the node was killed before it noted this")
                return finish(self, call)

            with monkeypatch.context() as dying, contextlib.suppress(OutcomeUnknown, Retryable):
                swap(dying, Publications._decide, dies)
                await store.publish(Q, 0, [await store.stage("log", records(0))])
            try:
                await store.publish(Q, 1, [await store.stage("log", records(1))])
            except CordwoodError as error:
                return type(error)
            return None

    assert simulate(scenario) is None
    with planted(find_bug("unstaged-before-done")):
        assert simulate(scenario) is OutcomeUnknown


async def half_stored(cluster: ClusterAtHand, lsn: int) -> None:
    """Wait until a node holds `lsn`, to a tenth of a millisecond: a group takes a few of them."""
    async with asyncio.timeout(1):
        while not any(  # noqa: ASYNC110 - a log's cache has no event
            node.engine.cache.log(1).last >= lsn for node in cluster.running.values()
        ):
            await asyncio.sleep(0.0001)


@pytest.mark.parametrize(
    ("name", "caught"), [("half-group-kept", True), ("lng-in-group", True), (None, False)]
)
def test_half_a_group_is_seen(name: str | None, caught: bool) -> None:
    """A group is on its way run by run, and the node that numbers it dies."""

    async def scenario(cluster: ClusterAtHand) -> list[str]:
        loop = asyncio.get_running_loop()
        recorder = HistoryRecorder(lambda: round(loop.time() * 1e6))
        async with cluster.client(block_records=3, timeout_s=10) as store:
            scene = Scene(store, recorder)
            first, *payloads = scene.payloads(61)
            op = recorder.append_invoked("w", 1, [first])
            recorder.append_ok(op, [await store.append("log", first)])
            op = recorder.append_invoked("w", 1, payloads, atomic=True)
            call = asyncio.ensure_future(store.append_many("log", payloads, atomic=True))
            await half_stored(cluster, make_lsn(1, 31))
            assert not call.done(), "it is half-way"
            cluster.kill(cluster.sequencer_of(1))
            with pytest.raises(OutcomeUnknown):
                await call
            recorder.append_raised(op, OutcomeUnknown("its sequencer died"))
            await store.tail("log")
            await read_whole(store, "log", recorder, "r", 1)
        return sorted({v.invariant for v in check_all(recorder.events)})

    one_by_one = KNOBS["sequencer.appender.GROUP_SENT_BYTES"].values.index(1)
    with (
        turned((("sequencer.appender.GROUP_SENT_BYTES", one_by_one),)),
        planted(find_bug(name)) if name else contextlib.nullcontext(),
    ):
        broken = simulate(scenario, nodes=5, copies=3, sequencer=SequencerSettings(run_bytes=1024))
    assert ("S22" in broken) == caught, broken
