"""Simulated holders: they take a log in turn, each under a higher fencing token, and append to it.

As with elected leaders, a former holder does not always know that its turn is over. It goes on
appending under its token, and must be refused (S25). No other client appends to this log.

Source: docs/design.md §3 ("A fencing token belongs to an epoch").
"""

from __future__ import annotations

import asyncio
import random

from cordwood.client.store import Store
from cordwood.errors import CordwoodError, TokenFenced
from cordwood.host.seams import Host
from cordwood.sim.payload import make_payload
from cordwood.sim.token_events import FenceAnswered, FenceAsked
from cordwood.sim.workload import HELD, PAYLOAD_BYTES_MIN, RECONNECT_S, Clients, find_log

HOLD_S = 5.0
"""Mean time for which a holder appends before it leaves the log to another holder. Each holder
takes an epoch, and a run should see several epochs and not hundreds."""

APPEND_S = 0.4
"""Mean pause between two appends of a holder."""

STUBBORN = 0.6
"""Share of the refusals after which a holder tries again under the token that was refused."""

BORROWS = 0.1
"""Share of the appends under a lower token than the holder's, or without a token."""

PAYLOAD_BYTES = 100


async def hold(name: str, clients: Clients, host: Host) -> None:
    """Take the log and append to it, again and again, until told to stop."""
    life, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                holder = _Holder(name, life, store, clients, chance)
                while not clients.stopping:
                    await holder.hold_log()
                    await clients.pause(chance.expovariate(1 / HOLD_S))
        except CordwoodError as error:
            clients.told(name, "fence", error)
            await asyncio.sleep(RECONNECT_S)


class _Holder:
    """One life of a holder, over one connection."""

    def __init__(
        self, name: str, life: int, store: Store, clients: Clients, chance: random.Random
    ) -> None:
        self._name = name
        self._life = life
        self._store = store
        self._clients = clients
        self._chance = chance

    async def hold_log(self) -> None:
        """Take the log, and append until the time is over or another holder has the log."""
        clients, chance = self._clients, self._chance
        log_id = await find_log(self._store, HELD, clients)
        token = clients.next_token()
        recorder = clients.recorder
        recorder.add(FenceAsked(recorder.now_us, self._name, log_id, token))
        epoch = await self._store.fence(HELD, token, holder=self._name)
        recorder.add(FenceAnswered(recorder.now_us, self._name, log_id, token, epoch))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + chance.expovariate(1 / HOLD_S)
        while not clients.stopping and loop.time() < until_s:
            borrowed = chance.random() < BORROWS
            used = chance.choice((0, token - 1)) if borrowed else token
            is_refused = await self._append(log_id, used)
            if is_refused and not borrowed and chance.random() >= STUBBORN:
                return
            await clients.pause(chance.expovariate(1 / APPEND_S))

    async def _append(self, log_id: int, token: int) -> bool:
        """Make one append under a token. Returns whether it was refused because of the token."""
        clients, chance = self._clients, self._chance
        await self._store.use_fencing_token(HELD, token)
        number = next(clients.sequences(self._name))
        size = chance.randint(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES)
        payload = make_payload(self._name, number, size, chance)
        op = clients.recorder.append_invoked(
            self._name, log_id, [payload], session=self._life,
            timeout_s=clients.options.append_timeout_s, token=token,
        )  # fmt: skip
        clients.calls.began(self._name, op)
        error: CordwoodError | None = None
        try:
            lsn = await self._store.append(HELD, payload)
        except CordwoodError as raised:
            error = raised
            clients.recorder.append_raised(op, raised)
        else:
            clients.recorder.append_ok(op, [lsn])
            clients.acked += 1
        clients.calls.ended(self._name, op)
        return isinstance(error, TokenFenced)
