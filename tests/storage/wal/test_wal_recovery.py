"""What a WAL makes of disks that crashed, rot or lie: byte by byte, on purpose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from scenarios import as_scenario
from wal_driver import LIMITS, PATH, WalDriver
from wal_memory_disk import SECTOR_BYTES, MemoryDisk, MemoryFile

from cordwood.errors import Malformed, TornBlock
from cordwood.layout.wal_block import (
    WalHeader,
    WalKind,
    WalRecord,
    body_checksum,
    pack_wal_record,
    unpack_wal_header,
    wal_position,
)
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalLimits, WalRecovery

OWNER = NodeId(3)
SLOTS = 8192
Item = tuple[int, bytes]
Found = tuple[list[Item], WalRecovery]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


async def formatted(ring: int) -> MemoryDisk:
    disk = MemoryDisk()
    await Wal.format(disk, PATH, SLOTS + ring, owner=OWNER)
    return disk


async def recovered(disk: MemoryDisk, limits: WalLimits = LIMITS) -> tuple[Wal, list[Item]]:
    wal = await Wal.open(disk, PATH, owner=OWNER, limits=limits)
    return wal, [item async for item in wal.recover()]


def copy_of(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    copy.files[PATH] = MemoryFile(bytearray(disk.file.stable), by_hand=False)
    return copy


def headers_of(disk: MemoryDisk) -> list[WalHeader]:
    return [unpack_wal_header(bytes(disk.file.stable[at : at + 4096])) for at in (0, 4096)]


def newest(disk: MemoryDisk) -> WalHeader:
    return max(headers_of(disk), key=lambda header: header.sequence)


async def append_all(wal: Wal, bodies: list[bytes]) -> list[Item]:
    """Append one block's worth after the other, each durable before the next."""
    items = []
    for body in bodies:
        offset, done = wal.append([body])
        await done
        items.append((offset, body))
    return items


def uncovered(must: list[Item], found: list[Item], recovery: WalRecovery) -> list[Item]:
    """Records that are neither back nor said to be damaged."""
    return [
        item
        for item in must
        if item not in found and not any(start <= item[0] < stop for start, stop in recovery.damage)
    ]


async def a_closed_wal(seed: int) -> tuple[MemoryDisk, list[Item]]:
    """A gracefully closed WAL that has gone round its ring, and what is live in it."""
    disk = await formatted(96 << 10)
    wal, _ = await recovered(disk)
    chance = random.Random(seed)
    live: list[Item] = []
    for _ in range(40):
        turn = [chance.randbytes(chance.choice((10, 200, 700, 3000))) for _ in range(3)]
        appended = [wal.append([body]) for body in turn]
        await appended[-1][1]
        live += [(offset, body) for (offset, _), body in zip(appended, turn, strict=True)]
        if len(live) > 24:
            await wal.trim(live[11][0])
            live = live[12:]
    await wal.close()
    return disk, live


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flipped", "zeroed", "an older lap's"])
@as_scenario(run)
async def test_any_bad_sector_is_damage_and_never_absence(*, how: str) -> None:
    disk, live = await a_closed_wal(1)
    size = disk.file.size
    bad_somewhere = 0
    for at in range(SLOTS, size, SECTOR_BYTES):
        rotten = copy_of(disk)
        stable = rotten.file.stable
        if how == "flipped":
            stable[at + 100] ^= 4
        elif how == "zeroed":
            stable[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        else:
            other = SLOTS + (at - SLOTS + 40960) % (size - SLOTS)
            stable[at : at + SECTOR_BYTES] = disk.file.stable[other : other + SECTOR_BYTES]
        wal, found = await recovered(rotten)
        assert wal.recovery is not None
        assert set(found) <= set(live)
        assert uncovered(live, found, wal.recovery) == []
        assert wal.recovery.holes == ()
        bad_somewhere += bool(wal.recovery.damage)
        # It stays so: damage is not forgotten when writing goes on.
        await append_all(wal, [b"after"])
        again, found_again = await recovered(rotten)
        assert found_again[:-1] == found
        assert again.recovery is not None
        assert again.recovery.damage == wal.recovery.damage
    assert bad_somewhere > 40


@as_scenario(run)
async def test_damage_in_a_running_wal_is_told_by_later_records() -> None:
    disk = await formatted(1 << 20)
    wal, _ = await recovered(disk)
    items = await append_all(wal, [bytes([number]) * 2000 for number in range(10)])
    header = newest(disk)
    position = wal_position(items[4][0], header.ring)
    disk.file.stable[position] ^= 1
    wal, found = await recovered(disk)
    assert found == items[:4] + items[5:]
    assert wal.recovery is not None
    assert wal.recovery.damage == ((items[4][0], items[5][0]),)


@pytest.mark.parametrize("seed", range(6))
def test_a_bad_newest_slot_loses_nothing_that_is_live(seed: int) -> None:
    driver = WalDriver((17 + seed) * 4096, seed)
    chance = random.Random(seed)
    checked = 0
    for _ in range(150):
        if not driver.append(chance.choice((10, 3000, 9000))):
            driver.trim(chance.random())
        driver.turn()
        if chance.random() < 0.5:
            continue
        driver.settle()
        disk = copy_of(driver.disk)
        slots = headers_of(disk)
        at = 4096 * slots.index(max(slots, key=lambda header: header.sequence))
        disk.file.stable[at + 20] ^= 255
        disk.by_hand = False
        wal, found = driver.run(recovered(disk))
        assert set(driver.kept) <= set(found), "lost"
        assert wal.recovery is not None
        _, found_again = driver.run(recovered(disk))
        assert found_again == found
        checked += 1
    assert checked > 30
    assert driver.wal.durable_offset > 2 * driver.wal.capacity_bytes
    driver.close()


@as_scenario(run)
async def test_a_torn_header_slot_leaves_the_other_in_force() -> None:
    disk = await formatted(1 << 20)
    wal, _ = await recovered(disk)
    items = await append_all(wal, [b"a", b"b", b"c"])
    file = disk.file
    file.by_hand = True
    trim = asyncio.ensure_future(wal.trim(items[1][0]))
    await asyncio.sleep(0)
    (write,) = file.pending
    for count in range(128):
        torn = copy_of(disk)
        torn.file.stable[write.offset : write.offset + count] = write.data()[:count]
        _, found = await recovered(torn)
        # The last four bytes are the checksum; before them it is another header.
        assert found == items
    file.end(write)
    await trim
    _, found = await recovered(copy_of(disk))
    assert found == items[2:]


@as_scenario(run)
async def test_both_slots_get_each_new_incarnation() -> None:
    disk = await formatted(1 << 20)
    for life in range(1, 4):
        wal, _ = await recovered(disk)
        assert wal.recovery is not None
        assert wal.recovery.incarnation == life
        assert {header.incarnation for header in headers_of(disk)} == {life}
        assert {header.resume for header in headers_of(disk)} == {wal.durable_offset}


@as_scenario(run)
async def test_recovery_writes_nothing_before_its_last_record_was_taken() -> None:
    disk, live = await a_closed_wal(2)
    before = bytes(disk.file.stable)
    wal = await Wal.open(disk, PATH, owner=OWNER)
    records = wal.recover()
    for item in live:
        assert await anext(records) == item
        assert disk.file.history == []
    assert bytes(disk.file.stable) == before
    with pytest.raises(StopAsyncIteration):
        await anext(records)
    assert [offset for offset, _ in disk.file.history] in ([0, 4096], [4096, 0])


@as_scenario(run)
async def test_a_disk_that_cannot_be_read_is_an_error_and_not_a_hole() -> None:
    disk, live = await a_closed_wal(3)
    wal = await Wal.open(disk, PATH, owner=OWNER)
    disk.file.read_error = OSError(5, "bad sector")
    with pytest.raises(OSError, match="bad sector"):
        [item async for item in wal.recover()]
    assert disk.file.history == []
    _, found = await recovered(disk)
    assert found == live


@as_scenario(run)
async def test_a_file_cut_off_while_it_is_read() -> None:
    disk, _ = await a_closed_wal(3)
    wal = await Wal.open(disk, PATH, owner=OWNER)
    del disk.file.stable[SLOTS:]
    with pytest.raises(TornBlock):
        [item async for item in wal.recover()]


@as_scenario(run)
async def test_a_record_found_behind_a_hole_stays_and_the_hole_stays_a_hole() -> None:
    """Crash, recover, crash again: a hole may not fill, and what came back may not vanish."""
    disk = await formatted(1 << 20)
    wal, _ = await recovered(disk)
    before = await append_all(wal, [b"before"])
    disk.file.by_hand = True
    lost = wal.append([b"lost" * 500])
    await asyncio.sleep(0)
    landed = wal.append([b"landed"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(disk.file.pending) == 2
    disk.file.end(disk.file.pending[1])
    assert not landed[1].done()
    assert not lost[1].done()
    disk = copy_of(disk)
    expected = [*before, (landed[0], b"landed")]
    told: list[tuple[tuple[int, int], ...]] = []
    for life in range(4):
        wal, found = await recovered(disk)
        assert found == expected
        assert wal.recovery is not None
        assert wal.recovery.damage == ()
        told.append(wal.recovery.holes)
        if life:  # the first life crashes before it appends anything
            expected += await append_all(wal, [bytes([life])])
    hole = (lost[0], landed[0])
    assert told == [(hole,), (hole,), (), ()]


@as_scenario(run)
async def test_a_torn_block_of_an_earlier_life_is_never_taken_for_new() -> None:
    """The same record is appended again where a torn one lay, and torn the other way."""
    disk = await formatted(1 << 20)
    wal, _ = await recovered(disk, WalLimits())
    body = bytes(range(256)) * 40
    disk.file.by_hand = True
    first = wal.append([body])[0]
    await asyncio.sleep(0)
    (write,) = disk.file.pending
    # The header's sector lands, the rest does not.
    torn = copy_of(disk)
    torn.file.stable[write.offset : write.offset + 512] = write.data()[:512]
    wal, found = await recovered(torn, WalLimits())
    assert found == []
    torn.file.by_hand = True
    second = wal.append([body])[0]
    assert second > first
    await asyncio.sleep(0)
    (write,) = torn.file.pending
    # Now all but the header's sector.
    again = copy_of(torn)
    data = write.data()
    again.file.stable[write.offset + 512 : write.offset + len(data)] = data[512:]
    for _ in range(3):
        _, found = await recovered(again)
        assert found == []


@as_scenario(run)
async def test_a_payload_that_imitates_a_record_is_no_record() -> None:
    disk = await formatted(1 << 20)
    await recovered(disk)
    header = newest(disk)
    inner = WalRecord(WalKind.DATA, 5, body_checksum([b"forge"]), 8192, 0, 1, True)
    fill = bytes(8192 - 40)
    # The salt is right in the second, and the offset is not where it stands.
    for salt, offset in ((header.salt ^ 1, 8192), (header.salt, 12288)):
        forged = WalRecord(inner.kind, inner.length, inner.body_crc, offset, 0, 1, inner.is_last)
        body = fill + pack_wal_record(forged, salt) + b"forge" + bytes(4000)
        copy = copy_of(disk)
        victim, _ = await recovered(copy)
        items = await append_all(victim, [body, b"next"])
        assert items[0][0] == 0
        copy.file.stable[SLOTS] ^= 1  # its own header is lost
        _, found = await recovered(copy)
        assert found == items[1:]


@as_scenario(run)
async def test_a_small_live_range_is_not_a_scan_of_the_device() -> None:
    disk = await formatted(64 << 20)
    wal, _ = await recovered(disk, WalLimits())
    items: list[Item] = []
    for number in range(40):
        items += await append_all(wal, [bytes([number]) * 1_000_000])
    await wal.trim(items[-2][0])
    disk = copy_of(disk)
    _, found = await recovered(disk, WalLimits())
    assert found == items[-1:]
    assert sum(length for _, length in disk.file.reads) < 8 << 20


@as_scenario(run)
async def test_reads_go_through_a_buffer() -> None:
    disk = await formatted(16 << 20)
    wal, _ = await recovered(disk, WalLimits())
    appended = [wal.append([b"x" * 100])[1] for _ in range(10_000)]
    await asyncio.gather(*appended)
    disk = copy_of(disk)
    _, found = await recovered(disk, WalLimits())
    assert len(found) == 10_000
    assert len(disk.file.reads) <= 6  # the slots, two of records, and a window of 2 MiB


@as_scenario(run)
async def test_a_reset_header_area_is_refused_and_left_alone() -> None:
    disk, _ = await a_closed_wal(4)
    disk.file.stable[:SLOTS] = bytes(SLOTS)
    before = bytes(disk.file.stable)
    with pytest.raises(Malformed, match="not blank"):
        await Wal.open(disk, PATH, owner=OWNER)
    assert bytes(disk.file.stable) == before


@as_scenario(run)
async def test_a_grown_window_then_a_crash_loses_nothing_acknowledged() -> None:
    """The head of the window lags far behind; all behind it lands; all comes back."""
    limits = WalLimits(block_bytes=4096, window_bytes=4096, window_step_bytes=4096)
    disk = await formatted(1 << 20)
    wal, _ = await recovered(disk, limits)
    file = disk.file
    file.by_hand = True
    stuck = wal.append([b"stuck" * 700])
    await asyncio.sleep(0)
    later = [wal.append([bytes([number]) * 3500]) for number in range(100)]
    for _ in range(500):
        await asyncio.sleep(0)
        for write in list(file.pending):
            if write.offset != SLOTS:
                file.end(write)
    assert not stuck[1].done()
    assert newest(disk).window > 400_000
    crashed = copy_of(disk)
    _, found = await recovered(crashed, limits)
    assert [offset for offset, _ in found] == [offset for offset, _ in later]
    file.end_all()
    for _ in range(500):
        await asyncio.sleep(0)
        file.end_all()
    assert all(done.done() for _, done in [stuck, *later])
