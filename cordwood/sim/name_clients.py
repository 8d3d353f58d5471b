"""Simulated clients of a log with a changing name: the namer changes it, and callers use it.

The namer renames the log, or deletes it, and makes another log of its name, over and over. It
writes records into each log; a record says the log's number and its own place in the log. The
callers stay connected over many changes, as an application does: they append and read by the name,
read again by a number that they know, and consume. All records that they are given must be of the
log that they asked for. A consumer begins each log at its first record (S32).

Source: docs/sources/reliability.md §3; `client.find.known_logs`, `client.read.consumer_logs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from cordwood.block import Gap, GapKind, Record
from cordwood.client.read.read_stream import ReadStream
from cordwood.client.store import Store
from cordwood.errors import CordwoodError, LogExists, UnknownLog
from cordwood.host.seams import Host
from cordwood.sim.name_events import NamedAppend, NamedRead, NameLeads
from cordwood.sim.workload import LOOK_S, RECONNECT_S, Clients

NAMED = "/sim/named"
"""The name."""

MOVED = ("/sim/moved/1", "/sim/moved/2", "/sim/moved/3", "/sim/moved/4")
"""The new names, used in turn: a renamed log lives on for a while."""

CHANGE_S = 4.0
"""Mean time for which the name stands for one log."""

WRITE_S = 0.3
"""Mean pause between two records of the namer."""

CALL_S = 0.5
"""Mean pause between two calls of a caller."""

STAY_S = 15.0
"""Mean time for which a caller stays connected: several changes."""

FIRST_MAX = 12
"""Records written to a log when it is made, so that logs end in different places."""

PASSED_OVER = (GapKind.TRIM, GapKind.DATA_LOSS)
"""The gaps that stand for records that a consumer is not given."""

_MARK = b"of "


def _payload(log: int, number: int) -> bytes:
    return _MARK + b"%d %d" % (log, number)


def _read_payload(value: bytes) -> tuple[int, int] | None:
    """Log and place of a record that the namer wrote; None for a caller's record."""
    if not value.startswith(_MARK):
        return None
    log, number = value.removeprefix(_MARK).split()
    return int(log), int(number)


async def change_names(name: str, clients: Clients, host: Host) -> None:
    """Give the name to one log after another, until told to stop."""
    _, chance = clients.next_life(name)
    namer = _Namer(clients)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                await namer.go_on(store, chance)
        except CordwoodError as error:
            clients.told(name, "rename", error)
            await asyncio.sleep(RECONNECT_S)


class _Namer:
    """The changes and records of the namer. It looks again at a change that ended with an error."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._log = 0
        self._invoked_us = clients.recorder.now_us
        self._written = 0
        self._renames = 0

    async def go_on(self, store: Store, chance: random.Random) -> None:
        await self._look(store)
        change_at = _now() + chance.expovariate(1 / CHANGE_S)
        while not self._clients.stopping:
            await self._write(store, 1)
            await asyncio.sleep(chance.expovariate(1 / WRITE_S))
            if _now() >= change_at:
                self._invoked_us = self._clients.recorder.now_us
                await self._change(store, chance)
                await self._look(store)
                await self._write(store, chance.randint(1, FIRST_MAX))
                change_at = _now() + chance.expovariate(1 / CHANGE_S)

    async def _change(self, store: Store, chance: random.Random) -> None:
        if chance.random() < 0.5:
            await store.log_tree.delete(NAMED)
            return
        self._renames += 1
        moved = MOVED[self._renames % len(MOVED)]
        with contextlib.suppress(UnknownLog):
            await store.log_tree.delete(moved)
        await store.log_tree.rename(NAMED, moved)

    async def _look(self, store: Store) -> None:
        """Find the log of the name, and make one if there is none."""
        try:
            info = await store.log(NAMED)
        except UnknownLog:
            try:
                info = await store.create_log(NAMED)
            except LogExists:
                info = await store.log(NAMED)
        if info.log_id != self._log:
            self._log, self._written = info.log_id, 0
            recorder = self._clients.recorder
            recorder.add(NameLeads(recorder.now_us, self._log, self._invoked_us))

    async def _write(self, store: Store, count: int) -> None:
        """Write records to the log of the name. A record of unknown outcome is written again."""
        log = self._log
        for _ in range(count):
            # By number: a change of unknown outcome may take the name away from it meanwhile.
            appending = await store.open_log(log)
            await appending.append_nowait(_payload(log, self._written))
            self._written += 1


async def call_names(name: str, clients: Clients, host: Host) -> None:
    """Append, read and consume by the name, until told to stop."""
    _, chance = clients.next_life(name)
    caller = _Caller(name, clients, chance)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                async with asyncio.timeout(chance.expovariate(1 / STAY_S)):
                    while not clients.stopping:
                        await clients.pause(chance.expovariate(1 / CALL_S))
                        await caller.call(store)
        except TimeoutError:
            continue  # the caller comes back with a new connection, which remembers nothing
        except CordwoodError as error:
            clients.told(name, "call", error)
            await asyncio.sleep(RECONNECT_S)


class _Caller:
    def __init__(self, name: str, clients: Clients, chance: random.Random) -> None:
        self._name = name
        self._recorder = clients.recorder
        self._chance = chance
        self._sent = 0
        self._last = 0

    async def call(self, store: Store) -> None:
        """Make one call of some kind. A call to a deleted log must end with its error."""
        calls = (self._append, self._read, self._read, self._read_number, self._consume)
        with contextlib.suppress(UnknownLog):
            await self._chance.choice(calls)(store)

    async def _append(self, store: Store) -> None:
        invoked_us = self._recorder.now_us
        self._sent += 1
        value = f"{self._name}:{invoked_us}:{self._sent}".encode()
        # By name, twice: between the two calls the name may pass to another log.
        lsn = await store.append(NAMED, value)
        stream = await store.read(NAMED, lsn, lsn)
        found = await self._items(stream)
        if found is not None:
            is_there = any(isinstance(item, Record) and item.value == value for item in found)
            now_us = self._recorder.now_us
            self._recorder.add(NamedAppend(now_us, self._name, invoked_us, int(lsn), is_there))

    async def _read(self, store: Store) -> None:
        invoked_us = self._recorder.now_us
        stream = await store.read(NAMED, "oldest", "tail")
        self._last = stream.info.log_id
        await self._note(stream, invoked_us, 0)

    async def _read_number(self, store: Store) -> None:
        if self._last:
            invoked_us = self._recorder.now_us
            log = self._last
            await self._note(await store.read(log, "oldest", "tail"), invoked_us, log)

    async def _note(self, stream: ReadStream, invoked_us: int, wanted: int) -> None:
        log = stream.info.log_id
        found = await self._items(stream) or []
        self._add(invoked_us, wanted, log, "", found)

    async def _items(self, stream: ReadStream) -> list[object] | None:
        """The records of a read; None if it does not reach its end in time."""
        found: list[object] = []
        try:
            async with asyncio.timeout(LOOK_S):
                while items := await stream.next_items():
                    found += items
        except TimeoutError:
            return None
        finally:
            stream.close()
        return found

    async def _consume(self, store: Store) -> None:
        invoked_us = self._recorder.now_us
        consumer = f"named-{self._name}"
        async with await store.consumer(consumer, NAMED) as reading:
            portion = await reading.read(50, LOOK_S)
            self._add(invoked_us, 0, 0, consumer, list(portion))

    def _add(
        self, invoked_us: int, wanted: int, log: int, consumer: str, items: list[object]
    ) -> None:
        given = [
            found
            for item in items
            if isinstance(item, Record) and (found := _read_payload(bytes(item.value)))
        ]
        is_gap = any(isinstance(item, Gap) and item.kind in PASSED_OVER for item in items)
        self._recorder.add(
            NamedRead(
                self._recorder.now_us, self._name, invoked_us, wanted, log, consumer, given, is_gap
            )
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
