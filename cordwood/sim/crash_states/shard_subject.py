"""A storage node's shard as a subject of crashes: stores, seals and ends of epochs.

What it promises (`storage.shard`): a store that was settled is visible after any crash,
unless its epoch ended without it; a seal that was answered still refuses older epochs,
and all that was taken ahead of it was settled before; an epoch told over is still so, and
what it dropped stays away; and nothing is visible that was not sent, or was refused.

Source: `storage.shard`; design.md §5; reliability digest, §3 (S2, S3, S12, S13).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crc32c import crc32c

from cordwood.block import BlockHeader, Envelope
from cordwood.errors import Corrupt, Overloaded, Retryable
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.logs_db import META_TABLE
from cordwood.layout.waves import Refusal, StoreRefusal, store_head
from cordwood.nodes import NodeId
from cordwood.settings import MIB, StorageSettings
from cordwood.sim.crash_states.explorer import Life, PromiseBroken
from cordwood.sim.crash_states.wal_subject import Formatted, Opening, opened
from cordwood.sim.damage import damage_tables
from cordwood.sim.disk import SimDisk
from cordwood.sim.holdings import held_and_damaged
from cordwood.sim.memory_logs import memory_tables
from cordwood.sim.process import Process
from cordwood.storage.flusher import Flusher
from cordwood.storage.logs_store import LogsStore
from cordwood.storage.shard import Shard

LOGS = (1, 2)
RING_UNITS = 40
"""Room for a dozen waves: a long life flushes a few times, and is full now and then."""

DIRECTORY = "/logsdb"

ROT_IN_PARTITIONS = 0.75
"""Share of the rot that hits partitions; the rest hits metadata."""

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
"""Places are drawn out of so many, so that no two blocks of a run share one."""

FILLED_MAX = 5
"""Partitions that are filled before a cut: the newest two are never cut."""

REST_S = 0.000_4
"""A rest is up to this: a few writes end meanwhile."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One block as it travels: `wire` is header, envelope and body."""

    log: int
    first: int
    seal_epoch: int
    wire: bytes

    @property
    def epoch(self) -> int:
        """The epoch that it belongs to."""
        return self.first >> 32


Copies = frozenset[Copy]

Damaged = Sequence[tuple[int, int, int]]
"""Log, first and last LSN of ranges."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Blocks were sent."""

    copies: Copies


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks were told stored."""

    copies: Copies


@dataclass(frozen=True, slots=True)
class Refused:
    """Blocks were told refused."""

    copies: Copies


@dataclass(frozen=True, slots=True)
class SealAsked:
    """A seal was asked for."""

    log: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SealAnswered:
    """It was answered."""

    log: int
    epoch: int


@dataclass(frozen=True, slots=True)
class End:
    """An epoch is over: above `lng` only what was stored under `seal` counts."""

    log: int
    epoch: int
    seal: int
    lng: int

    def drops(self, copy: Copy) -> bool:
        """Whether a copy that came before it is dropped."""
        is_of_it = (copy.log, copy.epoch) == (self.log, self.epoch)
        return is_of_it and copy.first > self.lng and copy.seal_epoch != self.seal


@dataclass(frozen=True, slots=True)
class EndAsked:
    """The shard is told that an epoch is over."""

    end: End


@dataclass(frozen=True, slots=True)
class EndAnswered:
    """It noted that; `before` was sent ahead."""

    end: End
    before: Copies


@dataclass(frozen=True, slots=True)
class TrimAsked:
    """A log was to be trimmed."""

    log: int
    lsn: int


@dataclass(frozen=True, slots=True)
class TrimAnswered:
    """It was."""

    log: int
    lsn: int


@dataclass(frozen=True, slots=True)
class Opened:
    """What a start found: from then on it stays, and nothing else comes."""

    copies: Copies
    seals: tuple[tuple[int, int], ...]
    ends: frozenset[End]
    trims: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class ShardPromises:
    """What a shard's disk must and may hold.

    Attributes:
        is_formatted: it must be a WAL.
        must, may: blocks that must, and that may, be visible.
        seals, seals_asked: by log, the epoch that must have sealed, and the highest that may.
        ends, ends_asked: epochs that must, and that may, be known to be over.
        trims, trims_asked: by log, the least and the highest that its trim point may be.
    """

    is_formatted: bool = False
    must: Copies = frozenset()
    may: Copies = frozenset()
    seals: dict[int, int] = field(default_factory=dict)
    seals_asked: dict[int, int] = field(default_factory=dict)
    ends: frozenset[End] = frozenset()
    ends_asked: frozenset[End] = frozenset()
    trims: dict[int, int] = field(default_factory=dict)
    trims_asked: dict[int, int] = field(default_factory=dict)

    def after(self, facts: Sequence[object]) -> ShardPromises:
        """See `Promised`."""
        then = replace(
            self,
            seals=dict(self.seals),
            seals_asked=dict(self.seals_asked),
            trims=dict(self.trims),
            trims_asked=dict(self.trims_asked),
        )
        for fact in facts:
            then._learn(fact)
        return then

    def _learn(self, fact: object) -> None:
        match fact:
            case Formatted():
                self.is_formatted = True
            case Sent(copies):
                self.may |= copies
            case Stored(copies):
                # A mark on its way may drop them, whichever of the two is durable first.
                self.must |= {copy for copy in copies if not self._may_drop(copy)}
            case Refused(copies):
                self.may -= copies
            case SealAsked(log, epoch):
                _raise(self.seals_asked, log, epoch)
            case SealAnswered(log, epoch):
                _raise(self.seals, log, epoch)
            case EndAsked(end):
                self.ends_asked |= {end}
                self.must = frozenset(copy for copy in self.must if not end.drops(copy))
            case EndAnswered(end, before):
                self.ends |= {end}
                self.may -= {copy for copy in before if end.drops(copy)}
            case TrimAsked(log, lsn):
                _raise(self.trims_asked, log, lsn)
                self.must = frozenset(c for c in self.must if c.log != log or c.first > lsn)
            case TrimAnswered(log, lsn):
                _raise(self.trims, log, lsn)
                self.may = frozenset(c for c in self.may if c.log != log or c.first > lsn)
            case Opened(copies, seals, ends, trims):
                self.must = self.may = copies
                self.trims, self.trims_asked = dict(trims), dict(trims)
                self.seals, self.seals_asked = dict(seals), dict(seals)
                self.ends = self.ends_asked = ends
            case _:
                assert isinstance(fact, Opening), f"{fact} is no fact of a shard"

    def _may_drop(self, copy: Copy) -> bool:
        is_trimmed = copy.first <= self.trims_asked.get(copy.log, 0)
        return is_trimmed or any(end.drops(copy) for end in self.ends_asked)

    def judge(self, found: Opened, damaged: Damaged = ()) -> str:
        """What is wrong with what a start found; "" for nothing.

        Args:
            damaged: by log, ranges [first, last] that it says it does not know.
        """
        seals, trims = dict(found.seals), dict(found.trims)
        lost = [copy for copy in self.must - found.copies if not _is_told(copy, damaged)]
        wrongs = {
            "lost, though stored": _places(frozenset(lost)),
            "visible, though never taken, or dropped": _places(found.copies - self.may),
            "its seal was forgotten": [log for log in LOGS if seals[log] < self.seals.get(log, 0)],
            "sealed by nobody": [log for log in LOGS if seals[log] > self.seals_asked.get(log, 0)],
            "its end was forgotten": _sorted(self.ends - found.ends),
            "ended by nobody": _sorted(found.ends - self.ends_asked),
            "its trim was forgotten": [
                log for log in LOGS if trims.get(log, 0) < self.trims.get(log, 0)
            ],
            "trimmed by nobody": [
                log for log in LOGS if trims.get(log, 0) > self.trims_asked.get(log, 0)
            ],
        }
        return "; ".join(f"{wrong}: {what}" for wrong, what in wrongs.items() if what)


def _is_told(copy: Copy, damaged: Damaged) -> bool:
    return any(log == copy.log and first <= copy.first <= last for log, first, last in damaged)


def _raise(epochs: dict[int, int], log: int, epoch: int) -> None:
    epochs[log] = max(epochs.get(log, 0), epoch)


def _places(copies: Copies) -> list[tuple[int, int]]:
    return sorted((copy.log, copy.first) for copy in copies)


def _sorted(ends: frozenset[End]) -> list[tuple[int, int]]:
    return sorted((end.log, end.epoch) for end in ends)


async def found_in(shard: Shard) -> tuple[Opened, Damaged]:
    """All that a shard that was just opened shows, and what it says it does not know."""
    copies: set[Copy] = set()
    ends: set[End] = set()
    damaged: list[tuple[int, int, int]] = []
    for log in LOGS:
        held = shard.cache.log(log)
        blocks, ranges = await held_and_damaged(shard, log)
        damaged += [(log, first, last) for first, last in ranges]
        for block in blocks:
            wire = bytes(block.wire) + bytes(block.body)
            copies.add(Copy(log, block.header.first, block.envelope.seal_epoch, wire))
        ends |= {End(log, epoch, end.seal, end.lng) for epoch, end in held.ends.items()}
    seals = tuple((log, shard.sealed(log)) for log in LOGS)
    trims = tuple((log, shard.cache.log(log).trim) for log in LOGS)
    return Opened(frozenset(copies), seals, frozenset(ends), trims), damaged


async def compare(life: Life, shard: Shard, promised: ShardPromises) -> None:
    """Compare a shard that was just opened with what was promised; then it is the promise.

    Raises:
        PromiseBroken: it does not hold what it must, or more than it may.
    """
    found, damaged = await found_in(shard)
    wrong = (
        promised.judge(found, damaged)
        or ("" if life.has_rot or not damaged else f"damage where there is none: {damaged}")
        or shard.damage
        or shard.failed
        or _broken_seal(shard)
    )
    if wrong:
        raise PromiseBroken(wrong)
    life.log.promise(found)
    held = dict(found.seals)
    seen = {
        "a store not settled came back": found.copies - promised.must,
        "a store not settled did not": promised.may - found.copies,
        "a seal held": any(held.values()),
        "a seal not answered held": any(held[log] > promised.seals.get(log, 0) for log in LOGS),
        "an end not answered held": found.ends - promised.ends,
        "LogsDB held blocks": shard.logs.logs,
        "LogsDB had several partitions": len(shard.logs.partitions) > 1,
        "rot in LogsDB was told": damaged,
        "the WAL held what LogsDB had": shard.logs.offset > shard.wal.trim_offset,
    }
    life.probes.update(name for name, is_so in seen.items() if is_so)


def _broken_seal(shard: Shard) -> str:
    """Ask each sealed log to store for the epoch below: "" where it refuses."""
    for log in LOGS:
        refusals: list[StoreRefusal] = []
        epoch = shard.sealed(log) - 1
        if epoch > 0:
            payload = store_head(1) + _wire(log, (epoch << 32) + ESNS + 1, b"")
            shard.store(1, memoryview(payload), refusals.extend)
            if [refusal.reason for refusal in refusals] != [Refusal.SEALED]:
                return f"log {log} is sealed by {epoch + 1} and takes a store of {epoch}"
    return ""


def _wire(log: int, first: int, body: bytes, seal_epoch: int = 0) -> bytes:
    crc = crc32c(body)
    header = BlockHeader(
        log,
        first,
        1,
        1_767_225_600_000_000,
        stored_bytes=len(body),
        raw_bytes=len(body),
        stored_crc=crc,
        raw_crc=crc,
    )
    return pack_header(header) + pack_envelope(Envelope((1,), 1, seal_epoch)) + body


class ShardScript:
    """Stores, seals, ends of epochs and rests, drawn by chance; every answer is marked."""

    def __init__(self, life: Life, shard: Shard, flush: Callable[[], Awaitable[None]]) -> None:
        self._shard = shard
        self._flush = flush
        self._log = life.log
        self._probes = life.probes
        self._chance = life.chance
        self._epochs = {log: max(1, shard.sealed(log)) for log in LOGS}
        self._asked: list[asyncio.Task[None]] = []
        self._waves = 0
        self._over = {(log, epoch) for log in LOGS for epoch in shard.cache.log(log).ends}
        self._sent: set[Copy] = set()
        # Of each wave in flight, what no seal refused on arrival.
        self._unsettled: dict[int, Sequence[Copy]] = {}

    async def run(self, steps: int) -> None:
        """Do so many things, then wait for seals and marks; stores may still be in flight."""
        for _ in range(steps):
            draw = self._chance.random()
            log = self._chance.choice(LOGS)
            if draw < 0.55:
                self._store()
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
        """Make a call that goes on beside the rest."""
        self._asked.append(asyncio.create_task(call))
        await asyncio.sleep(0)

    def _store(self) -> None:
        """Send a wave: of today's epochs, of one sealed meanwhile, or of a recovery."""
        logs = LOGS if self._chance.random() < 0.3 else (self._chance.choice(LOGS),)
        seal_epoch = self._shard.sealed(logs[0]) if self._chance.random() < 0.2 else 0
        copies: list[Copy] = []
        for log in logs:
            epoch = max(1, self._epochs[log] - self._chance.choice((0, 0, 0, 1)))
            for _ in range(self._chance.randint(1, 3)):
                first = (epoch << 32) + self._chance.randrange(1, ESNS)
                body = self._chance.randbytes(self._chance.choice(BODY_SIZES))
                wire = _wire(log, first, body, seal_epoch)
                copies.append(Copy(log, first, seal_epoch, wire))
        self._waves += 1
        self._send(self._waves, store_head(len(copies), seal_epoch), copies)

    def _send(self, wave: int, head: bytes, copies: Sequence[Copy]) -> None:
        def settled(refusals: Sequence[StoreRefusal]) -> None:
            del self._unsettled[wave]
            logs = {refusal.log for refusal in refusals}
            refused = frozenset(copy for copy in copies if copy.log in logs)
            self._log.promise(Refused(refused))
            self._log.promise(Stored(frozenset(copies) - refused))
            for refusal in refusals:
                self._probes[f"a store was refused: {refusal.reason.name.lower()}"] += 1

        self._unsettled[wave] = [
            copy
            for copy in copies
            if max(copy.first >> 32, copy.seal_epoch) >= self._shard.sealed(copy.log)
        ]
        self._sent |= {*copies}
        self._log.news(Sent(frozenset(copies)))
        payload = head + b"".join([copy.wire for copy in copies])
        self._shard.store(wave, memoryview(payload), settled)

    async def _seal(self, log: int, epoch: int) -> None:
        ahead = self._waves_sealed_by(log, epoch)
        self._log.news(SealAsked(log, epoch))
        try:
            await self._shard.seal(log, epoch, 0)
        except Overloaded:
            self._probes["a seal found no room"] += 1
            return
        assert not ahead & self._unsettled.keys(), "a seal was answered before stores ahead of it"
        self._probes["a seal was answered after stores in flight"] += bool(ahead)
        self._log.promise(SealAnswered(log, epoch))

    def _waves_sealed_by(self, log: int, epoch: int) -> frozenset[int]:
        """Waves in flight with a store that a seal by `epoch` orders itself behind.

        A seal asked again is answered at once: what it refuses was settled by the first, and
        what it admits, or what is another log's, owes it nothing.
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
        """Call the epoch below the seal over; about half of its blocks do not count then."""
        seal = self._shard.sealed(log)
        if seal < 2 or (log, seal - 1) in self._over:
            return
        self._over.add((log, seal - 1))
        before = frozenset(self._sent)
        end = End(log, seal - 1, seal, ((seal - 1) << 32) + self._chance.randrange(ESNS))
        self._log.waive(EndAsked(end))
        try:
            await self._shard.clean(log, end.epoch, seal, end.lng)
        except Overloaded:
            return
        self._probes["an end was answered"] += 1
        self._log.promise(EndAnswered(end, before))

    async def _flush_now(self) -> None:
        with contextlib.suppress(Retryable):  # where the WAL failed
            await self._flush()

    async def _tidy(self, log: int) -> None:
        """Fill some partitions and trim a log or all: a flush drops some, or most of one is cut."""
        for _ in range(self._chance.randrange(FILLED_MAX)):
            for _ in LOGS:
                self._store()
            await asyncio.sleep(REST_S)
            await self._flush_now()
        is_all = self._chance.random() < 0.4
        for each in LOGS if is_all else (log,):
            await self._trim(each, is_all=True)
        await self._flush_now()
        for _ in self._shard.logs.partitions:
            cut = await self._shard.logs.cut_trimmed(self._shard.trim_of)
            self._probes["a partition was cut"] += cut is not None

    async def _trim(self, log: int, *, is_all: bool) -> None:
        """Trim a log in its middle, or all that was sent of it."""
        sent = sorted(copy.first for copy in self._sent if copy.log == log)
        if not sent:
            return
        lsn = sent[-1] if is_all else self._chance.choice(sent)
        self._log.waive(TrimAsked(log, lsn))
        try:
            await self._shard.trim(log, lsn, lsn)
        except Overloaded:
            return
        self._probes["a trim was answered"] += 1
        self._log.promise(TrimAnswered(log, max(lsn, self._shard.cache.log(log).trim)))


class ShardSubject:
    """See the module; a `Subject`."""

    name = "shard"

    def nothing_promised(self) -> ShardPromises:
        """See `Subject`."""
        return ShardPromises()

    def rot(self, disk: SimDisk, chance: random.Random) -> int:
        """Flip bits in rows of LogsDB, of partitions or of metadata; how many were hit."""
        tables = "p" if chance.random() < ROT_IN_PARTITIONS else META_TABLE
        return damage_tables(disk, chance, DIRECTORY, tables)

    async def live(self, life: Life, promised: ShardPromises) -> None:
        """See `Subject`. What has rotted in metadata may keep it from starting, with a word."""
        try:
            await self._live(life, promised)
        except Corrupt:
            if not life.has_rot:
                raise
            life.probes["rot in metadata was told"] += 1

    async def _live(self, life: Life, promised: ShardPromises) -> None:
        wal = await opened(life, is_formatted=promised.is_formatted, units=RING_UNITS)
        host = life.host(Process("node"))
        settings = life.chance.choice(STORAGE)
        tables = memory_tables(DIRECTORY, settings, host)
        logs, states = await LogsStore.open(tables, settings, NodeId(1))
        shard = await Shard.open(wal, logs, states, settings, lambda log: None)
        await compare(life, shard, promised)
        flusher = Flusher(shard, settings, host.clock, lambda: None)
        flushing = asyncio.create_task(flusher.run())
        try:
            await ShardScript(life, shard, flusher.flush).run(life.steps)
        finally:
            await flusher.close()
            await flushing
        life.probes["a flush was done"] += flusher.flushes
        life.probes["a partition was dropped"] += logs.drops
