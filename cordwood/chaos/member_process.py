"""A member of a consumer as a process of its own, so that it can be killed and stopped.

`python -m cordwood.chaos.member_process NAME NOTES SEED ADDRESS,… LOG…` reads as the simulator's
members do (`sim.consuming`). It writes the items that it was given, and its saves, to the file
NOTES, each event at once and before a save that covers it. It ends in order on SIGTERM, and when
its standard input ends, so that it never outlives the run.

Times are the machine's monotonic clock's, which all processes share.

Source: docs/reliability.md, "Real processes".
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import uvloop

from cordwood.chaos.chaos_clients import LOAD
from cordwood.host.real import real_host
from cordwood.sim.buggify import Buggify
from cordwood.sim.consuming import consume
from cordwood.sim.crew import OpenCalls
from cordwood.sim.history import Event, HistoryRecorder, to_jsonl
from cordwood.sim.workload import Clients, WorkloadOptions


class NotingRecorder(HistoryRecorder):
    """Writes each event to a file when it happens, and keeps none."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        super().__init__(lambda: time.monotonic_ns() // 1000)

    def add(self, event: Event) -> None:
        os.write(self._file, to_jsonl([event]))


async def take_part(
    name: str, notes: str, seed: int, addresses: Sequence[str], load: WorkloadOptions
) -> None:
    """Be that member until told to end."""
    recorder, loop = NotingRecorder(notes), asyncio.get_running_loop()
    clients = Clients(
        tuple(addresses), load, recorder, seed, OpenCalls(recorder), Buggify(seed, is_on=False)
    )

    def stop() -> None:
        clients.stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(sys.stdin.fileno(), stop)  # it gets no bytes, so it is readable at its end
    async with real_host(seed) as host:
        await consume(name, clients, host)


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    name, notes, seed, addresses, *logs = arguments
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    load = replace(LOAD, logs=tuple(logs))
    uvloop.run(take_part(name, notes, int(seed), addresses.split(","), load))


if __name__ == "__main__":
    main(sys.argv[1:])
