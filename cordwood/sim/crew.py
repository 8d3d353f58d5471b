"""The clients of a run as processes: started, killed and started again, waited for.

A client that is killed leaves calls open; the history records their outcome as unknown. Its next
life goes on under the same name, as a restarted application does.

Source: docs/sources/reliability.md §3 ("append ends OK, FAIL or UNKNOWN").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cordwood.errors import OutcomeUnknown
from cordwood.host.seams import Host
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.host import SimMachine, Simulation

Main = Callable[[Host], Coroutine[Any, Any, None]]
"""A client's program, from its start to its end."""


class OpenCalls:
    """Calls that were made and not answered yet, by client."""

    def __init__(self, recorder: HistoryRecorder) -> None:
        self._recorder = recorder
        self._open: dict[str, dict[int, None]] = {}

    def began(self, client: str, op: int) -> None:
        """A client made a call."""
        self._open.setdefault(client, {})[op] = None

    def ended(self, client: str, op: int) -> None:
        """The call ended, whichever way."""
        self._open[client].pop(op)

    def died(self, client: str, error: type[OutcomeUnknown] = OutcomeUnknown) -> None:
        """The client died: the outcome of its open calls is unknown."""
        for op in self._open.pop(client, {}):
            self._recorder.append_raised(op, error("the client died"))


class Crew:
    """See the module.

    Attributes:
        calls: the open calls of the clients.
    """

    def __init__(self, simulation: Simulation, recorder: HistoryRecorder) -> None:
        self.calls = OpenCalls(recorder)
        self._simulation = simulation
        self._mains: dict[str, Main] = {}
        self._ended: dict[str, asyncio.Event] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Every client that was started, in the order of their starts."""
        return tuple(self._mains)

    def machine(self, name: str) -> SimMachine:
        """A client's machine."""
        return self._simulation.machine(name)

    def start(self, name: str, main: Main) -> None:
        """Run a client on a machine of its own."""
        self._mains[name] = main
        self._ended[name] = asyncio.Event()
        self._run(name)

    def kill(self, name: str) -> None:
        """SIGKILL a client. If it has ended already, nothing happens."""
        if not self._ended[name].is_set():
            self.machine(name).kill()
            self.calls.died(name)

    def restart(self, name: str) -> None:
        """Start a client that was killed."""
        if not self._ended[name].is_set() and not self.machine(name).is_up:
            self._run(name)

    def heal(self) -> None:
        """Every client runs again."""
        for name in self._mains:
            self.machine(name).resume()
            self.restart(name)

    async def wait(self, *names: str) -> None:
        """Wait until these clients have ended."""
        for name in names:
            await self._ended[name].wait()

    def _run(self, name: str) -> None:
        task = self.machine(name).start(self._mains[name])
        task.add_done_callback(lambda done: self._on_ended(name, done))

    def _on_ended(self, name: str, done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            text = f"{name} ended as no client may"
            self._simulation.loop.call_exception_handler({"message": text, "exception": error})
        self._ended[name].set()
