"""Requests for maintenance on a running cluster: granted, blocked, drained, and over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario

from cordwood.client.store import Store
from cordwood.errors import BadSetting, OutcomeUnknown, Rejected
from cordwood.layout.log_questions import CopiesReply
from cordwood.layout.message_maintenance import (
    ApplyMaintenance,
    MaintenanceRequest,
    RemoveMaintenance,
)
from cordwood.layout.message_rebuilding import RebuildOrder, RebuildReply, SayRebuild
from cordwood.layout.rebuild_events import read_set
from cordwood.metadata.maintenance import MaintenanceStore
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.planted import find_bug, planted


async def ask(store: Store, *nodes: int, **more: object) -> MaintenanceRequest:
    given = {"reason": "a new disk", "user": "ann", **more}
    return await store.apply_maintenance(nodes, **given)  # type: ignore[arg-type]


async def state(store: Store, number: int) -> str:
    return next(each.state for each in await store.maintenance() if each.number == number)


async def wait_state(store: Store, number: int, wanted: str, timeout_s: float = 120) -> None:
    async with asyncio.timeout(timeout_s):
        while await state(store, number) != wanted:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.5)


@as_scenario(simulate, nodes=4)
async def test_a_second_node_waits_until_the_first_is_back(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        first = await ask(store, 1, ttl_s=3600)
        second = await ask(store, 2)
        assert (first.state, second.state) == ("GRANTED", "BLOCKED_UNTIL_SAFE")
        assert "writes would stop" in second.blocked
        assert first.ends_us == first.made_us + 3_600_000_000
        await store.remove_maintenance(first.number)
        await wait_state(store, second.number, "GRANTED")
        with pytest.raises(BadSetting, match="no request 1"):
            await store.remove_maintenance(first.number)


@as_scenario(simulate, nodes=4)
async def test_a_request_that_is_blocked_is_granted_while_nobody_asks(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        await ask(store, 1, ttl_s=20)
        await ask(store, 2)
    await asyncio.sleep(60)
    known, _ = await MaintenanceStore(cluster.metadata).read()
    assert [(each.nodes, each.is_granted) for each in known.requests] == [((2,), True)]


@as_scenario(simulate, nodes=4)
async def test_a_request_is_granted_while_the_first_node_is_cut_off_from_the_metadata_store(
    cluster: ClusterAtHand,
) -> None:
    """Only the first living node looked by itself: for as long as it was cut off, no TTL ended."""
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        await ask(store, 2, ttl_s=60)
        await ask(store, 3)
    own = await cluster.start_with_own_way(1)
    own.is_out = True
    await asyncio.sleep(240)
    known, _ = await MaintenanceStore(cluster.metadata).read()
    assert [(each.nodes, each.is_granted) for each in known.requests] == [((3,), True)]


@as_scenario(simulate, nodes=5)
async def test_a_drain_empties_the_node_and_ends_with_its_request(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        # So many that the request is removed before the node is empty.
        for number in range(300):
            await store.append("a", b"%d" % number)
        made = await ask(store, 3, wanted="DRAINED")
        assert made.state == "DRAINING"
        await store.remove_maintenance(made.number)
        assert (await store.rebuilding()).lost == ()
        made = await ask(store, 3, wanted="DRAINED")
        await wait_state(store, made.number, "DRAINED")
        assert [entry.node for entry in (await store.rebuilding()).lost] == [3]


@as_scenario(simulate, nodes=7, copies=2, storage=StorageSettings(rebuild_bytes_s=200_000))
async def test_a_node_may_disappear_by_its_drain_once_it_is_empty(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=30) as store:
        for _ in range(200):
            await store.append("a", bytes(20_000))
        assert (await ask(store, 1)).state == "GRANTED"
        drain = await ask(store, 2, wanted="DRAINED")
        assert drain.state == "DRAINING"
        stop = await ask(store, 2)
        assert stop.state == "BLOCKED_UNTIL_SAFE"
        assert "reads would stop" in stop.blocked
        await wait_state(store, drain.number, "DRAINED", timeout_s=900)
        await wait_state(store, stop.number, "GRANTED")


@as_scenario(simulate, nodes=5, storage=StorageSettings(rebuild_bytes_s=65_536))
async def test_a_drain_that_is_ordered_late_ends_with_its_request(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the request found no drain to cancel. The drain came after it, and stayed."""
    async with cluster.client(timeout_s=10) as store:
        for number in range(20):  # a node with nothing to give is empty at once, and stays drained
            await store.append(f"log-{number}", random.Random(1).randbytes(100_000))
    first = cluster.running[NodeId(1)]._maintenance
    obey = first._obey

    async def late(call: SayRebuild) -> CopiesReply | RebuildReply:
        if call.order is RebuildOrder.DRAIN:
            await asyncio.sleep(8)
        return await obey(call)

    monkeypatch.setattr(first, "_obey", late)
    asking = asyncio.create_task(
        first.answer(ApplyMaintenance((3,), (), "DRAINED", "a new disk", "ann", 0, "asked"))
    )
    await asyncio.sleep(4)
    async with cluster.client(timeout_s=10) as store:
        await cluster.running[NodeId(2)]._maintenance.answer(RemoveMaintenance(1, "removed"))
        await asking
        await asyncio.sleep(60)
        assert (await store.rebuilding()).lost == ()


@as_scenario(simulate, nodes=5, storage=StorageSettings(rebuild_bytes_s=65_536))
async def test_a_request_tells_why_its_drain_is_refused(cluster: ClusterAtHand) -> None:
    """It showed as DRAINING, and nothing told that the drain had not begun."""
    async with cluster.client(timeout_s=10) as store:
        for _ in range(20):
            await store.append("a", random.Random(1).randbytes(100_000))
        await store.say_rebuild(5, "drain")
        made = await ask(store, 3, wanted="DRAINED")
        assert made.state == "DRAINING"
        assert made.blocked.startswith("node 3: too many nodes would be rebuilding")
        await wait_state(store, made.number, "DRAINED")
        (found,) = await store.maintenance()
        assert found.blocked == ""


@as_scenario(simulate, nodes=4, copies=3)
async def test_a_drain_that_a_request_orders_late_is_judged_again(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was safe when it was granted. Its drain came after another one, and neither
    ended."""
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"1")
        cluster.add_nodes(3)
        await cluster.start(5, 6, 7)
        await asyncio.sleep(5)
        first = cluster.running[NodeId(5)]._maintenance
        obey = first._obey

        async def late(call: SayRebuild) -> CopiesReply | RebuildReply:
            await asyncio.sleep(8)
            return await obey(call)

        monkeypatch.setattr(first, "_obey", late)
        asking = asyncio.create_task(
            first.answer(ApplyMaintenance((2,), (), "DRAINED", "a new disk", "ann", 0, "asked"))
        )
        await asyncio.sleep(4)
        forced = SayRebuild(1, RebuildOrder.DRAIN, forced=True)
        await cluster.running[NodeId(6)]._maintenance.obey_operator(forced)
        (told,) = (await asking).requests
        assert told.state == "DRAINING"
        assert told.blocked.startswith("node 2 is not drained: ")
        assert [each.node for each in (await store.rebuilding()).lost] == [1]


@as_scenario(simulate, nodes=3)
async def test_bad_input_is_refused_and_changes_nothing(cluster: ClusterAtHand) -> None:
    async with cluster.client(timeout_s=10) as store:
        for nodes, more in (
            ((9,), {}), ((), {}), ((1,), {"racks": ["rack9"]}), ((1,), {"wanted": "GONE"}),
            ((1,), {"reason": ""}), ((1,), {"user": " "}), ((1,), {"ttl_s": 10**9}),
        ):  # fmt: skip
            with pytest.raises(BadSetting):
                await ask(store, *nodes, **more)
        assert await store.maintenance() == []


@as_scenario(simulate, nodes=4)
async def test_a_write_of_unknown_outcome_makes_one_request(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = cluster.metadata.compare_and_set
    lost: list[str] = []

    async def written_without_a_word(key: str, value: bytes | None, expected: int) -> int | None:
        version = await right(key, value, expected)
        if key == "maintenance" and not lost:
            lost.append(key)
            raise OutcomeUnknown("the answer was lost")
        return version

    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        monkeypatch.setattr(cluster.metadata, "compare_and_set", written_without_a_word)
        made = await ask(store, 1)
        assert lost
        assert [each.number for each in await store.maintenance()] == [made.number] == [1]
        lost.clear()
        await store.remove_maintenance(made.number)
        assert await store.maintenance() == []


def answers_late(
    cluster: ClusterAtHand,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    is_meant: Callable[[bytes], bool] = bool,
) -> list[str]:
    """The next write of `key` that is meant is done at once and answered after 6 s: the client asks
    another node meanwhile."""
    right = cluster.metadata.compare_and_set
    late: list[str] = []

    async def written_late(given: str, value: bytes | None, expected: int) -> int | None:
        version = await right(given, value, expected)
        if given == key and value is not None and is_meant(value) and not late:
            late.append(given)
            await asyncio.sleep(6)
        return version

    monkeypatch.setattr(cluster.metadata, "compare_and_set", written_late)
    return late


def test_a_call_that_a_second_node_gets_makes_one_request_and_ends_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("a", b"value")
            late = answers_late(cluster, monkeypatch, "maintenance")
            made = await ask(store, 1)
            assert late
            assert [each.number for each in await store.maintenance()] == [made.number]
            late.clear()
            await store.remove_maintenance(made.number)
            assert late
            assert await store.maintenance() == []
            with pytest.raises(BadSetting, match="no request"):
                await store.remove_maintenance(made.number)

    simulate(scenario, nodes=4)
    with planted(find_bug("calls-unmarked")), pytest.raises(AssertionError):
        simulate(scenario, nodes=4)


@as_scenario(simulate, nodes=4)
async def test_a_node_that_was_stopped_asks_for_nothing_once_the_request_is_over(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = MaintenanceStore.read
    held: list[MaintenanceStore] = []

    async def read_late(self: MaintenanceStore) -> object:
        if not held:
            held.append(self)
            await asyncio.sleep(10)
        return await right(self)

    async with cluster.client(timeout_s=20) as store:
        await store.append("a", b"value")
        monkeypatch.setattr(MaintenanceStore, "read", read_late)
        made = await ask(store, 1)
        assert held, "a node is stopped before it reads"
        await store.remove_maintenance(made.number)
        await asyncio.sleep(20)
        assert await store.maintenance() == []


@as_scenario(simulate, nodes=4)
async def test_a_request_that_ends_before_its_call_is_told_as_over(
    cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client(timeout_s=20) as store:
        await store.append("a", b"value")
        answers_late(cluster, monkeypatch, "maintenance")
        with pytest.raises(Rejected, match="is over"):
            await ask(store, 1, ttl_s=2)
        assert await store.maintenance() == []


@pytest.mark.parametrize(("given", "back"), [("drain", "undrain"), ("start", "abort")])
def test_an_order_that_a_second_node_gets_is_carried_out_once(
    monkeypatch: pytest.MonkeyPatch, given: str, back: str
) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            await store.append("a", b"value")
            cluster.kill(3)  # a donor, so that nothing ends meanwhile
            if given == "start":
                cluster.kill(4)
                await asyncio.sleep(10)
            await store.say_rebuild(4, given)
            late = answers_late(
                cluster, monkeypatch, "rebuilding/set", lambda value: not read_set(value).lost
            )
            await store.say_rebuild(4, back)
            assert late
            assert (await store.rebuilding(donors=False)).lost == ()

    # Late is a write of the metadata store.
    simulate(scenario, nodes=5, replicated_events=False)


@pytest.mark.parametrize("back", ["undrain", "abort"])
def test_an_operator_does_not_end_a_drain_that_a_request_would_order_again(back: str) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client(timeout_s=20) as store:
            for _ in range(100):
                await store.append("a", bytes(20_000))
            made = await ask(store, 3, wanted="DRAINED")
            assert made.state == "DRAINING"
            with pytest.raises(Rejected, match=f"maintenance remove {made.number}"):
                await store.say_rebuild(3, back)
            assert [each.node for each in (await store.rebuilding()).lost] == [3]
            cluster.kill(4)  # a donor, so that nothing ends meanwhile
            cluster.kill(3)
            await asyncio.sleep(8)
            await store.say_rebuild(3, "start")
            if back == "abort":
                await store.say_rebuild(3, back)  # it is lost, and its data may be there

    simulate(scenario, nodes=5, storage=StorageSettings(rebuild_bytes_s=100_000))


@as_scenario(simulate, nodes=5)
async def test_a_drain_that_an_operator_orders_as_well_stays_when_the_request_ends(
    cluster: ClusterAtHand,
) -> None:
    """The request's end took it back, without a word to the operator who had ordered it."""
    async with cluster.client(timeout_s=10) as store:
        await store.append("a", b"value")
        made = await ask(store, 3, wanted="DRAINED")
        await store.say_rebuild(3, "drain")
        await store.remove_maintenance(made.number)
        assert [each.node for each in (await store.rebuilding()).lost] == [3]
        await store.say_rebuild(3, "undrain")
        assert not any(each.drain for each in (await store.rebuilding()).lost)
