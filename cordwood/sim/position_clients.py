"""Calls of simulated clients about places in a log: they trim, and look up times."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from cordwood.client.store import Store
from cordwood.errors import CordwoodError
from cordwood.host.seams import Host
from cordwood.lsn import OLDEST, Lsn, make_lsn
from cordwood.sim.events import PositionsReset
from cordwood.sim.position_events import (
    ExtentTold,
    ReleasedTold,
    TimeFound,
    TrimAnswered,
    TrimAsked,
)

CONSUMER = "shared"
"""The name of the consumer that members read for."""

if TYPE_CHECKING:
    from cordwood.sim.workload import Clients

AGAIN_S = 0.5
"""Pause before a client that could not connect tries again."""


BELOW_SHARE = 0.15
"""Share of the trims that ask for LSNs below the first record."""


async def find_a_time(
    name: str, store: Store, log: str, clients: Clients, chance: random.Random
) -> None:
    """Look up a time: mostly a time at which a record was appended, or one just beside it."""
    log_id = clients.log_ids[log]
    times = clients.times.get(log_id)
    if not times:
        return
    wanted_us = max(1, chance.choice(times) + chance.choice((0, 0, 0, -1, 1)))
    approximate = chance.random() < 0.2
    place = await store.find_time(log, wanted_us, approximate=approximate)
    is_exact = not (approximate or place.is_partial)
    recorder = clients.recorder
    recorder.add(TimeFound(
        recorder.now_us, name, log_id, wanted_us, int(place.lsn), int(place.tail), is_exact
    ))  # fmt: skip


async def ask_extent(name: str, store: Store, log: str, clients: Clients) -> None:
    """Ask where the records of a log begin and end."""
    recorder = clients.recorder
    invoked_us = recorder.now_us
    told = await store.extent(log)
    first, last = told.first, told.last
    recorder.add(ExtentTold(
        recorder.now_us, name, clients.log_ids[log], int(told.trim),
        int(first.lsn) if first else 0, first.append_time_us if first else 0,
        int(last.lsn) if last else 0, last.append_time_us if last else 0,
        int(told.tail), told.is_first_known, told.is_last_known, invoked_us,
    ))  # fmt: skip


async def poll_released(name: str, store: Store, clients: Clients) -> None:
    """Ask up to where all logs can be read, as a client that polls many logs does."""
    logs = sorted(clients.log_ids)
    recorder = clients.recorder
    for log, lsn in zip(logs, await store.released(logs), strict=True):
        told = ReleasedTold(recorder.now_us, name, clients.log_ids[log], int(lsn))
        recorder.add(told)


async def trim_logs(name: str, clients: Clients, host: Host) -> None:
    """Trim logs now and then, mostly a small part of them, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await asyncio.sleep(chance.expovariate(1 / clients.options.trim_s))
                    log = chance.choice(clients.options.logs)
                    if log in clients.log_ids:
                        await _trim(name, store, log, clients, chance)
        except CordwoodError as error:
            clients.told(name, "trim", error)
            await asyncio.sleep(AGAIN_S)


async def reset_positions(name: str, clients: Clients, host: Host) -> None:
    """Reset positions of the consumer now and then, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await clients.pause(chance.expovariate(1 / clients.options.reset_s))
                    log = chance.choice(clients.options.logs)
                    if log in clients.log_ids and not clients.stopping:
                        await _reset(store, log, clients, chance)
        except CordwoodError as error:
            clients.told(name, "reset", error)
            await asyncio.sleep(AGAIN_S)


async def _reset(store: Store, log: str, clients: Clients, chance: random.Random) -> None:
    """Reset a position to any place in the log, or to its last saved place."""
    recorder, key = clients.recorder, str(clients.log_ids[log])
    group = await store.cursors.by_number(CONSUMER)
    lsn = group.positions.get(key, 0)
    if not lsn or chance.random() < 0.7:
        tail = await store.tail(log)
        epoch = chance.randint(1, tail.epoch) if chance.random() < 0.5 else tail.epoch
        lsn = min(int(tail), make_lsn(epoch, int(tail.esn * chance.random())))
    invoked_us = recorder.now_us
    await store.cursors.save(CONSUMER, {log: lsn}, reset=True)
    recorder.add(PositionsReset(recorder.now_us, CONSUMER, {key: int(lsn)}, invoked_us))


async def _trim(name: str, store: Store, log: str, clients: Clients, chance: random.Random) -> None:
    """Trim a log somewhere: in an earlier epoch, inside a block, up to its tail, or where there are
    no records any more or never were."""
    tail = await store.tail(log)
    epoch = chance.randint(1, tail.epoch) if chance.random() < 0.3 else tail.epoch
    esn = tail.esn if chance.random() < 0.1 else int(tail.esn * chance.random() ** 2)
    lsn = min(tail, make_lsn(epoch, esn))
    if chance.random() < BELOW_SHARE:
        lsn = min(lsn, chance.choice((Lsn(0), make_lsn(1, 0), OLDEST)))
    recorder, log_id = clients.recorder, clients.log_ids[log]
    recorder.add(TrimAsked(recorder.now_us, name, log_id, int(lsn)))
    done = await store.trim(log, lsn)
    recorder.add(TrimAnswered(recorder.now_us, name, log_id, int(lsn), done.nodes))
