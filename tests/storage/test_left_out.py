"""What a node leaves out of a stream, and how it says so: keys, bodies, damage, other clients."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from made_blocks import LOG, OWNER, at, block, made_host, run
from scenarios import as_scenario
from stream_ends import ReaderEnd, pumped
from swaps import swap_value
from wal_memory_disk import MemoryDisk

from cordwood.block import BlockKind
from cordwood.errors import ChecksumMismatch
from cordwood.layout import logs_db
from cordwood.layout.key_bits import key_bits
from cordwood.layout.logs_db import LogState
from cordwood.layout.reading import OneCopy, ReadRequest
from cordwood.lsn import LSN_MAX
from cordwood.nodes import NodeId
from cordwood.settings import StorageSettings
from cordwood.sim.memory_logs import memory_tables
from cordwood.storage.log_cache import LogCache
from cordwood.storage.log_reader import LogReader
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.push import read_streams
from cordwood.storage.push.read_streams import ReadStreams

ALL = ReadRequest(
    stream=1, log=LOG, start=at(1), until=LSN_MAX, window_high=LSN_MAX, bytes_limit=1 << 40
)
A, B = key_bits([b"a"]), key_bits([b"b"])


def cached(*blocks: Any) -> LogReader:
    cache = LogCache()
    for each in blocks:
        cache.log(LOG).insert(each)
    cache.log(LOG).release(max(each.header.last for each in blocks))
    return LogReader(cache)


def mixed() -> LogReader:
    """Keys a, a, b, unknown, none, a; then a hole."""
    bits = [A, A, B, 0, key_bits(None), A]
    made = [block(at(n), b"body%d" % n, key_bits=each) for n, each in enumerate(bits, 1)]
    return cached(*made, block(at(7), kind=BlockKind.HOLE))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"keys": B}, ["filtered 1-2", "filtered 5-6", "blocks [3 4 7] to 8"]),
        ({"keys": A | B}, ["filtered 5-5", "blocks [1 2 3 4 6 7] to 8"]),
        ({"keys": key_bits([])}, ["filtered 1-3", "filtered 5-6", "blocks [4 7] to 8"]),
        ({"heads_only": True}, ["heads [1 2 3 4 5 6 7] to 8"]),
        ({"keys": B, "heads_only": True}, ["filtered 1-2", "filtered 5-6", "heads [3 4 7] to 8"]),
        # The copyset is 1, 2, 3, and node 2 is asked, of which another sends all there is.
        ({"keys": B, "one_copy": OneCopy()}, ["blocks [7] to 8"]),
    ],
)  # fmt: skip
@as_scenario(run)
async def test_what_is_sent_and_what_is_told_instead(*, changes, told) -> None:
    end = ReaderEnd()
    streams = ReadStreams(mixed(), NodeId(2))
    streams.start(end.connection, replace(ALL, **changes))
    await pumped()
    assert end.told() == ["reading", *told]


@as_scenario(run)
async def test_bodies_that_are_left_out_use_up_no_credit() -> None:
    end = ReaderEnd()
    blocks = [block(at(n), bytes(10_000)) for n in range(1, 9)]
    ReadStreams(cached(*blocks)).start(
        end.connection, replace(ALL, heads_only=True, bytes_limit=2_000)
    )
    await pumped()
    assert end.told()[-1].endswith("to 9")


async def stored(*blocks: Any) -> LogsStore:
    settings = StorageSettings()
    tables = memory_tables("logsdb", settings, made_host(MemoryDisk()))
    store, _ = await LogsStore.open(tables, settings, OWNER)
    await store.flush(blocks, {LOG: LogState()}, 1, 1)
    return store


def rotten(store: LogsStore, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block 3 of 5 cannot be read, in one of the ways there are."""
    tables = store._tables
    get, scan = tables.get, tables.scan
    body = logs_db.body_key(LOG, at(3), at(3))

    async def bad_get(table: str, keys: Any) -> Any:
        if body in keys and what == "body":
            raise ChecksumMismatch("block checksum mismatch")
        found = await get(table, keys)
        if what == "no body" and body in keys:
            found[keys.index(body)] = None
        return found

    async def bad_scan(table: str, start: bytes, stop: bytes, **limits: Any) -> Any:
        found = await scan(table, start, stop, **limits)
        rows = found.rows
        if table == "meta" or table == logs_db.META_TABLE:
            return found
        if what == "part" and start.startswith(logs_db.index_start(LOG, 0)[:9]):
            raise ChecksumMismatch("block checksum mismatch")
        if what == "body" and any(key == body for key, _ in rows):
            raise ChecksumMismatch("block checksum mismatch")
        if what == "no body":
            rows = [each for each in rows if each[0] != body]
        if what == "index":
            third = logs_db.index_key(block(at(3)))
            rows = [(key, value[:-1] + b"\0" if key == third else value) for key, value in rows]
        return found._replace(rows=rows)

    monkeypatch.setattr(tables, "get", bad_get)
    monkeypatch.setattr(tables, "scan", bad_scan)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("index", ["checksum_fail 3-3", "blocks [1 2 4 5] to 6"]),
        ("body", ["checksum_fail 3-3", "blocks [1 2 4 5] to 6"]),
        ("no body", ["checksum_fail 3-3", "blocks [1 2 4 5] to 6"]),
        ("part", ["checksum_fail 1-5", "blocks [] to 6"]),
    ],
)
@as_scenario(run)
async def test_one_bad_block_is_told_and_the_others_are_sent(
    *, what: str, told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to be read again each second for ever, and nothing behind it was sent."""
    store = await stored(*(block(at(n), b"body%d" % n) for n in range(1, 6)))
    rotten(store, what, monkeypatch)
    cache = LogCache()
    cache.log(LOG).release(at(5))
    streams, end = ReadStreams(LogReader(cache, store)), ReaderEnd()
    streams.start(end.connection, ALL)
    async with asyncio.TaskGroup() as tasks:
        runner = tasks.create_task(streams.run())
        await asyncio.sleep(5)
        runner.cancel()
    assert end.told() == ["reading", *told]


@as_scenario(run)
async def test_a_digest_of_which_a_part_is_not_known_is_none(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await stored(*(block(at(n), b"body%d" % n) for n in range(1, 6)))
    rotten(store, "body", monkeypatch)
    cache = LogCache()
    streams, end = ReadStreams(LogReader(cache, store)), ReaderEnd()
    streams.start(end.connection, replace(ALL, digest=True, until=at(5), window_high=at(5)))
    async with asyncio.TaskGroup() as tasks:
        runner = tasks.create_task(streams.run())
        await asyncio.sleep(0.5)
        runner.cancel()
    assert end.told() == ["reading", "reading"]


@as_scenario(run)
async def test_a_client_with_many_cold_streams_lets_one_with_few_have_its_turn(
    *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All streams of the first client stood in one queue before the second one's."""
    store = await stored(*(block(at(n), b"body") for n in range(1, 4)))
    cache = LogCache()
    cache.log(LOG).release(at(3))
    streams = ReadStreams(LogReader(cache, store))
    many, few = ReaderEnd(), ReaderEnd()
    for number in range(100):
        streams.start(many.connection, replace(ALL, stream=number))
    streams.start(few.connection, ALL)
    await pumped()
    order: list[Any] = []
    fetch = streams._fetch

    async def noting(stream: Any) -> None:
        order.append(stream.connection)
        await fetch(stream)

    monkeypatch.setattr(streams, "_fetch", noting)
    async with asyncio.TaskGroup() as tasks:
        runner = tasks.create_task(streams.run())
        await asyncio.sleep(5)
        runner.cancel()
    assert order.index(few.connection) == 1
    assert few.told()[-1] == "blocks [1 2 3] to 4"


@as_scenario(run)
async def test_a_tick_ends_after_so_many_batches(*, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_value(monkeypatch, lambda: read_streams.TICK_BATCHES, 3)
    end = ReaderEnd()
    streams = ReadStreams(cached(block(at(1))))
    for number in range(10):
        streams.start(end.connection, replace(ALL, stream=number))
    await asyncio.sleep(0)
    assert streams.sent_blocks == 3
    await pumped()
    assert streams.sent_blocks == 10


@as_scenario(run)
async def test_a_tick_ends_after_so_long_and_one_batch_at_least() -> None:
    """A batch of blocks that are left out sends nothing, and a busy core makes any slow."""
    loop, took_s = asyncio.get_running_loop(), read_streams.TICK_S / 2
    end = ReaderEnd()
    streams = ReadStreams(cached(block(at(1))))
    send = streams._send_batch
    time_s = loop.time()

    def slow(stream: Any, pushes: Any) -> bool:
        nonlocal time_s
        time_s += took_s
        return send(stream, pushes)

    streams._send_batch = slow  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "time", lambda: time_s)
        for number in range(10):
            streams.start(end.connection, replace(ALL, stream=number))
        sent = []
        for _ in range(4):
            streams._pump()
            sent.append(streams.sent_blocks)
        took_s = 10 * read_streams.TICK_S
        for _ in range(2):
            streams._pump()
            sent.append(streams.sent_blocks)
    assert sent == [2, 4, 6, 8, 9, 10]


@as_scenario(run)
async def test_a_release_wakes_nobody_whose_window_is_closed() -> None:
    end = ReaderEnd()
    reader = cached(*(block(at(n)) for n in range(1, 10)))
    log = reader.get(LOG)
    assert log is not None
    log.release(at(9))
    streams = ReadStreams(reader)
    closed, done, open_ = 1, 2, 3
    streams.start(end.connection, replace(ALL, stream=closed, window_high=at(3)))
    streams.start(end.connection, replace(ALL, stream=done, until=at(4)))
    streams.start(end.connection, replace(ALL, stream=open_))
    await pumped()
    woken: list[int] = []
    send = streams._send_batch

    def noting(stream: Any, pushes: Any) -> bool:
        woken.append(stream.number)
        return send(stream, pushes)

    streams._send_batch = noting  # type: ignore[method-assign]
    end.frames()
    log.insert(block(at(10)))
    log.release(at(10))
    streams.on_change(LOG)
    await pumped()
    assert woken == [open_]
    assert end.told() == ["blocks [10] to 11"]
    # The window opens: what was released meanwhile comes.
    streams.move_window(end.connection, closed, at(5), 1 << 40)
    await pumped()
    assert end.told() == ["blocks [4 5] to 6"]
    # Of a trim it is told whatever its window, up to where it reads; and once.
    woken.clear()
    log.trim_to(at(8))
    streams.on_change(LOG)
    streams.on_change(LOG)
    await pumped()
    assert woken == [closed, open_]
    assert end.told() == ["blocks [] to 9"]
