"""A client of many logs: those that wait for nothing cost nothing, and leave room for producers."""

from __future__ import annotations

import asyncio

import pytest
from cluster_at_hand import ClusterAtHand, simulate
from scenarios import as_scenario
from swaps import swap, swap_value

from cordwood.client.append import appends
from cordwood.client.append.log_appends import LogAppends
from cordwood.client.append.producer import Producer
from cordwood.errors import OutcomeUnknown, Overloaded


def test_logs_that_wait_for_nothing_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    is_due = LogAppends.is_due

    def noting(self: LogAppends, now: float) -> bool:
        looked.append(self.log)
        return is_due(self, now)

    swap(monkeypatch, LogAppends.is_due, noting)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await asyncio.gather(*(store.append(f"log-{n}", b"1") for n in range(20)))
            await asyncio.sleep(1)
            busy = (await store.log("log-7")).log_id
            looked.clear()
            for _ in range(200):
                await store.append("log-7", b"2")
                await asyncio.sleep(0.01)
            assert set(looked) <= {busy}
            await asyncio.sleep(1)
            looked.clear()
            await asyncio.sleep(5)
            assert looked == []

    simulate(scenario)


@as_scenario(simulate)
async def test_a_log_that_waits_is_given_up_at_its_deadline_among_many(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client(timeout_s=2) as store:
        logs = [f"log-{n}" for n in range(20)]
        await asyncio.gather(*(store.append(log, b"1") for log in logs))
        await asyncio.sleep(1)
        for number in (1, 2, 3):
            cluster.machine(number).pause()
        began = asyncio.get_running_loop().time()
        calls = [asyncio.create_task(store.append(log, b"2")) for log in logs[:10]]
        await asyncio.sleep(1)
        calls += [asyncio.create_task(store.append(log, b"2")) for log in logs[10:]]
        for call, at_s in zip(calls, [2] * 10 + [3] * 10, strict=True):
            with pytest.raises(OutcomeUnknown):
                await call
            assert at_s <= asyncio.get_running_loop().time() - began < at_s + 0.3
        for number in (1, 2, 3):
            cluster.machine(number).resume()


def test_logs_without_a_producer_are_none_of_the_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: appends.PRODUCERS_MAX, 2)

    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            await asyncio.gather(*(store.append(f"log-{n}", b"1") for n in range(5)))
            for number in range(1, 5):
                assert await store.append("log-1", b"1", producer=Producer(number))
            calls = [store.append("log-1", b"2", producer=Producer(n)) for n in (7, 8, 9)]
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) is Overloaded for each in done] == [False, False, True]

    simulate(scenario)
