"""Clients that hear of no change for a while: they were stopped, or nobody counted the change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import pytest
from cluster_at_hand import ClusterAtHand, simulate, values
from swaps import swap

from cordwood.client.cluster import REFRESH_S
from cordwood.client.find.known_logs import ASK_EARLY_S, BELIEVED_S, UNHEARD_S
from cordwood.client.find.log_finding import ASK_ONE_S, CHECK_NAME_S, UNANSWERED_S, LogFinding
from cordwood.client.find.log_info import AnyLog
from cordwood.client.store import Store, connected
from cordwood.errors import CordwoodError, LogExists, Unreachable
from cordwood.host.seams import Host
from cordwood.metadata.log_tree import LogTree
from cordwood.settings import ClientSettings
from cordwood.sim.planted import find_bug, planted


def bug(name: str) -> AbstractContextManager[object]:
    return planted(find_bug(name)) if name else nullcontext()


def wrong(name: str) -> AbstractContextManager[object]:
    return pytest.raises(AssertionError) if name else nullcontext()


async def rotate(operator: Store) -> None:
    await operator.log_tree.rename("a", "archive")
    await operator.create_log("a")


def test_the_times_fit() -> None:
    assert 2 * REFRESH_S <= UNHEARD_S < BELIEVED_S
    assert ASK_EARLY_S + REFRESH_S + ASK_ONE_S < BELIEVED_S
    assert UNANSWERED_S > REFRESH_S + ASK_ONE_S


@pytest.mark.parametrize("bug_name", ["", "names-of-the-stopped"])
def test_a_client_that_was_stopped_looks_its_names_up(bug_name: str) -> None:
    """Its next record went to the log that had the name before, however long ago that was."""

    async def scenario(cluster: ClusterAtHand) -> None:
        async def append_each_second(host: Host) -> None:
            objects = cluster.open_objects
            async with connected(cluster.addresses, host, ClientSettings(), objects) as store:
                for number in range(60):
                    await store.append("a", b"%d" % number)
                    await asyncio.sleep(1)

        machine = cluster.simulation.machine("app")
        machine.start(append_each_second)
        await asyncio.sleep(12.5)
        machine.pause()
        async with cluster.client() as operator:
            before = await values(operator, "a", until="tail")
            await rotate(operator)
            await asyncio.sleep(UNHEARD_S)
            machine.resume()
            await asyncio.sleep(5)
            assert await values(operator, "archive", until="tail") == before
            assert await values(operator, "a", until="tail")

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


@pytest.mark.parametrize("bug_name", ["", "old-names-at-once"])
def test_an_old_name_is_looked_up_before_it_is_used(
    bug_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that made the change died before it could count it. A client that appends seldom
    went on with the log that had the name, after more than a minute."""

    async def died(self: LogTree) -> None:
        pass

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            await store.append("a", b"old")
            swap(monkeypatch, LogTree.note_change, died)
            await rotate(operator)
            await asyncio.sleep(BELIEVED_S)
            await store.append("a", b"new")
            assert await values(operator, "a", until="tail") == [b"new"]

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


def test_who_uses_a_name_all_the_time_waits_once_while_nobody_can_look_it_up() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.client() as store:
            await store.append("a", b"0")
            slowest, asked = [0.0], []
            right = store._cluster.ask_log

            async def ask_log(*question: object) -> object:
                asked.append(question)
                return await right(*question)  # type: ignore[arg-type]

            store._cluster.ask_log = ask_log  # type: ignore[assignment, method-assign]
            for second in range(150):
                cluster.metadata.is_out = 20 <= second < 140
                began = loop.time()
                await store.append("a", b"1")
                slowest.append(loop.time() - began)
                await asyncio.sleep(1 - (loop.time() - began))
            assert sorted(slowest)[-2] < CHECK_NAME_S / 2
            assert len(asked) < 150 / REFRESH_S

    simulate(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug_name", "by_number"),
    [("", False), ("", True), ("waits-of-each-log", False), ("waits-for-old-numbers", True)],
)
def test_who_uses_many_logs_waits_once_while_nobody_can_look_them_up(
    bug_name: str, *, by_number: bool
) -> None:
    """The client waited for each of them, and again as soon as it came back to the first."""

    async def scenario(cluster: ClusterAtHand) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.client() as store:
            logs: list[AnyLog] = [f"a{number}" for number in range(40)]
            for log in logs:
                await store.append(log, b"0")
            if by_number:
                logs = [(await store.log(log)).log_id for log in logs]
            cluster.metadata.is_out = True
            await asyncio.sleep(BELIEVED_S)
            took = []
            for log in logs:
                began = loop.time()
                await store.append(log, b"1")
                took.append(loop.time() - began)
                await asyncio.sleep(UNANSWERED_S / len(logs))
            waits = [each for each in took if each >= CHECK_NAME_S / 2]
            assert len(waits) == (0 if by_number else 1)

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


def test_an_answer_for_one_log_ends_the_outage_for_all() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store, cluster.client() as operator:
            for log in "ab":
                await store.append(log, b"old")
            cluster.metadata.is_out = True
            await asyncio.sleep(BELIEVED_S)
            await store.append("b", b"old")
            cluster.metadata.is_out = False
            await rotate(operator)
            await store.log("b")
            await store.append("a", b"new")
            assert await values(operator, "a", until="tail") == [b"new"]

    simulate(scenario)


def test_a_question_from_before_a_stop_is_not_shared() -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.client() as store, cluster.client() as operator:
            await store.append("a", b"old")
            finding: LogFinding = store._cluster
            question = finding._share_question("/a", True, ASK_ONE_S)
            assert finding._share_question("/a", True, ASK_ONE_S) is question
            await question
            await rotate(operator)
            waits = loop.create_task(asyncio.sleep(60, await finding.ask_log("/archive", False, 1)))
            finding._asking["/a", True] = waits, loop.time() - UNHEARD_S  # type: ignore[assignment]
            assert (await finding._share_question("/a", True, 1.0)).log_id == 2  # type: ignore[union-attr]
            waits.cancel()

    simulate(scenario)


@pytest.mark.parametrize(
    ("stands", "bug_name"),
    [
        ([CHECK_NAME_S + 0.5], ""),
        ([CHECK_NAME_S + 0.5], "own-stop-as-silence"),
        ([CHECK_NAME_S + 0.05], ""),
        ([CHECK_NAME_S + 0.05], "short-stop-as-silence"),
        ([CHECK_NAME_S + 0.5, CHECK_NAME_S + 0.5], ""),
    ],
)
def test_a_client_that_stood_while_it_asked_takes_no_name_from_memory(
    stands: list[float], bug_name: str
) -> None:
    """Its time was over as the answer came. It took that for "no node answers", and its next record
    went to the log that had the name before."""

    async def scenario(cluster: ClusterAtHand) -> None:
        stores: list[Store] = []
        is_stopped = asyncio.Event()

        async def append_twice(host: Host) -> None:
            objects = cluster.open_objects
            async with connected(cluster.addresses, host, ClientSettings(), objects) as store:
                await store.append("a", b"old")
                stores.append(store)
                await is_stopped.wait()
                await store.append("a", b"new")
                await asyncio.sleep(60)

        machine = cluster.simulation.machine("app")
        machine.start(append_twice)
        await asyncio.sleep(5)
        async with cluster.client() as operator:
            await rotate(operator)
            await asyncio.sleep(2 * REFRESH_S)
            is_stopped.set()
            while not stores[0]._cluster._asking:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.0001)
            for stand_s in stands:
                machine.pause()
                await asyncio.sleep(stand_s)
                machine.resume()
                await asyncio.sleep(0.0005)
            await asyncio.sleep(5)
            assert await values(operator, "archive", until="tail") == [b"old"]
            assert await values(operator, "a", until="tail") == [b"new"]

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)


async def append_one(store: Store) -> None:
    await store.append("new", b"1")


async def append_some(store: Store) -> None:
    await store.append_many("new", [b"1", b"2"])


async def append_together(store: Store) -> None:
    await store.append_many("new", [b"1", b"2"], atomic=True)


@pytest.mark.parametrize(
    ("append", "stand_s", "cut_s", "bug_name"),
    [
        (append_one, 0.3, 60.0, ""),
        (append_one, 0.3, 60.0, "look-up-begins-anew"),
        # A node answers while the look-up has time left, but the call has none.
        (append_one, 4.0, 12.0, ""),
        (append_some, 4.0, 12.0, ""),
        (append_together, 4.0, 12.0, ""),
        (append_one, 4.0, 12.0, "sent-after-its-deadline"),
        (append_some, 4.0, 12.0, "sent-after-its-deadline"),
        (append_together, 4.0, 12.0, "sent-after-its-deadline"),
    ],
)
def test_a_client_that_stood_while_no_node_answered_ends_in_time_and_stores_nothing(
    append: Callable[[Store], Awaitable[None]], stand_s: float, cut_s: float, bug_name: str
) -> None:
    """Its look-up began anew with all its time. The append took twice its timeout, or was sent
    after its deadline and ended at once without a known outcome."""
    timeout_s = 10.0

    async def scenario(cluster: ClusterAtHand) -> None:
        ends: list[tuple[float, CordwoodError | None]] = []

        async def append_by_a_new_name(host: Host) -> None:
            settings = ClientSettings(timeout_s=timeout_s)
            objects = cluster.open_objects
            async with connected(cluster.addresses, host, settings, objects) as store:
                await asyncio.sleep(2)
                began = asyncio.get_running_loop().time()
                error: CordwoodError | None = None
                try:
                    await append(store)
                except CordwoodError as raised:
                    error = raised
                ends.append((asyncio.get_running_loop().time() - began, error))
                await asyncio.sleep(60)

        machine = cluster.simulation.machine("app")
        machine.start(append_by_a_new_name)
        await asyncio.sleep(1.9)
        nodes = [cluster.machine(node).name for node in cluster.running]
        cluster.simulation.network.partition(["app"], nodes)
        await asyncio.sleep(3)
        machine.pause()
        await asyncio.sleep(stand_s)
        machine.resume()
        await asyncio.sleep(cut_s - 3 - stand_s)
        cluster.simulation.network.mend_all()
        await asyncio.sleep(30)
        [(took_s, error)] = ends
        assert took_s < timeout_s + stand_s + 0.1
        assert isinstance(error, Unreachable), error
        async with cluster.client() as operator:
            with suppress(LogExists):  # the look-up made it
                await operator.create_log("new")
            assert await values(operator, "new", until="tail") == []

    with bug(bug_name), wrong(bug_name):
        simulate(scenario)
