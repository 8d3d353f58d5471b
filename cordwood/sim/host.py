"""Simulated machines, and the hosts that processes on them are given.

::

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("node-1")
        machine.start(run_node)          # run_node(host: Host) is production code
        ...
        machine.kill()
        machine.start(run_node)          # a new process, the same disk

    simulation = Simulation(seed=7)
    simulation.run(scenario)
    simulation.trace_hash()

A machine has a name on the network, a disk and a clock, which outlive its
processes; it runs one process at a time.

Source: CONTRIBUTING.md, "The idea" and "Determinism"; docs/sources/reliability.md §4 and §5.1.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from cordwood.host.seams import Host
from cordwood.sim.disk import DiskSettings, SimDisk
from cordwood.sim.links import LinkSettings
from cordwood.sim.loop import INSTANT_CALLBACKS_MAX, WALL_START_S, SimLoop
from cordwood.sim.network import SimNetwork
from cordwood.sim.process import Process
from cordwood.sim.streams import stream
from cordwood.sim.task import SimTask

Result = TypeVar("Result")

BLOCKING_CALL_S = 0.001
"""A blocking call takes up to this before its one step, and up to this after it."""


class SimClock:
    """A machine's wall clock: virtual time, skewed and drifting.

    Attributes:
        skew_us: how far it is ahead of true time at virtual time 0; a step changes it.
        drift: seconds it gains in each second.
    """

    def __init__(self, loop: SimLoop, *, skew_us: int = 0, drift: float = 0.0) -> None:
        self.skew_us = skew_us
        self.drift = drift
        self._loop = loop

    def now_us(self) -> int:
        virtual_us = self._loop.time() * (1 + self.drift) * 1e6
        return WALL_START_S * 1_000_000 + self.skew_us + int(virtual_us)

    def step(self, by_us: int) -> None:
        """Jump, forwards or back."""
        self.skew_us += by_us


class SimRunBlocking:
    """`Host.run_blocking`: the function is one step, at a drawn time.

    A process that is killed before that step never made the call. A process that is killed after
    the step made the call and never got the answer.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def __call__(self, function: Callable[[], Result], *, timeout_s: float) -> Result:
        async with asyncio.timeout(timeout_s):
            await asyncio.sleep(BLOCKING_CALL_S * self._chance.random())
            result = function()
            await asyncio.sleep(BLOCKING_CALL_S * self._chance.random())
            return result


def sim_host(
    process: Process,
    name: str,
    *,
    clock: SimClock,
    network: SimNetwork,
    disk: SimDisk,
    chance: random.Random,
) -> Host:
    """The machine `name` as `process` sees it.

    Args:
        chance: seeds the host's own stream and its blocking calls.
    """
    own, blocking = (random.Random(chance.getrandbits(64)) for _ in range(2))
    run_blocking = SimRunBlocking(blocking)
    return Host(
        clock=clock,
        network=network.host(name, process),
        disk=disk.host(process),
        random=own,
        run_blocking=run_blocking,
        run_calculation=run_blocking,
    )


class SimMachine:
    """One machine: `name` on the network, a disk, a clock, and a process or none.

    Attributes:
        name, disk, clock: what outlives a process.
        process: the running process, or the last one; None before the first `start`.
    """

    def __init__(
        self, name: str, loop: SimLoop, network: SimNetwork, disk: SimDisk, chance: random.Random
    ) -> None:
        self.name = name
        self.disk = disk
        self.clock = SimClock(loop)
        self.process: Process | None = None
        self._loop = loop
        self._network = network
        self._chance = chance
        self._starts = 0

    @property
    def is_up(self) -> bool:
        """Whether a process runs on it (or is paused)."""
        return self.process is not None and not self.process.dead

    def start(self, main: Callable[[Host], Coroutine[Any, Any, Result]]) -> SimTask[Result]:
        """Run `main` on a host of this machine, as a new process. Power comes on if it was off."""
        assert not self.is_up, f"{self.name} runs already"
        self._network.power_on(self.name)
        self._starts += 1
        self.process = Process(f"{self.name}#{self._starts}")
        host = sim_host(
            self.process,
            self.name,
            clock=self.clock,
            network=self._network,
            disk=self.disk,
            chance=self._chance,
        )
        return self._loop.spawn(self.process, main(host), name=self.process.name)

    def kill(self) -> None:
        """SIGKILL: the kernel closes connections, and the disk keeps all writes it was given."""
        if self.process is not None:
            self._loop.kill(self.process)

    def cut_power(self) -> None:
        """The process dies, peers hear nothing, and unsynced blocks are lost or torn."""
        self._network.power_off(self.name)
        self.kill()
        self.disk.cut_power()

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None:
            self._loop.pause(self.process)

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None:
            self._loop.resume(self.process)


class Simulation:
    """A seed, a loop, a network and machines: one run.

    Args:
        seed: of everything.
        link, disk: the defaults for links and disks.
        instant_callbacks_max: see `SimLoop`.

    Attributes:
        loop, network: as they are.
        workload: the stream for what clients do and when; for the scenario's use.
        faults: the stream for what goes wrong and when; for the scenario's use.
    """

    def __init__(
        self,
        seed: int,
        *,
        link: LinkSettings | None = None,
        disk: DiskSettings | None = None,
        instant_callbacks_max: int = INSTANT_CALLBACKS_MAX,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop(stream(seed, "schedule"), instant_callbacks_max=instant_callbacks_max)
        self.network = SimNetwork(self.loop, stream(seed, "network"), link)
        self.workload = stream(seed, "workload")
        self.faults = stream(seed, "faults")
        self._disk_settings = disk
        self._machines: dict[str, SimMachine] = {}

    def machine(self, name: str) -> SimMachine:
        """The machine of this name, made at the first call."""
        if name not in self._machines:
            disk = SimDisk(self.loop, stream(self.seed, "disk", name), self._disk_settings)
            chance = stream(self.seed, "host", name)
            self._machines[name] = SimMachine(name, self.loop, self.network, disk, chance)
        return self._machines[name]

    @property
    def machines(self) -> list[SimMachine]:
        """All of them, in the order they were made."""
        return list(self._machines.values())

    def run(self, scenario: Callable[[Simulation], Awaitable[Result]]) -> Result:
        """Run `scenario` in the director's process to its end; then every machine dies.

        Raises:
            Livelock, Deadlock: of the loop; and every error that `scenario` raises.
        """

        async def direct() -> Result:
            try:
                return await scenario(self)
            finally:
                for machine in self.machines:
                    machine.kill()

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            return runner.run(direct())

    def trace_hash(self) -> str:
        """A hash of all that happened: equal for equal seeds and code."""
        return self.loop.trace.hexdigest()
