"""Writes by the kernel itself: the same promises as by threads, and no thread between."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from scenarios import as_scenario, awaited_by

from cordwood.host import direct_file
from cordwood.host.kernel_aio import AioUnavailable, KernelAio
from cordwood.host.real_disk import RealDisk

MIB = 1 << 20
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture
def ring(tmp_path: Path) -> str:
    """A file of a MiB; the test is skipped where the kernel would not write to it."""
    path = str(tmp_path / "ring")

    async def make() -> None:
        disk = RealDisk()
        file = await disk.open_direct(path, create_bytes=MIB)
        has_aio = file._aio is not None
        await disk.close()
        if not has_aio:
            pytest.skip("no O_DIRECT here, or no io_submit")

    asyncio.run(make())
    return path


@pytest.mark.parametrize("make_loop", LOOPS)
def test_writes_end_in_place_and_more_than_the_kernel_takes_go_by_threads(
    ring: str, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario() -> None:
        disk = RealDisk()
        file = await disk.open_direct(ring)
        data = [os.urandom(3000 + 97 * n) for n in range(64)]
        await asyncio.gather(
            *(file.write(n * 16_384, [each[:700], each[700:]]) for n, each in enumerate(data))
        )
        for n, each in enumerate(data):
            assert await file.read(n * 16_384, 16_384) == each.ljust(16_384, b"\0")
        await disk.close()
        assert file.closed

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(scenario())


@as_scenario(awaited_by(asyncio.run))
async def test_the_buffer_may_change_as_soon_as_a_write_was_begun(*, ring: str) -> None:
    disk = RealDisk()
    file = await disk.open_direct(ring)
    part = bytearray(b"a" * 4096)
    done = file.write(0, [part])
    part[:] = b"b" * 4096
    await done
    assert await file.read(0, 4096) == b"a" * 4096
    await disk.close()


def test_a_write_that_nobody_waits_for_any_more_ends_all_the_same(ring: str) -> None:
    async def scenario() -> None:
        disk = RealDisk()
        file = await disk.open_direct(ring)
        done = file.write(0, [b"x" * MIB])
        done.cancel()
        await file.close()
        await disk.close()

    asyncio.run(scenario())
    assert Path(ring).read_bytes() == b"x" * MIB


@as_scenario(awaited_by(asyncio.run))
async def test_what_is_no_buffer_fails_alone(*, ring: str) -> None:
    disk = RealDisk()
    file = await disk.open_direct(ring)
    part = memoryview(b"gone")
    parts = [part]
    with pytest.raises(TypeError):
        await file.write(0, ["text"])  # type: ignore[list-item]
    part.release()
    with pytest.raises(ValueError, match="released"):
        await file.write(0, parts)
    await file.write(0, [b"goes on"])
    await disk.close()


@as_scenario(awaited_by(asyncio.run))
async def test_what_the_kernel_says_of_a_write_is_its_error(*, ring: str) -> None:
    """A descriptor that may not be written to: the kernel says so at once."""
    fd = os.open(ring, os.O_RDONLY | os.O_DIRECT)
    aio = KernelAio(fd, 2)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        aio.write(0, 4096, [b"x"], lambda result: None)
    assert raised.value.errno == errno.EBADF
    assert aio.in_flight == 0
    aio.close()


def test_threads_write_where_the_kernel_grants_no_more(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, depth: int) -> KernelAio:
        raise AioUnavailable("io_setup: all of aio-max-nr are in use")

    async def scenario() -> None:
        disk = RealDisk()
        file = await disk.open_direct(ring)
        await file.write(0, [b"by a thread"])
        assert (await file.read(0, 4096)).startswith(b"by a thread")
        await disk.close()

    monkeypatch.setattr(direct_file, "KernelAio", refuse)
    asyncio.run(scenario())
    assert not [t for t in threading.enumerate() if t.name.startswith("cordwood-write")]


@as_scenario(awaited_by(asyncio.run))
async def test_whoever_is_told_of_the_last_end_may_close(*, ring: str) -> None:
    """A file that was told of its last write did not close: that write still counted."""
    fd = os.open(ring, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
    aio = KernelAio(fd, 2)
    os.close(fd)
    closed = asyncio.get_running_loop().create_future()

    def on_ended(result: int) -> None:
        assert result == 4096
        if not aio.in_flight:
            aio.close()
            closed.set_result(None)

    aio.write(0, 4096, [b"x"], on_ended)
    aio.write(4096, 4096, [b"y"], on_ended)
    async with asyncio.timeout(60):
        await closed
