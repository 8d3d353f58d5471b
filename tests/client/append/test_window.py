"""The client's window: who waits goes in turn, and nobody's leaving stops those behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scenarios import as_scenario

from cordwood.client.append.window import Window
from cordwood.errors import Closed, Overloaded
from cordwood.settings import ClientSettings
from cordwood.sim.loop import SimLoop


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        runner.run(main())


class Callers:
    """Callers by number; each takes one record as soon as it has room."""

    def __init__(self, **settings: Any) -> None:
        self.window = Window(ClientSettings(**settings))
        self.went: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    def come(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._call(len(self.tasks), size)))

    async def _call(self, number: int, size: int) -> None:
        if not self.window.has_space:
            await self.window.wait_space()
        self.window.take(1, size)
        self.went.append(number)


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@as_scenario(run)
async def test_room_for_so_many_wakes_so_many_in_the_order_they_came() -> None:
    callers = Callers(window_records=10)
    callers.come(100)
    await turns()
    assert callers.went == [*range(10)]
    callers.window.give_back(7, 7)
    await turns()
    assert callers.went == [*range(17)]
    callers.window.give_back(10, 10)
    await turns()
    assert callers.went == [*range(27)]


@as_scenario(run)
async def test_nobody_passes_those_who_wait() -> None:
    """Not even in the turn in which they were woken and have not run yet."""
    callers = Callers(window_records=2)
    callers.come(4)
    await turns()
    callers.window.give_back(2, 2)
    assert not callers.window.has_space
    callers.come(2)
    await turns()
    callers.window.give_back(2, 2)
    await turns()
    assert callers.went == [0, 1, 2, 3, 4, 5]


@as_scenario(run)
async def test_who_was_woken_for_too_few_bytes_keeps_its_place() -> None:
    callers = Callers(window_bytes=10_000)
    callers.come(1, size=20_000)
    await turns()
    callers.come(5, size=1)
    callers.come(5, size=9_999)
    callers.come(5, size=1)
    await turns()
    callers.window.give_back(1, 20_000)
    while len(callers.went) < 16:
        await turns()
        callers.window.give_back(callers.window.records, callers.window.bytes)
    assert callers.went == [*range(16)]


@pytest.mark.parametrize("gives_up", [[1], [1, 2, 3], [4], [3, 1]])
@pytest.mark.parametrize("when", ["while it waits", "when it was just woken"])
@as_scenario(run)
async def test_one_who_gives_up_stops_nobody_behind_it(*, gives_up, when: str) -> None:
    """Woken and cancelled in one turn, it took along the wake-up of all behind it: with
    nothing in flight nobody was ever woken again."""
    callers = Callers(window_records=1)
    callers.come(6)
    await turns()
    if when == "when it was just woken":
        callers.window.give_back(1, 1)
    for number in gives_up:
        callers.tasks[number].cancel()
    await turns()
    for _ in range(6):
        if callers.window.records:
            callers.window.give_back(1, 1)
        await turns()
    assert callers.went == [n for n in range(6) if n not in gives_up]


@as_scenario(run)
async def test_one_who_takes_nothing_lets_the_next_one_in() -> None:
    window = Window(ClientSettings(window_records=1))
    window.take(1, 1)
    waiting = [asyncio.create_task(window.wait_space()) for _ in range(5)]
    await turns()
    window.give_back(1, 1)
    await asyncio.wait_for(asyncio.gather(*waiting), 1)
    assert window.has_space


@as_scenario(run)
async def test_waiting_has_a_deadline() -> None:
    window = Window(ClientSettings(window_records=1, timeout_s=3))
    window.take(1, 1)
    first, second = (asyncio.create_task(window.wait_space()) for _ in range(2))
    with pytest.raises(Overloaded, match="full for 3 s"):
        await first
    assert asyncio.get_running_loop().time() == pytest.approx(3)
    with pytest.raises(Overloaded):
        await second
    window.give_back(1, 1)
    await turns()
    assert window.has_space


@as_scenario(run)
async def test_closing_fails_everyone_who_waits() -> None:
    window = Window(ClientSettings(window_records=1))
    window.take(1, 1)
    waiting = [asyncio.create_task(window.wait_space()) for _ in range(3)]
    await turns()
    waiting[1].cancel()
    window.close(Closed("closed"))
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [Closed, asyncio.CancelledError, Closed]


@pytest.mark.parametrize("seed", range(8))
@as_scenario(run)
async def test_any_mixture_of_sizes_and_leaving_ends_with_everyone_served_in_turn(
    *, seed: int
) -> None:
    chance = random.Random(seed)
    callers = Callers(window_records=chance.randint(1, 9), window_bytes=2000)
    left: set[int] = set()
    for _ in range(60):
        callers.come(chance.randint(0, 4), size=chance.randint(0, 1500))
        await turns(chance.randint(0, 3))
        if callers.tasks and chance.random() < 0.3:
            number = chance.randrange(len(callers.tasks))
            callers.tasks[number].cancel()
            left.add(number)
        if callers.window.records and chance.random() < 0.7:
            callers.window.give_back(callers.window.records, callers.window.bytes)
    while not all(task.done() for task in callers.tasks):
        await turns(8)
        assert callers.window.records, "someone waits although nothing is in flight"
        callers.window.give_back(callers.window.records, callers.window.bytes)
    assert callers.went == sorted(callers.went)
    assert set(callers.went) | left == set(range(len(callers.tasks)))
