"""Simulated clients of a log that demands a read token: a keeper, and outsiders.

The keeper makes the log with a token, appends to it, and now and then changes the token. Every
client except the outsiders has both tokens, so that its reads go on over each change. An outsider
has neither token, and reads over and over: it must never be given a record (S28).

Source: docs/sources/logdevice.md 1 ("Gap types", ACCESS); docs/sources/reliability.md §3 (S28).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace

from cordwood.client.store import Store
from cordwood.errors import AccessDenied, CordwoodError
from cordwood.host.seams import Host
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.sim.history import EndReason
from cordwood.sim.payload import make_payload
from cordwood.sim.readers import given_to
from cordwood.sim.workload import (
    GUARDED,
    LOOK_S,
    PAYLOAD_BYTES_MIN,
    READ_TOKENS,
    RECONNECT_S,
    Clients,
    find_log,
)

APPEND_S = 0.4
"""Mean pause between two appends of the keeper."""

CHANGE_S = 6.0
"""Mean time between two changes of the token: several changes in a run, and some quiet."""

PRY_S = 1.0
"""Mean pause between two reads of an outsider."""

UNSET_SHARE = 0.2
"""Share of an outsider's turns in which it tries to remove the token from the log."""

PAYLOAD_BYTES = 100


async def keep(name: str, clients: Clients, host: Host) -> None:
    """Append to the guarded log and change its token, until told to stop."""
    life, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                log_id = await find_log(store, GUARDED, clients)
                change_at = _now() + chance.expovariate(1 / CHANGE_S)
                while not clients.stopping:
                    await _append(name, life, store, log_id, clients, chance)
                    await clients.pause(chance.expovariate(1 / APPEND_S))
                    if _now() >= change_at:
                        asked = LogAttributes(read_token=token_digest(chance.choice(READ_TOKENS)))
                        await store.log_tree.set_attributes(GUARDED, asked)
                        change_at = _now() + chance.expovariate(1 / CHANGE_S)
        except CordwoodError as error:
            clients.told(name, "set", error)
            await asyncio.sleep(RECONNECT_S)


async def _append(
    name: str, life: int, store: Store, log_id: int, clients: Clients, chance: random.Random
) -> None:
    number = next(clients.sequences(name))
    size = chance.randint(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES)
    payload = make_payload(name, number, size, chance)
    timeout_s = clients.options.append_timeout_s
    op = clients.recorder.append_invoked(
        name, log_id, [payload], session=life, timeout_s=timeout_s
    )  # fmt: skip
    clients.calls.began(name, op)
    try:
        lsn = await store.append(GUARDED, payload)
    except CordwoodError as error:
        clients.recorder.append_raised(op, error)
    else:
        clients.recorder.append_ok(op, [lsn])
        clients.acked += 1
    clients.calls.ended(name, op)


async def pry(name: str, clients: Clients, host: Host) -> None:
    """Read the guarded log without its token, over and over, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        settings = replace(clients.settings(chance), read_tokens=chance.choice(((), ("a guess",))))
        try:
            async with clients.connected(host, settings) as store:
                while not clients.stopping:
                    if chance.random() < UNSET_SHARE and GUARDED in clients.log_ids:
                        await _unset(store)
                    await _pry_once(name, store, clients, chance)
                    await clients.pause(chance.expovariate(1 / PRY_S))
        except CordwoodError as error:
            clients.told(name, "read", error)
            await asyncio.sleep(RECONNECT_S)


async def _unset(store: Store) -> None:
    """Try to remove the token from the log. If this were allowed, the next read would get
    records."""
    with contextlib.suppress(AccessDenied):
        await store.log_tree.set_attributes(GUARDED, LogAttributes(), ("read_token",))


async def _pry_once(name: str, store: Store, clients: Clients, chance: random.Random) -> None:
    """One read, until it is refused, or for a while."""
    log_id = clients.log_ids.get(GUARDED)
    if log_id is None:
        return  # a client that asks for a missing log would make a log without a token
    start = chance.choice(("oldest", "oldest", "tail"))
    stream = await store.read(GUARDED, start)
    first = stream.next_lsn
    recorder = clients.recorder
    recorder.read_started(name, log_id, first, barred=True)
    reason, failure = EndReason.STOPPED, None
    try:
        async with asyncio.timeout(LOOK_S):
            while items := await stream.next_items():
                for item in items:
                    given_to(recorder, name, item)
    except TimeoutError:
        pass
    except CordwoodError as error:
        reason, failure = EndReason.ERROR, error
    recorder.read_ended(name, reason, failure)
    stream.close()
    if failure is not None:
        raise failure


def _now() -> float:
    return asyncio.get_running_loop().time()
