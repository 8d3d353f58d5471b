"""Simulated members of a consumer: they share its logs, read, and save how far they came.

What each is given is a read of its own in the history, so all that holds for readers holds
for them; their saves are there to be held against what the metadata store said (S24).

Source: docs/sources/reliability.md §1 (Jepsen's Kafka workload), §3 (S24).
"""

from __future__ import annotations

import asyncio
import random

from cordwood.block import Gap
from cordwood.client.consumer import Consumer
from cordwood.client.hand import Portion
from cordwood.client.store import connected
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.sim.workload import LOOK_S, RECONNECT_S, Clients, find_log

CONSUMER = "shared"
"""The consumer's name."""

PORTION_RECORDS = 50
"""Records given out at a time: few, so that a save falls between any two."""

SAVE_SHARE = 0.3
"""Of the turns of a member."""

STAY_S = 20.0
"""Mean time after which a member leaves and joins again."""


async def consume(name: str, clients: Clients, host: Host) -> None:
    """Read as a member until told to stop."""
    _, chance = clients.next_life(name)
    member = _Member(name, clients)
    while not clients.stopping:
        try:
            async with connected(clients.addresses, host, clients.settings(chance)) as store:
                for log in clients.options.logs:
                    member.log_ids[log] = await find_log(store, log, clients)
                consumer = await store.consumer(
                    CONSUMER, *clients.options.logs, member=name, save_every_s=None
                )
                async with consumer:
                    await member.take_part(consumer, chance)
        except CordwoodError as error:
            clients.told(name, "consume", error)
            await asyncio.sleep(RECONNECT_S)


class _Member:
    """What one member was given, for the history.

    Attributes:
        log_ids: numbers of the logs, by name.
    """

    def __init__(self, name: str, clients: Clients) -> None:
        self.log_ids: dict[str, int] = {}
        self._name = name
        self._clients = clients
        self._next: dict[str, int] = {}
        # By log, since when something of it was given out and no save of it was noted.
        self._new: dict[str, int] = {}

    async def take_part(self, consumer: Consumer, chance: random.Random) -> None:
        """Read and save for a while, from wherever the saved positions are."""
        self._next.clear()
        self._new.clear()
        loop = asyncio.get_running_loop()
        leaves_s = loop.time() + chance.expovariate(1 / STAY_S)
        while not self._clients.stopping and loop.time() < leaves_s:
            self._given(await consumer.read(PORTION_RECORDS, LOOK_S))
            if chance.random() < SAVE_SHARE:
                await self._save(consumer)

    def _given(self, portion: Portion) -> None:
        """Note what it was given; where that does not go on, a read begins."""
        recorder, log = self._clients.recorder, portion.log
        reader = f"{self._name}:{log}"
        for item in portion:
            first, last = (item.first, item.last) if isinstance(item, Gap) else (item.lsn, item.lsn)
            if self._next.get(log) != first:
                recorder.read_started(reader, self.log_ids[log], first, consumer=CONSUMER)
            if isinstance(item, Gap):
                recorder.gap_delivered(reader, item.first, item.last, item.kind)
            else:
                recorder.record_delivered(reader, item.lsn, item.value)
            self._next[log] = last + 1
            self._new.setdefault(log, self._now_us)

    @property
    def _now_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6)

    async def _save(self, consumer: Consumer) -> None:
        """Save, and note of which logs that was news.

        A consumer saves by itself, too. What it saved that way since a log's records were given
        out it does not save again: it was saved at some moment since then, and not since
        now (swarm seed 12686, in which the log went to another member in between).
        """
        new, self._new = self._new, {}
        mine = set(consumer.logs)
        positions = await consumer.save()
        for log, lsn in positions.items():
            if log in new and log in mine:
                self._clients.recorder.positions_saved(
                    CONSUMER, self._name, {str(self.log_ids[log]): lsn}, invoked_us=new[log]
                )
