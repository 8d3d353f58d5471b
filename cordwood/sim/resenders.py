"""Simulated clients that follow the manual's recipe after an error: `Producer.again`.

A resender has one producer for all logs and several calls in flight. A call that ended with an
error is sent again at its place until it is stored. A careful resender makes one call to a log at a
time, as the manual asks. A careless resender makes several calls, and begins a higher epoch where
`again` is refused. Callers give up on some calls, and now and then change to a new connection.

Source: docs/api.md ("Producer").
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import nullcontext

from cordwood.client.append.producer import Producer
from cordwood.client.store import Store
from cordwood.errors import BadSetting, Closed, CordwoodError, OutcomeUnknown, Retryable
from cordwood.host.seams import Host
from cordwood.sim.events import AppendAgain
from cordwood.sim.history import GIVEN_UP
from cordwood.sim.payload import make_payload
from cordwood.sim.workload import GIVE_UP_S, RECONNECT_S, Clients, GivenUp, find_log

LANES = (3, 4, 5)
"""Most calls that a resender has in flight."""

PAUSE_S = 0.5
"""Mean pause of a lane between two calls, so that some calls fail together, and not a hundred."""

AGAIN_S = 0.1
"""Mean pause before a call is made again, so that other lanes begin and end calls meanwhile."""

STORE_S = 6.0
"""Mean time for which a resender keeps its connection."""

GIVES_UP = 0.1
"""Share of the calls in which the caller waits only for a moment."""

BURST = 6
PAYLOAD_BYTES = 100


async def resend(name: str, clients: Clients, host: Host) -> None:
    """Append until told to stop, then finish the calls in flight."""
    life, chance = clients.next_life(name)
    resender = _Resender(name, life, clients, chance)
    async with asyncio.TaskGroup() as tasks:
        keeper = tasks.create_task(resender.keep_store(host))
        async with asyncio.TaskGroup() as lanes:
            for lane in range(chance.choice(LANES)):
                lanes.create_task(resender.run(lane))
        keeper.cancel()


class _Resender:
    """One life of a resender."""

    def __init__(self, name: str, life: int, clients: Clients, chance: random.Random) -> None:
        self._name = name
        self._life = life
        self._clients = clients
        self._chance = chance
        self._store: Store | None = None
        self._connected = asyncio.Event()
        own = clients.lane_chance(name, 0)
        self._identity = own.randrange(1, 1 << 62)
        self._is_careful = own.random() < 0.5  # for all its lives
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._open: dict[str, int] = defaultdict(int)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """The numbers rise over all lives."""
        epoch = next(self._clients.sequences(f"{self._name}'s epoch"))
        self._producer = Producer(self._identity, epoch)

    async def keep_store(self, host: Host) -> None:
        """Connect, and now and then abandon calls and connect anew."""
        clients, chance = self._clients, self._chance
        while True:
            try:
                async with clients.connected(host, clients.settings(chance)) as store:
                    self._store = store
                    self._connected.set()
                    await asyncio.sleep(chance.expovariate(1 / STORE_S))
                    self._connected.clear()
            except CordwoodError as error:
                clients.told(self._name, "connect", error)
                await asyncio.sleep(RECONNECT_S)

    async def run(self, lane: int) -> None:
        """One call after another."""
        clients, chance = self._clients, self._chance
        while not clients.stopping:
            await clients.pause(chance.expovariate(1 / (PAUSE_S * clients.slowness)))
            log = chance.choice(clients.options.logs)
            try:
                log_id = await find_log(await self._current(), log, clients)
            except CordwoodError as error:
                clients.told(self._name, "find", error)
                continue
            async with self._turns[log] if self._is_careful else nullcontext():
                if not clients.stopping:
                    self._open[log] += 1
                    await self._append_once(log, log_id, lane)
                    self._open[log] -= 1

    async def _current(self) -> Store:
        await self._connected.wait()
        assert self._store is not None, "connected"
        return self._store

    async def _append_once(self, log: str, log_id: int, lane: int) -> None:
        """One call, made again until it is stored; its outcome goes into the history."""
        clients, chance, recorder = self._clients, self._chance, self._clients.recorder
        numbers = clients.sequences(self._name)
        records = 1 if chance.random() < 0.5 else chance.randint(1, BURST)
        payloads = [
            make_payload(self._name, next(numbers), PAYLOAD_BYTES, chance) for _ in range(records)
        ]
        is_atomic = records > 1 and chance.random() < 0.3
        store = await self._current()
        producer = self._producer
        place = producer.next_sequence(log_id)
        op = recorder.append_invoked(
            self._name, log_id, payloads, session=self._life * max(LANES) + lane,
            timeout_s=clients.options.append_timeout_s, atomic=is_atomic,
            producer=(self._identity, producer.epoch),
        )  # fmt: skip
        clients.calls.began(self._name, op)
        failures: list[CordwoodError] = []
        has_left = False
        ended_us = recorder.now_us
        while True:
            try:
                lsns = await self._ask(store, log, payloads, is_atomic)
            except (Retryable, OutcomeUnknown, Closed) as error:
                failures.append(error)
                if store is not self._store or not self._connected.is_set():
                    has_left = True
            except CordwoodError as error:
                failures.append(error)
                ended_us = recorder.now_us
                break
            else:
                recorder.append_ok(op, lsns)
                clients.acked += len(lsns)
                clients.calls.ended(self._name, op)
                return
            ended_us = recorder.now_us
            await asyncio.sleep(chance.expovariate(1 / AGAIN_S))
            store = await self._current()
            if self._producer.epoch != producer.epoch or clients.giving_up:
                break
            try:
                self._producer = self._producer.again(log_id, place)
            except BadSetting:
                break
            recorder.add(AppendAgain(recorder.now_us, op, _name_of(failures[-1]), ended_us))
        recorder.append_raised(op, _told(failures, has_left), ended_us)
        clients.calls.ended(self._name, op)
        # Other lanes that append to this log may still send again their calls in flight.
        if self._producer.epoch == producer.epoch and self._open[log] == 1:
            self._begin_epoch()

    async def _ask(
        self, store: Store, log: str, payloads: list[bytes], is_atomic: bool
    ) -> list[int]:
        """Append, or give up half-way."""
        if self._chance.random() >= GIVES_UP or self._clients.stopping:
            return await self._append(store, log, payloads, is_atomic)
        try:
            async with asyncio.timeout(GIVE_UP_S * self._chance.random() ** 3):
                return await self._append(store, log, payloads, is_atomic)
        except TimeoutError:
            raise GivenUp("the caller did not wait for the answer") from None

    async def _append(
        self, store: Store, log: str, payloads: list[bytes], is_atomic: bool
    ) -> list[int]:
        producer = self._producer
        if len(payloads) > 1:
            return list(await store.append_many(log, payloads, producer=producer, atomic=is_atomic))
        return [await store.append(log, payloads[0], producer=producer)]


def _name_of(error: CordwoodError) -> str:
    return GIVEN_UP if isinstance(error, GivenUp) else type(error).__name__


def _told(failures: list[CordwoodError], has_left: bool) -> CordwoodError:
    """The known outcome of a call after all its tries.

    A try that was given up may never have left the client, so nothing is claimed about its place.
    If the client left its connection, the cluster need not keep L1 for the call.
    """
    if has_left:
        return GivenUp("the client left its connection")
    given_up = next((each for each in failures if isinstance(each, GivenUp)), None)
    unknown = next((each for each in failures if isinstance(each, OutcomeUnknown)), None)
    return given_up or unknown or failures[-1]
