"""Cordwood itself: three node processes, three copies, its own asyncio client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from time import perf_counter

import cordwood
from benchmarks.peers.light_client import READ_TIMEOUT_S, TAIL_TIMEOUT_S
from benchmarks.peers.peer import Peer, RunningPeer, Session, Variant
from benchmarks.peers.workload import (
    IN_FLIGHT,
    SIZES,
    AppendLoad,
    AppendRun,
    Lag,
    TailLoad,
    lag_of,
    percentile,
)
from cordwood import aio
from cordwood.bench.append_loops import Limit, append_singles, client_settings
from cordwood.bench.pace import TIME, stamped
from cordwood.block import Record
from cordwood.client.store import Store
from cordwood.errors import Unreachable
from cordwood.local_cluster import ClusterShape, local_cluster
from cordwood.lsn import Lsn

NODES = 3

CORDWOOD = Variant(
    "cordwood",
    "Cordwood",
    servers=NODES,
    copies=NODES,
    synced=True,
    durability="written with O_DSYNC (or fdatasync) on all 3 nodes before the ack",
    client="`cordwood.aio`, one future for each record, CPython on uvloop",
    notes="as `cordwood up --nodes 3` starts it; LogsDB is written a second time behind the ack",
)


class CordwoodPeer(Peer):
    """See the module."""

    name = "cordwood"
    variants = (CORDWOOD,)

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
        settings = client_settings(max(SIZES), max(IN_FLIGHT), 0)
        async with (
            await aio.connect(self._url, settings) as store,
            await aio.connect(self._url) as reading,
        ):
            session = CordwoodSession(store, reading)
            await session.fresh()
            yield session


class CordwoodSession(Session):
    """A store for appends, and another for reads."""

    def __init__(self, store: Store, reading: Store) -> None:
        self._store = store
        self._reading = reading
        self._numbers = count()
        self._log = ""

    async def fresh(self) -> None:
        if self._log:
            await self._store.trim(self._log, await self._store.tail(self._log))
        self._log = f"peers/{next(self._numbers)}"
        await self._store.create_log(self._log)

    async def append(self, load: AppendLoad) -> AppendRun:
        log = await self._store.open_log(self._log)
        limit = Limit(load.records_max, load.seconds)
        run = await append_singles([log], os.urandom(load.size), load.in_flight, limit)
        weighted = [(latency, 1) for latency in run.latencies_s]
        return AppendRun(
            run.records, run.seconds,
            percentile(weighted, 0.5) * 1000, percentile(weighted, 0.99) * 1000,
        )  # fmt: skip

    async def read(self, size: int, count: int) -> float:
        async def objects() -> None:
            left = count
            while left > 0:
                items = await stream.next_items()
                left -= sum(isinstance(item, Record) for item in items)

        began = perf_counter()
        stream = await self._reading.read(self._log, "oldest", None)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await objects()
        except TimeoutError:
            raise Unreachable(f"Cordwood did not send {count} records") from None
        finally:
            stream.close()
        return perf_counter() - began

    async def tail(self, load: TailLoad) -> Lag:
        lags: list[float] = []
        log = await self._store.open_log(self._log)
        answers: list[asyncio.Future[Lsn]] = []
        stream = await self._reading.read(self._log, "tail", None)

        async def follow() -> None:
            left = load.ticks * load.batch
            while left > 0:
                items = await stream.next_items()
                now = perf_counter()
                for item in items:
                    if isinstance(item, Record):
                        left -= 1
                        lags.append(now - TIME.unpack_from(item.value)[0])

        try:
            async with asyncio.timeout(load.seconds + TAIL_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                tasks.create_task(follow())

                def offer(values: list[bytes]) -> None:
                    answers.extend(map(log.append_nowait, values))

                await stamped(offer, load.ticks, load.batch, load.size)
                await asyncio.gather(*answers)
        except TimeoutError:
            raise Unreachable("Cordwood did not send all records to the tail") from None
        finally:
            stream.close()
        return lag_of(lags[load.ticks_not_counted * load.batch :])
