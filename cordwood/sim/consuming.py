"""Simulated members of a consumer: they share its logs, read, and save how far they came.

They take portions, or loop over items. They leave loops, cancel calls, save with an item in hand,
and end in disorder. Each member keeps its own books: a record enters the history when the member
has dealt with it, and not before. So the checkers see a saved position beyond an item that a dying
member had in hand, if no member is given that item again.

The records that a member has dealt with are a read of their own in the history, so all rules for
readers apply to them. Its saves are in the history, to compare with the metadata store (S24).

Source: docs/sources/reliability.md §1 (Jepsen's Kafka workload), §3 (S24).
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from cordwood.block import Gap, Record
from cordwood.client.read.consumer import Consumer
from cordwood.client.read.hand import ReadResult
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.sim.position_clients import CONSUMER
from cordwood.sim.workload import LOOK_S, RECONNECT_S, Clients, find_log

PORTION_RECORDS = 50
"""Records given out at a time: few, so that a save may come between any two."""

SAVE_SHARE = 0.3
"""Share of the turns of a member."""

STAY_S = 20.0
"""Mean time after which a member leaves and joins again."""

LOOP_SHARE = 0.5
"""Share of the turns in which a member loops over items; in the others it takes portions."""

LOOP_ITEMS_MAX = 40

AT_WORK_SHARE = 0.05
"""Share of the items of a loop on which a member saves while it works, or takes its time."""

WORK_S = 2.0
"""The longest time that a member works on an item."""

CANCELLED_SHARE = 0.2
"""Share of the calls that wait for something."""

DISORDER_SHARE = 0.01
"""Share of the turns that an error of the application ends, with nothing saved."""


class _Mishap(Exception):
    """An error of the application."""


async def consume(name: str, clients: Clients, host: Host) -> None:
    """Read as a member until told to stop."""
    life, chance = clients.next_life(name)
    member = _Member(name, clients, clients.manner_chance(name, life))
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                for log in clients.options.logs:
                    member.log_ids[log] = await find_log(store, log, clients)
                consumer = await store.consumer(
                    CONSUMER, *clients.options.logs, member=name, save_every_s=None
                )
                async with consumer:
                    await member.take_part(consumer, chance)
        except _Mishap:
            continue
        except CordwoodError as error:
            clients.told(name, "consume", error)
            await asyncio.sleep(RECONNECT_S)


class _Member:
    """One member: the item that it works on, and its notes.

    Attributes:
        log_ids: numbers of the logs, by name.
    """

    def __init__(self, name: str, clients: Clients, manners: random.Random) -> None:
        self.log_ids: dict[str, int] = {}
        self._name = name
        self._clients = clients
        self._manners = manners
        self._next: dict[str, int] = {}
        # By log, the time of the first item dealt with and not yet recorded as saved.
        self._new: dict[str, int] = {}
        # The items at work: their log, the items, and the time when the work began.
        self._at_work: tuple[str, tuple[Record | Gap, ...], int] | None = None

    async def take_part(self, consumer: Consumer, chance: random.Random) -> None:
        """Read and save for a while, beginning at the saved positions."""
        self._next.clear()
        self._new.clear()
        self._at_work = None
        loop = asyncio.get_running_loop()
        leaves_s = loop.time() + chance.expovariate(1 / STAY_S)
        while not self._clients.stopping and loop.time() < leaves_s:
            if self._manners.random() < LOOP_SHARE:
                await self._loop(consumer)
            else:
                await self._read(consumer)
            if chance.random() < SAVE_SHARE:
                await self._save(consumer)
            if self._manners.random() < DISORDER_SHARE:
                raise _Mishap

    async def _read(self, consumer: Consumer) -> None:
        """Take a portion, and work on it. It counts as dealt with at the next call."""
        self._dealt_with()
        portion = ReadResult()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s()):
                portion = await consumer.read(PORTION_RECORDS, LOOK_S)
        if portion:
            await self._work(portion.log, tuple(portion))
        self._dealt_with()

    async def _loop(self, consumer: Consumer) -> None:
        """Loop over some items, and leave the loop while an item is not done."""
        for _ in range(self._manners.randint(1, LOOP_ITEMS_MAX)):
            if self._clients.stopping:
                return  # an item of a log at its end waits for LOOK_S: forty outlast the drain
            self._dealt_with()
            try:
                async with asyncio.timeout(self._patience_s()):
                    log, item = await anext(consumer)
            except TimeoutError:
                continue
            await self._work(log, (item,))
            if self._manners.random() < AT_WORK_SHARE:
                await self._save(consumer)

    def _patience_s(self) -> float:
        """How long the next call may take before it is cancelled."""
        is_hasty = self._manners.random() < CANCELLED_SHARE
        return LOOK_S * self._manners.random() ** 4 if is_hasty else LOOK_S

    async def _work(self, log: str, items: tuple[Record | Gap, ...]) -> None:
        """Work on an item. An end at this point leaves the item undone."""
        self._at_work = (log, items, self._now_us)
        if self._manners.random() < AT_WORK_SHARE:
            await asyncio.sleep(WORK_S * self._manners.random())

    def _dealt_with(self) -> None:
        """Record the items it worked on. If they do not follow the last items, a new read
        begins."""
        if self._at_work is None:
            return
        (log, items, since_us), self._at_work = self._at_work, None
        recorder = self._clients.recorder
        reader = f"{self._name}:{log}"
        for item in items:
            first, last = (item.first, item.last) if isinstance(item, Gap) else (item.lsn, item.lsn)
            if self._next.get(log) != first:
                recorder.read_started(reader, self.log_ids[log], first, consumer=CONSUMER)
            if isinstance(item, Gap):
                recorder.gap_delivered(reader, item.first, item.last, item.kind)
            else:
                recorder.record_delivered(reader, item.lsn, item.value)
            self._next[log] = last + 1
        self._new.setdefault(log, since_us)

    @property
    def _now_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e6)

    async def _save(self, consumer: Consumer) -> None:
        """Save, and note for which logs this stored something new.

        A consumer also saves by itself. What it saved that way, since a log's records were given
        out, this call does not save again: the save happened some time ago, and not now (swarm seed
        12686, in which the log went to another member in between).
        """
        new, self._new = self._new, {}
        mine = set(consumer.logs)
        positions = await consumer.save()
        for log, lsn in positions.items():
            if log in new and log in mine:
                self._clients.recorder.positions_saved(
                    CONSUMER, self._name, {str(self.log_ids[log]): lsn}, invoked_us=new[log]
                )
