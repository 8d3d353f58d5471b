"""The WAL where it may really lie: a raw device, a file, file systems without O_DIRECT."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scenarios import as_scenario, awaited_by

from cordwood.errors import BadSetting, Malformed, NotOurCluster, StoreInUse
from cordwood.host.real_disk import RealDisk
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalFull, WalNoSpace

OWNER = NodeId(9)
MIB = 1 << 20
CAPACITY = 2 * MIB
PLACE_BYTES = 3 * MIB

Require = Callable[[str, str], Any]


@dataclass(frozen=True)
class Place:
    """Where a WAL may lie.

    Attributes:
        path: of it; a device is there and blank, a file is not there yet.
        is_device: a device has its own size, whatever capacity is asked for.
    """

    path: str
    use_direct: bool = True
    is_device: bool = False

    def disk(self) -> RealDisk:
        """A disk that writes there."""
        return RealDisk(use_direct=self.use_direct)


@contextlib.contextmanager
def loop_device(image: Path, size: int, require: Require) -> Iterator[str]:
    """A block device over a file of zeros; a skip where none can be had."""
    losetup = shutil.which("losetup")
    if losetup is None or os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        require("loop", "a loop device takes root, losetup and /dev/loop-control")
    with image.open("wb") as file:
        file.truncate(size)
    made = subprocess.run(
        [str(losetup), "--find", "--show", "--direct-io=on", str(image)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        require("loop", f"losetup: {made.stderr.strip()}")
    path = made.stdout.strip()
    try:
        yield path
    finally:
        subprocess.run([str(losetup), "--detach", path], check=True, timeout=30)


@pytest.fixture
def device(tmp_path: Path, require: Require) -> Iterator[Place]:
    with loop_device(tmp_path / "image", PLACE_BYTES, require) as path:
        yield Place(path, is_device=True)


@pytest.fixture(params=["device", "file", "file without O_DIRECT", "tmpfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, require: Require) -> Iterator[Place]:
    if request.param == "device":
        yield request.getfixturevalue("device")
    elif request.param == "tmpfs":
        shm = Path("/dev/shm")
        if not shm.is_mount() or not os.access(shm, os.W_OK):
            require("tmpfs", "no tmpfs at /dev/shm")
        directory = shm / f"cordwood-test-{os.getpid()}"
        directory.mkdir()
        yield Place(str(directory / "wal"))
        shutil.rmtree(directory)
    else:
        yield Place(str(tmp_path / "wal"), use_direct=request.param == "file")


def test_records_come_back_life_after_life(place: Place) -> None:
    async def scenario() -> None:
        disk = place.disk()
        await Wal.format(disk, place.path, CAPACITY, owner=OWNER)
        await disk.close()
        chance = random.Random(1)
        kept: list[tuple[int, bytes]] = []
        for life in range(4):
            disk = place.disk()
            wal = await Wal.open(disk, place.path, owner=OWNER, capacity_bytes=CAPACITY)
            assert [item async for item in wal.recover()] == kept
            for number in range(60):
                body = chance.randbytes(chance.choice((1, 4056, 30_000, 300_000)))
                while True:
                    try:
                        offset, done = wal.append([body[:7], body[7:]])
                        break
                    except WalFull:
                        await wal.trim(kept[len(kept) // 2][0])
                        kept = kept[len(kept) // 2 + 1 :]
                kept.append((offset, body))
                if number % 5 == 0:
                    await done
            await done
            if life % 2:
                await wal.close()
            await disk.close()  # without it: as good as a kill
        assert kept[-1][0] > 2 * CAPACITY

    asyncio.run(asyncio.wait_for(scenario(), 60))


@as_scenario(awaited_by(asyncio.run))
async def test_what_does_not_fit_is_refused(*, place: Place) -> None:
    disk = place.disk()
    await Wal.format(disk, place.path, CAPACITY, owner=OWNER)
    with pytest.raises(BadSetting, match=r"not formatted again|does not fit"):
        await Wal.format(disk, place.path, CAPACITY, owner=OWNER)
    with pytest.raises(NotOurCluster, match="node 9, not of node 8"):
        await Wal.open(disk, place.path, owner=NodeId(8))
    with pytest.raises(BadSetting, match="cannot become"):
        await Wal.open(disk, place.path, owner=OWNER, capacity_bytes=2 * CAPACITY)
    await disk.close()


def test_a_larger_device_is_taken_and_a_smaller_one_is_not(
    device: Place, tmp_path: Path, require: Require
) -> None:
    async def scenario(small: str) -> None:
        disk = RealDisk()
        with pytest.raises(BadSetting, match=f"{device.path} has {PLACE_BYTES} bytes.*fit"):
            await Wal.format(disk, device.path, PLACE_BYTES + 4096, owner=OWNER)
        await Wal.format(disk, device.path, CAPACITY, owner=OWNER)
        wal = await Wal.open(disk, device.path, owner=OWNER)
        assert wal.capacity_bytes == CAPACITY  # a third of the device stays unused
        await wal.close()
        copy_start(device.path, small)
        with pytest.raises(BadSetting, match="part of it is missing"):
            await Wal.open(disk, small, owner=OWNER)
        await disk.close()

    with loop_device(tmp_path / "small", MIB, require) as small:
        asyncio.run(scenario(small))


def copy_start(source: str, target: str) -> None:
    """What fits of one device, onto a smaller one."""
    with open(source, "rb") as taken, open(target, "wb") as given:
        given.write(taken.read(MIB))


@as_scenario(awaited_by(asyncio.run))
async def test_a_device_is_taken_once(*, device: Place) -> None:
    disk = RealDisk()
    await Wal.format(disk, device.path, CAPACITY, owner=OWNER)
    wal = await Wal.open(disk, device.path, owner=OWNER)
    async for _ in wal.recover():
        pass
    with pytest.raises(StoreInUse, match=device.path):
        await Wal.open(disk, device.path, owner=OWNER)
    await wal.append([b"still ours"])[1]
    await wal.close()
    await (await Wal.open(disk, device.path, owner=OWNER)).close()
    await disk.close()


def test_a_device_that_holds_something_else_is_never_formatted(device: Place) -> None:
    with open(device.path, "r+b") as file:
        file.seek(65_536)
        file.write(b"_BHRfS_M")  # where btrfs has its magic

    async def scenario() -> None:
        disk = RealDisk()
        with pytest.raises(BadSetting, match="holds data already"):
            await Wal.format(disk, device.path, CAPACITY, owner=OWNER)
        with pytest.raises(Malformed, match="left as it is"):
            await Wal.open(disk, device.path, owner=OWNER)
        await disk.close()

    asyncio.run(scenario())


@pytest.fixture
def thin_file(tmp_path: Path, require: Require) -> Iterator[tuple[Path, Path]]:
    """A sparse file on a tmpfs that is too small for it, and a file to remove for room."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        require("mount", "a small file system takes root and mount")
    place = tmp_path / "thin"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        require("mount", f"mount: {mounted.stderr.strip()}")
    try:
        ballast = place / "ballast"
        ballast.write_bytes(bytes(MIB))
        thin = place / "wal"
        with thin.open("wb") as file:
            file.truncate(4 * MIB)
        yield thin, ballast
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=30)


def test_a_thin_disk_without_space_is_waited_out(thin_file: tuple[Path, Path]) -> None:
    """A real ENOSPC, into space that was promised and never allocated."""
    thin, ballast = thin_file

    async def scenario() -> None:
        disk = RealDisk()
        await Wal.format(disk, str(thin), 4 * MIB, owner=OWNER)
        wal = await Wal.open(disk, str(thin), owner=OWNER)
        async for _ in wal.recover():
            pass
        appended = [wal.append([bytes([number]) * 200_000]) for number in range(8)]
        last = appended[-1][1]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.shield(last)
        assert not last.done()
        with pytest.raises(WalNoSpace):
            wal.append([b"refused"])
        ballast.unlink()
        await asyncio.wait_for(last, 5)
        await wal.append([b"after"])[1]
        await disk.close()
        disk = RealDisk()
        again = await Wal.open(disk, str(thin), owner=OWNER)
        found = [body async for _, body in again.recover()]
        assert found == [bytes([number]) * 200_000 for number in range(8)] + [b"after"]
        await disk.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
