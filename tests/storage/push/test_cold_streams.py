"""Push streams that are behind what is in memory: what a slow reader may have waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from made_blocks import LOG, OWNER, at, block, made_host, run
from scenarios import as_scenario
from stream_ends import ReaderEnd, pumped
from swaps import swap_value
from wal_memory_disk import MemoryDisk

from cordwood.layout.logs_db import LogState
from cordwood.layout.reading import ReadRequest
from cordwood.lsn import LSN_MAX
from cordwood.settings import StorageSettings
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.log_cache import LogCache
from cordwood.storage.log_reader import LogReader
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.push import read_streams
from cordwood.storage.push.read_streams import ReadStreams

BATCH = 64 << 10
FETCH = 4 * BATCH
"""As BATCH_BYTES and FETCH_BYTES are to each other, small enough for many streams."""

ALL = ReadRequest(
    stream=1, log=LOG, start=at(1), until=LSN_MAX, window_high=LSN_MAX, bytes_limit=1 << 40
)
LOGS = range(100, 150)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: read_streams.BATCH_BYTES, BATCH)
    swap_value(monkeypatch, lambda: read_streams.FETCH_BYTES, FETCH)


async def cold(blocks: int) -> LogReader:
    """Logs of so many blocks of a batch each, all of which are in LogsDB only."""
    settings = StorageSettings(recent_bytes=0)
    tables = memory_tables("logsdb", settings, made_host(MemoryDisk()))
    store, _ = await LogsStore.open(tables, settings, OWNER)
    made = [block(at(n), bytes(BATCH), log=log) for log in LOGS for n in range(1, blocks + 1)]
    await store.flush(made, {log: LogState() for log in LOGS}, 1, 1)
    cache = LogCache()
    for log in LOGS:
        cache.log(log).release(at(blocks))
    reader = LogReader(cache, store)
    assert not reader.is_at_hand(LOGS[0], at(1))
    return reader


@asynccontextmanager
async def running(streams: ReadStreams) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        runner = tasks.create_task(streams.run())
        yield
        runner.cancel()


def held_bytes(streams: ReadStreams) -> int:
    """What was read and waits for a connection."""
    held = [each.held for of in streams._by_connection.values() for each in of.values()]
    return sum(block.wire_bytes for each in held if each is not None for block in each[0].blocks)


@as_scenario(run)
async def test_many_cold_streams_of_a_slow_reader_hold_about_one_fetch_and_all_are_sent() -> None:
    """Each used to send what it had read, whatever waited: fifty streams of a client that does
    not read had 200 MiB queued, and a few more had it cut off."""
    end = ReaderEnd()
    streams = ReadStreams(await cold(2 * FETCH // BATCH))
    end.transport.is_slow = True
    async with running(streams):
        for log in LOGS:
            streams.start(end.connection, replace(ALL, stream=log, log=log))
        for _ in range(30):
            await pumped()
            await asyncio.sleep(1)
            assert 0 < end.transport.waiting_bytes < FETCH + 2 * BATCH
            assert held_bytes(streams) <= read_streams.FETCHES_MAX * (FETCH + BATCH)
            end.transport.drain()
        some = {head.stream for head, blocks in end.blocks() if blocks}
        assert len(some) >= 30, "they take turns"
        end._taken = 0
        end.transport.is_slow = False
        end.transport.drain()
        await asyncio.sleep(60)
    sent: dict[int, list[int]] = {log: [] for log in LOGS}
    for head, blocks in end.blocks():
        sent[head.stream] += [each.header.first for each in blocks]
    assert sent == {log: [at(n) for n in range(1, 9)] for log in LOGS}


@as_scenario(run)
async def test_nothing_is_read_again_for_a_connection_that_is_closing(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that spoke nonsense and does not read its answers: it was read for without a pause
    until its connection was gone. Found by fuzzing."""
    end = ReaderEnd()
    reader = await cold(2)
    streams = ReadStreams(reader)
    reads: list[int] = []
    read = reader.read

    async def noting(log: int, start: int, *rest: Any, **limits: Any) -> Any:
        reads.append(start)
        return await read(log, start, *rest, **limits)

    monkeypatch.setattr(reader, "read", noting)
    async with running(streams):
        streams.start(end.connection, replace(ALL, log=LOGS[0]))
        end.connection.close()
        assert not end.connection.is_open
        await asyncio.sleep(1)
    assert reads == [at(1)]


@as_scenario(run)
async def test_a_batch_is_read_while_the_last_one_leaves(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk and network waited for one another: a cold log came at a fourth of a cached one."""
    swap_value(monkeypatch, lambda: read_streams.AHEAD_AFTER_BYTES, FETCH)
    end = ReaderEnd()
    reader = await cold(3 * FETCH // BATCH)
    streams = ReadStreams(reader)
    reads: list[int] = []
    read = reader._logs.read  # type: ignore[union-attr]

    async def noting(log: int, start: int, *rest: Any, **limits: Any) -> Any:
        reads.append(start)
        return await read(log, start, *rest, **limits)

    monkeypatch.setattr(reader._logs, "read", noting)
    end.transport.is_slow = True
    async with running(streams):
        streams.start(end.connection, replace(ALL, log=LOGS[0]))
        await asyncio.sleep(0.5)
        assert end.firsts() == [at(n) for n in range(1, 5)]
        assert reads == [at(1), at(5)], "the second is read, and no third"
        end.transport.drain()
        await asyncio.sleep(0.01)
        assert end.firsts() == [at(n) for n in range(5, 9)]
        assert reads == [at(1), at(5), at(9)]
        await asyncio.sleep(2)  # too old by then
        end.transport.is_slow = False
        end.transport.drain()
        await asyncio.sleep(0.5)
        assert end.firsts() == [at(n) for n in range(9, 13)]
        assert reads == [at(1), at(5), at(9), at(9)]


@as_scenario(run)
async def test_a_batch_read_ahead_goes_no_further_than_window_credit_and_trim(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_value(monkeypatch, lambda: read_streams.AHEAD_AFTER_BYTES, 0)
    end = ReaderEnd()
    reader = await cold(8)
    streams = ReadStreams(reader)
    async with running(streams):
        streams.start(end.connection, replace(ALL, log=LOGS[0], window_high=at(1)))
        await asyncio.sleep(0.1)
        assert end.firsts() == [at(1)]
        streams.move_window(end.connection, 1, at(3), 1 << 40)
        await asyncio.sleep(0.1)
        assert end.firsts() == [at(2), at(3)]
        taken = streams._by_connection[end.connection][1].sent
        streams.move_window(end.connection, 1, LSN_MAX, taken + 1)
        streams._by_connection[end.connection][1].limit = taken + 1
        await asyncio.sleep(0.1)
        assert end.firsts() == [at(4)]
        reader._cache.log(LOGS[0]).trim_to(at(6))
        streams.on_change(LOGS[0])
        streams._by_connection[end.connection][1].limit = 1 << 40
        streams.move_window(end.connection, 1, LSN_MAX, 1 << 40)
        await asyncio.sleep(0.1)
        assert end.firsts() == [at(7), at(8)]


@as_scenario(run)
async def test_nothing_is_read_for_a_connection_that_is_full_and_others_go_on() -> None:
    slow, quick = ReaderEnd(), ReaderEnd()
    streams = ReadStreams(await cold(1))
    slow.transport.is_slow = True
    slow.connection.send(0x7F, 0, (bytes(BATCH),))
    for log in LOGS:
        streams.start(slow.connection, replace(ALL, stream=log, log=log))
    await pumped()
    assert len(streams._to_fetch) == 0
    async with running(streams):
        streams.start(quick.connection, replace(ALL, log=LOGS[0]))
        await asyncio.sleep(5)
        assert quick.firsts() == [at(1)]
        assert held_bytes(streams) == 0


@as_scenario(run)
async def test_what_waits_for_its_connection_is_sent_with_all_that_happened_meanwhile() -> None:
    """A window that moves, a trim, an end: none of them is lost on a stream that holds a batch."""
    end = ReaderEnd()
    streams = ReadStreams(await cold(3))
    end.transport.is_slow = True
    four = LOGS[: read_streams.FETCHES_MAX]
    async with running(streams):
        for log in four:
            streams.start(end.connection, replace(ALL, stream=log, log=log, window_high=at(1)))
        await asyncio.sleep(5)
        (plain,) = {head.stream for head, blocks in end.blocks() if blocks}
        moved, trimmed, stopped = [log for log in four if log != plain]
        assert held_bytes(streams) == 3 * block(at(1), bytes(BATCH)).wire_bytes
        streams.move_window(end.connection, moved, LSN_MAX, 1 << 40)
        streams._reader._cache.log(trimmed).trim_to(at(3))
        streams.on_change(trimmed)
        streams.stop(end.connection, stopped)
        end.transport.is_slow = False
        end.transport.drain()
        await asyncio.sleep(5)
    sent: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for head, blocks in end.blocks():
        sent.setdefault(head.stream, []).extend(each.header.first for each in blocks)
        last[head.stream] = head.next
    assert sent == {moved: [at(1), at(2), at(3)], trimmed: [at(1)]}
    assert last == {moved: at(4), trimmed: at(4)}
