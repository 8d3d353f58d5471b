"""Cordwood's ledgers, measured as BookKeeper's are: three nodes, E 3, Qw 3, Qa 2."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import cordwood
from benchmarks.peers.light_client import READ_TIMEOUT_S, TAIL_TIMEOUT_S
from benchmarks.peers.peer import Peer, RunningPeer, Session, Variant
from benchmarks.peers.workload import AppendLoad, AppendRun, Lag, TailLoad, Window, lag_of
from cordwood import aio
from cordwood.bench.pace import TIME, stamped
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.errors import Unreachable
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.protocol.ledger_writer import WriterLimits

NODES = 3

LEDGERS = Variant(
    "cordwood_ledgers",
    "Cordwood ledgers E3 Qw3 Qa2",
    servers=NODES,
    copies=NODES,
    synced=True,
    durability="written with O_DSYNC (or fdatasync) on 2 of 3 nodes before the ack",
    client="`store.ledgers` of `cordwood.aio`, one future for each entry, CPython on uvloop",
    notes=(
        "an entry for each record, as for BookKeeper; at the tail a long poll, and an explicit LAC "
        "from the writer"
    ),
)


class LedgersPeer(Peer):
    """See the module."""

    name = "cordwood_ledgers"
    variants = (LEDGERS,)

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return cordwood.__version__

    @asynccontextmanager
    async def running(self, directory: str) -> AsyncIterator[RunningPeer]:
        shape = ClusterShape(nodes=NODES, racks=NODES, copies=NODES, copy_racks=NODES)
        async with local_cluster(os.path.join(directory, "cordwood"), shape) as cluster:
            yield _Running(cluster.url)


class _Running(RunningPeer):
    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def session(self, variant: Variant) -> AsyncIterator[Session]:
        async with aio.connect(self._url) as store, aio.connect(self._url) as reading:
            session = LedgersSession(store, reading)
            await session.fresh()
            try:
                yield session
            finally:
                await session.close()


class LedgersSession(Session):
    """A store that writes a ledger, and another that reads it."""

    def __init__(self, store: Store, reading: Store) -> None:
        self._store = store
        self._reading = reading
        self._ledger: WritableLedger | None = None

    async def fresh(self) -> None:
        if self._ledger is not None:
            await self._ledger.close()
            await self._store.ledgers.delete(self._ledger.ledger_id)
        self._ledger = await self._store.ledgers.create(
            ensemble=3, write=3, ack=2, limits=WriterLimits(entries_max=20_000)
        )

    async def close(self) -> None:
        """End the ledger, so that its writer does not wait for ever."""
        if self._ledger is not None:
            await self._ledger.close()

    @property
    def _open(self) -> WritableLedger:
        assert self._ledger is not None, "fresh() was called"
        return self._ledger

    async def append(self, load: AppendLoad) -> AppendRun:
        ledger, payload = self._open, os.urandom(load.size)
        window = Window(load)
        waiting: deque[asyncio.Future[int]] = deque()

        async def send(count: int) -> None:
            for _ in range(count):
                await ledger.wait_room()
                waiting.append(ledger.append_nowait(payload))

        await send(window.begin(perf_counter()))
        while not window.is_done:
            await waiting[0]
            answered = 0
            while waiting and waiting[0].done():
                waiting.popleft().result()
                answered += 1
            await send(window.on_answered(answered, perf_counter()))
        return window.run(perf_counter())

    async def read(self, size: int, count: int) -> float:
        began = perf_counter()
        opened = await self._reading.ledgers.open(self._open.ledger_id)
        left = count
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                async for batch in opened.batches():
                    left -= len(batch)
                    if left <= 0:
                        break
        except TimeoutError:
            raise Unreachable(f"Cordwood did not send {count} entries") from None
        return perf_counter() - began

    async def tail(self, load: TailLoad) -> Lag:
        lags: list[float] = []
        ledger = self._open
        answers: list[asyncio.Future[int]] = []
        opened = await self._reading.ledgers.open(ledger.ledger_id)
        start = ledger.last_add_confirmed + 1

        async def follow() -> None:
            left = load.ticks * load.batch
            async for batch in opened.batches(start):
                now = perf_counter()
                lags.extend(now - TIME.unpack_from(entry.payload)[0] for entry in batch)
                left -= len(batch)
                if left <= 0:
                    return

        try:
            async with asyncio.timeout(load.seconds + TAIL_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(follow())

                def offer(values: list[bytes]) -> None:
                    answers.extend(map(ledger.append_nowait, values))

                await stamped(offer, load.ticks, load.batch, load.size)
                await asyncio.gather(*answers)
        except TimeoutError:
            raise Unreachable("Cordwood did not send all entries to the tail") from None
        return lag_of(lags[load.ticks_not_counted * load.batch :])
