"""One contract suite for the three seams, run on the real host and on the simulated one.

Every promise of `host/seams.py` that both keep is here once; what only one of
them has (threads, faults) is tested beside it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from scenarios import as_scenario

from cordwood.errors import BadSetting, Closed, StoreInUse, Unreachable
from cordwood.host.real import real_host
from cordwood.host.real_network import RealNetwork
from cordwood.host.seams import (
    DIRECT_WRITE_BYTES_MAX,
    DISK_BLOCK_BYTES,
    Host,
    Network,
    Transport,
)
from cordwood.host.shortcut_network import ShortcutNetwork
from cordwood.sim.host import Simulation
from cordwood.sim.links import LinkSettings

MIB = 1 << 20
YEAR_2020_US = 1_577_836_800 * 1_000_000


@dataclass(frozen=True)
class Stage:
    """What a contract test plays on: one host, a directory of its own, and an address."""

    host: Host
    directory: str
    bind: str

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"


Act = Callable[[Stage], Awaitable[None]]
Play = Callable[[Act], None]


def play_real(
    act: Act,
    tmp_path: Path,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    *,
    shortcut: bool = False,
    has_unix_sockets: bool = True,
) -> None:
    async def main() -> None:
        async with real_host(seed=1) as real, asyncio.timeout(30):
            network: Network = RealNetwork(has_unix_sockets=has_unix_sockets)
            if shortcut:
                network = ShortcutNetwork(network)
            host = dataclasses.replace(real, network=network)
            await act(Stage(host, str(tmp_path), "127.0.0.1:0"))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


SIM_SEEDS = ("sim 1", "sim 2", "sim 3")
"""Each seed is another schedule, other delays and other cuts of the byte streams."""


def play_simulated(act: Act, seed: int) -> None:
    async def main(host: Host) -> None:
        await host.disk.make_dir("/data")
        async with asyncio.timeout(30):
            await act(Stage(host, "/data", "node:0"))

    async def scenario(simulation: Simulation) -> None:
        await simulation.machine("node").start(main)

    link = LinkSettings(split_chance=0.3, slow_chance=0.1, loss_chance=0.02)
    simulation = Simulation(seed, link=link)
    simulation.run(scenario)
    assert simulation.loop.unhandled == []


@pytest.fixture(params=["asyncio", "uvloop", "asyncio tcp", "uvloop tcp", "shortcut", *SIM_SEEDS])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    if request.param in SIM_SEEDS:
        return lambda act: play_simulated(act, int(request.param.removeprefix("sim ")))
    loop, _, way = request.param.partition(" ")
    factory = asyncio.new_event_loop if loop == "asyncio" else uvloop.new_event_loop
    return lambda act: play_real(
        act, tmp_path, factory, shortcut=loop == "shortcut", has_unix_sockets=way != "tcp"
    )


class Recorder(asyncio.Protocol):
    """A stream handler that remembers what it was told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received = bytearray()
        self.lost_with: Exception | None = None
        self.changed = asyncio.Event()

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.changed.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Transport = transport
        self.note("made")

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        assert data
        self.received += data
        self.note("data")

    def eof_received(self) -> bool | None:
        self.note("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with = exc
        self.note("lost")

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def until_call(self, call: str) -> None:
        await self.until(lambda: call in self.calls)


async def connected(stage: Stage, kind: type[Recorder] = Recorder) -> tuple[Recorder, Recorder]:
    """One connection: the connecting side's handler and the accepting side's."""
    far = kind()
    listener = await stage.host.network.listen(stage.bind, lambda: far)
    near = await stage.host.network.connect(listener.address, kind, timeout_s=5)
    assert isinstance(near, Recorder)
    await far.until_call("made")
    await listener.close()
    return near, far


async def settle() -> None:
    """Let what is under way between two connected handlers arrive, if it can."""
    for _ in range(3):
        await asyncio.sleep(0.01)


# ---- clock and chance ----


@as_scenario("play")
async def test_clock_counts_microseconds_since_1970(stage: Stage) -> None:
    now = stage.host.clock.now_us()
    assert isinstance(now, int)
    assert now > YEAR_2020_US


def test_chance_is_fixed_by_the_seed(play: Play) -> None:
    drawn: list[list[float]] = []

    async def act(stage: Stage) -> None:
        drawn.append([stage.host.random.random() for _ in range(5)])

    play(act)
    play(act)
    assert drawn[0] == drawn[1]


# ---- blocking calls ----


@as_scenario("play")
async def test_run_blocking_returns_what_the_function_returns(stage: Stage) -> None:
    assert await stage.host.run_blocking(lambda: 41 + 1, timeout_s=5) == 42


@as_scenario("play")
async def test_run_blocking_raises_what_the_function_raises(stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError):
        await stage.host.run_blocking(lambda: 1 // 0, timeout_s=5)


# ---- network ----


@as_scenario("play")
async def test_listen_tells_the_port_it_took(stage: Stage) -> None:
    listener = await stage.host.network.listen(stage.bind, Recorder)
    host, _, port = listener.address.rpartition(":")
    assert host == stage.bind.rpartition(":")[0]
    assert int(port) > 0
    await listener.close()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:70000", "::1:80"])
@as_scenario("play")
async def test_a_bad_address_is_refused(stage: Stage, *, address: str) -> None:
    with pytest.raises(BadSetting, match="address"):
        await stage.host.network.listen(address, Recorder)
    with pytest.raises(BadSetting, match="address"):
        await stage.host.network.connect(address, Recorder, timeout_s=5)


@as_scenario("play")
async def test_a_taken_address_is_refused_by_name(stage: Stage) -> None:
    listener = await stage.host.network.listen(stage.bind, Recorder)
    with pytest.raises(BadSetting, match=listener.address):
        await stage.host.network.listen(listener.address, Recorder)
    await listener.close()
    again = await stage.host.network.listen(listener.address, Recorder)
    await again.close()


@as_scenario("play")
async def test_connect_where_nobody_listens_is_unreachable(stage: Stage) -> None:
    listener = await stage.host.network.listen(stage.bind, Recorder)
    await listener.close()
    with pytest.raises(Unreachable, match=listener.address):
        await stage.host.network.connect(listener.address, Recorder, timeout_s=5)


@as_scenario("play")
async def test_connect_returns_a_handler_that_was_told(stage: Stage) -> None:
    listener = await stage.host.network.listen(stage.bind, Recorder)
    handler = await stage.host.network.connect(listener.address, Recorder, timeout_s=5)
    assert isinstance(handler, Recorder)
    assert handler.calls == ["made"]
    handler.transport.close()
    await handler.until_call("lost")
    await listener.close()


@as_scenario("play")
async def test_bytes_arrive_whole_and_in_order_both_ways(stage: Stage) -> None:
    near, far = await connected(stage)
    sent = bytes(range(251)) * 6000  # a prime period, so that a shift shows
    for start in range(0, len(sent), 100_000):
        near.transport.writelines([sent[start : start + 7], sent[start + 7 : start + 100_000]])
    far.transport.writelines([b"hello ", memoryview(b"there"), bytearray(b"!")])
    await far.until(lambda: len(far.received) >= len(sent))
    await near.until(lambda: len(near.received) >= 12)
    assert far.received == sent
    assert near.received == b"hello there!"
    near.transport.close()
    await far.until_call("lost")


@as_scenario("play")
async def test_close_sends_what_is_queued_and_both_sides_hear_of_it(stage: Stage) -> None:
    near, far = await connected(stage)
    near.transport.writelines([bytes(3 * MIB)])
    near.transport.close()
    assert near.transport.is_closing()
    await near.until_call("lost")
    await far.until_call("lost")
    assert len(far.received) == 3 * MIB
    assert far.calls[-2:] == ["eof", "lost"]
    assert (near.lost_with, far.lost_with) == (None, None)
    assert far.transport.is_closing()
    assert (near.calls.count("lost"), far.calls.count("lost")) == (1, 1)


@as_scenario("play")
async def test_abort_drops_what_is_queued(stage: Stage) -> None:
    near, far = await connected(stage)
    far.transport.pause_reading()
    near.transport.writelines([bytes(16 * MIB)])
    near.transport.abort()
    assert near.transport.is_closing()
    assert "lost" not in near.calls  # told later, never from inside the call
    await near.until_call("lost")
    assert near.lost_with is None
    far.transport.resume_reading()
    await far.until_call("lost")
    assert len(far.received) < 16 * MIB
    assert (near.calls.count("lost"), far.calls.count("lost")) == (1, 1)


@as_scenario("play")
async def test_closing_twice_and_aborting_a_closed_one_do_nothing_more(stage: Stage) -> None:
    near, far = await connected(stage)
    near.transport.close()
    near.transport.close()
    near.transport.abort()
    await near.until_call("lost")
    near.transport.close()
    near.transport.abort()
    await far.until_call("lost")
    await settle()
    assert near.calls == ["made", "lost"]


@as_scenario("play")
async def test_writing_to_a_connection_that_is_gone_does_nothing(stage: Stage) -> None:
    near, far = await connected(stage)
    near.transport.close()
    near.transport.writelines([b"late"])
    await far.until_call("lost")
    assert far.received == b""
    far.transport.writelines([b"later"])
    await near.until_call("lost")
    near.transport.writelines([b"latest"])
    await settle()
    assert near.received == b""


class Placing(Recorder):
    """A handler that has a place for so many bytes after the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.place: memoryview | None = None
        self.filled = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.place is None:
            self.place = memoryview(bytearray(100_000))

    def receive_into(self) -> memoryview | None:
        if self.place is None or self.filled == len(self.place):
            return None
        return self.place[self.filled :]

    def placed(self, count: int) -> None:
        self.filled += count
        self.note("placed")


@as_scenario("play")
async def test_bytes_are_put_where_the_handler_says_or_told_in_order(stage: Stage) -> None:
    near, far = await connected(stage, Placing)
    assert isinstance(far, Placing)
    near.transport.writelines([b"x"])
    await far.until_call("data")
    sent = bytes(number % 251 for number in range(300_000))
    for at in range(0, len(sent), 70_000):
        near.transport.writelines([sent[at : at + 70_000]])
        await asyncio.sleep(0)
    await far.until(lambda: len(far.received) + far.filled == 1 + len(sent))
    assert far.place is not None
    # What has a place may be told all the same (see `DirectReceiver`); nothing else may.
    assert far.filled in (0, 100_000)
    placed = bytes(far.place[: far.filled])
    assert far.received[1:] in (sent[len(placed) :], sent)
    assert placed == sent[: len(placed)]
    near.transport.close()
    await far.until_call("lost")


@as_scenario("play")
async def test_back_pressure_pauses_and_resumes_the_writer(stage: Stage) -> None:
    near, far = await connected(stage)
    far.transport.pause_reading()
    near.transport.writelines([bytes(32 * MIB)])
    assert near.calls == ["made", "pause"]
    await settle()
    assert near.transport.get_write_buffer_size() > 64 << 10
    assert near.calls == ["made", "pause"]
    far.transport.resume_reading()
    await near.until_call("resume")
    assert near.transport.get_write_buffer_size() <= 16 << 10
    await far.until(lambda: len(far.received) == 32 * MIB)
    near.transport.close()
    await far.until_call("lost")


@as_scenario("play")
async def test_paused_reading_hears_nothing_until_resumed(stage: Stage) -> None:
    near, far = await connected(stage)
    far.transport.pause_reading()
    near.transport.writelines([b"wait"])
    await settle()
    assert far.calls == ["made"]
    far.transport.resume_reading()
    await far.until(lambda: far.received == b"wait")
    near.transport.close()
    await far.until_call("lost")


@as_scenario("play")
async def test_a_closed_listener_leaves_its_connections(stage: Stage) -> None:
    near, far = await connected(stage)  # closes its listener
    near.transport.writelines([b"still here"])
    await far.until(lambda: far.received == b"still here")
    near.transport.close()
    await far.until_call("lost")


class Exploding(Recorder):
    def data_received(self, data: bytes) -> None:
        raise RuntimeError("boom")


@as_scenario("play")
async def test_a_handler_that_raises_loses_its_connection_and_is_reported(stage: Stage) -> None:
    reported: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context.get("exception"))
    )
    near, far = await connected(stage, Exploding)
    near.transport.writelines([b"fuse"])
    await far.until_call("lost")
    await near.until_call("lost")
    assert isinstance(far.lost_with, RuntimeError)
    assert reported == [far.lost_with]


# ---- direct files ----


def block(filler: str, count: int = 1) -> bytes:
    return filler.encode() * (DISK_BLOCK_BYTES * count // len(filler))


@as_scenario("play")
async def test_a_new_direct_file_is_zeros(stage: Stage) -> None:
    path = stage.path("ring")
    file = await stage.host.disk.open_direct(path, create_bytes=5 * MIB)
    assert file.size == 5 * MIB
    assert await file.read(0, 5 * MIB) == bytes(5 * MIB)
    await file.close()
    assert await stage.host.disk.list_dir(stage.directory) == ["ring"]


@as_scenario("play")
async def test_written_blocks_are_there_after_reopening(stage: Stage) -> None:
    path = stage.path("ring")
    file = await stage.host.disk.open_direct(path, create_bytes=MIB)
    await file.write(8192, [b"one", memoryview(b"two"), bytearray(b"three")])
    await file.close()
    again = await stage.host.disk.open_direct(path)
    assert again.size == MIB
    read = await again.read(4096, 3 * 4096)
    assert read == bytes(4096) + b"onetwothree".ljust(4096, b"\0") + bytes(4096)
    await again.close()


@as_scenario("play")
async def test_padding_replaces_what_the_block_held(stage: Stage) -> None:
    file = await stage.host.disk.open_direct(stage.path("ring"), create_bytes=MIB)
    await file.write(0, [block("gone", 2)])
    await file.write(0, [b"new"])
    assert await file.read(0, 8192) == b"new".ljust(4096, b"\0") + block("gone", 2)[4096:]
    await file.close()


@as_scenario("play")
async def test_many_writes_in_flight_all_land(stage: Stage) -> None:
    file = await stage.host.disk.open_direct(stage.path("ring"), create_bytes=MIB)
    writes = [file.write(n * 4096, [bytes([n]) * (4000 + n % 96)]) for n in range(200)]
    await asyncio.gather(*writes)
    for n in (0, 1, 99, 199):
        expected = (bytes([n]) * (4000 + n % 96)).ljust(4096, b"\0")
        assert await file.read(n * 4096, 4096) == expected
    await file.close()


@as_scenario("play")
async def test_the_largest_write_fits_and_a_larger_one_is_refused(stage: Stage) -> None:
    path = stage.path("ring")
    file = await stage.host.disk.open_direct(path, create_bytes=2 * DIRECT_WRITE_BYTES_MAX)
    await file.write(4096, [b"x" * DIRECT_WRITE_BYTES_MAX])
    assert (await file.read(4096, DIRECT_WRITE_BYTES_MAX)).count(b"x") == DIRECT_WRITE_BYTES_MAX
    with pytest.raises(BadSetting, match=path):
        file.write(0, [bytes(DIRECT_WRITE_BYTES_MAX), b"+"])
    await file.close()


@pytest.mark.parametrize(
    ("offset", "length"), [(-4096, 10), (1, 10), (512, 4096), (0, 0), (MIB, 1), (MIB - 4096, 4097)]
)
@as_scenario("play")
async def test_a_write_outside_whole_blocks_of_the_file_is_refused(
    stage: Stage, *, offset: int, length: int
) -> None:
    path = stage.path("ring")
    file = await stage.host.disk.open_direct(path, create_bytes=MIB)
    with pytest.raises(BadSetting, match=path):
        file.write(offset, [bytes(length)])
    await file.close()


@as_scenario("play")
async def test_a_read_is_short_only_where_the_file_ends(stage: Stage) -> None:
    file = await stage.host.disk.open_direct(stage.path("ring"), create_bytes=MIB)
    assert await file.read(MIB - 8192, 64 * 4096) == bytes(8192)
    assert await file.read(MIB, 4096) == b""
    assert await file.read(2 * MIB, 4096) == b""
    with pytest.raises(BadSetting):
        await file.read(0, 100)
    await file.close()


@as_scenario("play")
async def test_close_waits_for_writes_and_ends_the_file(stage: Stage) -> None:
    path = stage.path("ring")
    file = await stage.host.disk.open_direct(path, create_bytes=MIB)
    write = file.write(0, [b"last words"])
    await file.close()
    assert write.done()
    await file.close()
    with pytest.raises(Closed, match=path):
        file.write(0, [b"x"])
    with pytest.raises(Closed, match=path):
        await file.read(0, 4096)


@as_scenario("play")
async def test_direct_files_are_made_once(stage: Stage) -> None:
    path = stage.path("ring")
    with pytest.raises(FileNotFoundError, match=path):
        await stage.host.disk.open_direct(path)
    await (await stage.host.disk.open_direct(path, create_bytes=MIB)).close()
    with pytest.raises(FileExistsError, match=path):
        await stage.host.disk.open_direct(path, create_bytes=MIB)


@as_scenario("play")
async def test_two_makers_of_one_direct_file_make_one(stage: Stage) -> None:
    disk, path = stage.host.disk, stage.path("ring")
    made = await asyncio.gather(
        *(disk.open_direct(path, create_bytes=size * MIB) for size in (1, 2, 3)),
        return_exceptions=True,
    )
    (file,) = [one for one in made if not isinstance(one, BaseException)]
    assert [type(one) for one in made].count(FileExistsError) == 2
    assert await file.read(0, 4 * MIB) == bytes(file.size)
    await file.close()


@as_scenario("play")
async def test_a_direct_file_needs_its_directory_and_whole_blocks(stage: Stage) -> None:
    with pytest.raises(FileNotFoundError, match="absent/ring"):
        await stage.host.disk.open_direct(stage.path("absent/ring"), create_bytes=MIB)
    for size in (0, 100, -4096):
        with pytest.raises(BadSetting, match="ring"):
            await stage.host.disk.open_direct(stage.path("ring"), create_bytes=size)
    with pytest.raises(IsADirectoryError, match=stage.directory):
        await stage.host.disk.open_direct(stage.directory)


# ---- small files and directories ----


@as_scenario("play")
async def test_small_files_are_replaced_whole(stage: Stage) -> None:
    disk, path = stage.host.disk, stage.path("identity")
    assert await disk.read_file(path) is None
    await disk.write_file(path, b"first")
    await disk.write_file(path, b"2nd")
    assert await disk.read_file(path) == b"2nd"
    assert await disk.list_dir(stage.directory) == ["identity"]


@as_scenario("play")
async def test_writers_of_one_small_file_do_not_mix(stage: Stage) -> None:
    disk, path = stage.host.disk, stage.path("identity")
    whole = [bytes([n]) * 10_000 for n in range(8)]
    await asyncio.gather(*(disk.write_file(path, data) for data in whole))
    assert await disk.read_file(path) in whole


@as_scenario("play")
async def test_errors_name_the_path(stage: Stage) -> None:
    disk, path = stage.host.disk, stage.path("absent/file")
    with pytest.raises(FileNotFoundError, match="absent/file"):
        await disk.write_file(path, b"data")
    assert await disk.read_file(path) is None
    with pytest.raises(IsADirectoryError, match=stage.directory):
        await disk.read_file(stage.directory)
    with pytest.raises(FileNotFoundError, match="absent"):
        disk.lock_dir(stage.path("absent"), "nobody")


@as_scenario("play")
async def test_directories_are_made_with_their_parents(stage: Stage) -> None:
    disk = stage.host.disk
    await disk.make_dir(stage.path("a/b/c"))
    await disk.make_dir(stage.path("a/b/c"))
    await disk.write_file(stage.path("a/z"), b"")
    await disk.write_file(stage.path("a/10"), b"")
    assert await disk.list_dir(stage.path("a")) == ["10", "b", "z"]
    assert await disk.list_dir(stage.path("a/b/c")) == []
    assert await disk.list_dir(stage.path("nowhere")) == []


@as_scenario("play")
async def test_a_file_is_not_a_directory(stage: Stage) -> None:
    disk, path = stage.host.disk, stage.path("file")
    await disk.write_file(path, b"")
    with pytest.raises(NotADirectoryError, match=path):
        await disk.list_dir(path)
    with pytest.raises(NotADirectoryError, match=path):
        await disk.make_dir(f"{path}/below")
    with pytest.raises(FileExistsError, match=path):
        await disk.make_dir(path)


@as_scenario("play")
async def test_a_directory_is_locked_once(stage: Stage) -> None:
    disk = stage.host.disk
    lock = disk.lock_dir(stage.directory, "node 3 (pid 77)")
    with pytest.raises(StoreInUse, match=r"node 3 \(pid 77\)"):
        disk.lock_dir(stage.directory, "node 4")
    assert await disk.read_file(stage.path("lock")) == b"node 3 (pid 77)"
    lock.release()
    lock.release()
    again = disk.lock_dir(stage.directory, "n")
    assert await disk.read_file(stage.path("lock")) == b"n"
    again.release()


@as_scenario("play")
async def test_paths_are_taken_as_the_system_takes_them(stage: Stage) -> None:
    disk = stage.host.disk
    await disk.write_file(stage.path("x"), b"1")
    assert await disk.read_file(os.path.join(stage.directory, ".", "x")) == b"1"
    assert await disk.list_dir(stage.directory + "/") == ["x"]
