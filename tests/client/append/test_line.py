"""Calls in a line go on in the order in which they came, whatever each of them does."""

from __future__ import annotations

import asyncio
import random

import pytest
from scenarios import as_scenario, awaited_by

from cordwood.client.append.line import Line


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(200))
@as_scenario(awaited_by(asyncio.run))
async def test_calls_go_on_in_their_order_and_the_line_empties(*, seed: int) -> None:
    chance, line = random.Random(seed), Line(asyncio.get_running_loop())
    came: list[int] = []
    went: list[int] = []
    holding: list[int] = []

    async def call(number: int, turns: int, unready: int, *, holds: bool) -> None:
        came.append(number)
        place = line.join(holds=holds, is_ready=not unready)
        try:
            for _ in range(unready):
                await asyncio.sleep(0)
            if unready:
                line.ready(place)
            await line.turn(place)
            assert not holding
            went.append(number)
            if holds:
                holding.append(number)
                try:
                    await _turns(turns)
                finally:
                    holding.clear()
        finally:
            line.leave(place)
            line.leave(place)

    tasks = []
    for number in range(chance.randrange(1, 40)):
        unready = chance.choice((0, 0, chance.randrange(4)))
        work = call(number, chance.randrange(4), unready, holds=chance.random() < 0.2)
        tasks.append(asyncio.create_task(work))
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
        await _turns(chance.randrange(3))
    await asyncio.wait(tasks)
    assert went == [number for number in came if number in went]
    assert {n for n, each in enumerate(tasks) if not each.cancelled()} <= set(went)
    assert line.is_empty


@as_scenario(awaited_by(asyncio.run))
async def test_calls_that_wait_are_let_go_together() -> None:
    """One a turn, a fresh client would send one record a block for as long as calls come."""
    loop = asyncio.get_running_loop()
    line, turns, went = Line(loop), [0], list[int]()

    def count() -> None:
        turns[0] += 1
        loop.call_soon(count)

    async def call() -> None:
        place = line.join()
        await line.turn(place)
        went.append(turns[0])
        line.leave(place)

    first = line.join(is_ready=False)
    calls = [asyncio.create_task(call()) for _ in range(100)]
    await asyncio.sleep(0)
    count()
    line.ready(first)
    line.leave(first)
    await asyncio.gather(*calls)
    assert len(set(went)) == 1
