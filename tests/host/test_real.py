"""What only the real host has: threads, descriptors, sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from scenarios import as_scenario, awaited_by

from cordwood.errors import BadSetting, Closed, Overloaded
from cordwood.host.direct_file import RealDirectFile
from cordwood.host.real import real_host
from cordwood.host.real_disk import RealDisk
from cordwood.host.real_network import RealNetwork
from cordwood.host.seams import DIRECT_OPS_IN_FLIGHT_MAX
from cordwood.host.threads import (
    CALLS_WAITING_MAX,
    YIELDING_NICE,
    BlockingPool,
    half_of_cores,
)

MIB = 1 << 20
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=sorted(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_it(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main)

    return run_it


class Quiet(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Future[asyncio.BaseTransport] = (
            asyncio.get_running_loop().create_future()
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport.set_result(transport)


def test_streams_do_not_wait_to_fill_a_packet(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def main() -> None:
        network = RealNetwork(has_unix_sockets=False)
        far = Quiet()
        listener = await network.listen("127.0.0.1:0", lambda: far)
        near = await network.connect(listener.address, Quiet, timeout_s=5)
        assert isinstance(near, Quiet)
        for transport in (await near.transport, await far.transport):
            connection = transport.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            transport.close()
        await listener.close()

    run(main())


def test_localhost_has_one_address(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def main() -> None:
        async with real_host() as host:
            far = Quiet()
            listener = await host.network.listen("localhost:0", lambda: far)
            near = await host.network.connect(listener.address, Quiet, timeout_s=5)
            assert isinstance(near, Quiet)
            for transport in (await near.transport, await far.transport):
                transport.close()
            await listener.close()

    run(main())


@as_scenario(awaited_by(asyncio.run))
async def test_buffered_files_keep_the_same_promises(*, tmp_path: Path) -> None:
    """A file system without O_DIRECT: buffered writes, each followed by a sync."""
    disk = RealDisk(writer_threads=2, use_direct=False)
    path = str(tmp_path / "ring")
    file = await disk.open_direct(path, create_bytes=8 * MIB)
    await asyncio.gather(*(file.write(n * 4096, [b"%d" % n]) for n in range(50)))
    assert await file.read(49 * 4096, 4096) == b"49".ljust(4096, b"\0")
    await disk.close()
    assert file.size == 8 * MIB


@as_scenario(awaited_by(asyncio.run))
async def test_a_new_ring_is_allocated_whole(*, tmp_path: Path) -> None:
    async with real_host() as host:
        path = str(tmp_path / "ring")
        await (await host.disk.open_direct(path, create_bytes=9 * MIB)).close()
        assert os.stat(path).st_blocks * 512 >= 9 * MIB
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@as_scenario(awaited_by(asyncio.run))
async def test_what_a_crash_left_half_made_is_not_seen_and_not_in_the_way(
    *, tmp_path: Path
) -> None:
    async with real_host() as host:
        (tmp_path / "ring.cordwood-new").write_bytes(b"half")
        assert await host.disk.list_dir(str(tmp_path)) == []
        path = str(tmp_path / "ring")
        file = await host.disk.open_direct(path, create_bytes=MIB)
        assert await file.read(0, 4096) == bytes(4096)
        assert os.listdir(tmp_path) == ["ring"]


@as_scenario(awaited_by(asyncio.run))
async def test_a_file_that_does_not_fit_leaves_nothing(*, tmp_path: Path) -> None:
    async with real_host() as host:
        path = str(tmp_path / "ring")
        with pytest.raises(OSError, match="ring"):
            await host.disk.open_direct(path, create_bytes=1 << 62)
        assert os.listdir(tmp_path) == []


@as_scenario(awaited_by(asyncio.run))
async def test_a_failed_write_says_which_file(*, tmp_path: Path) -> None:
    path = tmp_path / "ring"
    path.write_bytes(bytes(MIB))
    read_only = os.open(path, os.O_RDONLY)
    file = RealDirectFile(str(path), [(read_only, False)])
    with pytest.raises(OSError, match=str(path)):
        await file.write(0, [b"x"])
    assert await file.read(0, 4096) == bytes(4096)  # the thread lives on
    await file.close()


@as_scenario(awaited_by(asyncio.run))
async def test_a_part_that_is_no_buffer_fails_its_write_alone(*, tmp_path: Path) -> None:
    async with real_host() as host:
        file = await host.disk.open_direct(str(tmp_path / "ring"), create_bytes=MIB)
        with pytest.raises(TypeError):
            await file.write(0, ["text"])
        await file.write(0, [b"bytes"])


def test_a_cancelled_wait_leaves_the_file_working(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    async def main() -> None:
        async with real_host() as host:
            file = await host.disk.open_direct(str(tmp_path / "ring"), create_bytes=MIB)
            file.write(0, [b"written all the same"]).cancel()
            await file.close()
            again = await host.disk.open_direct(str(tmp_path / "ring"))
            assert (await again.read(0, 4096)).startswith(b"written all the same")

    run(main())


@as_scenario(awaited_by(asyncio.run))
async def test_operations_in_flight_are_bounded(*, tmp_path: Path) -> None:
    async with real_host() as host:
        file = await host.disk.open_direct(str(tmp_path / "ring"), create_bytes=MIB)
        writes = [file.write(0, [b"x"]) for _ in range(DIRECT_OPS_IN_FLIGHT_MAX)]
        with pytest.raises(Overloaded):
            file.write(0, [b"x"])
        await asyncio.gather(*writes)
        await file.write(0, [b"y"])


@as_scenario(awaited_by(asyncio.run))
async def test_leaving_the_host_closes_files_and_stops_threads(*, tmp_path: Path) -> None:
    async with real_host() as host:
        file = await host.disk.open_direct(str(tmp_path / "ring"), create_bytes=MIB)
        write = file.write(0, [b"x"])
    assert write.done()
    assert file.closed
    with pytest.raises(Closed):
        await host.disk.read_file(str(tmp_path / "ring"))
    with pytest.raises(Closed):
        await host.run_blocking(lambda: None, timeout_s=1)
    await host.close()


@as_scenario(awaited_by(asyncio.run))
async def test_open_files_come_back(*, tmp_path: Path) -> None:
    async with real_host() as host:
        path = str(tmp_path / "ring")
        await (await host.disk.open_direct(path, create_bytes=MIB)).close()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await (await host.disk.open_direct(path)).close()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_call_past_its_deadline_times_out_and_frees_the_caller(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def main() -> None:
        async with real_host() as host:
            go_on = threading.Event()
            with pytest.raises(TimeoutError):
                await host.run_blocking(go_on.wait, timeout_s=0.01)
            go_on.set()
            assert await host.run_blocking(lambda: "next", timeout_s=5) == "next"

    run(main())


@as_scenario(awaited_by(asyncio.run))
async def test_calls_that_wait_for_a_thread_are_bounded() -> None:
    pool = BlockingPool("test", 1)
    go_on = threading.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS_WAITING_MAX):
            group.create_task(pool(go_on.wait, timeout_s=30))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await pool(lambda: None, timeout_s=30)
        go_on.set()
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no priority for each thread")
def test_calculations_take_half_of_the_cores_and_yield_them(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    def priority() -> int:
        time.sleep(0.01)  # so that no thread takes two calls while another one is to begin
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def main() -> None:
        async with real_host() as host:
            usual = await host.run_blocking(priority, timeout_s=5)
            calls = [host.run_calculation(priority, timeout_s=5) for _ in range(8)]
            lowered = await asyncio.gather(*calls)
            assert {*lowered} == {max(usual, YIELDING_NICE)}
            names = [thread.name for thread in threading.enumerate()]
            begun = [name for name in names if name.startswith("cordwood-calculating")]
            assert len(begun) <= half_of_cores()
        with pytest.raises(Closed):
            await host.run_calculation(priority, timeout_s=5)

    run(main())


def test_a_disk_needs_a_thread() -> None:
    with pytest.raises(BadSetting):
        RealDisk(writer_threads=0)


@pytest.mark.parametrize("use_direct", [True, False])
def test_asking_for_direct_writes_leaves_no_file_and_raises_nothing(
    tmp_path: Path, use_direct: bool
) -> None:
    async def main() -> None:
        disk = RealDisk(use_direct=use_direct)
        try:
            told = await disk.takes_direct(str(tmp_path))
            assert told == (use_direct and takes_direct_at_all(tmp_path))
            assert not await disk.takes_direct(str(tmp_path / "not there"))
        finally:
            await disk.close()

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def takes_direct_at_all(directory: Path) -> bool:
    path = directory / "probe"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True
