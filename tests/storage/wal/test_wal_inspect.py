"""A WAL looked at from outside: crashed, damaged, in use; and never changed by it."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from made_blocks import run
from scenarios import as_scenario
from wal_memory_disk import MemoryDisk

from cordwood.errors import Malformed
from cordwood.host.read_only_file import ReadOnlyFile
from cordwood.host.real_disk import RealDisk
from cordwood.layout.wal_block import wal_position
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalBlank, WalFull, WalLimits
from cordwood.storage.wal.wal_inspect import NothingThere, Seen, SeenRecord, WalVerdict, WalView

OWNER = NodeId(7)
PATH = "wal"
SLOTS = 8192
MIB = 1 << 20


async def make(ring: int = MIB) -> tuple[MemoryDisk, Wal]:
    disk = MemoryDisk()
    await Wal.format(disk, PATH, SLOTS + ring, owner=OWNER)
    return disk, await start(disk)


async def start(disk: MemoryDisk) -> Wal:
    wal = await Wal.open(disk, PATH, owner=OWNER)
    async for _ in wal.recover():
        pass
    return wal


async def append_each(wal: Wal, bodies: list[bytes]) -> list[int]:
    """Each in a block of its own."""
    offsets = []
    for body in bodies:
        offset, done = wal.append([body])
        await done
        offsets.append(offset)
    return offsets


async def look(disk: MemoryDisk, at: int | None = None) -> list[Seen]:
    view = await WalView.open(disk.file, PATH)
    return [each async for each in view.records(at)]


async def check(disk: MemoryDisk) -> WalVerdict:
    return await (await WalView.open(disk.file, PATH)).check()


def kinds(seen: list[Seen]) -> list[str]:
    return [each.record.kind.name if isinstance(each, SeenRecord) else "nothing" for each in seen]


@as_scenario(run)
async def test_every_record_is_shown_where_it_stands() -> None:
    disk, wal = await make()
    bodies = [b"one", b"x" * 5000, b"three"]
    offsets = await append_each(wal, bodies)
    await wal.trim(offsets[0])
    seen = await look(disk)
    assert [each.body for each in seen if isinstance(each, SeenRecord)] == bodies
    assert [each.is_live for each in seen if isinstance(each, SeenRecord)] == [
        False,
        True,
        True,
    ]
    for each, body in zip(seen, bodies, strict=True):
        assert isinstance(each, SeenRecord)
        at = each.position + 40
        assert disk.file.stable[at : at + len(body)] == body
    assert [each.record.offset for each in await look(disk, offsets[1])] == offsets[1:]  # type: ignore[union-attr]
    verdict = await check(disk)
    assert (verdict.records, verdict.bytes, verdict.is_well) == (2, 5005, True)
    assert verdict.holes == verdict.bad_slots == ()


@as_scenario(run)
async def test_trimmed_records_are_found_from_an_earlier_offset() -> None:
    disk, wal = await make()
    offsets = await append_each(wal, [b"a", b"b", b"c"])
    await wal.trim(offsets[2])
    assert await look(disk) == []
    assert kinds(await look(disk, 0)) == ["DATA"] * 3


@as_scenario(run)
async def test_padding_holes_and_resume_records_are_shown() -> None:
    disk, wal = await make(128 << 10)
    live = await append_each(wal, [bytes(30_000)] * 3)
    await wal.trim(live[2])
    await append_each(wal, [bytes(49_000)])  # the tail of this lap is too short for it
    assert "PADDING" in kinds(await look(disk))
    disk.file.by_hand = True
    for size in (100, 200):
        wal.append([b"x" * size])
        await asyncio.sleep(0)
    disk.file.end(disk.file.pending[1])  # the second lands, the first does not
    disk.file.by_hand = False
    disk.file.pending.clear()
    seen = await look(disk)
    assert kinds(seen)[-2:] == ["nothing", "DATA"]
    hole = seen[-2]
    assert isinstance(hole, NothingThere)
    verdict = await check(disk)
    assert verdict.holes == ((hole.start, hole.stop),)
    assert verdict.is_well
    await append_each(await start(disk), [b"after"])
    assert kinds(await look(disk))[-2:] == ["RESUME", "DATA"]
    assert (await check(disk)).holes == ()


@as_scenario(run)
async def test_damage_is_told_and_the_rest_is_shown() -> None:
    disk, wal = await make()
    offsets = await append_each(wal, [bytes([number]) * 3000 for number in range(6)])
    ring = disk.file.size - SLOTS
    disk.file.stable[wal_position(offsets[1] + 1000, ring)] ^= 1  # a body
    disk.file.stable[wal_position(offsets[3] + 10, ring)] ^= 1  # a header
    before = bytes(disk.file.stable)
    seen = await look(disk)
    assert kinds(seen) == ["DATA", "DATA", "DATA", "nothing", "DATA", "DATA"]
    assert [isinstance(each, SeenRecord) and each.body is None for each in seen].index(True) == 1
    verdict = await check(disk)
    assert not verdict.is_well
    assert verdict.damage == ((offsets[1], offsets[2]), (offsets[3], offsets[4]))
    assert verdict.records == 4
    assert disk.file.stable == before
    assert disk.file.pending == []


@as_scenario(run)
async def test_one_bad_slot_is_told_and_two_are_refused() -> None:
    disk, wal = await make()
    await append_each(wal, [b"x"])
    disk.file.stable[20] ^= 1
    verdict = await check(disk)
    assert [number for number, _ in verdict.bad_slots] == [0]
    assert verdict.is_well
    disk.file.stable[4096 + 20] ^= 1
    with pytest.raises(Malformed, match=r"slot 0.*slot 1"):
        await WalView.open(disk.file, PATH)
    blank = await MemoryDisk().open_direct(PATH, create_bytes=MIB)
    with pytest.raises(WalBlank):
        await WalView.open(blank, PATH)


@as_scenario(run)
async def test_a_file_that_lost_its_end_is_not_well() -> None:
    disk, wal = await make()
    await append_each(wal, [b"x"] * 3)
    del disk.file.stable[-12_288:]
    verdict = await check(disk)
    assert verdict.missing_bytes == 12_288
    assert not verdict.is_well


class Moving:
    """A file under a writer: the tail that the first pass reads is not the second's."""

    def __init__(self, disk: MemoryDisk, before: bytes, reads_before: int) -> None:
        self._disk = disk
        self._before = before
        self._left = reads_before

    @property
    def size(self) -> int:
        return self._disk.file.size

    async def read(self, offset: int, length: int) -> bytes:
        self._left -= 1
        stable = self._before if self._left >= 0 else self._disk.file.stable
        return bytes(stable[offset : offset + length])


@as_scenario(run)
async def test_what_a_writer_changes_meanwhile_is_neither_hole_nor_damage() -> None:
    disk, wal = await make(16 * MIB)
    await append_each(wal, [bytes(240_000)] * 10)
    for_first_pass = bytearray(disk.file.stable)
    await append_each(wal, [bytes(240_000)] * 30)
    # The first pieces of 1 MiB are read before the later writes, the next after them.
    view = await WalView.open(Moving(disk, bytes(for_first_pass), 4), PATH)
    assert (await view._pass()).damage != ()
    view = await WalView.open(Moving(disk, bytes(for_first_pass), 4), PATH)
    verdict = await view.check()
    assert (verdict.damage, verdict.holes, verdict.records) == ((), (), 40)


def test_a_wal_that_is_written_round_and_round_is_well_all_the_time(tmp_path: Path) -> None:
    """A real file, direct writes, another thread that looks."""
    path = str(tmp_path / "wal")

    def look_once() -> WalVerdict:
        file = ReadOnlyFile(path)
        try:
            return asyncio.run(_checked(file))
        finally:
            file.close()

    async def _checked(file: ReadOnlyFile) -> WalVerdict:
        return await (await WalView.open(file, path)).check()

    async def scenario() -> None:
        disk = RealDisk()
        await Wal.format(disk, path, 2 * MIB, owner=OWNER)
        wal = await Wal.open(disk, path, owner=OWNER, limits=WalLimits(block_bytes=16_384))
        async for _ in wal.recover():
            pass
        chance = random.Random(1)
        live: list[int] = []
        looks = [asyncio.ensure_future(asyncio.to_thread(look_once))]
        while len(looks) < 40 or live[-1] < 6 * MIB:
            try:
                offset, done = wal.append([chance.randbytes(chance.randrange(20_000))])
            except WalFull:
                await wal.trim(live[len(live) // 2])
                del live[: len(live) // 2 + 1]
                continue
            live.append(offset)
            await done
            if looks[-1].done():
                looks.append(asyncio.ensure_future(asyncio.to_thread(look_once)))
        for verdict in await asyncio.gather(*looks):
            assert verdict.is_well, verdict
        assert live[-1] > 4 * MIB
        await wal.close()
        await disk.close()
        last = await asyncio.to_thread(look_once)
        assert last.header.graceful
        assert last.holes == ()
        assert last.records == len(live)

    asyncio.run(asyncio.wait_for(scenario(), 60))


# ---- the file itself ----


def test_a_read_only_file_gives_what_stands_there(tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 4096)
    (tmp_path / "f").write_bytes(data)
    file = ReadOnlyFile(str(tmp_path / "f"))
    assert file.size == len(data)
    assert asyncio.run(file.read(0, 4 * MIB)) == data
    assert asyncio.run(file.read(MIB, 8192)) == data[MIB : MIB + 8192]
    assert asyncio.run(file.read(4 * MIB, 4096)) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(file._fd, b"x", 0)
    file.close()
    file.close()


def test_a_bad_sector_reads_as_zeros_and_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(MIB)
    (tmp_path / "f").write_bytes(data)
    preadv, bad = os.preadv, range(40_960, 49_152)

    def failing(fd: int, views: list[Any], offset: int) -> int:
        length = len(views[0])
        if offset in bad:
            raise OSError(errno.EIO, "Input/output error")
        if offset < bad.start < offset + length:
            return preadv(fd, [views[0][: bad.start - offset]], offset)
        return preadv(fd, views, offset)

    monkeypatch.setattr(os, "preadv", failing)
    file = ReadOnlyFile(str(tmp_path / "f"))
    assert asyncio.run(file.read(0, MIB)) == data[:40_960] + bytes(8192) + data[49_152:]
    assert file.unreadable == {40_960, 45_056}
    file.close()


def test_a_small_device_like_file_is_not_read_past_its_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 5000)
    file = ReadOnlyFile(str(tmp_path / "f"))
    assert asyncio.run(file.read(0, 8192)) == b"x" * 5000
    file.close()
