"""Readers go on behind an error or a cancelled step: they never take a part for the whole."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap_value

from cordwood.client.ledgers.ledgers import Ledgers
from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.store import Store
from cordwood.embedded import connect_blocking
from cordwood.errors import CordwoodError, Unreachable
from cordwood.sim.planted import find_bug, planted


def entries_of(item: Any) -> list[bytes]:
    """The payloads of what a step gives: an entry, a batch, or a table."""
    if isinstance(item, list):
        return [each.payload for each in item]
    if hasattr(item, "payload"):
        return [item.payload]
    return list(item.column("value").to_pylist())


async def within(seconds: float, following: AsyncIterator[Any]) -> Any | None:
    """The next item, None if there is none in time."""
    try:
        return await asyncio.wait_for(anext(following), seconds)
    except TimeoutError:
        return None


Ways = [ReadableLedger.follow, ReadableLedger.batches, ReadableLedger.arrow]


async def written(store: Store, count: int) -> tuple[int, list[bytes]]:
    payloads = [b"%d" % number for number in range(count)]
    async with await store.ledgers.create(ensemble=3, write=3, ack=3) as made:
        await made.append_many(payloads)
    return made.ledger_id, payloads


Way = Callable[[ReadableLedger], AsyncIterator[Any]]


async def steps_are_cancelled_at_the_end(cluster: ClusterAtHand, way: Way) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(ensemble=3, write=3, ack=2)
        await made.append_many([b"a", b"b"])
        following = way(await store.ledgers.open(made.ledger_id))
        got: list[bytes] = []
        for wanted in (b"c", b"d"):
            while (item := await within(0.5, following)) is not None:
                got += entries_of(item)
            await made.append(wanted)
        await made.close()
        async for item in following:
            got += entries_of(item)
        assert got == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("way", Ways)
def test_a_step_that_is_cancelled_ends_nothing(way: Way) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await steps_are_cancelled_at_the_end(cluster, way)

    simulate(scenario)


def test_a_reader_that_ends_with_its_step_is_caught() -> None:
    with planted(find_bug("ledger-ends-with-a-step")), pytest.raises(StopAsyncIteration):
        test_a_step_that_is_cancelled_ends_nothing(ReadableLedger.batches)


@pytest.mark.parametrize("way", Ways)
@as_scenario(simulate)
async def test_steps_are_cancelled_at_any_time(cluster: ClusterAtHand, *, way: Way) -> None:
    async with cluster.client() as store:
        ledger, payloads = await written(store, 3000)
        for pause_s in (0.0, 0.0002, 0.0005, 0.001, 0.002):
            following = way(await store.ledgers.open(ledger))
            got: list[bytes] = []
            while True:
                step = asyncio.ensure_future(anext(following, None))
                await asyncio.sleep(pause_s)
                step.cancel()
                try:
                    item = await step
                except asyncio.CancelledError:
                    await asyncio.sleep(0.001)
                    continue
                if item is None:
                    break
                got += entries_of(item)
            assert got == payloads


@pytest.mark.parametrize("way", Ways)
@as_scenario(simulate)
async def test_a_step_that_fails_ends_nothing(cluster: ClusterAtHand, *, way: Way) -> None:
    async with cluster.client(timeout_s=3) as store:
        ledger, payloads = await written(store, 100)
        opened = await store.ledgers.open(ledger)
        following = way(opened)
        got: list[bytes] = []
        if way is not ReadableLedger.arrow:
            got += entries_of(await anext(following))
        for node in opened.metadata.newest.nodes:
            cluster.machine(node).pause()
        error: CordwoodError | None = None
        while error is None:
            try:
                got += entries_of(await anext(following))
            except CordwoodError as found:
                error = found
        assert isinstance(error, Unreachable)
        for node in opened.metadata.newest.nodes:
            cluster.machine(node).resume()
        await asyncio.sleep(3)
        async for item in following:
            got += entries_of(item)
        assert got == payloads


@as_scenario(simulate)
async def test_steps_at_once_get_a_batch_each(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger, payloads = await written(store, 3000)
        following = (await store.ledgers.open(ledger)).batches()
        steps = [anext(following, []) for _ in range(5)]
        got = [entry for batch in await asyncio.gather(*steps) for entry in entries_of(batch)]
        assert got == payloads


@as_scenario(simulate)
async def test_a_reader_that_was_stopped_gives_nothing_more(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        ledger, _ = await written(store, 3000)
        before = asyncio.all_tasks()
        for way in Ways:
            following = way(await store.ledgers.open(ledger))
            await anext(following)
            await following.aclose()
            assert [item async for item in following] == []
            assert asyncio.all_tasks() - before == set()


async def steps_are_shorter_than_a_look_at_the_metadata(cluster: ClusterAtHand, way: Way) -> None:
    async with cluster.client() as writer, cluster.client() as store:
        made = await writer.ledgers.create(ensemble=1, write=1, ack=1)
        await made.append(b"a")
        following = way(await store.ledgers.open(made.ledger_id))
        got: list[bytes] = []
        while b"a" not in got:
            got += entries_of(await within(0.5, following) or [])
        cluster.kill(made.metadata.newest.nodes[0])
        await made.append(b"b")
        async with asyncio.timeout(30):
            while b"b" not in got:
                got += entries_of(await within(0.5, following) or [])
            await made.close()
            while not await is_over(following):
                pass
        assert got == [b"a", b"b"]


async def is_over(following: AsyncIterator[Any]) -> bool:
    """Whether a step of half a second says so."""
    try:
        return await asyncio.wait_for(anext(following, None), 0.5) is None
    except TimeoutError:
        return False


@pytest.mark.parametrize("way", Ways)
def test_a_reader_with_short_steps_hears_of_other_nodes_and_of_the_end(way: Way) -> None:
    """Each step asked nodes for a second first, and the metadata after it: never."""

    async def scenario(cluster: ClusterAtHand) -> None:
        await steps_are_shorter_than_a_look_at_the_metadata(cluster, way)

    simulate(scenario)


def test_a_reader_that_waits_anew_with_each_step_is_caught() -> None:
    bug = find_bug("ledger-waits-anew")
    with planted(bug), pytest.raises(TimeoutError):
        test_a_reader_with_short_steps_hears_of_other_nodes_and_of_the_end(ReadableLedger.batches)


@pytest.mark.parametrize("way", Ways)
@as_scenario(simulate)
async def test_a_reader_that_another_task_stops_ends(cluster: ClusterAtHand, *, way: Way) -> None:
    """Its step was told that somebody had cancelled it: its task ended without a word."""
    async with cluster.client() as store:
        ledger, payloads = await written(store, 3000)

        async def consume(following: AsyncIterator[Any]) -> list[bytes]:
            return [entry async for item in following for entry in entries_of(item)]

        for pause_s in (0.0, 0.0001, 0.0003, 0.0005, 0.001, 0.002):
            following = way(await store.ledgers.open(ledger))
            consumer = asyncio.ensure_future(consume(following))
            await asyncio.sleep(pause_s)
            await following.aclose()
            got = await consumer
            assert got == payloads[: len(got)]


async def a_list_whose_steps_fail(cluster: ClusterAtHand) -> None:
    """A program that went on took the first page for all ledgers, or none for none."""
    async with cluster.client(timeout_s=3) as store:
        ids = [(await store.ledgers.create()).ledger_id for _ in range(5)]
        listed = store.ledgers.list()
        step = asyncio.ensure_future(anext(listed))
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        for number in cluster.numbers:
            cluster.kill(number)
        with pytest.raises(Unreachable):
            await anext(listed)
        await cluster.start()
        await asyncio.sleep(3)
        assert [each async for each in listed] == ids
        assert await anext(listed, None) is None
        closed = store.ledgers.list()
        assert await anext(closed) == ids[0]
        await closed.aclose()
        assert [each async for each in closed] == []


def test_a_list_goes_on_behind_its_errors() -> None:
    simulate(a_list_whose_steps_fail)


def test_a_list_that_ends_with_its_step_is_caught() -> None:
    with planted(find_bug("ledger-ends-with-a-step")), pytest.raises(StopAsyncIteration):
        simulate(a_list_whose_steps_fail)


@as_scenario(simulate)
async def test_a_list_has_pages(cluster: ClusterAtHand, *, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Ledgers.page

    async def page(self: Ledgers, after: int = -1, limit: int = 2) -> list[int]:
        return await read(self, after, limit)

    swap_value(monkeypatch, lambda: Ledgers.page, page)
    async with cluster.client() as store:
        ids = [(await store.ledgers.create()).ledger_id for _ in range(5)]
        assert [each async for each in store.ledgers.list()] == ids
        assert [each async for each in store.ledgers.list(after=ids[2])] == ids[3:]


class Interrupted(Exception):
    """A signal handler raised it."""


def test_a_signal_in_a_waiting_thread_ends_nothing(tmp_path: Path) -> None:
    def interrupt(signum: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with connect_blocking(str(tmp_path)) as store:
            made = store.ledgers.create(ensemble=1, write=1, ack=1)
            made.append(b"a")
            opened = store.ledgers.open(made.ledger_id)
            ways = [opened.follow(), opened.batches(), opened.arrow()]
            got = [[*entries_of(next(each))] for each in ways]
            for each in ways:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(Interrupted):
                    next(each)
            made.append(b"b")
            made.close()
            for each, some in zip(ways, got, strict=True):
                for item in each:
                    some += entries_of(item)
            assert got == [[b"a", b"b"]] * 3
    finally:
        signal.signal(signal.SIGALRM, before)
