"""Simulated processes: the owner of each callback, and whether it still runs.

A process is a name, a queue of callbacks that are ready, and a state. The context of a callback
says which process it belongs to, as asyncio carries a context with each task and callback. Code
outside every process (the test, the fault plan) belongs to the loop's own process, the director.

A killed process never runs again, not even its `finally` blocks: `kill -9` runs none of them, and a
store that needs them to be correct must be caught here.

Source: docs/sources/reliability.md §5.1 (crash, pause); FoundationDB's simulator.
"""

from __future__ import annotations

import contextvars
import enum
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cordwood.sim.loop import SimHandle


class ProcessState(enum.Enum):
    """The state of a process: what happens to a callback that is ready."""

    RUNNING = "running"
    PAUSED = "paused"
    """As after SIGSTOP: callbacks wait for the resume."""
    DEAD = "dead"
    """As after SIGKILL: callbacks wait for ever."""


class Process:
    """One simulated process. `loop.spawn` gives it something to do.

    Attributes:
        name: tells it apart in traces and messages; a restart deserves a new one.
        number: of the name, stable over runs and machines; for the trace, and so below
            2**53 and with room for a task's number under it.
        context: has this process as the current one; for callbacks from outside.
        ready: its callbacks in order; the loop's own business.
    """

    __slots__ = ("_at_death", "context", "name", "number", "queued", "ready", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = zlib.crc32(name.encode()) << 20
        self.state = ProcessState.RUNNING
        self.ready: deque[SimHandle] = deque()
        self.queued = False
        self.context = contextvars.copy_context()
        self.context.run(CURRENT_PROCESS.set, self)
        self._at_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name} {self.state.value}>"

    @property
    def dead(self) -> bool:
        """Whether it was killed."""
        return self.state is ProcessState.DEAD

    def at_death(self, callback: Callable[[], None]) -> None:
        """Call the machine when this process is killed, as a kernel cleans up."""
        assert not self.dead, f"{self.name} is dead"
        self._at_death.append(callback)

    def bury(self) -> list[Callable[[], None]]:
        """Mark the process dead. Returns the calls that `at_death` gathered."""
        self.state = ProcessState.DEAD
        callbacks, self._at_death = self._at_death, []
        return callbacks


CURRENT_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("cordwood_sim_process")
"""Set only inside the processes that a simulation makes."""
