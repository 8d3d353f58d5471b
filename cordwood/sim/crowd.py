"""A simulated client with several readers of one log, which share its tail.

The readers begin at the tail, at the start or where they left off. Each reader is slow now and
then, and starts over. So some are at the tail together, some fall behind their queues, and some
come back. In the history each is a reader of its own.

Source: docs/sources/reliability.md §3 (S5); `client.read.shared_tail`.
"""

from __future__ import annotations

import asyncio
import random

from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.lsn import OLDEST
from cordwood.sim.history import EndReason
from cordwood.sim.readers import given_to
from cordwood.sim.workload import LOOK_S, RECONNECT_S, Clients, find_log

CROWD = 4
"""Readers of one client: enough to share a tail (a run with a crowd lowers
`client.read.shared_tail.MEMBERS_MIN`), and few beside the other readers of a run."""

RESTART_S = 8.0
"""Mean time after which one of them starts over."""

DAWDLES_SHARE = 0.03
DAWDLE_S = 3.0
"""If `buggify` makes this common: the share of the taken items after which a reader is busy, and
the longest time for which it is busy."""


async def crowd(name: str, clients: Clients, host: Host) -> None:
    """Read the first log with several readers at once, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with (
                clients.connected(host, clients.settings(chance)) as store,
                asyncio.TaskGroup() as tasks,
            ):
                for number in range(1, CROWD + 1):
                    one = _One(f"{name}:{number}", clients, random.Random(chance.getrandbits(64)))
                    tasks.create_task(one.read(store))
        except* CordwoodError as group:
            clients.told(name, "read", group)
            await asyncio.sleep(RECONNECT_S)


class _One:
    """One reader of the crowd."""

    def __init__(self, name: str, clients: Clients, chance: random.Random) -> None:
        self._name = name
        self._clients = clients
        self._chance = chance
        self._next = 0

    async def read(self, store: Store) -> None:
        """Read over and over."""
        clients, log = self._clients, self._clients.options.logs[0]
        while not clients.stopping:
            log_id = await find_log(store, log, clients)
            stream = await store.read(log, self._start(), None)
            clients.recorder.read_started(self._name, log_id, stream.next_lsn, None)
            clients.open_reads[self._name] = stream
            reason, failure = EndReason.STOPPED, None
            try:
                await self._follow(stream)
            except CordwoodError as error:
                reason, failure = EndReason.ERROR, error
            # Not in a `finally`: a killed reader records nothing.
            clients.recorder.read_ended(self._name, reason, failure)
            self._next = stream.next_lsn
            del clients.open_reads[self._name]
            stream.close()
            if failure is not None:
                raise failure

    def _start(self) -> int | str:
        where = self._chance.choice(("tail", "tail", "on", "oldest"))
        if where == "tail":
            return where
        return self._next if where == "on" and self._next else OLDEST

    async def _follow(self, stream: ReadStream) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._chance.expovariate(1 / RESTART_S)
        while not self._clients.stopping and loop.time() < until_s:
            try:
                async with asyncio.timeout(LOOK_S):
                    items = await stream.next_items()
            except TimeoutError:
                continue
            for item in items:
                given_to(self._clients.recorder, self._name, item)
            # After healing it must reach the tail as every reader must (L2), so it hurries.
            if self._chance.random() < DAWDLES_SHARE and self._clients.buggify.is_on:
                await asyncio.sleep(DAWDLE_S * self._chance.random())
