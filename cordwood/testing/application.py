"""An application as a simulated process: it can be killed, stopped and started again.

Source: CONTRIBUTING.md, "Determinism"; `sim.process` (a killed process runs no `finally`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cordwood.client.aio import open_store
from cordwood.client.store import Store, connected
from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.settings import ClientSettings
from cordwood.sim.crew import Crew
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.host import SimMachine, Simulation
from cordwood.testing.record import RecordedStore, Recording

Main = Callable[["Application"], Awaitable[Any]]
"""What an application runs; it is given the application, to connect and to know its name."""


class Door:
    """Where stores come from: the cluster's addresses, the recording, the settings."""

    def __init__(
        self, addresses: tuple[str, ...], recording: Recording, settings: ClientSettings
    ) -> None:
        self.addresses = addresses
        self.recording = recording
        self.settings = settings

    async def open(self, client: str, host: Host, settings: ClientSettings | None) -> RecordedStore:
        """Connect from `host`, recorded as `client`.

        Raises:
            Unreachable: no node answered within the settings' timeout.
        """
        chosen = settings or self.settings
        store = await open_store(connected(self.addresses, host, chosen))
        return self.recording.wrap(store, client, timeout_s=chosen.timeout_s)


class Application:
    """One process of the application under test; made by `SimulatedCluster.start`.

    Attributes:
        name: of its machine, and of its client in the history.
        starts: how often it was started.
    """

    def __init__(
        self, name: str, main: Main, machine: SimMachine, door: Door, tasks: asyncio.TaskGroup
    ) -> None:
        self.name = name
        self.starts = 0
        self._main = main
        self._machine = machine
        self._door = door
        self._tasks = tasks
        self._stores: list[RecordedStore] = []
        self._host: Host
        self._watcher: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is paused."""
        return self._machine.is_up

    async def connect(self, settings: ClientSettings | None = None) -> Store:
        """Connect to the cluster; for `main` to call. Closed when `main` returns.

        Raises:
            Unreachable: no node answered within the settings' timeout.
        """
        store = await self._door.open(self.name, self._host, settings)
        self._stores.append(store)
        return store

    async def wait(self) -> Any:
        """Wait until `main` has returned, over crashes and restarts; returns its result."""
        return await asyncio.shield(self._ended)

    # For the cluster, which records its actions in the story.

    def start(self) -> None:
        """Run `main` in a new process; see `SimulatedCluster.restart`.

        Raises:
            BadSetting: it runs already.
        """
        if self.is_up:
            raise BadSetting(f"{self.name} runs already: crash it first")
        self.starts += 1
        if self._ended.done():
            self._ended = asyncio.get_running_loop().create_future()
        self._stores = []
        task = self._machine.start(self._run)
        self._watcher = self._tasks.create_task(self._watch(task))

    def crash(self, *, power: bool = False) -> None:
        """SIGKILL, or with `power` the plug; see `SimulatedCluster.crash`."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if power:
            self._machine.cut_power()
        else:
            self._machine.kill()
        self._interrupt()

    def pause(self) -> None:
        """SIGSTOP; see `SimulatedCluster.pause`."""
        self._machine.pause()
        self._interrupt()

    def resume(self) -> None:
        """SIGCONT."""
        self._machine.resume()

    def _interrupt(self) -> None:
        for store in self._stores:
            store.interrupt()

    async def _run(self, host: Host) -> Any:
        self._host = host
        result = await self._main(self)
        for store in self._stores:
            await store.close()
        return result

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        """Take over the result of `main`; its error ends the scenario."""
        # Not awaited itself: cancelling the watcher must leave the process alone.
        await asyncio.wait([task])
        self._machine.kill()
        result = task.result()
        self._watcher = None
        if not self._ended.done():
            self._ended.set_result(result)


class Applications(Crew):
    """The applications of one scenario, as faults of a plan see them.

    Attributes:
        by_name: every application that was started.
    """

    def __init__(
        self,
        simulation: Simulation,
        recorder: HistoryRecorder,
        nobody: str,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(simulation, recorder)
        self.by_name: dict[str, Application] = {}
        self._nobody = nobody
        self._tell = tell
        self._crashed: dict[str, None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Running applications; without one, a machine on which nothing runs."""
        return tuple(name for name, each in self.by_name.items() if each.is_up) or (self._nobody,)

    def kill(self, name: str) -> None:
        """SIGKILL, by a plan."""
        if name in self.by_name and self.by_name[name].is_up:
            self.by_name[name].crash()
            self._crashed[name] = None

    def restart(self, name: str) -> None:
        """Start applications that a plan killed, unless the scenario restarted them."""
        if name in self._crashed and not self.by_name[name].is_up:
            self.by_name[name].start()
            self._tell(f"restarted {name}")
        self._crashed.pop(name, None)

    def heal(self) -> None:
        """Nothing is paused, and applications that a plan killed run again."""
        for name, application in self.by_name.items():
            application.resume()
            self.restart(name)
