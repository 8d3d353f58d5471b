"""Machines, clocks and seeds of a simulation."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from cordwood.host.seams import Host
from cordwood.sim.host import SimClock, Simulation
from cordwood.sim.loop import WALL_START_S
from cordwood.sim.streams import stream

STORY = """
import asyncio
from cordwood.sim.host import Simulation

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.writelines([data])

class Talk(Echo):
    def connection_made(self, transport):
        transport.writelines([b"hello" * 100])

async def serve(host):
    file = await host.disk.open_direct("/ring", create_bytes=1 << 20)
    await host.network.listen("server:1", Echo)
    while True:
        await file.write(0, [host.random.randbytes(100)])
        await asyncio.sleep(host.random.random())

async def talk(host):
    for _ in range(20):
        await host.network.connect("server:1", Talk, timeout_s=5)
        await host.run_blocking(lambda: None, timeout_s=1)
        await asyncio.sleep(host.random.random())

async def scenario(simulation):
    simulation.machine("server").start(serve)
    await asyncio.sleep(1)
    clients = [simulation.machine(f"client-{n}").start(talk) for n in range(3)]
    await asyncio.sleep(simulation.faults.random() * 5)
    simulation.machine("client-0").kill()
    await asyncio.wait(clients[1:])

def story(seed):
    simulation = Simulation(seed)
    simulation.run(scenario)
    return simulation.trace_hash()
"""


def test_a_seed_is_one_story_in_every_interpreter() -> None:
    code = STORY + "\nprint(story(11), story(11), story(12))"
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1]
    first, again, other = told[0]
    assert first == again != other


def test_streams_of_one_seed_differ_by_name_and_do_not_touch() -> None:
    assert stream(1, "disk", "a").random() == stream(1, "disk", "a").random()
    firsts = [stream(*of).random() for of in ((1, "disk"), (1, "network"), (2, "disk"))]
    assert len(set(firsts)) == 3
    assert stream(1, "ab", "c").random() != stream(1, "a", "bc").random()


def test_a_machine_runs_one_process_and_keeps_its_disk() -> None:
    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("m")
        assert not machine.is_up

        async def write(host: Host) -> None:
            await host.disk.write_file("/note", b"kept")
            await asyncio.sleep(100)

        async def read(host: Host) -> bytes | None:
            return await host.disk.read_file("/note")

        machine.start(write)
        assert machine.is_up
        with pytest.raises(AssertionError, match="m runs already"):
            machine.start(write)
        await asyncio.sleep(1)
        machine.kill()
        assert not machine.is_up
        assert await machine.start(read) == b"kept"
        assert machine.process is not None
        assert machine.process.name == "m#2"

    Simulation(1).run(scenario)


def test_each_start_draws_other_chances_and_each_machine_its_own() -> None:
    def drawn(seed: int) -> list[float]:
        numbers: list[float] = []

        async def draw(host: Host) -> None:
            numbers.append(host.random.random())

        async def scenario(simulation: Simulation) -> None:
            for name in ("a", "a", "b"):
                await simulation.machine(name).start(draw)
                simulation.machine(name).kill()

        Simulation(seed).run(scenario)
        return numbers

    assert drawn(1) == drawn(1)
    assert len(set(drawn(1) + drawn(2))) == 6


def test_clocks_skew_drift_and_step() -> None:
    async def scenario(simulation: Simulation) -> None:
        start_us = WALL_START_S * 1_000_000
        straight = SimClock(simulation.loop)
        crooked = SimClock(simulation.loop, skew_us=-5, drift=0.01)
        assert (straight.now_us(), crooked.now_us()) == (start_us, start_us - 5)
        await asyncio.sleep(100)
        assert straight.now_us() == start_us + 100_000_000
        assert crooked.now_us() == start_us + 101_000_000 - 5
        crooked.step(-3_600_000_000)
        assert crooked.now_us() < start_us

    Simulation(1).run(scenario)


def test_a_blocking_call_that_takes_too_long_times_out() -> None:
    async def call(host: Host) -> None:
        with pytest.raises(TimeoutError):
            await host.run_blocking(lambda: None, timeout_s=1e-9)

    async def scenario(simulation: Simulation) -> None:
        await simulation.machine("m").start(call)

    Simulation(1).run(scenario)


def test_a_scenario_ends_with_every_machine_dead() -> None:
    async def live(host: Host) -> None:
        await asyncio.sleep(100)

    async def scenario(simulation: Simulation) -> str:
        simulation.machine("up").start(live)
        simulation.machine("paused").start(live)
        await asyncio.sleep(1)
        simulation.machine("paused").pause()
        return "verdict"

    simulation = Simulation(1)
    assert simulation.run(scenario) == "verdict"
    assert not any(machine.is_up for machine in simulation.machines)
