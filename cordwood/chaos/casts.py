"""Who works on a cluster while it is struck, and how they come to their end.

Source: reliability digest §1 (Jepsen's Kafka workload), §3 (S5: "whatever nodes, SCD mode, filters
or restarts").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from cordwood.host.seams import Host
from cordwood.settings import ClientSettings
from cordwood.sim.buggify import Buggify
from cordwood.sim.cast import ASKER, LOOKER
from cordwood.sim.crew import OpenCalls
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.publishers import publish_batches
from cordwood.sim.readers import browse, follow
from cordwood.sim.token_clients import hold
from cordwood.sim.workload import (
    HELD,
    Clients,
    WorkloadOptions,
    ask_tails,
    final_tails,
    produce,
)

LOGS = ("/chaos/a", "/chaos/b")

LOAD = WorkloadOptions(
    producers=3, logs=LOGS, pause_s=0.4, burst=6, lanes=4, payload_bytes_max=2000,
    restart_s=30.0, append_timeout_s=20.0, ask_s=2.0, idempotent=0.5, conditional=0.1,
    grouped=0.3, buffered=0.2, keyed=0.3, manners=0.3, publish_s=2.0,
)  # fmt: skip
"""Some 70 records a second in 30 calls: an outage is known to within a tenth of a second, and at
the end all readers together, which are one process, read all of it within what L2 allows."""

NEVER_S = 1e9
COLD_S = 8.0
"""Mean time after which the cold reader starts over, as often as not from the oldest record."""

DRAIN_S = 60.0
"""What the clients may take to come to their end once all nodes are well."""

Program = Callable[[str, Clients, Host], Coroutine[Any, Any, None]]


class Cast:
    """All clients of one run; they share one history and differ in how they ask.

    Attributes:
        own: whether the cluster is ours alone, so that a log of a fixed name is, too.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        recorder: HistoryRecorder,
        seed: int,
        host: Host,
        load: WorkloadOptions = LOAD,
        *,
        own: bool = True,
    ) -> None:
        self._host = host
        self._own = own
        self._main = Clients(
            addresses, load, recorder, seed, OpenCalls(recorder), Buggify(seed, is_on=False)
        )
        self._all = [self._main]
        self._addresses = addresses
        self._recorder = recorder
        self._seed = seed
        self._writing: list[asyncio.Task[None]] = []
        # Those who owe nothing at the end: they are killed.
        self._idle: dict[str, asyncio.Task[None]] = {}
        self._reading: list[asyncio.Task[None]] = []

    @property
    def acked(self) -> int:
        """Records acknowledged so far."""
        return self._main.acked

    @property
    def first_log(self) -> int | None:
        """The number of the first log, once it is known."""
        return self._main.log_ids.get(self._main.options.logs[0])

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start every client."""
        load = self._main.options
        every_copy = self._other(client=ClientSettings(scd_enabled=False))
        steady = self._other(restart_s=NEVER_S, manners=0.0)
        cold = self._other(restart_s=COLD_S)
        for number in range(load.producers):
            self._writing.append(self._begin(tasks, produce, f"producer-{number + 1}", self._main))
        self._writing.append(self._begin(tasks, publish_batches, "publisher-1", self._main))
        for number, log in enumerate(load.logs, 1):
            self._read(tasks, f"restarting-{number}", log, self._main)
            self._read(tasks, f"every-copy-{number}", log, every_copy)
            self._read(tasks, f"steady-{number}", log, steady)
        self._read(tasks, "cold-1", load.logs[0], cold)
        if self._own:
            for number in (1, 2):
                name = f"holder-{number}"
                self._idle[name] = self._begin(tasks, hold, name, self._main)
            self._read(tasks, "held-1", HELD, steady)
        self._writing.append(self._begin(tasks, browse, "browser-1", self._main))
        self._idle[LOOKER] = self._begin(tasks, ask_tails, LOOKER, self._main)

    async def finish(self) -> list[str]:
        """Let the writers end and the readers come to the tail; what went wrong with that."""
        for clients in self._all:
            clients.stopping = True
        for name, task in self._idle.items():
            task.cancel()
            self._main.calls.died(name)
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*map(asyncio.shield, self._writing))
                await final_tails(ASKER, self._main, self._host)
                for clients in self._all:
                    clients.tails.update(self._main.tails)
                await asyncio.gather(*map(asyncio.shield, self._reading))
        except TimeoutError:
            late = [t.get_name() for t in (*self._writing, *self._reading) if not t.done()]
            for clients in self._all:
                clients.giving_up = True
            return [f"not at their end {DRAIN_S:g} s after the healing: {', '.join(late)}"]
        return []

    def _other(self, **options: Any) -> Clients:
        """Clients that differ in these options, and know the same logs."""
        load = replace(self._main.options, **options)
        clients = Clients(
            self._addresses, load, self._recorder, self._seed, self._main.calls,
            self._main.buggify,
        )  # fmt: skip
        clients.log_ids, clients.times = self._main.log_ids, self._main.times
        self._all.append(clients)
        return clients

    def _read(self, tasks: asyncio.TaskGroup, name: str, log: str, clients: Clients) -> None:
        self._reading.append(tasks.create_task(follow(name, log, clients, self._host), name=name))

    def _begin(
        self, tasks: asyncio.TaskGroup, program: Program, name: str, clients: Clients
    ) -> asyncio.Task[None]:
        return tasks.create_task(program(name, clients, self._host), name=name)
