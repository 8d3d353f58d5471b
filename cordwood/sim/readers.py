"""Simulated readers: they follow logs, start over at any place, and read in every manner.

Most of their reads are plain reads, which the checkers can compare with all other events. Other
reads ask for some keys, for no payloads, for Arrow batches, or for several logs at once.

Source: docs/sources/reliability.md §1 (Jepsen's Kafka workload), §3 (S5: "whatever nodes, SCD mode,
filters or restarts").
"""

from __future__ import annotations

import asyncio
import enum
import random

from cordwood.block import Gap, Record
from cordwood.client.read.hand import ReadResult
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.lsn import OLDEST
from cordwood.sim.history import EndReason, HistoryRecorder
from cordwood.sim.keys import KEYS
from cordwood.sim.workload import LOOK_S, RECONNECT_S, Clients, find_log

GOES_ON_SHARE = 0.8
"""Share of a reader's later reads that begin where the read before ended. A read from the start
takes everything again, which is most of the records that a run delivers and checks."""

DAWDLE_S = 2.0
"""Longest time that a reader is busy with a record."""

CLOSE_S = 10.0
"""Mean time after which a store is closed under its reader."""

SEEN_MAX = 1000
"""Number of places that a reader remembers, to begin there again."""

ARROW_S = 20.0
"""How long a reader takes batches before it does something else: with faults an epoch may wait this
long for its recovery."""

BROWSE_S = 15.0
"""Mean time after which a reader of several logs leaves them and begins elsewhere."""

PORTION_RECORDS = 15
"""Few records, so that blocks are given out in pieces."""


class Manner(enum.Enum):
    """How one read asks."""

    PLAIN = "plain"
    KEYS = "keys"
    HEADS = "heads"
    ARROW = "arrow"


def given_to(recorder: HistoryRecorder, reader: str, item: Record | Gap) -> None:
    """Record a record or gap that a reader was given."""
    if isinstance(item, Gap):
        recorder.gap_delivered(reader, item.first, item.last, item.kind)
    else:
        recorder.record_delivered(reader, item.lsn, item.value, item.append_time_us)


async def follow(name: str, log: str, clients: Clients, host: Host) -> None:
    """Read a log over and over, until a read from its start reaches the final tail."""
    life, chance = clients.next_life(name)
    reader = _Reader(name, log, clients, chance, clients.manner_chance(name, life))
    is_done = False
    while not (is_done or clients.giving_up):
        try:
            async with (
                clients.connected(host, clients.settings(chance)) as store,
                asyncio.TaskGroup() as tasks,
            ):
                closing = tasks.create_task(_close_some_time(store, clients, chance))
                while not (is_done or clients.giving_up):
                    is_done = await reader.read_once(store)
                closing.cancel()
        except* CordwoodError as group:
            clients.told(name, "read", group)
            await asyncio.sleep(RECONNECT_S)


async def _close_some_time(store: Store, clients: Clients, chance: random.Random) -> None:
    """Close a store during a read, as an application that ends in disorder does."""
    if clients.buggify("store-closed"):
        await asyncio.sleep(chance.expovariate(1 / CLOSE_S))
        if clients.buggify.is_on:
            await store.close()


class _Reader:
    """One reader of one log, from one connection to the next."""

    def __init__(
        self,
        name: str,
        log: str,
        clients: Clients,
        chance: random.Random,
        manners: random.Random,
    ) -> None:
        self._name = name
        self._log = log
        self._clients = clients
        self._chance = chance
        self._manners = manners
        self._passed = OLDEST - 1
        self._seen: list[int] = []

    async def read_once(self, store: Store) -> bool:
        """One read; True if it began at the start and reached the final tail."""
        clients = self._clients
        log_id = await find_log(store, self._log, clients)
        manner = self._manner()
        start, until = await self._range(store, manner)
        keys = self._manners.sample(KEYS, 2) if manner is Manner.KEYS else []
        stream = await store.read(
            self._log, start, until, keys=[key.encode() for key in keys] or None,
            payloads=manner is not Manner.HEADS,
        )  # fmt: skip
        clients.recorder.read_started(
            self._name, log_id, start, until, keys=keys, heads=manner is Manner.HEADS
        )
        clients.open_reads[self._name] = stream
        reason, failure = EndReason.ERROR, None
        try:
            if manner is Manner.ARROW:
                reason = await self._take_batches(stream)
            else:
                reason = await self._follow(stream, log_id, until, manner)
        except CordwoodError as error:
            failure = error
        # Not in a `finally`: a killed reader records nothing.
        clients.recorder.read_ended(self._name, reason, failure)
        self._passed = stream.next_lsn - 1
        del clients.open_reads[self._name]
        stream.close()
        if failure is not None:
            await asyncio.sleep(RECONNECT_S)
        return reason is EndReason.TAIL and start == OLDEST

    def _manner(self) -> Manner:
        """The manner of the next read. The last reads, which must see all records, ask for all."""
        other = self._manners.random() < self._clients.options.manners
        if self._clients.tails or not other:
            return Manner.PLAIN
        return self._manners.choice((Manner.KEYS, Manner.KEYS, Manner.HEADS, Manner.ARROW))

    async def _range(self, store: Store, manner: Manner) -> tuple[int, int | None]:
        """The range of a read: mostly everything and for ever; otherwise from a known place, or to
        the tail."""
        if self._clients.tails:
            return OLDEST, None
        start: int = OLDEST
        if self._chance.random() < GOES_ON_SHARE and self._passed > OLDEST:
            start = self._passed + self._chance.choice((0, 1, 1, 5))
        if self._seen and self._manners.random() < self._clients.options.manners / 2:
            start = self._manners.choice(self._seen)  # mostly inside a block
        if manner is Manner.ARROW or self._chance.random() < 0.15:
            return start, max(start, await store.tail(self._log))
        return start, None

    async def _follow(
        self, stream: ReadStream, log_id: int, until: int | None, manner: Manner
    ) -> EndReason:
        """Read until the end, the final tail, or a restart for no reason."""
        clients, loop = self._clients, asyncio.get_running_loop()
        restart_at = loop.time() + self._chance.expovariate(1 / clients.options.restart_s)
        while True:
            tail = clients.tails.get(log_id)
            if tail is not None and manner is not Manner.PLAIN:
                return EndReason.STOPPED
            if tail is not None and stream.next_lsn > tail:
                return EndReason.TAIL
            if until is not None and stream.next_lsn > until:
                return EndReason.UNTIL
            if clients.giving_up or (tail is None and loop.time() > restart_at):
                return EndReason.STOPPED
            await self._take(stream)
            if clients.buggify("reader-dawdles"):
                await asyncio.sleep(DAWDLE_S * self._chance.random())

    async def _take(self, stream: ReadStream) -> None:
        """Take an item if one comes soon."""
        looks = self._clients.looks
        try:
            async with asyncio.timeout(LOOK_S) as looks[self._name]:
                items = await stream.next_items()
        except TimeoutError:
            return
        finally:
            looks.pop(self._name, None)
        for item in items:
            self._given(item, stream.info.log_id)

    def _given(self, item: Record | Gap, log_id: int) -> None:
        given_to(self._clients.recorder, self._name, item)
        if isinstance(item, Record):
            self._clients.note_time(log_id, item.append_time_us)
            self._note_place(item.lsn)

    def _note_place(self, lsn: int) -> None:
        if len(self._seen) < SEEN_MAX:
            self._seen.append(int(lsn))
        else:
            self._seen[lsn % SEEN_MAX] = int(lsn)

    async def _take_batches(self, stream: ReadStream) -> EndReason:
        """Take records as Arrow batches, and give up if that takes too long."""
        recorder = self._clients.recorder
        try:
            async with asyncio.timeout(ARROW_S):
                async for batch in stream.arrow(("lsn", "value", "append_time"), gaps=True):
                    if isinstance(batch, Gap):
                        recorder.gap_delivered(self._name, batch.first, batch.last, batch.kind)
                        continue
                    times = batch.column("append_time").cast("int64").to_pylist()
                    places, values = (batch.column(c).to_pylist() for c in ("lsn", "value"))
                    for lsn, value, time_us in zip(places, values, times, strict=True):
                        recorder.record_delivered(self._name, lsn, value, time_us)
                        self._note_place(lsn)
        except TimeoutError:
            return EndReason.STOPPED
        return EndReason.UNTIL


async def browse(name: str, clients: Clients, host: Host) -> None:
    """Read all logs with one reader, from the start or the tail of each, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await _Browser(name, clients, chance).browse(store)
        except CordwoodError as error:
            clients.told(name, "reader", error)
            await asyncio.sleep(RECONNECT_S)


class _Browser:
    """One reader of several logs; in the history each of its logs has a reader of its own."""

    def __init__(self, name: str, clients: Clients, chance: random.Random) -> None:
        self._name = name
        self._clients = clients
        self._chance = chance

    async def browse(self, store: Store) -> None:
        """Read for a while, or until there is nothing more to do."""
        recorder, clients = self._clients.recorder, self._clients
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._chance.expovariate(1 / BROWSE_S)
        reader = await store.reader()
        async with reader:
            for log in clients.options.logs:
                log_id = await find_log(store, log, clients)
                start = self._chance.choice(("oldest", "oldest", "tail"))
                await reader.start(log, start)
                recorder.read_started(self._reader(log), log_id, reader.position(log))
            reason, failure = EndReason.STOPPED, None
            try:
                while not clients.stopping and loop.time() < until_s:
                    self._given(await reader.read(PORTION_RECORDS, LOOK_S))
            except CordwoodError as error:
                reason, failure = EndReason.ERROR, error
            for log in clients.options.logs:
                recorder.read_ended(self._reader(log), reason, failure)
        if failure is not None:
            await asyncio.sleep(RECONNECT_S)

    def _reader(self, log: str) -> str:
        return f"{self._name}:{log}"

    def _given(self, portion: ReadResult) -> None:
        recorder, reader = self._clients.recorder, self._reader(portion.log)
        for item in portion:
            given_to(recorder, reader, item)
