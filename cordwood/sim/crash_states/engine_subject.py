"""A storage node's engine as a subject of crashes: stores, seals and ends of epochs.

Its promises (`storage.engine`): a store that was acknowledged is visible after any crash, unless
its epoch ended without it. An answered seal still refuses older epochs, and all stores that came
before it were settled before. An epoch that was reported over is still over, and its dropped
records stay away. No record is visible that was not sent, or was refused.

Source: `storage.engine`; docs/design.md §5; docs/sources/reliability.md §3 (S2, S3, S12, S13).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from cordwood.errors import Corrupt, Overloaded, Retryable
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.waves import Refusal, StoreRefusal, store_head
from cordwood.nodes import NodeId
from cordwood.settings import MIB, StorageSettings
from cordwood.sim.crash_states.engine_promises import (
    LOGS,
    Copies,
    Copy,
    Damaged,
    End,
    EndAnswered,
    EndAsked,
    EnginePromises,
    Opened,
    Refused,
    SealAnswered,
    SealAsked,
    Sent,
    Stored,
    TrimAnswered,
    TrimAsked,
    new_copy,
)
from cordwood.sim.crash_states.explorer import Life, PromiseBroken
from cordwood.sim.crash_states.wal_subject import opened
from cordwood.sim.damage import damage_tables
from cordwood.sim.disk import SimDisk
from cordwood.sim.holdings import held_and_damaged
from cordwood.sim.memory_logs import memory_tables
from cordwood.sim.process import Process
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import EpochEnd
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.logs_store import LogsStore

RING_UNITS = 40
"""Bytes for a dozen waves: a long life flushes a few times, and is full now and then."""

DIRECTORY = "/logsdb"

ROT_IN_PARTITIONS = 0.75
"""Share of the rot that hits partitions; the other rot hits metadata."""

STORAGE = tuple(
    StorageSettings(
        wal_bytes=MIB,
        cache_bytes=1 << 20,
        flush_bytes=flush_bytes,
        flush_quiet_s=0,
        flush_age_s=flush_age_s,
        partition_bytes=1 << 16,
        partition_files=partition_files,
    )
    for flush_bytes, flush_age_s, partition_files in (
        (4096, 60.0, 1), (4096, 0.01, 1), (4096, 0.01, 2), (1 << 16, 0.01, 20), (1 << 16, 60.0, 3),
    )
)  # fmt: skip
"""Flushes by size, by age and by a full WAL; partitions of one flush and of many."""

BODY_SIZES = (0, 100, 1000, 4000, 9000)
ESNS = 1 << 30
"""Number of places to draw from, so that no two blocks of a run share a place."""

FILLED_MAX = 5
"""Number of partitions that are filled before a cut: the newest two are never cut."""

REST_S = 0.000_4
"""Longest rest: a few writes end meanwhile."""


async def found_in(engine: StorageEngine) -> tuple[Opened, Damaged]:
    """All blocks that a newly opened storage engine shows, and the ranges that it reports as
    unknown."""
    copies: set[Copy] = set()
    ends: set[End] = set()
    damaged: list[tuple[int, int, int]] = []
    for log in LOGS:
        held = engine.cache.log(log)
        blocks, ranges = await held_and_damaged(engine, log)
        damaged += [(log, first, last) for first, last in ranges]
        for block in blocks:
            wire = bytes(block.wire) + bytes(block.body)
            seal_epoch, wave = block.envelope.seal_epoch, block.envelope.wave
            copies.add(Copy(log, block.header.first, seal_epoch, wire, wave))
        ends |= {End(log, epoch, end.seal, end.lng) for epoch, end in held.ends.items()}
    seals = tuple((log, engine.sealed(log)) for log in LOGS)
    trims = tuple((log, engine.cache.log(log).trim) for log in LOGS)
    return Opened(frozenset(copies), seals, frozenset(ends), trims), damaged


async def compare(life: Life, engine: StorageEngine, promised: EnginePromises) -> Copies:
    """Compare a newly opened storage engine with the promises. From then on its content is the
    promise.

    Returns:
        The blocks that it shows.

    Raises:
        PromiseBroken: it lacks a block that it must hold, or has one that it may not.
    """
    found, damaged = await found_in(engine)
    wrong = (
        promised.judge(found, damaged)
        or ("" if life.has_rot or not damaged else f"damage where there is none: {damaged}")
        or ("" if life.has_rot else _false_damage(engine))
        or engine.damage
        or engine.failed
        or _broken_seal(engine)
    )
    if wrong:
        raise PromiseBroken(wrong)
    life.log.promise(found)
    held = dict(found.seals)
    seen = {
        "an amend came back": any(copy.wave > 1 for copy in found.copies),
        "a store not settled came back": found.copies - promised.must,
        "a store not settled did not": promised.may - found.copies,
        "a seal held": any(held.values()),
        "a seal not answered held": any(held[log] > promised.seals.get(log, 0) for log in LOGS),
        "an end not answered held": found.ends - promised.ends,
        "LogsDB held blocks": engine.logs.logs,
        "LogsDB had several partitions": len(engine.logs.partitions) > 1,
        "rot in LogsDB was told": damaged,
        "the WAL held what LogsDB had": engine.logs.offset > engine.wal.trim_offset,
    }
    life.probes.update(name for name, is_so in seen.items() if is_so)
    return found.copies


def _false_damage(engine: StorageEngine) -> str:
    """The damaged ranges that LogsDB noted, trimmed ones included; "" for none."""
    noted = engine.logs.damages.all()
    return f"LogsDB notes damage where there is none: {noted}" if noted else ""


def _broken_seal(engine: StorageEngine) -> str:
    """Send each sealed log a store for the epoch below; "" if it refuses."""
    for log in LOGS:
        refusals: list[StoreRefusal] = []
        epoch = engine.sealed(log) - 1
        if epoch > 0:
            payload = store_head(1) + new_copy(log, (epoch << 32) + ESNS + 1, b"").wire
            engine.store(1, memoryview(payload), refusals.extend)
            if [refusal.reason for refusal in refusals] != [Refusal.SEALED]:
                return f"log {log} is sealed by {epoch + 1} and takes a store of {epoch}"
    return ""


class EngineScript:
    """Stores, amends, seals, ends of epochs and rests, drawn by chance; every answer is marked.

    Args:
        held: the blocks that the storage engine showed when it was opened.
    """

    def __init__(
        self, life: Life, engine: StorageEngine, flush: Callable[[], Awaitable[None]], held: Copies
    ) -> None:
        self._engine = engine
        self._flush = flush
        self._log = life.log
        self._probes = life.probes
        self._chance = life.chance
        self._epochs = {log: max(1, engine.sealed(log)) for log in LOGS}
        self._asked: list[asyncio.Task[None]] = []
        self._waves = 0
        self._over = {(log, epoch) for log in LOGS for epoch in engine.cache.log(log).ends}
        self._sent: set[Copy] = set()
        # Copies whose envelope may be updated: of this life and of earlier lives.
        self._known = sorted(held, key=lambda copy: copy.wire)
        # For each wave in flight, the stores that no seal refused on arrival.
        self._unsettled: dict[int, Sequence[Copy]] = {}

    async def run(self, steps: int) -> None:
        """Do this many steps, then wait for seals and control records; stores may still be in
        flight."""
        for _ in range(steps):
            draw = self._chance.random()
            log = self._chance.choice(LOGS)
            if draw < 0.45:
                self._store()
            elif draw < 0.55:
                self._amend()
            elif draw < 0.65:
                self._epochs[log] += self._chance.randrange(3)
                await self._begin(self._seal(log, self._epochs[log]))
            elif draw < 0.7:
                await self._begin(self._end(log))
            elif draw < 0.75:
                is_all = self._chance.random() < 0.5
                for each in LOGS if is_all else (log,):
                    await self._begin(self._trim(each, is_all=is_all))
            elif draw < 0.8:
                await self._begin(self._flush_now())
            elif draw < 0.84:
                await self._begin(self._tidy(log))
            else:
                await asyncio.sleep(REST_S * self._chance.random())
        await asyncio.gather(*self._asked)

    async def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Start a call that runs beside the other calls."""
        self._asked.append(asyncio.create_task(call))
        await asyncio.sleep(0)

    def _store(self) -> None:
        """Send a wave: of the present epochs, of an epoch that was sealed meanwhile, or of a
        recovery."""
        logs = LOGS if self._chance.random() < 0.3 else (self._chance.choice(LOGS),)
        seal_epoch = self._engine.sealed(logs[0]) if self._chance.random() < 0.2 else 0
        copies: list[Copy] = []
        for log in logs:
            epoch = max(1, self._epochs[log] - self._chance.choice((0, 0, 0, 1)))
            for _ in range(self._chance.randint(1, 3)):
                first = (epoch << 32) + self._chance.randrange(1, ESNS)
                body = self._chance.randbytes(self._chance.choice(BODY_SIZES))
                copies.append(new_copy(log, first, body, seal_epoch))
        self._waves += 1
        self._known += copies
        payload = store_head(len(copies), seal_epoch) + b"".join([copy.wire for copy in copies])
        self._send(self._waves, payload, copies)

    def _amend(self) -> None:
        """Update the envelopes of some blocks of a log. Some blocks may be gone, or never have
        come."""
        log = self._chance.choice(LOGS)
        of_log = [copy for copy in self._known if copy.log == log]
        if not of_log:
            return
        seal_epoch = self._engine.sealed(log) if self._chance.random() < 0.7 else 0
        some = self._chance.sample(of_log, min(len(of_log), self._chance.randint(1, 3)))
        self._waves += 1
        # No two envelopes of a block are equal or have equal rank.
        wave = 1 + self._waves + max(copy.wave for copy in of_log)
        copies = [copy.amended(seal_epoch, wave) for copy in {c.first: c for c in some}.values()]
        self._known += copies
        heads = b"".join([copy.head for copy in copies])
        self._send(self._waves, store_head(len(copies), seal_epoch, amends=True) + heads, copies)

    def _send(self, wave: int, payload: bytes, copies: Sequence[Copy]) -> None:
        is_amend = copies[0].wave > 1

        def settled(refusals: Sequence[StoreRefusal]) -> None:
            del self._unsettled[wave]
            logs = {refusal.log for refusal in refusals}
            refused = frozenset(copy for copy in copies if copy.log in logs)
            self._log.promise(Refused(refused))
            self._log.promise(Stored(frozenset(copies) - refused))
            self._probes["an amend was stored"] += is_amend and not refusals
            for refusal in refusals:
                self._probes[f"a store was refused: {refusal.reason.name.lower()}"] += 1

        # An envelope update may wait for a read of LogsDB: then it is taken, or refused by a seal.
        self._unsettled[wave] = [
            copy
            for copy in copies
            if max(copy.first >> 32, copy.seal_epoch) >= self._engine.sealed(copy.log)
            and not is_amend
        ]
        self._sent |= {*copies}
        self._log.news(Sent(frozenset(copies)))
        self._engine.store(wave, memoryview(payload), settled)

    async def _seal(self, log: int, epoch: int) -> None:
        ahead = self._waves_sealed_by(log, epoch)
        self._log.news(SealAsked(log, epoch))
        try:
            await self._engine.seal(log, epoch, 0)
        except Overloaded:
            self._probes["a seal found no room"] += 1
            return
        assert not ahead & self._unsettled.keys(), "a seal was answered before stores ahead of it"
        self._probes["a seal was answered after stores in flight"] += bool(ahead)
        self._log.promise(SealAnswered(log, epoch))

    def _waves_sealed_by(self, log: int, epoch: int) -> frozenset[int]:
        """Waves in flight with a store that a seal by `epoch` must wait for.

        A repeated seal is answered at once: the stores that it refuses were settled before the
        first answer. It need not wait for stores that it admits, or for stores of another log.
        """
        return frozenset(
            wave
            for wave, copies in self._unsettled.items()
            if any(
                copy.log == log and copy.first >> 32 < epoch and copy.seal_epoch < epoch
                for copy in copies
            )
        )

    async def _end(self, log: int) -> None:
        """End the epoch below the seal; about half of its blocks then do not count."""
        seal = self._engine.sealed(log)
        if self._engine.cache.log(log).is_outdated(seal):
            # A recovery tells an end before its epoch releases a record, so only a higher one does.
            self._epochs[log] += 1
            await self._seal(log, self._epochs[log])
            seal = self._engine.sealed(log)
        if (
            seal < 2
            or (log, seal - 1) in self._over
            or self._engine.cache.log(log).is_outdated(seal)
        ):
            return
        self._over.add((log, seal - 1))
        before = frozenset(self._sent)
        told = EpochEnd(seal, ((seal - 1) << 32) + self._chance.randrange(ESNS))
        # A node keeps all blocks up to its own last known good, even if a recovery says otherwise.
        own = self._engine.cache.log(log).lngs.get(seal - 1, 0)
        self._probes["an end was told below the node's own LNG"] += told.lng < own
        end = End(log, seal - 1, seal, max(told.lng, own))
        self._log.waive(EndAsked(end))
        try:
            await self._engine.clean(log, end.epoch, told)
        except Overloaded:
            return
        self._probes["an end was answered"] += 1
        self._log.promise(EndAnswered(end, before))

    async def _flush_now(self) -> None:
        with contextlib.suppress(Retryable):  # if the WAL failed
            await self._flush()

    async def _tidy(self, log: int) -> None:
        """Fill some partitions and trim one log or all logs: a flush drops some partitions, or cuts
        one."""
        for _ in range(self._chance.randrange(FILLED_MAX)):
            for _ in LOGS:
                self._store()
            await asyncio.sleep(REST_S)
            await self._flush_now()
        for _ in LOGS:  # while bodies are in older partitions, which are dropped below
            self._amend()
        await asyncio.sleep(REST_S)
        await self._flush_now()
        is_all = self._chance.random() < 0.4
        for each in LOGS if is_all else (log,):
            await self._trim(each, is_all=True)
        await self._flush_now()
        for _ in self._engine.logs.partitions:
            cut = await self._engine.logs.cut_trimmed(self._engine.trim_of)
            self._probes["a partition was cut"] += cut is not None

    async def _trim(self, log: int, *, is_all: bool) -> None:
        """Trim a log in its middle, or all of it."""
        sent = sorted(copy.first for copy in self._sent if copy.log == log)
        if not sent:
            return
        lsn = sent[-1] if is_all else self._chance.choice(sent)
        self._log.waive(TrimAsked(log, lsn))
        try:
            await self._engine.trim(log, lsn, lsn)
        except Overloaded:
            return
        self._probes["a trim was answered"] += 1
        self._log.promise(TrimAnswered(log, max(lsn, self._engine.cache.log(log).trim)))


class EngineSubject:
    """See the module; a `Subject`."""

    name = "engine"

    def nothing_promised(self) -> EnginePromises:
        """See `Subject`."""
        return EnginePromises()

    def rot(self, disk: SimDisk, chance: random.Random) -> int:
        """Flip bits in rows of LogsDB, of partitions or of metadata. Returns the number of rows
        hit."""
        tables = "p" if chance.random() < ROT_IN_PARTITIONS else META_TABLE
        return damage_tables(disk, chance, DIRECTORY, tables)

    async def live(self, life: Life, promised: EnginePromises) -> None:
        """See `Subject`. Rot in metadata may keep the engine from starting, with an error that says
        so."""
        try:
            await self._live(life, promised)
        except Corrupt:
            if not life.has_rot:
                raise
            life.probes["rot in metadata was told"] += 1

    async def _live(self, life: Life, promised: EnginePromises) -> None:
        wal = await opened(life, is_formatted=promised.is_formatted, units=RING_UNITS)
        host = life.host(Process("node"))
        settings = life.chance.choice(STORAGE)
        tables = memory_tables(DIRECTORY, settings, host)
        logs, states = await LogsStore.open(tables, settings, NodeId(1))
        engine = await StorageEngine.open(wal, logs, states, settings, lambda log: None)
        held = await compare(life, engine, promised)
        flusher = Flusher(engine, settings, host.clock, lambda: None)
        flushing = asyncio.create_task(flusher.run())
        amending = asyncio.create_task(engine.amends.run())
        try:
            await EngineScript(life, engine, flusher.flush, held).run(life.steps)
        finally:
            amending.cancel()
            await flusher.close()
            await flushing
        life.probes["a flush was done"] += flusher.flushes
        life.probes["a partition was dropped"] += logs.drops
