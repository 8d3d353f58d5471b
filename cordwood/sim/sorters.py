"""Simulated clients of a log whose keys do not fall: a sorter appends in order, and looks keys up.

Three records have the same key, every other number is no key, and some records have none. The
sorter appends as a producer, and raises its epoch after an error. So no failed append can be stored
after the next append, which would let the keys fall.

Source: docs/sources/logdevice.md 1 ("Positions": findKey).
"""

from __future__ import annotations

import asyncio
import random

from cordwood.client.append.producer import Producer
from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.sim.keys import as_key
from cordwood.sim.payload import make_payload
from cordwood.sim.position_events import KeyFound
from cordwood.sim.workload import RECONNECT_S, SORTED, Clients, find_log

APPEND_S = 1.2
"""Mean pause between two appends: a run has some fifteen appends."""

ASKS = 0.25
"""Share of the appends after which a key is looked up: a look-up takes forty reads."""

BURST = 8
PAYLOAD_BYTES = 80

ALIKE = 3
"""Records of one key."""

KEYLESS_EVERY = 7


def sorted_key(number: int) -> str:
    """The key of the sorter's record with this number, "" for none."""
    is_keyless = number % KEYLESS_EVERY == KEYLESS_EVERY - 1
    return "" if is_keyless else f"{number // ALIKE * 2:06d}"


async def sort(name: str, clients: Clients, host: Host) -> None:
    """Append and look up, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                sorter = _Sorter(name, store, clients, chance)
                while not clients.stopping:
                    await sorter.append()
                    if chance.random() < ASKS:
                        await sorter.look_up()
                    await asyncio.sleep(chance.expovariate(1 / APPEND_S))
        except CordwoodError as error:
            clients.told(name, "find_key", error)
            await asyncio.sleep(RECONNECT_S)


class _Sorter:
    """A sorter's connection."""

    def __init__(self, name: str, store: Store, clients: Clients, chance: random.Random) -> None:
        self._name = name
        self._store = store
        self._clients = clients
        self._chance = chance
        self._number = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """The numbers rise over all lives of the sorter."""
        identity = self._clients.lane_chance(self._name, 0).randrange(1, 1 << 62)
        self._epoch = next(self._clients.sequences(f"{self._name}'s epoch"))
        self._producer = Producer(identity, self._epoch)

    async def append(self) -> None:
        """One call; its outcome goes into the history."""
        clients, chance = self._clients, self._chance
        log_id = await find_log(self._store, SORTED, clients)
        sequences = clients.sequences(self._name)
        numbers = [next(sequences) for _ in range(chance.randint(1, BURST))]
        self._number = numbers[-1]
        keys = [sorted_key(number) for number in numbers]
        payloads = [make_payload(self._name, each, PAYLOAD_BYTES, chance) for each in numbers]
        op = clients.recorder.append_invoked(
            self._name, log_id, payloads, session=self._epoch,
            timeout_s=clients.options.append_timeout_s,
            producer=(self._producer.producer, self._producer.epoch), keys=keys,
        )  # fmt: skip
        clients.calls.began(self._name, op)
        try:
            lsns = await self._store.append_many(
                SORTED, payloads, keys=list(map(as_key, keys)), producer=self._producer
            )
        except CordwoodError as error:
            clients.recorder.append_raised(op, error)
            self._begin_epoch()
        else:
            clients.recorder.append_ok(op, list(lsns))
            clients.acked += len(payloads)
        clients.calls.ended(self._name, op)

    async def look_up(self) -> None:
        """Look up a key that is in the log, or that would be between two keys of the log."""
        clients, recorder = self._clients, self._clients.recorder
        key = f"{self._chance.randint(0, self._number // ALIKE * 2 + 1):06d}"
        try:
            place = await self._store.find_key(SORTED, key.encode())
        except CordwoodError as error:
            clients.told(self._name, "find_key", error)
            return
        log_id = clients.log_ids[SORTED]
        before, at = int(place.before or 0), int(place.at or 0)
        recorder.add(KeyFound(
            recorder.now_us, self._name, log_id, key, before, at, int(place.tail),
            not place.is_partial,
        ))  # fmt: skip
