"""The clients of a cluster while faults strike it, and their end.

Source: docs/sources/reliability.md §1 (Jepsen's Kafka workload), §3 (S5: "whatever nodes, SCD mode,
filters or restarts").
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cordwood.chaos.late_readers import LateReader, why_late
from cordwood.host.seams import Host
from cordwood.nodes import NodeId
from cordwood.settings import ClientSettings
from cordwood.sim.buggify import Buggify
from cordwood.sim.crew import OpenCalls
from cordwood.sim.history import HistoryRecorder
from cordwood.sim.ledger_clients import archive, salvage, scribe, tail
from cordwood.sim.publishers import publish_batches
from cordwood.sim.readers import browse, follow
from cordwood.sim.run_clients import ASKER, LOOKER
from cordwood.sim.token_clients import hold
from cordwood.sim.workload import (
    HELD,
    Clients,
    GivenUp,
    WorkloadOptions,
    ask_tails,
    final_tails,
    produce,
)

LOGS = ("/chaos/a", "/chaos/b")

LOAD = WorkloadOptions(
    producers=3, logs=LOGS, pause_s=0.4, burst=6, lanes=4, payload_bytes_max=2000,
    restart_s=30.0, append_timeout_s=20.0, ask_s=2.0, idempotent=0.5, conditional=0.1,
    grouped=0.3, buffered=0.2, keyed=0.3, manners=0.3, publish_s=2.0, scribes=2,
)  # fmt: skip
"""Some 70 records a second in 30 calls, so that an outage is known to within a tenth of a second.
At the end all readers, which are one process, can read everything within the bound of L2."""

NEVER_S = 1e9
COLD_S = 8.0
"""Mean time after which the cold reader starts over, as often as not from the oldest record."""

DRAIN_S = 60.0
"""Longest time until the clients end, after all nodes are well. This is a bound of time: on a
machine without a free processor they take longer."""

STILL_S = 60.0
"""A reader that is not at its end and makes no progress for this long is stuck, even on a busy
machine: a reader asks again after 2 s, and no deadline here is above 30 s."""

READING_S_MAX = 600.0
"""The longest wait for a reader that makes progress."""

LOOK_EVERY_S = 1.0
"""Pause between two looks at the progress of readers."""

Program = Callable[[str, Clients, Host], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Ending:
    """The end of the clients.

    Attributes:
        problems: broken promises, in words.
        missed: missed bounds of time, in words: a busy machine may be the reason.
    """

    problems: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


class ChaosClients:
    """All clients of one run. They share one history and differ in their options.

    Attributes:
        own: whether only this run uses the cluster, so that it may use logs of fixed names.
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
        # Clients that need not reach anything at the end: they are killed.
        self._idle: dict[str, asyncio.Task[None]] = {}
        self._reading: dict[asyncio.Task[None], str] = {}

    @property
    def acked(self) -> int:
        """Records acknowledged so far."""
        return self._main.acked

    @property
    def first_log(self) -> int | None:
        """The number of the first log, once it is known."""
        return self._main.log_ids.get(self._main.options.logs[0])

    @property
    def tails(self) -> dict[str, int]:
        """By log, the last LSN that its readers must reach, once that is known."""
        main = self._main
        return {
            log: main.tails[main.log_ids[log]]
            for log in main.options.logs
            if main.log_ids.get(log) in main.tails
        }

    @property
    def _query(self) -> str:
        """The publisher's name. A cluster remembers the batches of each query, so on an existing
        cluster every run is a new query."""
        return "publisher-1" if self._own else f"publisher-{time.time_ns() // 1_000_000}"

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start every client."""
        load = self._main.options
        every_copy = self._other(client=ClientSettings(scd_enabled=False))
        steady = self._other(restart_s=NEVER_S, manners=0.0)
        cold = self._other(restart_s=COLD_S)
        for number in range(load.producers):
            self._writing.append(self._begin(tasks, produce, f"producer-{number + 1}", self._main))
        self._writing.append(self._begin(tasks, publish_batches, self._query, self._main))
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
        self._start_ledgers(tasks, load.scribes)
        self._idle[LOOKER] = self._begin(tasks, ask_tails, LOOKER, self._main)

    def _start_ledgers(self, tasks: asyncio.TaskGroup, scribes: int) -> None:
        """Start the clients that write, recover and follow ledgers; at the end all ledgers are
        recovered and read whole. Each of these clients ends by itself."""
        programs: dict[str, Program] = {f"scribe-{n + 1}": scribe for n in range(scribes)}
        if scribes:
            programs |= {"salvager-1": salvage, "tailer-1": tail, "archivist-1": archive}
        for name, program in programs.items():
            self._writing.append(self._begin(tasks, program, name, self._main))

    async def finish(self, processes: Mapping[NodeId, int]) -> Ending:
        """Let the writers end and the readers reach the tail. Returns the problems.

        Args:
            processes: of the nodes that run on this machine.
        """
        began_s = time.monotonic()
        for clients in self._all:
            clients.stop()
        for name, task in self._idle.items():
            task.cancel()
            # The client gives up its open calls, so they say nothing about the cluster.
            self._main.calls.died(name, GivenUp)
        ending = Ending()
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*map(asyncio.shield, self._writing))
                await final_tails(ASKER, self._main, self._host)
        except TimeoutError:
            late = [task.get_name() for task in self._writing if not task.done()]
            who = ", ".join(late) or "whoever asks for the tails"
            ending.problems.append(f"not at their end {DRAIN_S:g} s after the healing: {who}")
        else:
            for clients in self._all:
                clients.tails.update(self._main.tails)
            await self._read_on(ending, processes, began_s)
        for clients in self._all:
            clients.giving_up = True
        return ending

    async def _read_on(
        self, ending: Ending, processes: Mapping[NodeId, int], began_s: float
    ) -> None:
        """Wait for the readers. For readers that take too long, report the reason."""
        positions: dict[str, int] = {}
        moved_s = {task.get_name(): time.monotonic() for task in self._reading}
        why: list[str] = []
        while late := self._late():
            await asyncio.wait([*self._reading], timeout=LOOK_EVERY_S)
            now_s = time.monotonic()
            for each in late:
                at = 0 if each.stream is None else each.stream.next_lsn
                if at > positions.get(each.name, -1):
                    positions[each.name], moved_s[each.name] = at, now_s
            stuck = [each for each in late if now_s > moved_s[each.name] + STILL_S]
            is_over = now_s > began_s + READING_S_MAX
            if stuck or is_over or (not why and now_s > began_s + DRAIN_S):
                why = await why_late(late, self._addresses, self._host, processes)
            if stuck or is_over:
                who = ", ".join(each.name for each in stuck or late)
                told = f"{'stuck' if stuck else 'not at their end'}, "
                told += f"{now_s - began_s:.0f} s after the healing: {who}"
                ending.problems.append("\n  ".join((told, *why)))
                return
        if why:
            took_s = time.monotonic() - began_s
            told = f"the readers came to their end {took_s:.0f} s after the healing; "
            told += f"after {DRAIN_S:g} s:"
            ending.missed.append("\n  ".join((told, *why)))

    def _late(self) -> list[LateReader]:
        """The readers that are not at their end."""
        main = self._main
        return [
            LateReader(
                name := task.get_name(), log, main.tails.get(main.log_ids.get(log, 0), 0),
                main.open_reads.get(name),
            )
            for task, log in self._reading.items()
            if not task.done()
        ]  # fmt: skip

    def _other(self, **options: Any) -> Clients:
        """Clients with these options changed, which know the same logs."""
        load = replace(self._main.options, **options)
        clients = Clients(
            self._addresses, load, self._recorder, self._seed, self._main.calls,
            self._main.buggify,
        )  # fmt: skip
        clients.log_ids, clients.times = self._main.log_ids, self._main.times
        clients.open_reads = self._main.open_reads
        self._all.append(clients)
        return clients

    def _read(self, tasks: asyncio.TaskGroup, name: str, log: str, clients: Clients) -> None:
        task = tasks.create_task(follow(name, log, clients, self._host), name=name)
        self._reading[task] = log

    def _begin(
        self, tasks: asyncio.TaskGroup, program: Program, name: str, clients: Clients
    ) -> asyncio.Task[None]:
        return tasks.create_task(program(name, clients, self._host), name=name)
