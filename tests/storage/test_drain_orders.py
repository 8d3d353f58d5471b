"""The end of a drain: which event ends it, and what becomes of the event if the node is empty. And
orders that come late to a node."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from rebuild_scene import call_lost, late_at_first, lose_disk, lost, mend, put_records
from scenarios import as_scenario
from swaps import swap

from cordwood.admin.replicated_events import ClusterEvents
from cordwood.client.store import Store
from cordwood.errors import Fenced, Rejected, Unreachable
from cordwood.impact.maintenance import MaintenanceSet
from cordwood.layout.message import Call
from cordwood.layout.message_rebuilding import (
    AskRebuilding,
    RebuildingReply,
    RebuildOrder,
    SayRebuild,
)
from cordwood.layout.rebuild_events import read_set
from cordwood.metadata.event_log import Holds
from cordwood.metadata.maintenance import MaintenanceStore
from cordwood.protocol.event_log import Outcome, Verdict, apply, replay
from cordwood.rebuilding import (
    Aborted,
    Acked,
    DonorProgress,
    IsRebuilt,
    LostNode,
    NeedsRebuild,
    RebuildEvent,
    RebuildingSet,
    TimeRange,
    Undrained,
    Unrecoverable,
)
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.rebuild.order_events import end_of_drain, is_carried_out, is_there

NODES = (1, 2, 3)
DRAIN = (10, NeedsRebuild(3, NODES, drain=True))
DONE = [(11 + node, IsRebuilt(3, node, 10)) for node in NODES]
LOST = (20, NeedsRebuild(3, NODES, if_version=10, forced=True))
UNDRAINED = (20, Undrained(3))


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], Verdict.UNKNOWN_NODE),
        ([DRAIN], Aborted(3, if_version=10)),
        ([DRAIN, *DONE[:2]], Aborted(3, if_version=10)),
        ([DRAIN, LOST], Undrained(3)),
        ([DRAIN, *DONE], Verdict.DONE_ALREADY),
        ([DRAIN, *DONE, UNDRAINED], Verdict.UNCHANGED),
    ],
)  # fmt: skip
def test_the_event_that_ends_a_drain(events: list, found: object) -> None:  # type: ignore[type-arg]
    assert end_of_drain(replay(events), 3) == found


def test_it_ends_a_drain_as_undrained_does() -> None:
    known = replay([DRAIN, *DONE[:2]])
    event = end_of_drain(known, 3)
    assert not isinstance(event, Verdict)
    assert apply(known, 30, event) == apply(known, 30, Undrained(3))
    assert apply(known, 30, event).after == RebuildingSet(through=30, version=30)


@pytest.mark.parametrize(
    ("between", "verdict"), [(DONE, Verdict.DONE_ALREADY), ([LOST], Verdict.STALE)]
)
def test_it_does_nothing_to_a_node_that_is_empty_or_lost_by_then(
    between: list,  # type: ignore[type-arg]
    verdict: Verdict,
) -> None:
    event = end_of_drain(replay([DRAIN]), 3)
    assert not isinstance(event, Verdict)
    now = replay([DRAIN, *between])
    after, found = apply(now, 30, event)
    assert found is verdict
    assert after.lost == now.lost


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("how", ["paused", "cut off"])
def test_a_drain_that_was_taken_back_does_not_begin_again(
    how: str, *, replicated: bool, is_planted: bool
) -> None:
    """The first node got the order late. Another node carried it out, and it was taken back. Then
    the first node drained the node."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=5)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            cluster.machine(2).pause()  # so no drain ends
            late_at_first(cluster, store, how)
            await store.say_rebuild(4, "drain")
            assert lost(cluster)
            await other.say_rebuild(4, "undrain")
            await asyncio.sleep(1)
            assert not (await other.rebuilding()).lost
            mend(cluster, how)
            await asyncio.sleep(20)
            assert bool((await other.rebuilding()).lost) is is_planted

    with planted(find_bug("late-drain-again")) if is_planted else nullcontext():
        simulate(scenario, nodes=6, replicated_events=replicated)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["undrain", "abort"])
@pytest.mark.parametrize("how", ["paused", "cut off"])
def test_a_late_end_of_a_drain_does_not_end_the_next_drain(how: str, order: str) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=5)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            cluster.machine(2).pause()  # so no drain ends
            await other.say_rebuild(4, "drain")
            late_at_first(cluster, store, how)
            await store.say_rebuild(4, order)
            await other.say_rebuild(4, "drain")
            await asyncio.sleep(1)
            mend(cluster, how)
            await asyncio.sleep(20)
            assert [(each.node, each.drain) for each in (await other.rebuilding()).lost] == [
                (4, True)
            ]

    simulate(scenario, nodes=6)


def paused_at(
    cluster: ClusterAtHand, patched: pytest.MonkeyPatch, kind: type[RebuildEvent]
) -> asyncio.Event:
    """Pause the first node that is asked as it is about to add its next event of this kind, after
    all its checks.

    Returns:
        Set it with the end of the pause.
    """
    right, goes_on = ClusterEvents.say, asyncio.Event()
    waits = [cluster.machine(1)]

    async def say(self: ClusterEvents, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        if isinstance(event, kind) and waits:
            waits.pop().pause()
            await goes_on.wait()
        return await right(self, event, holds)

    swap(patched, right, say)
    return goes_on


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("replicated", [False, True])
def test_a_late_word_that_data_is_gone_is_not_of_the_next_loss(
    *, replicated: bool, is_planted: bool
) -> None:
    """A node was paused with the order. Another node carried it out, and the lost node came back
    with its data. It was lost once more, and the paused node gave up its data."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            cluster.machine(2).pause()  # so no rebuilding ends
            cluster.kill(4)
            await asyncio.sleep(6)
            await other.say_rebuild(4, "start")
            with pytest.MonkeyPatch.context() as patched:
                goes_on = paused_at(cluster, patched, Unrecoverable)
                await store.say_rebuild(4, "gone")
                cluster.machine(2).resume()  # the first node is away now
                assert not (await other.rebuilding()).lost[0].is_recoverable
                await cluster.start(4)
                await asyncio.sleep(1)
                assert not (await other.rebuilding()).lost
                cluster.kill(4)
                await other.say_rebuild(4, "start")
                cluster.machine(1).resume()
                goes_on.set()
                await asyncio.sleep(5)
            assert [each.is_recoverable for each in (await other.rebuilding()).lost] == [
                not is_planted
            ]

    with planted(find_bug("late-order-said")) if is_planted else nullcontext():
        simulate(scenario, nodes=7, replicated_events=replicated)


@pytest.mark.parametrize("replicated", [False, True])
def test_a_late_start_of_a_rebuilding_that_was_taken_back_does_nothing(*, replicated: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            cluster.kill(4)
            cluster.machine(2).pause()  # so no rebuilding ends
            await asyncio.sleep(6)
            with pytest.MonkeyPatch.context() as patched:
                goes_on = paused_at(cluster, patched, NeedsRebuild)
                await store.say_rebuild(4, "start")
                await other.say_rebuild(4, "abort")
                cluster.machine(1).resume()
                goes_on.set()
                await asyncio.sleep(5)
            assert not (await other.rebuilding()).lost

    simulate(scenario, nodes=7, replicated_events=replicated)


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize(("order", "kind"), [("undrain", Undrained), ("abort", Aborted)])
def test_a_late_end_of_no_drain_does_not_end_the_next_drain(
    order: str, kind: type[RebuildEvent], *, replicated: bool
) -> None:
    """A node has added the end of a drain without a condition, if it knew of no drain."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            cluster.machine(2).pause()  # so no drain ends
            with pytest.MonkeyPatch.context() as patched:
                goes_on = paused_at(cluster, patched, kind)
                await store.say_rebuild(4, order)
                await other.say_rebuild(4, "drain")
                cluster.machine(1).resume()
                goes_on.set()
                await asyncio.sleep(5)
            assert [(each.node, each.drain) for each in (await other.rebuilding()).lost] == [
                (4, True)
            ]

    simulate(scenario, nodes=7, replicated_events=replicated)


async def emptied(cluster: ClusterAtHand, store: Store) -> None:
    """Node 4 has lost its disk, and is called empty."""
    lose_disk(cluster, 4)
    await call_lost(cluster, 4)

    def is_empty() -> bool:
        entry = cluster.running[2]._rebuild.set.entry(4)
        return entry is not None and entry.is_empty

    await until(is_empty, timeout_s=60)


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("how", ["paused", "cut off"])
def test_a_late_drain_of_an_empty_node_does_not_drain_it_after_it_joined(
    how: str, *, replicated: bool, is_planted: bool
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=5)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            await emptied(cluster, other)
            late_at_first(cluster, store, how)
            await store.say_rebuild(4, "drain")
            assert (await other.rebuilding()).lost[0].drain
            await other.say_rebuild(4, "undrain")
            await cluster.start(4)
            await asyncio.sleep(1)
            assert not (await other.rebuilding()).lost
            mend(cluster, how)
            await asyncio.sleep(20)
            assert bool((await other.rebuilding()).lost) is is_planted

    with planted(find_bug("late-order-of-version")) if is_planted else nullcontext():
        simulate(scenario, nodes=6, replicated_events=replicated)


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize(("order", "back"), [("drain", "undrain"), ("undrain", "drain")])
@pytest.mark.slow
def test_a_late_order_about_an_empty_node_does_not_undo_a_later_one(
    order: str, back: str, *, replicated: bool
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=5)
        async with cluster.client(timeout_s=30) as store, cluster.client(timeout_s=30) as other:
            await emptied(cluster, other)
            if back == "drain":
                await other.say_rebuild(4, back)
            late_at_first(cluster, store, "paused")
            await store.say_rebuild(4, order)
            await other.say_rebuild(4, back)
            mend(cluster, "paused")
            await asyncio.sleep(20)
            assert [(each.node, each.drain) for each in (await other.rebuilding()).lost] == [
                (4, back == "drain")
            ]

    simulate(scenario, nodes=6, replicated_events=replicated)


@pytest.mark.parametrize(
    ("events", "of_drain", "mark"),
    [
        ([], True, 0),
        ([DRAIN], True, 10),
        ([DRAIN, *DONE[:2]], True, 10),  # progress changes nothing
        ([DRAIN, *DONE], True, 14),
        ([DRAIN, *DONE], False, 10),
        ([DRAIN, *DONE, UNDRAINED], True, 20),
        ([DRAIN, *DONE, UNDRAINED, (21, DRAIN[1])], True, 21),
        ([DRAIN, *DONE, UNDRAINED, (21, Acked(3, 10))], True, 21),
        ([DRAIN, *DONE, UNDRAINED, (21, Acked(3, 10)), (22, Undrained(3))], True, 22),
        ([(5, Aborted(3))], False, 5),
        ([DRAIN, LOST], True, 20),
        ([(10, NeedsRebuild(3, NODES, ranges=(TimeRange(1, 2),))), *DONE[:1]], True, 10),
    ],
)  # fmt: skip
def test_what_an_order_names_of_its_node(
    events: list,
    mark: int,
    *,
    of_drain: bool,  # type: ignore[type-arg]
) -> None:
    assert replay(events).mark(3, of_drain=of_drain) == mark


@as_scenario(simulate, nodes=6)
async def test_an_order_about_an_empty_node_is_done_while_donors_report(
    cluster: ClusterAtHand,
) -> None:
    """Each report is an event, and the mark of an empty node rises with it."""
    await put_records(cluster, records=5)
    async with cluster.client(timeout_s=30) as store:
        await emptied(cluster, store)

        async def report() -> None:
            events = cluster.running[2]._events
            while True:
                version = (await events.known()).version
                await events.say(DonorProgress(2, version, 0, 0, 1))
                await asyncio.sleep(0.02)

        await store.say_rebuild(5, "drain")
        reports = asyncio.create_task(report())
        for order in ("drain", "undrain") * 5:
            await store.say_rebuild(4, order)
        reports.cancel()
        assert not (await store.rebuilding()).lost[0].drain


@as_scenario(simulate, nodes=7)
async def test_data_of_a_node_that_died_amid_its_drain_is_gone_once_it_is_called_lost(
    cluster: ClusterAtHand,
) -> None:
    """The order had no effect, and did not say so."""
    await put_records(cluster, records=3)
    async with cluster.client(timeout_s=30) as store:
        cluster.machine(2).pause()  # so no drain ends
        await store.say_rebuild(4, "drain")
        cluster.kill(4)
        await asyncio.sleep(8)
        with pytest.raises(Rejected, match="Give `cordwood rebuild start 4` first"):
            await store.say_rebuild(4, "gone")
        assert (await store.rebuilding()).lost[0].is_recoverable
        await store.say_rebuild(4, "start")
        await store.say_rebuild(4, "gone")
        await store.say_rebuild(4, "gone")  # it may be given again
        entry = (await store.rebuilding()).lost[0]
        assert (entry.relocates, entry.drain, entry.is_recoverable) == (False, True, False)


@pytest.mark.parametrize(
    ("events", "is_so"),
    [
        ([], False),
        ([DRAIN], True),
        ([DRAIN, *DONE], False),
        ([DRAIN, LOST], False),
        ([(10, NeedsRebuild(3, NODES, ranges=(TimeRange(1, 2),)))], True),
    ],
)  # fmt: skip
def test_the_data_of_a_node_that_is_there_is_not_gone(
    events: list,
    is_so: bool,  # type: ignore[type-arg]
) -> None:
    known = replay(events)
    assert is_there(known.entry(3)) is is_so
    assert not is_so or apply(known, 30, Unrecoverable(3)).after.lost == known.lost


@as_scenario(simulate, nodes=6)
async def test_an_order_is_done_once_and_may_be_given_again(cluster: ClusterAtHand) -> None:
    await put_records(cluster, records=5)
    async with cluster.client(timeout_s=30) as store:
        seen = read_set((await ask(store, AskRebuilding())).set).version
        drain = SayRebuild(4, RebuildOrder.DRAIN, if_version=seen)
        await ask(store, drain)
        await ask(store, drain)  # it is drained already
        await store.say_rebuild(4, "undrain")
        with pytest.raises(Fenced, match="another node may have carried it out"):
            await ask(store, drain)
        await ask(store, SayRebuild(4, RebuildOrder.DRAIN))  # of an older client
        assert lost(cluster)


async def ask(store: Store, call: Call) -> RebuildingReply:
    reply = await store._cluster.call_any(call, timeout_s=10)
    assert isinstance(reply, RebuildingReply)
    return reply


@pytest.mark.parametrize(
    ("order", "none", "drained", "gone"),
    [
        (RebuildOrder.START, False, False, True),
        (RebuildOrder.DRAIN, False, True, False),
        (RebuildOrder.GONE, False, False, True),
        (RebuildOrder.UNDRAIN, True, False, True),
        (RebuildOrder.ABORT, True, False, False),
    ],
)
def test_an_order_is_carried_out_if_it_changes_nothing(
    order: RebuildOrder, *, none: bool, drained: bool, gone: bool
) -> None:
    assert is_carried_out(order, None) is none
    assert is_carried_out(order, LostNode(1, 10, relocates=True, drain=True)) is drained
    assert is_carried_out(order, LostNode(1, 10, is_recoverable=False)) is gone


@pytest.mark.slow
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("after_s", [0.006, 0.007])
def test_a_late_end_of_a_requests_drain_does_not_end_an_operators_drain(
    after_s: float, *, replicated: bool
) -> None:
    """A node was paused after it read that a request's drain is over. Another node ended the drain,
    and an operator ordered the next one. Then the paused node went on, and ended it."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        async with cluster.client(timeout_s=30) as store:
            cluster.machine(2).pause()  # so no drain ends
            made = await store.apply_maintenance([4], wanted="DRAINED", reason="x", user="ann")
            await until(lambda: bool(lost(cluster)), timeout_s=60)
            removal = asyncio.create_task(store.remove_maintenance(made.number))
            await asyncio.sleep(after_s)
            cluster.machine(1).pause()
            await removal
            await asyncio.sleep(1)
            assert not (await store.rebuilding()).lost
            await store.say_rebuild(4, "drain")
            await asyncio.sleep(10)
            cluster.machine(1).resume()
            await asyncio.sleep(20)
            assert [each.node for each in (await store.rebuilding()).lost] == [4]

    simulate(scenario, nodes=6, replicated_events=replicated)


def test_a_requests_drain_ends_with_a_slow_metadata_store() -> None:
    """A node took a read of more than a second for a pause, and began anew for ever."""
    read = MaintenanceStore.read

    async def slow(self: MaintenanceStore) -> tuple[MaintenanceSet, int]:
        await asyncio.sleep(1.5)
        return await read(self)

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        async with cluster.client(timeout_s=60) as store:
            cluster.machine(2).pause()  # so no drain ends
            made = await store.apply_maintenance([4], wanted="DRAINED", reason="x", user="ann")
            await until(lambda: bool(lost(cluster)), timeout_s=60)
            with pytest.MonkeyPatch.context() as patched:
                swap(patched, read, slow)
                await store.remove_maintenance(made.number)
            assert not (await store.rebuilding()).lost

    simulate(scenario, nodes=6)


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize(("order", "back"), [("drain", "undrain"), ("start", "abort")])
@pytest.mark.slow
def test_an_end_that_finds_nothing_shuts_the_beginning_out(
    order: str, back: str, *, replicated: bool, is_planted: bool
) -> None:
    """An order got no answer, and was not carried out when its contrary was acknowledged."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        if order == "start":
            cluster.kill(4)
        async with cluster.client(timeout_s=3) as store, cluster.client(timeout_s=20) as other:
            right = store._cluster.ask_any

            async def ask(message: Any, **options: Any) -> Any:
                if isinstance(message, SayRebuild):
                    nodes = [cluster.machine(node).name for node in cluster.running]
                    cluster.simulation.network.partition(["client-2"], nodes)
                return await right(message, **options)

            await asyncio.sleep(10)  # the others take a killed node for dead
            store._cluster.ask_any = ask  # type: ignore[method-assign]
            with pytest.raises(Unreachable):
                await store.say_rebuild(4, order)
            await other.say_rebuild(4, back)
            cluster.simulation.network.mend_all()
            await asyncio.sleep(20)
            assert bool((await other.rebuilding()).lost) is is_planted

    with planted(find_bug("vain-end-unnoted")) if is_planted else nullcontext():
        simulate(scenario, nodes=6, replicated_events=replicated)


@pytest.mark.parametrize("replicated", [False, True])
def test_an_end_of_no_drain_of_a_lost_node_shuts_its_drain_out(*, replicated: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await put_records(cluster, records=3)
        async with cluster.client(timeout_s=3) as store, cluster.client(timeout_s=20) as other:
            cluster.machine(2).pause()  # so no rebuilding ends
            cluster.kill(4)
            await asyncio.sleep(10)
            await other.say_rebuild(4, "start")
            right = store._cluster.ask_any

            async def ask(message: Any, **options: Any) -> Any:
                if isinstance(message, SayRebuild):
                    nodes = [cluster.machine(node).name for node in cluster.running]
                    cluster.simulation.network.partition(["client-2"], nodes)
                return await right(message, **options)

            store._cluster.ask_any = ask  # type: ignore[method-assign]
            with pytest.raises(Unreachable):
                await store.say_rebuild(4, "drain")
            await other.say_rebuild(4, "undrain")
            cluster.simulation.network.mend_all()
            await asyncio.sleep(20)
            assert [(each.node, each.drain) for each in (await other.rebuilding()).lost] == [
                (4, False)
            ]

    simulate(scenario, nodes=6, replicated_events=replicated)
