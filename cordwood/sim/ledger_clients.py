"""Simulated clients of ledgers: scribes write them, salvagers recover them, tailers follow them.

A scribe closes some of its ledgers, and leaves others open, as a dying writer does. Salvagers also
recover ledgers that are being written; now and then two salvagers recover one ledger at once. At
the end of the run, the archivist recovers every ledger and reads it whole. It also checks the
ledgers that main storage has.

Source: docs/protocol/ledgers.md.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque

from cordwood.client.ledgers.readable_ledger import ReadableLedger
from cordwood.client.ledgers.writable_ledger import WritableLedger
from cordwood.client.store import Store
from cordwood.errors import (
    Closed,
    CordwoodError,
    LedgerExists,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.ledger import ENTRY_MAX, DigestKind, LedgerMetadata, LedgerState
from cordwood.protocol.ledger_writer import WriterLimits
from cordwood.sim.events import mark_payload
from cordwood.sim.ledger_events import (
    EntryAcked,
    EntryAdded,
    EntryRead,
    EntryRefused,
    LedgerAudited,
    LedgerChecked,
    LedgerEnds,
    LedgerMade,
)
from cordwood.sim.payload import make_payload
from cordwood.sim.workload import PAYLOAD_BYTES_MIN, RECONNECT_S, Clients

SHAPES: tuple[tuple[int, int, int], ...] = (
    (3, 3, 2),
    (3, 3, 2),
    (3, 2, 2),
    (4, 3, 2),
    (5, 3, 3),
    (2, 2, 1),
    (1, 1, 1),
)
"""E, Qw, Qa."""

LONG_SHAPES: tuple[tuple[int, int, int], ...] = ((3, 2, 2), (3, 3, 3), (4, 2, 2), (3, 3, 2))
"""The same in runs with long ledgers. With Qw = Qa a single copy that a repair leaves out is
seen."""

WRITE_S = 4.0
"""Mean time for which one ledger is written."""

ADD_S = 0.2
"""Mean pause between two bursts of entries."""

BURST = 6

DEFERS = 0.2
"""Share of the ledgers that are written with deferred sync. An entry of such a ledger counts as
acknowledged after a force has confirmed it."""

CLOSES = 0.6
"""Share of the ledgers that their scribe closes; it leaves the others open."""

TAKEN_SHARE = 0.15
"""Share of the ledgers for which a scribe asks for an id that is taken, or was taken once."""

DELETED_EVERY = 5
"""Of the ledgers that their scribe closes, those with an id divisible by this are deleted at
once."""

SALVAGE_S = 3.0
"""Mean pause between two recoveries of a salvager."""

LONG_SALVAGE_S = 20.0
"""The same in runs with long ledgers: most of them must stay open through several losses."""

FOLLOW_S = 5.0
"""How long a tailer stays with a ledger."""

TAIL_S = 1.0
"""Mean pause between two ledgers of a tailer."""

PAYLOAD_BYTES = 120

AUDIT_AGAIN_S = 1.0
AUDIT_S = 40.0
"""How long the archivist tries. Ledgers that it has not read by then are recorded as unread."""


async def scribe(name: str, clients: Clients, host: Host) -> None:
    """Make ledgers and write them, one after the other, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await _Writing(name, store, clients, chance).run()
        except CordwoodError as error:
            clients.told(name, "ledger", error)
            await asyncio.sleep(RECONNECT_S)


class _Writing:
    """One ledger of a scribe."""

    def __init__(self, name: str, store: Store, clients: Clients, chance: random.Random) -> None:
        self._name = name
        self._store = store
        self._clients = clients
        self._chance = chance
        self._numbers = 0
        self._defers = False
        # Acknowledged entries that no force has confirmed: numbers and entries.
        self._unforced: deque[tuple[int, int]] = deque()
        self._waits: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        made = await self._make()
        if made is None:
            return
        loop, chance, clients = asyncio.get_running_loop(), self._chance, self._clients
        until_s = loop.time() + chance.expovariate(1 / WRITE_S)
        if clients.options.long_ledgers:
            until_s = math.inf
        while not clients.stopping and loop.time() < until_s and not made.is_closed:
            if self._unforced:
                # Entries are added and acknowledged while the force is under way.
                self._waits.add(asyncio.create_task(self._force(made)))
            for _ in range(chance.randint(1, BURST)):
                if not made.is_closed:
                    self._add(made)
            await clients.pause(chance.expovariate(1 / ADD_S))
        if chance.random() < CLOSES:
            await self._close(made)
        else:
            made.abandon()
        await asyncio.gather(*self._waits)

    async def _make(self) -> WritableLedger | None:
        chance, clients = self._chance, self._clients
        nodes = len(clients.addresses)
        known = LONG_SHAPES if clients.options.long_ledgers else SHAPES
        shapes = [shape for shape in known if shape[0] <= nodes]
        ensemble, write, ack = chance.choice(shapes)
        taken = clients.ledgers + clients.deleted_ledgers
        is_taken = bool(taken) and chance.random() < TAKEN_SHARE
        chosen = chance.choice(taken) if is_taken else None
        kind = chance.random()
        self._defers = kind >= 1 - DEFERS
        try:
            made = await self._store.ledgers.create(
                ensemble=ensemble, write=write, ack=ack, digest=chance.choice(list(DigestKind)),
                password=b"sesame", ledger=chosen, shrinks=True, tier=self._asks_for_main_storage(),
                limits=WriterLimits(delays_change=kind < 0.3, defers_sync=self._defers),
            )  # fmt: skip
        except LedgerExists:
            return None
        clients.ledgers.append(made.ledger_id)
        recorder = clients.recorder
        recorder.add(LedgerMade(recorder.now_us, self._name, made.ledger_id))
        return made

    def _asks_for_main_storage(self) -> bool:
        """Whether a ledger asks for main storage, if there is one: every other ledger does. Nothing
        is drawn for this."""
        clients = self._clients
        count = len(clients.ledgers) + len(clients.deleted_ledgers)
        return clients.options.tiers_ledgers and count % 2 == 0

    def _add(self, made: WritableLedger) -> None:
        """Add an entry, and record its end whenever that comes."""
        clients, chance, recorder = self._clients, self._chance, self._clients.recorder
        size = chance.randint(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES)
        payload = make_payload(self._name, next(clients.sequences(self._name)), size, chance)
        try:
            future = made.append_nowait(payload)
        except (Overloaded, Closed):
            return
        number, self._numbers = self._numbers, self._numbers + 1
        recorder.add(
            EntryAdded(recorder.now_us, self._name, made.ledger_id, number, mark_payload(payload))
        )
        # In the order of their ends: a callback comes one tick after its future.
        future.add_done_callback(lambda done: self._note(made.ledger_id, number, done))

    def _note(self, ledger: int, number: int, done: asyncio.Future[int]) -> None:
        recorder = self._clients.recorder
        error = done.exception()
        if error is None and self._defers:
            self._unforced.append((number, done.result()))
        elif error is None:
            recorder.add(EntryAcked(recorder.now_us, self._name, ledger, number, done.result()))
        elif isinstance(error, CordwoodError) and not error.is_outcome_unknown:
            told = type(error).__name__
            recorder.add(EntryRefused(recorder.now_us, self._name, ledger, number, told))

    async def _force(self, made: WritableLedger) -> None:
        try:
            self._confirm(made.ledger_id, await made.force())
        except CordwoodError as error:
            self._clients.told(self._name, "force", error)
            if isinstance(error, Unreachable):
                # The writer has closed the ledger below these entries.
                self._refuse(made.ledger_id, type(error).__name__)

    def _confirm(self, ledger: int, through: int) -> None:
        recorder = self._clients.recorder
        while self._unforced and self._unforced[0][1] <= through:
            number, entry = self._unforced.popleft()
            recorder.add(EntryAcked(recorder.now_us, self._name, ledger, number, entry))

    def _refuse(self, ledger: int, told: str) -> None:
        recorder = self._clients.recorder
        while self._unforced:
            number, _ = self._unforced.popleft()
            recorder.add(EntryRefused(recorder.now_us, self._name, ledger, number, told))

    async def _close(self, made: WritableLedger) -> None:
        try:
            await made.close()
        except (OutcomeUnknown, CordwoodError) as error:
            self._clients.told(self._name, "close", error)
            made.abandon()
        else:
            if made.metadata.state is LedgerState.CLOSED:
                # A close forces first: all acknowledged entries are in the ledger.
                self._confirm(made.ledger_id, ENTRY_MAX)
                _note_end(self._name, self._clients, made.metadata)
                if made.ledger_id % DELETED_EVERY == 0:
                    await self._delete(made.ledger_id)

    async def _delete(self, ledger: int) -> None:
        """Delete a closed ledger. It may be deleted even if the answer is an error, so no client
        asks for its entries from here on."""
        clients = self._clients
        clients.ledgers.remove(ledger)
        clients.deleted_ledgers.append(ledger)
        try:
            await self._store.ledgers.delete(ledger)
        except CordwoodError as error:
            clients.told(self._name, "delete", error)


async def salvage(name: str, clients: Clients, host: Host) -> None:
    """Recover finished ledgers, and ledgers that are being written, until told to stop."""
    _, chance = clients.next_life(name)
    mean_s = LONG_SALVAGE_S if clients.options.long_ledgers else SALVAGE_S
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    await clients.pause(chance.expovariate(1 / mean_s))
                    if clients.ledgers:
                        ledger = clients.ledgers[-1]
                        if chance.random() < 0.4:
                            ledger = chance.choice(clients.ledgers)
                        times = chance.choice((1, 1, 2))
                        async with asyncio.TaskGroup() as tasks:
                            for _ in range(times):
                                tasks.create_task(_recover(name, store, ledger, clients))
        except* CordwoodError as group:
            clients.told(name, "recover", group)
            await asyncio.sleep(RECONNECT_S)


async def _recover(name: str, store: Store, ledger: int, clients: Clients) -> None:
    try:
        found = await store.ledgers.recover(ledger, b"sesame")
    except CordwoodError as error:
        clients.told(name, "recover", error)
    else:
        _note_end(name, clients, found)


async def tail(name: str, clients: Clients, host: Host) -> None:
    """Follow ledgers, mostly the newest, until told to stop."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                while not clients.stopping:
                    if not clients.ledgers:
                        await clients.pause(0.5)
                        continue
                    some = clients.ledgers[-3:]
                    opened = await store.ledgers.open(chance.choice(some), b"sesame")
                    await _follow(name, opened, clients, chance)
                    await clients.pause(chance.expovariate(1 / TAIL_S))
        except CordwoodError as error:
            clients.told(name, "follow", error)
            await asyncio.sleep(RECONNECT_S)


async def _follow(
    name: str, opened: ReadableLedger, clients: Clients, chance: random.Random
) -> None:
    try:
        async with asyncio.timeout(chance.expovariate(1 / FOLLOW_S)):
            await _read_on(name, opened, clients)
    except TimeoutError:
        return


async def _read_on(name: str, opened: ReadableLedger, clients: Clients) -> None:
    recorder = clients.recorder
    async for each in opened:
        mark = mark_payload(each.payload)
        recorder.add(EntryRead(recorder.now_us, name, each.ledger, each.entry, mark))
    _note_end(name, clients, opened.metadata)


async def archive(name: str, clients: Clients, host: Host) -> None:
    """When the other clients have ended, recover every ledger and read it whole."""
    _, chance = clients.next_life(name)
    while not clients.stopping:
        await clients.pause(AUDIT_S)
    recorder = clients.recorder
    until_s = asyncio.get_running_loop().time() + AUDIT_S
    done: set[int] = set()
    failures: dict[int, str] = {}
    while not clients.giving_up and asyncio.get_running_loop().time() < until_s:
        left = [ledger for ledger in clients.ledgers if ledger not in done]
        if not left:
            break
        try:
            async with clients.connected(host, clients.settings(chance)) as store:
                for ledger in left:
                    try:
                        opened = await store.ledgers.open(ledger, b"sesame", recovery=True)
                        await _read_on(name, opened, clients)
                        await _check(name, store, opened, clients)
                    except CordwoodError as error:
                        failures[ledger] = f"{type(error).__name__}: {error}"
                        clients.told(name, "audit", error)
                        continue
                    recorder.add(LedgerAudited(recorder.now_us, name, ledger))
                    done.add(ledger)
        except CordwoodError as error:
            clients.told(name, "audit", error)
            await asyncio.sleep(AUDIT_AGAIN_S)
    for ledger in clients.ledgers:
        if ledger not in done:
            why = failures.get(ledger, "no time")
            recorder.add(LedgerAudited(recorder.now_us, name, ledger, why))


async def _check(name: str, store: Store, opened: ReadableLedger, clients: Clients) -> None:
    """Check a ledger that main storage has, and have missing copies filled."""
    if not (await opened.refresh()).is_tiered:
        return
    check = await store.ledgers.check(opened.ledger_id, b"sesame", fills=True)
    recorder = clients.recorder
    recorder.add(
        LedgerChecked(recorder.now_us, name, check.ledger, check.short, check.lost, check.filled)
    )


def _note_end(name: str, clients: Clients, found: LedgerMetadata) -> None:
    recorder = clients.recorder
    recorder.add(LedgerEnds(recorder.now_us, name, found.ledger, found.last, found.length))
