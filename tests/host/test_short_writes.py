"""Writes that the kernel cuts short: finished from the last whole block, or failed."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scenarios import as_scenario, awaited_by

from cordwood.host.real_disk import RealDisk
from cordwood.nodes import NodeId
from cordwood.storage.wal.delta_wal import Wal, WalFailed

MIB = 1 << 20
PWRITEV = os.pwritev


def cut_at(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> list[tuple[int, int]]:
    """Let the kernel take no more than `counts` of the next calls; offset and length of each."""
    calls: list[tuple[int, int]] = []

    def pwritev(fd: int, views: list[memoryview], offset: int, *rest: Any) -> int:
        (view,) = views
        calls.append((offset, len(view)))
        if not counts:
            return PWRITEV(fd, [view], offset, *rest)
        taken = view[: counts.pop(0)]
        whole = taken[: len(taken) // 512 * 512]
        # A real one ends with a sector; what lies in the last, torn one is not told.
        return PWRITEV(fd, [whole], offset, *rest) and len(taken) if whole else 0

    monkeypatch.setattr(os, "pwritev", pwritev)
    return calls


@pytest.mark.parametrize(
    ("counts", "offsets"),
    [
        ([4096], [0, 4096]),
        ([4608], [0, 4096]),
        ([12_288, 512 + 8192], [0, 12_288, 20_480]),
        ([8191], [0, 4096]),
    ],
)
@as_scenario(awaited_by(asyncio.run))
async def test_a_write_cut_short_goes_on_at_a_whole_block(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], offsets: list[int]
) -> None:
    disk = RealDisk(use_kernel_aio=False)
    file = await disk.open_direct(str(tmp_path / "ring"), create_bytes=MIB)
    data = os.urandom(32_768)
    calls = cut_at(monkeypatch, counts)
    await file.write(0, [data])
    assert [offset for offset, _ in calls] == offsets
    assert all(offset + length == 32_768 for offset, length in calls)
    assert await file.read(0, 32_768) == data
    await disk.close()


@pytest.mark.parametrize("count", [0, 512, 4095])
@as_scenario(awaited_by(asyncio.run))
async def test_a_write_that_does_not_finish_a_block_fails(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    disk = RealDisk(use_kernel_aio=False)
    file = await disk.open_direct(str(tmp_path / "ring"), create_bytes=MIB)
    cut_at(monkeypatch, [count])
    with pytest.raises(OSError, match=f"wrote {count} bytes of a block") as raised:
        await file.write(0, [b"x"])
    assert raised.value.errno == errno.EIO
    await file.write(0, [b"the thread lives on"])
    await disk.close()


@pytest.fixture
def file_size_limit() -> Iterator[None]:
    """A limit on file sizes, which cuts a write that crosses it and fails the next."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("file_size_limit")
@pytest.mark.parametrize("use_kernel_aio", [True, False])
@as_scenario(awaited_by(asyncio.run))
async def test_a_wal_whose_write_was_cut_and_then_refused_acknowledges_nothing(
    *, tmp_path: Path, use_kernel_aio: bool
) -> None:
    """No mock: the kernel takes the first half of the block and refuses the second."""
    disk, path = RealDisk(use_kernel_aio=use_kernel_aio), str(tmp_path / "wal")
    await Wal.format(disk, path, 2 * MIB, owner=NodeId(1))
    wal = await Wal.open(disk, path, owner=NodeId(1))
    async for _ in wal.recover():
        pass
    await wal.append([b"durable"])[1]
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, hard))
    cut = wal.append([os.urandom(500_000)])[1]
    with pytest.raises(WalFailed, match="File too large"):
        await cut
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    with pytest.raises(WalFailed):
        wal.append([b"x"])
    await wal.close()
    wal = await Wal.open(disk, path, owner=NodeId(1))
    assert [body async for _, body in wal.recover()] == [b"durable"]
    assert wal.recovery is not None
    assert wal.recovery.damage == ()
    await disk.close()
