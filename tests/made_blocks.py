"""Blocks and STORE payloads made to order, and a storage engine on a disk in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from crc32c import crc32c
from wal_memory_disk import MemoryDisk

from cordwood.block import BlockHeader, BlockKind, Envelope, EnvelopeFlag
from cordwood.host.memory_network import MemoryNetwork
from cordwood.host.seams import Host
from cordwood.layout.block_header import pack_envelope, pack_header
from cordwood.layout.waves import StoredBlock, StoreRefusal, read_store, store_head
from cordwood.lsn import ESN_MAX, make_lsn
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.host import SimClock, SimRunBlocking
from cordwood.sim.loop import SimLoop
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.engine import StorageEngine
from cordwood.storage.log_cache import FlushSet
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.wal.delta_wal import Wal, WalLimits

Result = TypeVar("Result")

LOG = 5
OWNER = NodeId(3)
PATH = "wal"
RING = 1 << 20
STORAGE = StorageSettings(recent_bytes=0)
"""Nothing is flushed unless a test asks for it: no `Flusher` runs."""
LIMITS = WalLimits(block_bytes=16 << 10, window_bytes=64 << 10)


def run(scenario: Callable[[], Awaitable[Result]]) -> Result:
    """In virtual time; an exception that nobody handled fails the test too."""
    loop = SimLoop(random.Random(1))

    async def main() -> Result:
        return await scenario()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main())
    assert loop.unhandled == []
    return result


def packed(
    first: int,
    body: bytes = b"ten bytes!",
    *,
    count: int = 1,
    kind: BlockKind = BlockKind.DATA,
    log: int = LOG,
    wave: int = 1,
    seal: int = 0,
    lng: int = 0,
    time_us: int = 0,
    key_bits: int = 0,
) -> bytes:
    """A block as it travels; `seal` marks it as written by that epoch's recovery."""
    if kind is BlockKind.BRIDGE:
        count = ESN_MAX - (first & ESN_MAX) + 1
    body = body if kind is BlockKind.DATA else b""
    header = BlockHeader(
        log=log, first=first, count=count, append_time_us=time_us, kind=kind,
        stored_bytes=len(body), raw_bytes=len(body),
        stored_crc=crc32c(body), raw_crc=crc32c(body), key_bits=key_bits,
    )  # fmt: skip
    flags = EnvelopeFlag.BY_RECOVERY if seal else 0
    envelope = Envelope((1, 2, 3), wave, seal, lng, flags)
    return pack_header(header) + pack_envelope(envelope) + body


def payload(*blocks: bytes, seal: int = 0) -> memoryview:
    """A STORE payload."""
    return memoryview(store_head(len(blocks), seal) + b"".join(blocks))


def block(first: int, body: bytes = b"ten bytes!", **fields: int) -> StoredBlock:
    """A block as a node keeps it."""
    return read_store(payload(packed(first, body, **fields)))[1][0]  # type: ignore[arg-type]


def at(esn: int, epoch: int = 1) -> int:
    return int(make_lsn(epoch, esn))


def made_host(disk: MemoryDisk) -> Host:
    """A host of this disk, with a clock and chance of its own; nothing blocks on it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    chance = random.Random(1)
    blocking = SimRunBlocking(chance)
    return Host(SimClock(loop), MemoryNetwork(), disk, chance, blocking, blocking)


async def open_engine(
    disk: MemoryDisk,
    wal: Wal,
    on_change: Callable[[int], None] = lambda log: None,
    storage: StorageSettings = STORAGE,
    promised: int = -1,
) -> StorageEngine:
    """A storage engine over a WAL that was opened, with the LogsDB that lies beside it."""
    tables = memory_tables("logsdb", storage, made_host(disk))
    logs, states = await LogsStore.open(tables, storage, OWNER)
    return await StorageEngine.open(wal, logs, states, storage, on_change, promised=promised)


class Settled(list[tuple[StoreRefusal, ...]]):
    """What a store was settled with; empty while it is open."""

    def __call__(self, refusals: Sequence[StoreRefusal]) -> None:
        self.append(tuple(refusals))


class Made:
    """A storage engine on a disk in memory.

    Attributes:
        told: the logs that `on_change` was told of since the start.
    """

    def __init__(
        self, disk: MemoryDisk, limits: WalLimits, storage: StorageSettings = STORAGE
    ) -> None:
        self.disk = disk
        self._storage = storage
        self.engine: StorageEngine
        self.told: list[int] = []
        self._limits = limits

    @classmethod
    async def new(
        cls,
        *,
        by_hand: bool = False,
        ring: int = RING,
        limits: WalLimits = LIMITS,
        storage: StorageSettings = STORAGE,
    ) -> Made:
        """An empty one. With `by_hand` writes end when the test says so."""
        disk = MemoryDisk()
        await Wal.format(disk, PATH, 8192 + ring, owner=OWNER)
        made = cls(disk, limits, storage)
        await made.open()
        disk.by_hand = disk.file.by_hand = by_hand
        return made

    async def open(self) -> None:
        """Start the node on the disk as it is."""
        self.disk.by_hand = False
        self.told.clear()
        wal = await Wal.open(self.disk, PATH, owner=OWNER, limits=self._limits)
        self.engine = await open_engine(self.disk, wal, self.told.append, self._storage)

    async def crash(self, chance: random.Random) -> None:
        """Cut the power, start again."""
        self.disk = self.disk.crash(chance)
        await self.open()

    def store(self, *blocks: bytes, wave: int = 1, seal: int = 0) -> Settled:
        """Store blocks as one frame."""
        settled = Settled()
        self.engine.store(wave, payload(*blocks, seal=seal), settled)
        return settled

    def held(self, log: int = LOG) -> list[bytes]:
        """Every block of a log, as it travels, in order."""
        cached = self.engine.cache.log(log)
        found = [cached.at(index) for index in range(len(cached))]
        return [bytes(each.wire) + bytes(each.body) for each in found if each is not None]


async def flush(
    made: Made, *, now_us: int = 0, evicts: bool = True, trims: bool = False
) -> FlushSet:
    """Flush all changes in the cache, ledgers included, without a flusher.

    Args:
        now_us: the time of the flush.
        evicts: whether the cache then drops the flushed changes.
        trims: whether the WAL then frees their space.
    Returns:
        The flushed changes.
    """
    batch = made.engine.cut()
    assert batch is not None
    logs = made.engine.logs
    await logs.flush(
        batch.blocks, batch.states, batch.offset, now_us, batch.staged, ledgers=batch.ledgers
    )
    if evicts:
        made.engine.evict(batch)
    if trims:
        await made.engine.wal.trim(batch.offset)
    return batch


@asynccontextmanager
async def flushing(made: Made, settings: StorageSettings = STORAGE) -> AsyncIterator[Flusher]:
    """A flusher at work on the engine, as on a node."""
    flusher = Flusher(made.engine, settings, made_host(made.disk).clock, lambda: None)
    work = asyncio.create_task(flusher.run())
    try:
        yield flusher
    finally:
        await flusher.close()
        await work


async def turns(count: int = 6) -> None:
    """Let the loop do all that it can without the disk."""
    for _ in range(count):
        await asyncio.sleep(0)


async def restart(made: Made) -> None:
    """Stop an engine as a node that ends, and open it once more."""
    await made.engine.wal.close()
    await made.open()
