"""The simulated loop: order, virtual time, processes, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from scenarios import as_scenario, awaited_by
from swaps import swap_value

from cordwood.sim import loop as loop_module
from cordwood.sim.loop import (
    TIMERS_CANCELLED_MIN,
    WALL_START_S,
    Deadlock,
    Livelock,
    SimLoop,
)
from cordwood.sim.process import Process
from cordwood.sim.refusals import ForbiddenInSimulation


def sim_loop() -> SimLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop


def simulate(main: Coroutine[Any, Any, Any], seed: int = 1, **options: Any) -> SimLoop:
    """Run `main` to its end under a new loop and return the loop, closed."""
    loop = SimLoop(random.Random(seed), **options)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main)
    return loop


# ---- order ----


async def three_talkers(heard: list[str]) -> None:
    async def talk(name: str) -> None:
        for number in range(20):
            heard.append(f"{name}{number}")
            await asyncio.sleep(0)

    loop = sim_loop()
    await asyncio.gather(*(loop.spawn(Process(name), talk(name)) for name in "abc"))


def test_one_seed_is_one_run_and_seeds_differ() -> None:
    runs: list[tuple[str, list[str]]] = []
    for seed in (1, 1, 2, 3):
        heard: list[str] = []
        runs.append((simulate(three_talkers(heard), seed).trace.hexdigest(), heard))
    assert runs[0] == runs[1]
    assert len({trace for trace, _ in runs}) == 3
    assert len({tuple(heard) for _, heard in runs}) == 3


def test_each_process_keeps_its_own_order_between_the_others() -> None:
    heard: list[str] = []
    simulate(three_talkers(heard))
    for name in "abc":
        assert [word for word in heard if word[0] == name] == [f"{name}{n}" for n in range(20)]
    assert heard != sorted(heard, key=lambda word: word[0])  # they did interleave


@as_scenario(awaited_by(simulate))
async def test_callbacks_of_one_process_run_in_the_order_they_were_made() -> None:
    heard: list[int] = []
    for number in range(50):
        if number % 3:
            sim_loop().call_soon(heard.append, number)
        else:
            sim_loop().call_later(0, heard.append, number)
    await asyncio.sleep(1)
    assert heard == list(range(50))


@as_scenario(awaited_by(simulate))
async def test_timers_of_one_instant_run_in_the_order_they_were_set() -> None:
    heard: list[int] = []
    for number in range(50):
        sim_loop().call_at(5.0, heard.append, number)
    await asyncio.sleep(6)
    assert heard == list(range(50))


@as_scenario(awaited_by(simulate))
async def test_a_task_group_cancels_in_the_order_of_its_tasks() -> None:
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError

    async def group_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(wait(number))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await group_them()
    assert cancelled == list(range(40))


@as_scenario(awaited_by(simulate))
async def test_sets_of_futures_have_one_order() -> None:
    futures = [sim_loop().create_future() for _ in range(40)]
    for future in futures:
        sim_loop().call_later(1, future.set_result, None)
    await asyncio.sleep(2)
    done, _ = await asyncio.wait(futures)
    assert [hash(future) for future in done] == list(range(1, 41))


def test_task_names_are_numbered_from_one_in_each_run() -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        assert task.get_name() == "task-2"  # after main itself

    simulate(main())
    simulate(main())


# ---- virtual time ----


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> None:
        assert sim_loop().time() == 0
        await asyncio.sleep(3600)
        assert sim_loop().time() == 3600

    begun = time.perf_counter()
    simulate(main())
    assert time.perf_counter() - begun < 5  # an hour took no hour


@as_scenario(awaited_by(simulate))
async def test_timeouts_come_at_their_instant() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7.5):
            await asyncio.Event().wait()
    assert sim_loop().time() == 7.5
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(100), 2.5)
    assert sim_loop().time() == 10


@as_scenario(awaited_by(simulate))
async def test_queues_events_and_locks_work_as_on_any_loop() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    lock, all_read = asyncio.Lock(), asyncio.Event()

    async def produce() -> None:
        for number in range(10):
            async with lock:
                await queue.put(number)

    async def consume(read: list[int]) -> None:
        while len(read) < 10:
            read.append(await queue.get())
        all_read.set()

    read: list[int] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume(read))
        await all_read.wait()
    assert read == list(range(10))


@as_scenario(awaited_by(simulate))
async def test_cancelled_timers_do_not_pile_up() -> None:
    for _ in range(20 * TIMERS_CANCELLED_MIN):
        sim_loop().call_later(1000, int).cancel()
    assert len(sim_loop()._timers) < 3 * TIMERS_CANCELLED_MIN


def test_clocks_of_the_standard_library_tell_virtual_time() -> None:
    async def main() -> None:
        await asyncio.sleep(90)
        assert time.time() == WALL_START_S + 90
        assert time.time_ns() == (WALL_START_S + 90) * 10**9
        assert time.monotonic() == 90
        assert time.monotonic_ns() == 90 * 10**9

    simulate(main())
    assert time.time() != WALL_START_S + 90


# ---- processes ----


def said_here(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What this thread logged: clients of other tests may have threads of their own."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]


def test_a_killed_process_runs_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    async def main() -> None:
        loop, victim = sim_loop(), Process("victim")
        answer: asyncio.Future[None] = loop.create_future()

        async def child() -> None:
            try:
                await asyncio.sleep(5)
                ran.append("child")
            finally:
                ran.append("finally of the child")

        async def life() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
                    asyncio.get_running_loop().call_later(6, ran.append, "timer")
                    answer.add_done_callback(lambda _: ran.append("callback"))
                    await answer
                    ran.append("after the answer")
            finally:
                ran.append("finally")

        loop.spawn(victim, life())
        await asyncio.sleep(1)
        loop.kill(victim)
        loop.kill(victim)
        answer.set_result(None)
        await asyncio.sleep(100)
        gc.collect()
        assert ran == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    gc.collect()  # what earlier tests left is not this test's to hear of
    with caplog.at_level(logging.DEBUG):
        simulate(main())
    gc.collect()
    assert said_here(caplog) == []


def test_the_dead_are_disposed_of_in_silence_even_if_they_resist(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def resist() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                try:
                    await asyncio.sleep(1)
                finally:
                    asyncio.create_task(asyncio.sleep(1))  # noqa: RUF006

        async def never_begun() -> None:
            await asyncio.sleep(1)

        loop, victim = sim_loop(), Process("victim")
        loop.spawn(victim, resist())
        await asyncio.sleep(1)
        loop.spawn(victim, never_begun())
        loop.kill(victim)

    gc.collect()  # what earlier tests left is not this test's to hear of
    with caplog.at_level(logging.DEBUG):
        simulate(main())
        gc.collect()
    assert said_here(caplog) == []


@as_scenario(awaited_by(simulate))
async def test_what_ran_at_the_kill_was_cut_and_the_others_go_on() -> None:
    loop = sim_loop()
    ticks = {"a": 0, "b": 0}

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            ticks[name] += 1

    a, b = Process("a"), Process("b")
    loop.spawn(a, tick("a"))
    task = loop.spawn(b, tick("b"))
    await asyncio.sleep(10.5)
    loop.kill(a)
    await asyncio.sleep(10)
    assert ticks == {"a": 10, "b": 20}
    task.cancel()


@as_scenario(awaited_by(simulate))
async def test_the_machine_hears_of_a_death_once() -> None:
    heard: list[str] = []
    process = Process("p")
    process.at_death(lambda: heard.append(f"dead: {process.dead}"))
    sim_loop().kill(process)
    sim_loop().kill(process)
    assert heard == ["dead: True"]
    coro = asyncio.sleep(0)
    with pytest.raises(AssertionError, match="a restart is a new Process"):
        sim_loop().spawn(process, coro)
    coro.close()


@as_scenario(awaited_by(simulate))
async def test_a_paused_process_waits_and_then_catches_up_in_order() -> None:
    loop, process = sim_loop(), Process("p")
    seen: list[tuple[int, float]] = []

    async def note(number: int) -> None:
        await asyncio.sleep(number)
        seen.append((number, loop.time()))

    for number in (3, 1, 2, 9):
        loop.spawn(process, note(number))
    await asyncio.sleep(1.5)
    loop.pause(process)
    loop.pause(process)
    await asyncio.sleep(5)
    assert seen == [(1, 1.0)]
    loop.resume(process)
    loop.resume(process)
    await asyncio.sleep(5)
    assert seen == [(1, 1.0), (2, 6.5), (3, 6.5), (9, 9.0)]


@as_scenario(awaited_by(simulate))
async def test_a_paused_process_can_be_killed_and_a_dead_one_not_resumed() -> None:
    loop, process = sim_loop(), Process("p")
    ran: list[str] = []

    async def life() -> None:
        await asyncio.sleep(1)
        ran.append("on")

    loop.spawn(process, life())
    await asyncio.sleep(0.5)
    loop.pause(process)
    await asyncio.sleep(1)
    loop.kill(process)
    loop.resume(process)
    loop.pause(process)
    await asyncio.sleep(1)
    assert ran == []


@as_scenario(awaited_by(simulate))
async def test_a_process_may_kill_itself_and_ends_with_that_step() -> None:
    loop, process = sim_loop(), Process("p")
    ran: list[str] = []

    async def life() -> None:
        loop.kill(process)
        ran.append("rest of the step")
        await asyncio.sleep(0)
        ran.append("next step")

    loop.spawn(process, life())
    await asyncio.sleep(1)
    assert ran == ["rest of the step"]


# ---- async generators and garbage ----


async def count_up(ended: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(100):
            yield number
    finally:
        ended.append("generator")


@as_scenario(awaited_by(simulate))
async def test_a_dropped_generator_is_closed_unless_its_process_died() -> None:
    ended: list[str] = []

    async def read_one() -> None:
        async for _ in count_up(ended):
            break

    async def read_and_wait() -> None:
        async for _ in count_up(ended):
            await asyncio.sleep(100)

    await sim_loop().spawn(Process("a"), read_one())
    await asyncio.sleep(1)
    assert ended == ["generator"]
    victim = Process("b")
    sim_loop().spawn(victim, read_and_wait())
    await asyncio.sleep(1)
    sim_loop().kill(victim)
    await asyncio.sleep(200)
    assert ended == ["generator"]


def test_open_generators_are_closed_at_the_end() -> None:
    ended: list[str] = []
    generator = count_up(ended)

    async def main() -> None:
        assert await anext(generator) == 0

    simulate(main())
    assert ended == ["generator"]


def test_the_collector_is_off_inside_and_on_again_after() -> None:
    async def main() -> None:
        assert not gc.isenabled()

    simulate(main())
    assert gc.isenabled()


def test_what_runs_leave_in_cycles_is_dropped_after_some_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Left:
        def __init__(self) -> None:
            self.itself = self

    async def main() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    swap_value(monkeypatch, lambda: loop_module.CALLBACKS_KEPT_MAX, 160)
    gc.disable()  # it would come to it by chance
    try:
        left = []
        for _ in range(16):
            left.append(weakref.ref(Left()))
            simulate(main())
        assert all(each() is None for each in left[:8])
    finally:
        gc.enable()


# ---- guards ----


def test_a_loop_that_spins_is_stopped() -> None:
    async def main() -> None:
        def spin() -> None:
            sim_loop().call_soon(spin)

        await asyncio.sleep(3)
        spin()
        await asyncio.sleep(1)

    loop = SimLoop(random.Random(1), instant_callbacks_max=1000)
    task = loop.create_task(main())
    with pytest.raises(Livelock, match=r"callbacks at 3 s; last <.*spin of director>"):
        loop.run_until_complete(task)
    loop.kill(loop.director)
    loop.close()


def test_many_callbacks_over_time_are_no_livelock() -> None:
    async def main() -> None:
        for _ in range(3000):
            await asyncio.sleep(0.001)

    assert simulate(main(), instant_callbacks_max=100).callbacks_run > 3000


def test_waiting_for_what_cannot_come_is_told() -> None:
    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.Event().wait()

    loop = SimLoop(random.Random(1))
    task = loop.create_task(main())
    with pytest.raises(Deadlock, match="at 2 s"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


FORBIDDEN: dict[str, Callable[[], Any]] = {
    "run_in_executor": lambda: asyncio.get_running_loop().run_in_executor(None, int),
    "to_thread": lambda: asyncio.to_thread(int),
    "open_connection": lambda: asyncio.open_connection("localhost", 1),
    "start_server": lambda: asyncio.start_server(lambda r, w: None, "localhost", 1),
    "subprocess": lambda: asyncio.create_subprocess_exec("true"),
    "add_reader": lambda: asyncio.get_running_loop().add_reader(0, int),
    "signals": lambda: asyncio.get_running_loop().add_signal_handler(10, int),
    "getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    "socket": lambda: socket.socket(),
    "thread": lambda: threading.Thread(target=int).start(),
    "sleep": lambda: time.sleep(0),
    "Popen": lambda: subprocess.Popen(["true"]),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("reach", sorted(FORBIDDEN))
def test_the_machine_is_refused_inside(reach: str) -> None:
    async def do_it() -> None:
        result = FORBIDDEN[reach]()
        if asyncio.iscoroutine(result):
            await result

    async def main() -> None:
        with pytest.raises(ForbiddenInSimulation, match="inside a simulation"):
            await do_it()

    simulate(main())


def test_the_machine_is_there_again_afterwards() -> None:
    async def main() -> None:
        pass

    simulate(main())
    socket.socket().close()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def test_another_thread_cannot_call_in() -> None:
    loop = SimLoop(random.Random(1))
    errors: list[Exception] = []

    def call_in() -> None:
        try:
            loop.call_soon_threadsafe(int)
        except ForbiddenInSimulation as error:
            errors.append(error)

    thread = threading.Thread(target=call_in)
    thread.start()
    thread.join()
    loop.close()
    assert len(errors) == 1


def test_an_exception_that_nobody_handles_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        sim_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    loop = simulate(main())
    assert [type(context["exception"]) for context in loop.unhandled] == [ZeroDivisionError]
    assert len(caplog.records) == 1


def test_a_closed_loop_takes_nothing_more() -> None:
    async def main() -> None:
        pass

    loop = simulate(main())
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(int)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, int)
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_forever()


def test_other_threads_keep_the_real_machine() -> None:
    """Spark's helper threads sleep in a test run; a simulation beside them is not theirs."""
    slept: list[str] = []
    go, done = threading.Event(), threading.Event()

    def beside() -> None:
        go.wait(10)
        try:
            time.sleep(0)
            slept.append("slept")
        finally:
            done.set()

    thread = threading.Thread(target=beside)
    thread.start()

    async def scenario() -> None:
        go.set()
        assert done.wait(10)

    with asyncio.Runner(loop_factory=lambda: SimLoop(random.Random(1))) as runner:
        runner.run(scenario())
    thread.join(10)
    assert slept == ["slept"]


def test_a_runner_of_any_python_ends_with_it() -> None:
    """From Python 3.12 on, asyncio's Runner gives the executor's end a timeout."""

    async def scenario(loop: SimLoop) -> None:
        await loop.shutdown_default_executor()
        await loop.shutdown_default_executor(300.0)

    loop = SimLoop(random.Random(1))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scenario(loop))
