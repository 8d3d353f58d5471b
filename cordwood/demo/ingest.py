"""The first client: appends a source, batch after batch, some of them in flight at once.

It runs ahead of the tail by LAG_RECORDS_MAX records at most, which bounds the memory of the tail
check. At each kill it lets the demo choose a victim, hands over several batches at once, and lets
the victim be killed while they are in flight.

It appends as a producer: batches in flight to a sequencer that died are sent again and stored once,
and no append ends as unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cordwood.client.append.producer import Producer
from cordwood.client.store import Store
from cordwood.demo.checks import CheckFailed
from cordwood.demo.digest import Digest
from cordwood.demo.follow import Follow
from cordwood.demo.input import InputChunk, Source, batches
from cordwood.demo.pauses import Pauses
from cordwood.demo.tail_check import TailCheck

IN_FLIGHT = 8
"""Batches appended at once. With 4, an append still waits for the disk now and then. More than 8
are no faster, because this process, which reads, writes and checks, is the limit."""

KILL_IN_FLIGHT = 4
"""Batches handed over at once just before the kill; fewer at the end of a small input."""

KILL_DELAY_S = 0.001
"""Pause before the kill: by then the batches have left this process, and are not stored yet."""

LAG_RECORDS_MAX = 100_000
TAIL_TIMEOUT_S = 60.0
"""Longest time without progress: the tail moves many times a second."""


PRODUCER = 1
"""The first epoch of the new log."""


@dataclass(slots=True)
class Kill:
    """A kill during the ingest.

    Attributes:
        share: share of the source after which a victim is chosen.
        choose: finds a victim; a moment later `kill` kills it.
        at_kill: records acknowledged when it was killed, None before.
        in_flight: batches in flight at that time.
    """

    share: float
    choose: Callable[[], Awaitable[None]]
    kill: Callable[[], None]
    at_kill: int | None = None
    in_flight: int = 0


class Ingest:
    """See the module.

    Attributes:
        records, bytes: acknowledged so far; bytes of keys and values.
        digest: of the records read from the source so far.
        acks: pauses between acknowledgements.
        kills: the kills, in order.
    """

    def __init__(
        self,
        store: Store,
        source: Source,
        check: TailCheck,
        follow: Follow,
        kills: Sequence[Kill],
    ) -> None:
        self.source = source
        self.records = 0
        self.bytes = 0
        self.digest = Digest()
        self.acks = Pauses(asyncio.get_running_loop().time())
        self.kills = kills
        self._store = store
        self._check = check
        self._follow = follow
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._held: list[InputChunk] = []
        self._producer = Producer(PRODUCER)
        self._in_flight = 0
        self._is_chosen = False
        self._any_acked = asyncio.Event()

    async def run(self) -> None:
        """Append everything. Returns when all records are acknowledged.

        Raises:
            CheckFailed: the tail does not move, or got wrong records, or there is nothing to
                append.
            CordwoodError: an append failed.
        """
        # Batches kept back, so that a short input still has batches to append at every kill, and
        # after the last kill.
        kept: deque[InputChunk] = deque()
        async with asyncio.TaskGroup() as tasks:
            for batch in batches(self.source):
                for record in batch.records:
                    self.digest.add(record.key, record.timestamp_us, record.value)
                kept.append(batch)
                while len(kept) > self._kept_batches:
                    await self._hand_over(kept.popleft(), tasks)
                if self._check.lag > LAG_RECORDS_MAX:
                    await self._follow.wait_until(self._is_near, TAIL_TIMEOUT_S)
            if not self.digest.records:
                raise CheckFailed(f"there is nothing to append in the {self.source.title}")
            await self._end(kept, tasks)

    @property
    def _kept_batches(self) -> int:
        """Number of batches to keep back: one for each kill to come, and one to append after
        them."""
        pending = sum(kill.at_kill is None for kill in self.kills)
        return pending + 1 if pending else 0

    async def _end(self, kept: deque[InputChunk], tasks: asyncio.TaskGroup) -> None:
        """Append the batches that were kept back, around the remaining kills."""
        if not (self._in_flight or self._any_acked.is_set()):
            await self._start(kept.popleft(), tasks)
        while (kill := self._next) is not None:
            if len(kept) > 1:
                self._held.append(kept.popleft())
            await self._kill(kill, tasks)
        for batch in kept:
            await self._start(batch, tasks)

    async def _hand_over(self, batch: InputChunk, tasks: asyncio.TaskGroup) -> None:
        """Start to append a batch, or hold it back until enough are there for the kill."""
        kill = self._next
        if kill is not None and self._is_chosen:
            self._held.append(batch)
            if len(self._held) >= KILL_IN_FLIGHT:
                await self._kill(kill, tasks)
            return
        await self._start(batch, tasks)
        if kill is not None and self.source.taken >= kill.share * self.source.size:
            await self._choose_victim(kill)

    @property
    def _next(self) -> Kill | None:
        """The next kill."""
        return next((kill for kill in self.kills if kill.at_kill is None), None)

    async def _start(self, batch: InputChunk, tasks: asyncio.TaskGroup) -> None:
        await self._room.acquire()
        self._in_flight += 1
        tasks.create_task(self._append(batch))
        # Let the loop run: the batch goes out, and arrived bytes are read.
        await asyncio.sleep(0)

    async def _choose_victim(self, kill: Kill) -> None:
        # The victim must hold records, so some must be stored.
        await self._any_acked.wait()
        await kill.choose()
        self._is_chosen = True

    async def _kill(self, kill: Kill, tasks: asyncio.TaskGroup) -> None:
        """Kill the victim while batches are in flight to it."""
        if not self._is_chosen:
            await self._choose_victim(kill)
        for batch in self._held:
            await self._start(batch, tasks)
        self._held.clear()
        await asyncio.sleep(KILL_DELAY_S)
        self.acks.mark(asyncio.get_running_loop().time())
        kill.at_kill, kill.in_flight = self.records, self._in_flight
        kill.kill()
        self._is_chosen = False

    async def _append(self, batch: InputChunk) -> None:
        records = batch.records
        has_headers = any(record.headers for record in records)
        lsns = await self._store.append_many(
            self.source.log,
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps=[record.timestamp_us for record in records],
            headers=[record.headers for record in records] if has_headers else None,
            producer=self._producer,
        )
        self._in_flight -= 1
        self.acks.beat(asyncio.get_running_loop().time())
        self._check.on_acked(lsns, records)
        self.records += len(records)
        self.bytes += batch.bytes
        self._any_acked.set()
        self._room.release()

    def _is_near(self) -> bool:
        return self._check.lag <= LAG_RECORDS_MAX // 2
