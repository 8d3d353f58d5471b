"""Resets, with and without recovery, and how far a recovery says that it is."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import re

import pytest
from made_blocks import run
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.errors import BadSetting, Closed
from cordwood.layout.wal_block import pack_wal_header, unpack_wal_header
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalProgress

OWNER = NodeId(7)
PATH = "wal"
SLOTS = 8192
MIB = 1 << 20


async def make(ring: int = MIB) -> tuple[MemoryDisk, Wal]:
    disk = MemoryDisk()
    await Wal.format(disk, PATH, SLOTS + ring, owner=OWNER)
    wal, _ = await start(disk)
    return disk, wal


async def start(disk: MemoryDisk) -> tuple[Wal, list[bytes]]:
    wal = await Wal.open(disk, PATH, owner=OWNER)
    return wal, [body async for _, body in wal.recover()]


async def append_all(wal: Wal, bodies: list[bytes]) -> list[int]:
    appended = [wal.append([body]) for body in bodies]
    await asyncio.gather(*(done for _, done in appended))
    return [offset for offset, _ in appended]


@as_scenario(run)
async def test_after_recovery_a_reset_lets_go_of_all_and_of_nothing_later() -> None:
    disk, wal = await make()
    await append_all(wal, [b"old"] * 10)
    wal, found = await start(disk)
    assert len(found) == 10
    await append_all(wal, [b"new"])
    stop = await wal.reset()
    assert (wal.used_bytes, wal.trim_offset) == (0, stop - 1)
    (offset,) = await append_all(wal, [b"after"])
    assert offset == stop
    again, found = await start(disk)
    assert found == [b"after"]
    await again.trim(offset)
    assert again.trim_offset == offset


@as_scenario(run)
async def test_in_place_of_recovery_a_reset_reads_nothing_and_nothing_old_comes_back() -> None:
    disk, wal = await make()
    for _ in range(5):  # several laps: every unit holds something old
        offsets = await append_all(wal, [bytes(9000)] * 90)
        await wal.trim(offsets[-1])
    await append_all(wal, [b"live"] * 300)
    wal = await Wal.open(disk, PATH, owner=OWNER)
    disk.file.reads.clear()
    disk.file.read_error = OSError(5, "bad sector")
    before = wal.durable_offset
    first = await wal.reset()
    assert disk.file.reads == []
    assert first >= before + 2 * MIB
    assert wal.recovery is not None
    assert (wal.recovery.records, wal.recovery.resume) == (0, first)
    assert await append_all(wal, [b"after"]) == [first]
    again, found = await start(disk)
    assert found == [b"after"]
    assert again.recovery is not None
    assert again.recovery.holes == again.recovery.damage == ()


@as_scenario(run)
async def test_a_reset_is_beyond_what_a_lost_header_slot_allowed() -> None:
    """The newer slot let the ring go on for another lap, and then it was lost."""
    disk, wal = await make(128 << 10)
    await append_all(wal, [bytes(3000)] * 20)
    slots = bytes(disk.file.stable[:SLOTS])
    older = min((slots[:4096], slots[4096:]), key=lambda slot: unpack_wal_header(slot).sequence)
    last = (await append_all(wal, [bytes(3000)] * 5))[-1]
    await wal.trim(last)
    reach = max(await append_all(wal, [bytes(3000)] * 20))
    # Only what the header knew before the trim is left of it.
    stale = dataclasses.replace(unpack_wal_header(older), scan=0, trim=-1, durable=0, resume=0)
    disk.file.stable[:SLOTS] = pack_wal_header(stale).ljust(4096, b"\0") * 2
    wal = await Wal.open(disk, PATH, owner=OWNER)
    assert await wal.reset() > reach
    _, found = await start(disk)
    assert found == []


@as_scenario(run)
async def test_a_reset_is_refused_while_something_is_in_flight() -> None:
    disk, wal = await make()
    disk.file.by_hand = True
    done = wal.append([b"in flight"])[1]
    with pytest.raises(BadSetting, match="in flight"):
        await wal.reset()
    await asyncio.sleep(0)
    disk.file.end_all()
    await done
    resetting = asyncio.ensure_future(wal.reset())
    await asyncio.sleep(0)
    assert not resetting.done()
    disk.file.end_all()
    await resetting


@as_scenario(run)
async def test_no_reset_in_the_middle_of_a_recovery_or_after_close() -> None:
    disk, wal = await make()
    await append_all(wal, [b"x"] * 3)
    wal = await Wal.open(disk, PATH, owner=OWNER)
    records = wal.recover()
    await anext(records)
    with pytest.raises(Closed):
        await wal.reset()
    await records.aclose()
    await wal.close()
    with pytest.raises(Closed):
        await wal.reset()


@as_scenario(run)
async def test_a_reset_wal_is_not_recovered_any_more() -> None:
    disk, _ = await make()
    wal = await Wal.open(disk, PATH, owner=OWNER)
    await wal.reset()
    with pytest.raises(Closed):
        [item async for item in wal.recover()]


# ---- progress ----


@as_scenario(run)
async def test_a_recovery_tells_how_far_it_is() -> None:
    disk, wal = await make(32 * MIB)
    await append_all(wal, [bytes(100_000)] * 200)
    wal = await Wal.open(disk, PATH, owner=OWNER)
    told: list[WalProgress] = []
    found = [item async for item in wal.recover(told.append)]
    assert len(found) == 200
    assert len(told) >= 20
    for before, after in itertools.pairwise(told):
        assert before.scanned < after.scanned
        assert before.to_scan <= after.to_scan
        assert before.records <= after.records
    assert all(each.scanned <= each.to_scan for each in told)
    assert told[-1].records >= 190
    assert told[-1].bytes == told[-1].records * 100_000
    # Blocks with their headers and padding, and the last one's window not yet.
    assert 20_000_000 < told[-1].to_scan < 30 * MIB


def test_a_long_recovery_logs_its_progress(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        disk, wal = await make(32 * MIB)
        await append_all(wal, [bytes(100_000)] * 100)
        caplog.clear()
        wal = await Wal.open(disk, PATH, owner=OWNER)
        async for _ in wal.recover():
            await asyncio.sleep(0.6)  # a slow reader of records, or a slow disk

    run(scenario)
    lines = [each.getMessage() for each in caplog.records if "recovering" in each.getMessage()]
    assert 3 <= len(lines) <= 12
    assert re.search(r"recovering, \d+ of \d+ MiB gone through, \d+ live records", lines[0])


def test_a_short_recovery_logs_its_end_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        disk, wal = await make()
        await append_all(wal, [b"x"] * 100)
        caplog.clear()
        await start(disk)

    run(scenario)
    assert [each.getMessage().split(",")[0] for each in caplog.records] == ["wal: recovered"]
