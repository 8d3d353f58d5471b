"""When a flush begins: never in the middle of a burst, as long as there is room."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from made_blocks import STORAGE, Made, at, flush, flushing, packed, run, turns
from scenarios import as_scenario

BODY = bytes(1000)
RING = 1 << 20
LIMITS = replace(
    STORAGE, cache_bytes=100_000, flush_bytes=10_000, flush_quiet_s=0.1, flush_age_s=60.0
)
PAUSE_S = 0.01
"""Between the waves of a burst."""


async def burst(made: Made, first: int, blocks: int) -> None:
    for esn in range(first, first + blocks):
        made.store(packed(at(esn), BODY))
        await asyncio.sleep(PAUSE_S)


@as_scenario(run)
async def test_a_burst_is_flushed_when_it_is_over() -> None:
    made = await Made.new(ring=RING)
    async with flushing(made, LIMITS) as flusher:
        await burst(made, 1, 40)
        assert flusher.flushes == 0  # 40,000 bytes, under half of the cache
        await asyncio.sleep(0.2)
        assert flusher.flushes == 1
        assert made.engine.cache.bytes == 0


@as_scenario(run)
async def test_a_burst_is_flushed_all_the_same_when_the_cache_is_half_full() -> None:
    made = await Made.new(ring=RING)
    async with flushing(made, LIMITS) as flusher:
        await burst(made, 1, 60)
        assert flusher.flushes == 1
        assert made.engine.cache.bytes < LIMITS.cache_bytes / 2


@as_scenario(run)
async def test_a_burst_is_flushed_all_the_same_when_the_wal_is_half_full() -> None:
    made = await Made.new(ring=RING)
    async with flushing(made, LIMITS) as flusher:
        for esn in range(1, 140):  # a block of 4 KiB each
            made.store(packed(at(esn), b""))
            await asyncio.sleep(PAUSE_S)
        assert flusher.flushes == 1


@as_scenario(run)
async def test_a_little_is_flushed_when_it_is_old() -> None:
    made = await Made.new(ring=RING)
    async with flushing(made, LIMITS) as flusher:
        made.store(packed(at(1), BODY))
        await asyncio.sleep(59)
        assert flusher.flushes == 0
        await asyncio.sleep(2)
        assert flusher.flushes == 1


@as_scenario(run)
async def test_whoever_asks_waits_for_the_flush() -> None:
    made = await Made.new(ring=RING)
    async with flushing(made, LIMITS) as flusher:
        made.store(packed(at(1), BODY))
        await turns()
        await flusher.flush()
        assert flusher.flushes == 1


@as_scenario(run)
async def test_a_start_with_a_full_wal_that_logs_db_has_takes_stores_again() -> None:
    """A crash between LogsDB's metadata and the WAL's header leaves a ring that is full of
    what is flushed, and nothing that another flush would take."""
    made = await Made.new(ring=128 << 10)
    esn = 0
    settled = [()]
    while settled == [()]:
        esn += 1
        settled = made.store(packed(at(esn), BODY * 3))
        await turns()
    batch = await flush(made, evicts=False)
    made.disk = made.disk.crash(random.Random(1))  # before the trim
    await made.open()
    async with flushing(made, LIMITS):
        await turns()
        assert made.engine.wal.trim_offset == batch.offset
        settled = made.store(packed(at(esn + 1), BODY * 3))
        await turns()
        assert settled == [()]
    await made.engine.wal.close()
    await made.open()
    assert len(made.held()) == 1, "what came behind the trim is there"
