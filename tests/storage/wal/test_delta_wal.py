"""The WAL through its life: append, wrap, trim, full, close, poison, refuse."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.errors import BadSetting, Closed, Malformed, NotOurCluster, RecordTooLarge
from cordwood.host.real_disk import RealDisk
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalBlank, WalFailed, WalFull, WalLimits

OWNER = NodeId(7)
PATH = "wal"
SLOTS = 8192
SMALL = WalLimits(block_bytes=8192, window_bytes=4096, window_step_bytes=4096, reserve_bytes=4096)

Scenario = Callable[[], Coroutine[Any, Any, None]]


def run(scenario: Scenario) -> None:
    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


async def make(
    ring: int = 1 << 20, *, disk: MemoryDisk | None = None, limits: WalLimits | None = None
) -> tuple[MemoryDisk, Wal]:
    """A formatted, recovered WAL in memory."""
    disk = disk or MemoryDisk()
    disk.by_hand, by_hand = False, disk.by_hand
    await Wal.format(disk, PATH, SLOTS + ring, owner=OWNER)
    wal, found = await start(disk, limits)
    assert found == []
    disk.by_hand = disk.file.by_hand = by_hand
    return disk, wal


async def start(
    disk: MemoryDisk, limits: WalLimits | None = None
) -> tuple[Wal, list[tuple[int, bytes]]]:
    """Open and recover what is on `disk`."""
    disk.by_hand, by_hand = False, disk.by_hand
    wal = await Wal.open(disk, PATH, owner=OWNER, limits=limits)
    found = [item async for item in wal.recover()]
    disk.by_hand = disk.file.by_hand = by_hand
    return wal, found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def fill(wal: Wal, *, reserve_ok: bool = False) -> list[tuple[int, asyncio.Future[int]]]:
    """Append blocks' worth of records until the WAL is full."""
    appended = []
    while True:
        try:
            appended.append(wal.append([b"x" * 4000], reserve_ok=reserve_ok))
        except WalFull:
            return appended


@as_scenario(run)
async def test_what_was_appended_comes_back_in_order() -> None:
    disk, wal = await make()
    bodies = [b"", b"one", b"x" * 5000, b"y" * 300_000, b"z" * 4056]
    appended = [wal.append([body[:2], memoryview(body)[2:]]) for body in bodies]
    for offset, done in appended:
        assert await done > offset
    again, found = await start(disk)
    assert found == [(offset, body) for (offset, _), body in zip(appended, bodies, strict=True)]
    assert again.recovery is not None
    assert not again.recovery.was_graceful
    assert again.recovery.holes == again.recovery.damage == ()
    assert again.recovery.records == 5


@as_scenario(run)
async def test_one_tick_is_one_write() -> None:
    disk, wal = await make()
    disk.file.history.clear()
    futures = [wal.append([b"x" * 100])[1] for _ in range(50)]
    assert disk.file.history == []
    await asyncio.gather(*futures)
    assert len(disk.file.history) == 1


@as_scenario(run)
async def test_a_busy_wal_fills_blocks() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    disk.file.history.clear()
    futures = []
    for _ in range(20):
        futures.append(wal.append([b"x" * 1000])[1])
        await turns()
    assert len(disk.file.history) == 4
    assert len(disk.file.pending) == 4
    disk.file.end_all()
    await turns()
    assert len(disk.file.history) == 5
    disk.file.end_all()
    await asyncio.gather(*futures)


@as_scenario(run)
async def test_acks_only_in_order() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    acked: list[int] = []
    for name in range(4):
        wal.submit([b"x"], lambda error, name=name: acked.append(name))  # type: ignore[misc]
        await turns()
    file = disk.file
    writes = list(file.pending)
    base = wal.durable_offset
    for index, expected in ((2, []), (1, []), (0, [0, 1, 2]), (3, [0, 1, 2, 3])):
        file.end(writes[index])
        await turns()
        assert acked == expected
        assert wal.durable_offset == base + 4096 * len(expected)


@as_scenario(run)
async def test_a_cancelled_wait_cancels_nothing() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    first, second = wal.append([b"1"])[1], wal.append([b"2"])[1]
    first.cancel()
    await turns()
    disk.file.end_all()
    assert await second == wal.durable_offset


@as_scenario(run)
async def test_the_ring_wraps_and_the_skipped_tail_is_padding() -> None:
    disk, wal = await make(128 << 10)
    kept: list[tuple[int, bytes]] = []
    for number in range(60):
        body = bytes([number]) * (9000 + 977 * number % 5000)
        offset, done = wal.append([body])
        await done
        kept.append((offset, body))
        if len(kept) > 4:
            await wal.trim(kept.pop(0)[0])
        again, found = await start(disk)
        assert found == kept
        assert again.recovery is not None
        assert again.recovery.damage == again.recovery.holes == ()
        wal = again
    assert kept[-1][0] > 3 * (128 << 10)


@as_scenario(run)
async def test_twelve_messages_of_1_mb_in_5_mb() -> None:
    """AutoMQ's rmq#872, "append may block indefinitely"."""
    disk, wal = await make((5_000_000 - SLOTS) // 4096 * 4096)
    live: list[tuple[int, bytes]] = []
    for number in range(12):
        body = bytes([number]) * 1_000_000
        while True:
            try:
                offset, done = wal.append([body])
                break
            except WalFull:
                await wal.trim(live.pop(0)[0])
        await done
        live.append((offset, body))
    _, found = await start(disk)
    assert found == live
    assert len(found) >= 2


@as_scenario(run)
async def test_full_allocates_nothing_and_keeps_a_reserve() -> None:
    disk, wal = await make(128 << 10)
    futures = fill(wal)
    used = wal.used_bytes
    assert used == 96 << 10  # a quarter is the reserve of so small a ring
    with pytest.raises(WalFull, match=r"139264.*LogsDB.*wal_bytes"):
        wal.append([b"x" * 4000])
    assert wal.used_bytes == used
    seals = fill(wal, reserve_ok=True)
    assert len(seals) == 8
    assert wal.used_bytes == 128 << 10
    await asyncio.gather(*(done for _, done in futures + seals))
    wal, found = await start(disk)
    assert len(found) == len(futures) + len(seals)
    with pytest.raises(WalFull):
        wal.append([b"x"], reserve_ok=True)
    await wal.trim(found[-1][0])
    assert wal.used_bytes == 0
    await wal.append([b"x"])[1]


@as_scenario(run)
async def test_the_largest_record_always_fits_an_empty_ring() -> None:
    disk, wal = await make(128 << 10)
    most = wal.record_bytes_max
    with pytest.raises(RecordTooLarge):
        wal.append([b"x" * (most + 1)])
    for number in range(50):
        offset, done = wal.append([b"x" * (most if number % 3 else 5000)])
        await done
        await wal.trim(offset)
    assert wal.used_bytes == 0
    _, found = await start(disk)
    assert found == []


@as_scenario(run)
async def test_a_record_over_one_direct_write() -> None:
    disk, wal = await make(80 << 20)
    body = random.Random(1).randbytes(33 << 20)
    offset, done = wal.append([b"head", body[4:]])
    wal.append([b"next"])
    await done
    await wal.close()
    assert max(length for _, length in disk.file.history) == 16 << 20
    _, found = await start(disk)
    assert found[0] == (offset, b"head" + body[4:])
    assert found[1][1] == b"next"


@pytest.mark.parametrize("first", [0, 1])
@as_scenario(run)
async def test_a_record_of_two_writes_is_durable_with_the_second(*, first: int) -> None:
    disk, wal = await make(80 << 20, disk=MemoryDisk(by_hand=True))
    _, done = wal.append([bytes(20 << 20)])
    await turns()
    disk.file.end_all()  # the window grew
    await turns()
    assert len(disk.file.pending) == 2
    disk.file.end(disk.file.pending[first])
    await turns()
    assert not done.done()
    disk.file.end_all()
    await done


@as_scenario(run)
async def test_trim_is_inclusive_and_durable() -> None:
    disk, wal = await make()
    offsets = [wal.append([bytes([n]) * 3000])[0] for n in range(10)]
    with pytest.raises(BadSetting, match="durable"):
        await wal.trim(offsets[0])
    await wal.append([b"last"])[1]
    await wal.trim(offsets[4])
    await wal.trim(offsets[2])  # backwards: nothing happens
    assert wal.trim_offset == offsets[4]
    wal, found = await start(disk)
    assert [offset for offset, _ in found[:5]] == offsets[5:]
    assert wal.trim_offset == offsets[4]


@as_scenario(run)
async def test_concurrent_trims_share_header_writes_and_alternate_slots() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    offsets = [wal.append([b"x"])[0] for _ in range(10)]
    await turns()
    disk.file.end_all()
    await turns()
    disk.file.history.clear()
    trims = [asyncio.ensure_future(wal.trim(offset)) for offset in reversed(offsets)]
    await turns()
    assert len(disk.file.pending) == 1
    disk.file.end_all()
    await turns()
    disk.file.end_all()
    await asyncio.gather(*trims)
    assert [offset for offset, _ in disk.file.history] in ([0, 4096], [4096, 0])
    assert wal.trim_offset == offsets[-1]


@as_scenario(run)
async def test_room_is_judged_by_the_durable_trim() -> None:
    disk, wal = await make(128 << 10, disk=MemoryDisk(by_hand=True))
    offsets = [offset for offset, _ in fill(wal)]
    while wal.durable_offset < wal.used_bytes:
        await turns()
        disk.file.end_all()
    trim = asyncio.ensure_future(wal.trim(offsets[9]))
    await turns()
    with pytest.raises(WalFull):
        wal.append([b"x" * 4000])
    disk.file.end_all()
    await trim
    wal.append([b"x" * 4000])


@as_scenario(run)
async def test_window_growth_is_durable_before_the_data() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True), limits=SMALL)
    file = disk.file
    file.history.clear()
    done = wal.append([b"x" * 20_000])[1]
    await turns()
    assert [offset < SLOTS for offset, _ in file.history] == [True]
    file.end_all()
    await turns()
    assert [offset < SLOTS for offset, _ in file.history] == [True, False]
    file.end_all()
    await done


@as_scenario(run)
async def test_at_the_windows_limit_writers_wait() -> None:
    limits = WalLimits(
        block_bytes=4096,
        writes_in_flight=100,
        window_bytes=4096,
        window_step_bytes=0,
        window_bytes_max=300 << 10,
    )
    disk, wal = await make(512 << 10, disk=MemoryDisk(by_hand=True), limits=limits)
    file, base = disk.file, wal.durable_offset
    acked: list[int] = []
    for number in range(90):
        wal.submit([b"x" * 4000], lambda error, number=number: acked.append(number))  # type: ignore[misc]
    for _ in range(300):  # every write ends but the first block's
        await turns(2)
        for write in list(file.pending):
            if write.offset != SLOTS + base:
                file.end(write)
    reach = max(offset + 4096 for offset, _ in file.history) - SLOTS
    assert reach == base + (300 << 10)
    assert acked == []
    file.end_all()
    for _ in range(300):
        await turns(2)
        file.end_all()
    assert acked == list(range(90))


@pytest.mark.parametrize("code", [errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("failing", [0, 2])
@as_scenario(run)
async def test_a_failed_write_poisons_for_good(*, code: int, failing: int) -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True), limits=WalLimits(block_bytes=8192))
    file = disk.file
    offset, first = wal.append([b"good"])
    await turns()
    file.end_all()
    await first
    waiting = []
    for number in range(40):
        waiting.append(wal.append([bytes([number]) * 3000])[1])
    await turns()
    # Four are written, and four full blocks wait behind them.
    assert [write.offset >= SLOTS for write in file.pending] == [True] * 8
    file.end(file.pending[failing], OSError(code, os.strerror(code)))
    await turns()
    file.end_all()
    for future in waiting:
        with pytest.raises(WalFailed, match=os.strerror(code)):
            await future
    with pytest.raises(WalFailed):
        wal.append([b"x"])
    with pytest.raises(WalFailed):
        await wal.trim(offset)
    assert isinstance(wal.failure, WalFailed)
    await wal.close()
    assert file.closed
    _, found = await start(disk)
    assert found[0] == (offset, b"good")


@as_scenario(run)
async def test_a_failed_header_write_poisons_too() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    offset, done = wal.append([b"x"])
    await turns()
    disk.file.end_all()
    await done
    trim = asyncio.ensure_future(wal.trim(offset))
    await turns()
    disk.file.end(disk.file.pending[0], OSError(errno.EIO, "bad"))
    with pytest.raises(WalFailed):
        await trim
    with pytest.raises(WalFailed):
        wal.append([b"x"])


@as_scenario(run)
async def test_a_graceful_close_is_recognised() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    offset, done = wal.append([b"x"])
    closing = asyncio.ensure_future(wal.close())
    await turns()
    again = asyncio.ensure_future(wal.close())
    with pytest.raises(Closed):
        wal.append([b"y"])
    for _ in range(5):
        assert not closing.done()
        assert not again.done()
        disk.file.end_all()
        await turns()
        if closing.done():
            break
    await asyncio.gather(closing, again, done)
    wal, found = await start(disk)
    assert found == [(offset, b"x")]
    assert wal.recovery is not None
    assert wal.recovery.was_graceful
    file = disk.file
    assert max(offset + length for offset, length in file.reads) <= SLOTS + (1 << 20)
    again_wal, _ = await start(disk)
    assert again_wal.recovery is not None
    assert not again_wal.recovery.was_graceful


@pytest.mark.parametrize("fails_before", [True, False])
@as_scenario(run)
async def test_a_close_raises_nothing_of_a_write_that_failed(*, fails_before: bool) -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    if fails_before:
        _, done = wal.append([b"x"])
        await turns()
        disk.file.end(disk.file.pending[0], OSError(errno.EIO, "no"))
        with pytest.raises(WalFailed):
            await done
    closing = asyncio.ensure_future(wal.close())
    await turns()
    if not fails_before:  # the header that would say that the end was graceful
        disk.file.end(disk.file.pending[0], OSError(errno.EIO, "no"))
    await closing
    assert isinstance(wal.failure, WalFailed)
    assert disk.file.closed


@as_scenario(run)
async def test_a_close_that_is_cancelled_leaves_nobody_waiting() -> None:
    disk, wal = await make(disk=MemoryDisk(by_hand=True))
    _, done = wal.append([b"x"])
    closing = asyncio.ensure_future(wal.close())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(WalFailed, match="closed"):
        await done
    wal, _ = await start(disk)
    assert wal.recovery is not None
    assert not wal.recovery.was_graceful


@as_scenario(run)
async def test_nothing_before_recovery_or_after_close() -> None:
    disk, wal = await make()
    wal = await Wal.open(disk, PATH, owner=OWNER)
    with pytest.raises(Closed, match="recovered"):
        wal.append([b"x"])
    with pytest.raises(Closed):
        await wal.trim(0)
    before = bytes(disk.file.stable)
    await wal.close()
    assert bytes(disk.file.stable) == before
    with pytest.raises(Closed):
        [item async for item in wal.recover()]
    with pytest.raises(Closed):
        wal.append([b"x"])


@as_scenario(run)
async def test_open_refuses_what_is_not_this_wal() -> None:
    disk, wal = await make()
    await wal.close()
    stable = disk.file.stable
    with pytest.raises(NotOurCluster, match="node 7, not of node 8"):
        await Wal.open(disk, PATH, owner=NodeId(8))
    with pytest.raises(BadSetting, match="cannot become"):
        await Wal.open(disk, PATH, owner=OWNER, capacity_bytes=1 << 20)
    with pytest.raises(FileNotFoundError):
        await Wal.open(disk, "other", owner=OWNER)
    with pytest.raises(BadSetting, match="not formatted again"):
        await Wal.format(disk, PATH, SLOTS + (1 << 20), owner=OWNER)
    stable.extend(bytes(1 << 20))  # a larger device is fine
    await (await Wal.open(disk, PATH, owner=OWNER)).close()
    del stable[512 << 10 :]
    with pytest.raises(BadSetting, match="missing"):
        await Wal.open(disk, PATH, owner=OWNER)
    stable[0] ^= 1
    stable[4096] ^= 1
    before = bytes(stable)
    with pytest.raises(Malformed, match=r"slot 0.*slot 1.*not blank"):
        await Wal.open(disk, PATH, owner=OWNER)
    assert bytes(stable) == before


@as_scenario(run)
async def test_a_format_that_was_cut_short_may_be_repeated() -> None:
    disk = MemoryDisk()
    await disk.open_direct(PATH, create_bytes=1 << 20)
    with pytest.raises(WalBlank):
        await Wal.open(disk, PATH, owner=OWNER)
    with pytest.raises(BadSetting, match="does not fit"):
        await Wal.format(disk, PATH, 2 << 20, owner=OWNER)
    await Wal.format(disk, PATH, 1 << 20, owner=OWNER)
    _, found = await start(disk)
    assert found == []
    with pytest.raises(BadSetting):
        await Wal.format(disk, "odd", (1 << 20) + 1, owner=OWNER)


@as_scenario(run)
async def test_on_a_real_file(*, tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "wal")
    await Wal.format(disk, path, 1 << 20, owner=OWNER, salt=5)
    kept: list[tuple[int, bytes]] = []
    for life in range(3):
        wal = await Wal.open(disk, path, owner=OWNER, capacity_bytes=1 << 20)
        assert [item async for item in wal.recover()] == kept
        for number in range(100):
            body = os.urandom(9000) + bytes([number])
            try:
                offset, done = wal.append([body[:7], body[7:]])
            except WalFull:
                await wal.trim(kept[len(kept) // 2][0])
                kept = kept[len(kept) // 2 + 1 :]
                offset, done = wal.append([body[:7], body[7:]])
            kept.append((offset, body))
            await done
        if life == 1:
            await wal.close()
    await disk.close()
