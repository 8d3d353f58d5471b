"""Calls that do not wait, beside calls that do: nobody passes, and nobody is kept out for good."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cluster_at_hand import ClusterAtHand, simulate

from cordwood.client.append.buffered_writer import WriteMode, WriterOptions
from cordwood.errors import Overloaded
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.sim.planted import find_bug, planted

CALLERS = 3
EACH = 20

TURNS_MAX = 100 * CALLERS * EACH
"""Far above what is needed: calls that keep one another out take turns without end."""


class TurnsOver(AssertionError):
    """Calls that wait for room and come again get no further."""


async def all_get_in(
    wait: Callable[[], Awaitable[None]],
    put: Callable[[bytes], asyncio.Future[Any]],
    *,
    by_wait_for: bool,
) -> list[Any]:
    """What the answers are where some tasks wait for room and take it, each again and again."""
    turns = itertools.count(1)
    answers: list[asyncio.Future[Any]] = []

    async def call(caller: int) -> None:
        for number in range(EACH):
            while True:
                await (asyncio.wait_for(wait(), 5) if by_wait_for else wait())
                if next(turns) > TURNS_MAX:
                    raise TurnsOver(f"{len(answers)} of {CALLERS * EACH} got in")
                try:
                    answers.append(put(b"%d-%d" % (caller, number)))
                except Overloaded:
                    continue
                break

    await asyncio.gather(*map(call, range(CALLERS)))
    return list(await asyncio.gather(*answers))


async def tasks_wait_for_room_in_a_log(
    cluster: ClusterAtHand, *, by_wait_for: bool = False
) -> None:
    """Each was let in, found that the others wait, was refused, and waited behind them: with
    nothing in flight, four records of 150 got in, and the loop spun."""
    async with cluster.client(window_records=4) as store:
        log = await store.open_log("log")
        lsns = await all_get_in(log.wait_space, log.append_nowait, by_wait_for=by_wait_for)
        assert lsns == sorted(lsns)
        assert len(set(lsns)) == CALLERS * EACH


def come_behind(
    ahead: asyncio.Future[Any], put: Callable[[bytes], asyncio.Future[Any]]
) -> list[asyncio.Future[Any]]:
    """Put one in without a wait, from the turn on in which what was in its way has ended."""
    put_in: list[asyncio.Future[Any]] = []

    def come(_: object) -> None:
        try:
            put_in.append(put(b"nowait"))
        except Overloaded:
            asyncio.get_running_loop().call_later(1e-4, come, None)

    ahead.add_done_callback(come)
    return put_in


async def a_record_of_a_log_passes(cluster: ClusterAtHand) -> None:
    """A call of many records ends its turn with room to spare; the next call has not run yet."""
    async with cluster.client(window_records=40, block_records=10) as store:
        log = await store.open_log("log")
        sent = [log.append_nowait(b"first") for _ in range(10)]
        nowait = come_behind(sent[-1], log.append_nowait)
        many = asyncio.create_task(store.append_many("log", [b"many"] * 35))
        await asyncio.sleep(0)
        one = asyncio.create_task(store.append("log", b"one"))
        assert (await many)[-1] < await one
        await asyncio.sleep(1)
        assert await one < await nowait[0]


async def a_record_of_a_writer_passes(cluster: ClusterAtHand) -> None:
    """Memory is free again, and the calls that waited for it have not run yet."""
    async with cluster.client() as store:
        options = WriterOptions(
            mode=WriteMode.STREAM, size_trigger_bytes=500, memory_bytes_max=1000
        )
        async with store.buffered_writer(options) as writer:
            sent = [writer.append_nowait("log", bytes(100)) for _ in range(10)]
            nowait = come_behind(sent[0], lambda value: writer.append_nowait("log", value))
            calls = [asyncio.create_task(writer.append("log", b"%d" % n)) for n in range(3)]
            lsns = await asyncio.gather(*calls)
            await asyncio.sleep(1)
            assert lsns[-1] < await nowait[0]


async def an_entry_of_a_ledger_passes(cluster: ClusterAtHand) -> None:
    async with cluster.client() as store:
        made = await store.ledgers.create(
            ensemble=3, write=3, ack=3, limits=WriterLimits(entries_max=1)
        )
        nowait = come_behind(made.append_nowait(b"first"), made.append_nowait)
        calls = [asyncio.create_task(made.append(b"%d" % number)) for number in range(3)]
        assert await asyncio.gather(*calls) == [1, 2, 3]
        await asyncio.sleep(1)
        assert await nowait[0] == 4
        await made.close()


PASSES = [a_record_of_a_log_passes, a_record_of_a_writer_passes, an_entry_of_a_ledger_passes]


@pytest.mark.parametrize("by_wait_for", [False, True])
def test_tasks_that_wait_for_room_all_get_in(*, by_wait_for: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        await tasks_wait_for_room_in_a_log(cluster, by_wait_for=by_wait_for)

    simulate(scenario)


@pytest.mark.parametrize("by_wait_for", [False, True])
def test_tasks_that_wait_for_room_in_a_ledger_all_get_in(*, by_wait_for: bool) -> None:
    async def scenario(cluster: ClusterAtHand) -> None:
        async with cluster.client() as store:
            made = await store.ledgers.create(
                ensemble=3, write=3, ack=3, limits=WriterLimits(entries_max=2)
            )
            ids = await all_get_in(made.wait_room, made.append_nowait, by_wait_for=by_wait_for)
            assert ids == [*range(CALLERS * EACH)]
            await made.close()

    simulate(scenario)


@pytest.mark.parametrize("scene", PASSES, ids=lambda scene: scene.__name__)
def test_one_that_does_not_wait_passes_none_that_wait(scene: Any) -> None:
    simulate(scene)


@pytest.mark.parametrize("scene", PASSES, ids=lambda scene: scene.__name__)
def test_the_scenes_catch_one_that_passes(scene: Any) -> None:
    with planted(find_bug("nowait-passes")), pytest.raises(AssertionError):
        simulate(scene)


def test_the_scene_catches_that_they_keep_one_another_out() -> None:
    with planted(find_bug("room-for-nobody")), pytest.raises(TurnsOver):
        simulate(tasks_wait_for_room_in_a_log)
