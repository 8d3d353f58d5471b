"""How long a client waits for the first record from main storage, counted in gets.

The store's answers are delayed by AWAY_S, so that the number of gets decides and not this machine's
cores. The reference is one get of the record's row group.

Source: docs/objects.md, "Reading".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from cordwood.client.find.log_info import LogInfo
from cordwood.client.tier_store import TierStore
from cordwood.errors import NoObject
from cordwood.host.seams import Host
from cordwood.lsn import LSN_MAX, LogId
from cordwood.nodes import Replication
from cordwood.tier.history import GET_S
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.object_reader import entry_footer
from cordwood.tier.object_store import Etag
from cordwood.tier.patient_store import PatientStore

AWAY_S = 0.02
"""Object stores in the same region answer a small get in 10 to 50 ms."""

Result = TypeVar("Result")


class AwayStore(PatientStore):
    """A store whose answers take AWAY_S longer, and which counts them.

    Attributes:
        gets: calls that read.
        turns: calls made while no other was under way: the number of answers that are waited for
            one after another.
    """

    def __init__(self, store: PatientStore) -> None:
        self.__dict__.update(store.__dict__)
        self.gets = 0
        self.turns = 0
        self._under_way = 0

    async def read(self, name: str, *, timeout_s: float) -> tuple[bytes, Etag]:
        return await self._later(lambda: super(AwayStore, self).read(name, timeout_s=timeout_s))

    async def get(self, name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        return await self._later(
            lambda: super(AwayStore, self).get(name, start, stop, timeout_s=timeout_s)
        )

    async def _later(self, call: Callable[[], Awaitable[Result]]) -> Result:
        self.gets += 1
        self.turns += self._under_way == 0
        self._under_way += 1
        try:
            await asyncio.sleep(AWAY_S)
            return await call()
        finally:
            self._under_way -= 1


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The wait for the first record.

    Attributes:
        seconds, get_s: until it was there, and of one get of its row group.
        gets, turns: see `AwayStore`.
    """

    seconds: float
    get_s: float
    gets: int
    turns: int


async def first_record(
    store: PatientStore, host: Host, log: int, first: int, created_us: int
) -> FirstRecord:
    """Read a log's first record as a client that has read nothing before.

    Args:
        log, first, created_us: the log's number, its first LSN and its origin.
    Raises:
        CordwoodError: the store failed.
    """
    away = AwayStore(store)

    async def open_away(host: Host, address: str) -> PatientStore:
        return away

    info = LogInfo(LogId(log), "/bench", Replication(1, 1), created_us)
    async with asyncio.TaskGroup() as tasks:
        # Not closed: the store is the caller's.
        tier = TierStore(host, lambda: "away", open_away, tasks)
        began = perf_counter()
        async with await tier.history(info, first, LSN_MAX) as history:
            found = await history.next()
            seconds = perf_counter() - began
            gets, turns = away.gets, away.turns
    manifest = LogManifest(store, log, host, "bench")
    await manifest.load()
    entry = await manifest.find(first)
    if found is None or entry is None:
        raise NoObject(f"log {log} has no record in main storage")
    group = (await entry_footer(store, entry, timeout_s=GET_S)).index.groups[0]
    began = perf_counter()
    await away.get(entry.name, group.start, group.stop, timeout_s=GET_S)
    return FirstRecord(seconds, perf_counter() - began, gets, turns)
