"""Logs that go from one member of a consumer to another while something else happens to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate, until
from scenarios import as_scenario

from cordwood.block import Record
from cordwood.client.read.consumer import BEATS, MEMBER_TTL_S, Consumer
from cordwood.client.store import Store
from cordwood.errors import Fenced, Unreachable
from cordwood.layout.message import Call, Reply
from cordwood.layout.message_consumers import SaveCursors
from cordwood.lsn import make_lsn
from cordwood.protocol.consumer_group import LEASE_US_MAX
from cordwood.sim.planted import find_bug, planted


async def fill(store: Store, *logs: str) -> None:
    for log in logs:
        await store.append_many(log, [b"%d" % number for number in range(1, 6)])


async def drained(consumer: Consumer, timeout_s: float = 2.0) -> dict[str, list[int]]:
    """All that comes, by log."""
    found: dict[str, list[int]] = {}
    while portion := await consumer.read(timeout_s=timeout_s):
        found.setdefault(portion.log, []).extend(int(each.value) for each in portion.records)
    return found


class SavesWatched:
    """Has something happen around a consumer's saves: the first one is not answered."""

    def __init__(self, consumer: Consumer, second: Any) -> None:
        self.saves = 0
        self.failing = asyncio.Event()
        self._right = consumer._ask
        self._second = second
        consumer._ask = self._ask

    async def _ask(self, call: Call) -> Reply:
        if isinstance(call, SaveCursors):
            self.saves += 1
            if self.saves == 1:
                self.failing.set()
                await asyncio.sleep(1)
                raise Unreachable("no node answered")
            if self.saves == 2:
                await self._second()
        return await self._right(call)


async def heard_of_a_successor(consumer: Consumer) -> None:
    """Wait for the beat that tells of another member."""
    await until(lambda: consumer._group.generation != consumer.generation)


async def a_reset_comes_before_it_lets_go(cluster: ClusterAtHand) -> None:
    """One task reads, and is about to let go of `a`; another one saves, and hears of the reset.
    The positions from before the reset were saved as those of the generation behind it."""
    async with cluster.client() as store, cluster.client() as admin:
        await fill(store, "a", "b")
        first = await store.consumer("group", "a", "b", member="m1", save_every_s=None)
        await first.start()
        await drained(first)

        async def reset() -> None:
            await admin.cursors.save("group", {"a": make_lsn(1, 1)}, reset=True)

        watched = SavesWatched(first, reset)
        second = await admin.consumer("group", "a", "b", member="m2", save_every_s=None)
        starting = asyncio.create_task(second.start())
        await heard_of_a_successor(first)
        reading = asyncio.create_task(first.read(timeout_s=20))
        await watched.failing.wait()
        with pytest.raises(Fenced, match="is read by m1 since generation 3"):
            await first.save()
        await starting
        assert await drained(second, MEMBER_TTL_S) == {"/a": [1, 2, 3, 4, 5]}
        assert not await reading
        await first.close()
        await second.close()
        (group,) = await admin.cursors.list("group")
        assert group.positions == {"/a": make_lsn(1, 6), "/b": make_lsn(1, 6)}


def test_a_reset_is_not_undone_by_the_member_that_lets_go() -> None:
    simulate(a_reset_comes_before_it_lets_go)


@pytest.mark.slow
def test_the_scene_catches_one_that_lets_go_by_news() -> None:
    with planted(find_bug("lets-go-by-news")), pytest.raises(AssertionError):
        simulate(a_reset_comes_before_it_lets_go)


@as_scenario(simulate)
async def test_a_log_that_is_refused_holds_up_no_other_that_goes_with_it(
    cluster: ClusterAtHand,
) -> None:
    """`a` was reset. `b` went too, without its position, and the next member read it again."""
    logs = ["a", "b", "c", "d"]
    async with cluster.client() as store, cluster.client() as admin:
        await fill(store, *logs)
        first = await store.consumer("group", *logs, member="m1", save_every_s=None)
        await first.start()
        await drained(first)

        async def reset() -> None:
            await admin.cursors.save("group", {"/a": make_lsn(1, 1)}, reset=True)

        SavesWatched(first, reset)
        second = await admin.consumer("group", *logs, member="m2", save_every_s=None)
        starting = asyncio.create_task(second.start())
        await heard_of_a_successor(first)
        assert first._group.successors == {"/a": "m2", "/b": "m2"}
        again = asyncio.create_task(drained(first, MEMBER_TTL_S))
        await starting
        assert await drained(second, MEMBER_TTL_S) == {"/a": [1, 2, 3, 4, 5]}
        assert await again == {}
        await first.close()
        await second.close()


@as_scenario(simulate)
async def test_one_that_was_replaced_may_be_started_anew(cluster: ClusterAtHand) -> None:
    """It joined and beat, so its logs were its own, and each read told of its earlier end."""
    async with cluster.client() as store, cluster.client() as other:
        await fill(store, "log")
        consumer = await store.consumer("group", "log", member="m1", save_every_s=None)
        await consumer.start()
        assert await drained(consumer) == {"/log": [1, 2, 3, 4, 5]}
        async with await other.consumer("group", "log", member="m1", save_every_s=None):
            await asyncio.sleep(MEMBER_TTL_S)
            with pytest.raises(Fenced, match="join again"):
                await consumer.read(timeout_s=1)
        await consumer.start()
        assert await drained(consumer) == {"/log": [1, 2, 3, 4, 5]}
        await consumer.close()


HOUR_US = 3_600_000_000


async def a_member_dies_after_clocks_were_ahead(cluster: ClusterAtHand, *, member: str) -> None:
    """Its lease ended an hour later, and until then nobody read its log, or could save."""
    async with cluster.client() as store, cluster.client() as other:
        await fill(store, "log")
        dead = await store.consumer("group", "log", member="m1", save_every_s=None)
        await dead.start()
        for number in cluster.numbers:
            cluster.machine(number).clock.step(HOUR_US)
        await asyncio.sleep(MEMBER_TTL_S / BEATS + 1)
        for number in cluster.numbers:
            cluster.machine(number).clock.step(-HOUR_US)
        dead._beating.cancel()  # it is killed
        async with other.consumer("group", "log", member=member, save_every_s=None) as consumer:
            async with asyncio.timeout(LEASE_US_MAX / 1e6 + MEMBER_TTL_S):
                while not await consumer.read(timeout_s=1):
                    pass
                while True:
                    try:
                        await consumer.save()
                        break
                    except Fenced:
                        await asyncio.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["m2", ""])
def test_a_lease_of_clocks_that_were_ahead_ends_within_a_minute(*, member: str) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await a_member_dies_after_clocks_were_ahead(cluster, member=member)

    simulate(scenario)
    with planted(find_bug("leases-of-any-length")), pytest.raises(TimeoutError):
        simulate(scenario)


async def two_members_by_nodes_of_different_clocks(cluster: ClusterAtHand) -> None:
    """Each beat by one node took the member that beats by the other for absent: 35 fences in three
    minutes, and a third of the records came twice."""
    cluster.machine(1).clock.step(-60_000_000)
    cluster.simulation.network.partition(["client-2"], ["node-1"])
    fenced = 0
    ends = asyncio.get_running_loop().time() + 120

    async def take_part(store: Store, name: str) -> None:
        nonlocal fenced
        while asyncio.get_running_loop().time() < ends:
            try:
                async with store.consumer("group", "a", "b", member=name) as consumer:
                    while asyncio.get_running_loop().time() < ends:
                        await consumer.read(timeout_s=1)
            except Fenced:
                fenced += 1

    async with cluster.client() as one, cluster.client() as two:
        await fill(one, "a", "b")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take_part(one, "m1"))
            tasks.create_task(take_part(two, "m2"))
    assert fenced <= 2, "each node sees each lease once for the first time"


def test_a_member_that_beats_by_a_node_whose_clock_is_behind_is_not_absent() -> None:
    simulate(two_members_by_nodes_of_different_clocks)
    with planted(find_bug("leases-by-one-clock")), pytest.raises(AssertionError):
        simulate(two_members_by_nodes_of_different_clocks)


@as_scenario(simulate)
async def test_a_member_that_died_is_missed_soon_whatever_was_seen_of_it(
    cluster: ClusterAtHand,
) -> None:
    async with cluster.client() as store, cluster.client() as other:
        await fill(store, "log")
        dead = await store.consumer("group", "log", member="m1", save_every_s=None)
        await dead.start()
        async with other.consumer("group", "log", member="m2", save_every_s=None) as consumer:
            await asyncio.sleep(2 * MEMBER_TTL_S)
            dead._beating.cancel()  # it is killed
            async with asyncio.timeout(2 * MEMBER_TTL_S):
                while not await consumer.read(timeout_s=1):
                    pass


async def a_hand_over_is_cancelled_within_a_block(cluster: ClusterAtHand) -> None:
    """The cancelled `read` had let go of the log. The loop then gave the rest of the block that it
    had begun; the next member gave these records as well, and the record before them again."""
    async with cluster.client() as store, cluster.client() as admin:
        await fill(store, "a", "b")
        first = await store.consumer("group", "a", "b", member="m1", save_every_s=None)
        await first.start()
        found: dict[str, list[int]] = {"/a": [], "/b": []}

        async def step() -> str:
            log, item = await anext(first)
            assert isinstance(item, Record)
            found[log].append(int(item.value))
            return log

        async def go_on() -> None:
            async with asyncio.timeout(MEMBER_TTL_S):
                while True:
                    await step()

        while await step() != "/a":
            pass
        second = await admin.consumer("group", "a", "b", member="m2", save_every_s=None)
        starting = asyncio.create_task(second.start())
        await heard_of_a_successor(first)
        assert first._group.successors == {"/a": "m2"}
        ask, has_let_go = first._ask, asyncio.Event()

        async def ask_slowly(call: Call) -> Reply:
            reply = await ask(call)
            if isinstance(call, SaveCursors) and call.let_go:
                has_let_go.set()
                await asyncio.sleep(5)
            return reply

        first._ask = ask_slowly
        reading = asyncio.create_task(first.read())
        await has_let_go.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(TimeoutError):
            await go_on()
        await starting
        for log, more in (await drained(second)).items():
            found[log] += more
        assert found == {"/a": [1, 2, 3, 4, 5], "/b": [1, 2, 3, 4, 5]}
        await first.close()
        await second.close()


def test_a_loop_gives_no_record_that_has_another_reader() -> None:
    simulate(a_hand_over_is_cancelled_within_a_block)


def test_the_scene_catches_a_loop_that_goes_on() -> None:
    with planted(find_bug("loop-passes-turn")), pytest.raises(AssertionError):
        simulate(a_hand_over_is_cancelled_within_a_block)
