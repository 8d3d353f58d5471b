"""The simulated disk: what a kill, a power cut and each fault leave."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from scenarios import as_scenario

from cordwood.errors import StoreInUse
from cordwood.host.seams import Host
from cordwood.sim.disk import DiskSettings
from cordwood.sim.host import SimMachine, Simulation
from cordwood.sim.stored_file import SECTOR_BYTES, StoredFile, torn
from cordwood.sim.stored_tree import StoredTree

BLOCK = 4096
MIB = 1 << 20
FOREVER_S = 10_000.0
Act = Callable[[Host], Coroutine[Any, Any, None]]


def on_machine(
    scenario: Callable[[SimMachine], Awaitable[None]],
    seed: int = 1,
    settings: DiskSettings | None = None,
) -> Simulation:
    async def run(simulation: Simulation) -> None:
        await scenario(simulation.machine("m"))

    simulation = Simulation(seed, disk=settings)
    simulation.run(run)
    assert simulation.loop.unhandled == []
    return simulation


def in_process(act: Act, seed: int = 1, settings: DiskSettings | None = None) -> Simulation:
    async def scenario(machine: SimMachine) -> None:
        await machine.start(act)

    return on_machine(scenario, seed, settings)


async def read_back(machine: SimMachine, path: str, offset: int, length: int) -> bytes:
    read: list[bytes] = []

    async def look(host: Host) -> None:
        file = await host.disk.open_direct(path)
        read.append(await file.read(offset, length))

    await machine.start(look)
    machine.kill()
    return read[0]


def writer(blocks: int, in_flight: asyncio.Event | None = None) -> Act:
    """Makes /ring and writes that many blocks of "o" at 0, then of "n".

    Ends when all is written; or, with an event, sets it when the "n" are in flight
    and stays.
    """

    async def act(host: Host) -> None:
        file = await host.disk.open_direct("/ring", create_bytes=MIB)
        await file.write(0, [b"o" * BLOCK * blocks])
        write = file.write(0, [b"n" * BLOCK * blocks])
        if in_flight is None:
            await write
        else:
            in_flight.set()
            await asyncio.sleep(FOREVER_S)

    return act


async def start_writing(machine: SimMachine, blocks: int) -> None:
    """Start `writer`, and wait until its second write is in flight."""
    in_flight = asyncio.Event()
    machine.start(writer(blocks, in_flight))
    await in_flight.wait()


# ---- the bytes ----


def test_a_ring_costs_what_was_written_to_it() -> None:
    file = StoredFile(1 << 40)
    file.write(1 << 39, b"x" * BLOCK)
    assert file.read((1 << 39) - BLOCK, 3 * BLOCK) == bytes(BLOCK) + b"x" * BLOCK + bytes(BLOCK)


def test_a_torn_block_is_old_new_or_both_by_sector() -> None:
    old, new, chance = b"o" * BLOCK, b"n" * BLOCK, random.Random(1)
    seen = {torn(old, new, chance) for _ in range(100)}
    assert {old, new} < seen
    for block in seen:
        sectors = {block[at : at + SECTOR_BYTES] for at in range(0, BLOCK, SECTOR_BYTES)}
        assert sectors <= {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES}


def test_synced_bytes_outlive_a_power_cut_and_unsynced_ones_may_not() -> None:
    outcomes = set()
    for seed in range(30):
        file = StoredFile(4 * BLOCK)
        file.write(0, b"o" * BLOCK)
        file.write_unsynced(0, b"n" * BLOCK)
        file.write_unsynced(0, b"m" * BLOCK)
        assert file.read(0, BLOCK) == b"m" * BLOCK  # seen until the cut
        file.lose_power(random.Random(seed))
        outcomes |= set(file.read(0, BLOCK))
        file.write_unsynced(BLOCK, b"s" * BLOCK)
        file.write(2 * BLOCK, b"t" * BLOCK)  # syncs the one before it
        file.lose_power(random.Random(seed))
        assert file.read(BLOCK, 2 * BLOCK) == b"s" * BLOCK + b"t" * BLOCK
    assert outcomes == {ord("o"), ord("m")}


def test_rot_flips_what_is_seen_and_what_is_durable() -> None:
    file = StoredFile(BLOCK)
    file.write_unsynced(0, b"\0" * BLOCK)
    file.flip_bit(5, 3)
    assert file.read(5, 1) == b"\x08"
    file.lose_power(random.Random(1))
    assert file.read(5, 1) == b"\x08"


def test_a_copied_tree_is_another_tree() -> None:
    tree = StoredTree()
    tree.create("/ring", 2 * BLOCK)
    twin = tree.copy()
    tree.file("/ring").write(0, b"x" * BLOCK)
    assert twin.file("/ring").read(0, BLOCK) == bytes(BLOCK)
    assert tree.used_bytes == twin.used_bytes == 2 * BLOCK


# ---- kills and power cuts ----


def test_what_was_told_done_outlives_anything() -> None:
    async def scenario(machine: SimMachine) -> None:
        await machine.start(writer(16))
        machine.cut_power()
        assert await read_back(machine, "/ring", 0, 16 * BLOCK) == b"n" * BLOCK * 16

    for seed in range(10):
        on_machine(scenario, seed)


def test_a_kill_leaves_a_write_whole_absent_or_in_part_but_never_torn() -> None:
    left: set[str] = set()

    async def scenario(machine: SimMachine) -> None:
        await start_writing(machine, 4)
        machine.kill()
        data = await read_back(machine, "/ring", 0, 4 * BLOCK)
        new = data.count(b"n")
        assert new % BLOCK == 0
        assert data == b"n" * new + b"o" * (4 * BLOCK - new)
        left.add("none" if new == 0 else "all" if new == 4 * BLOCK else "part")

    for seed in range(30):
        on_machine(scenario, seed)
    assert left == {"none", "all", "part"}


def test_a_power_cut_tears_writes_in_flight() -> None:
    torn_ones = 0
    whole = {b"n" * BLOCK, b"o" * BLOCK}

    async def scenario(machine: SimMachine) -> None:
        nonlocal torn_ones
        await start_writing(machine, 4)
        machine.cut_power()
        data = await read_back(machine, "/ring", 0, 4 * BLOCK)
        assert set(data) <= set(b"no")
        torn_ones += any(data[at : at + BLOCK] not in whole for at in range(0, len(data), BLOCK))

    for seed in range(30):
        on_machine(scenario, seed)
    assert torn_ones > 3


def test_what_a_kill_left_unsynced_may_go_with_the_power_later() -> None:
    lost = 0

    async def scenario(machine: SimMachine) -> None:
        nonlocal lost
        await start_writing(machine, 1)
        machine.kill()
        seen = await read_back(machine, "/ring", 0, BLOCK)
        machine.cut_power()
        then = await read_back(machine, "/ring", 0, BLOCK)
        lost += seen != then

    for seed in range(30):
        on_machine(scenario, seed)
    assert lost > 3


def test_small_files_are_old_or_new_after_a_kill_never_mixed() -> None:
    found: set[bytes | None] = set()

    async def scenario(machine: SimMachine) -> None:
        async def replace(host: Host) -> None:
            await host.disk.write_file("/identity", b"old")
            await asyncio.sleep(1)
            await host.disk.write_file("/identity", b"new" * 1000)

        async def look(host: Host) -> None:
            found.add(await host.disk.read_file("/identity"))

        task = machine.start(replace)
        await asyncio.sleep(1.001)
        if task.done():
            return
        machine.cut_power()
        await machine.start(look)

    for seed in range(40):
        on_machine(scenario, seed)
    assert found == {b"old", b"new" * 1000}


def test_a_new_direct_file_is_there_whole_or_not_after_a_kill() -> None:
    found: set[int] = set()

    async def scenario(machine: SimMachine) -> None:
        async def create(host: Host) -> None:
            await host.disk.open_direct("/ring", create_bytes=512 * MIB)

        machine.start(create)
        await asyncio.sleep(0.05)
        machine.kill()
        found.add(len(machine.disk.tree.names("/")) and machine.disk.tree.file("/ring").size)

    for seed in range(20):
        on_machine(scenario, seed)
    assert found == {0, 512 * MIB}


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_a_kill_left_may_go_with_the_power_unless_it_was_opened(opened: bool) -> None:
    found: set[tuple[bool, bool]] = set()

    async def scenario(machine: SimMachine) -> None:
        async def create(host: Host) -> None:
            await host.disk.open_direct("/ring", create_bytes=512 * MIB)

        async def reopen(host: Host) -> None:
            await host.disk.open_direct("/ring")

        machine.start(create)
        await asyncio.sleep(0.05)
        machine.kill()
        after_kill = machine.disk.tree.names("/") == ["ring"]
        if after_kill and opened:
            await machine.start(reopen)
        machine.cut_power()
        found.add((after_kill, machine.disk.tree.names("/") == ["ring"]))

    for seed in range(30):
        on_machine(scenario, seed)
    gone = set() if opened else {(True, False)}
    assert found == {(False, False), (True, True)} | gone


@as_scenario(on_machine)
async def test_a_power_cut_is_for_machines_that_are_down(machine: SimMachine) -> None:
    await start_writing(machine, 1)
    with pytest.raises(AssertionError, match="power cut under living processes"):
        machine.disk.cut_power()


@as_scenario(on_machine)
async def test_a_lock_dies_with_its_process(machine: SimMachine) -> None:
    async def hold(host: Host) -> None:
        host.disk.lock_dir("/", "the first")
        with pytest.raises(StoreInUse, match="the first"):
            host.disk.lock_dir("/", "me again")
        await asyncio.sleep(FOREVER_S)

    async def take(host: Host) -> None:
        host.disk.lock_dir("/", "the second").release()

    machine.start(hold)
    await asyncio.sleep(1)
    machine.kill()
    await machine.start(take)


# ---- time ----


@as_scenario(in_process)
async def test_writes_end_in_any_order(host: Host) -> None:
    file = await host.disk.open_direct("/ring", create_bytes=MIB)
    ended: list[int] = []
    writes = []
    for number in range(20):
        writes.append(file.write(number * BLOCK, [b"x"]))
        writes[-1].add_done_callback(lambda _, number=number: ended.append(number))
    await asyncio.gather(*writes)
    assert sorted(ended) == list(range(20))
    assert ended != list(range(20))


@as_scenario(on_machine)
async def test_a_slow_disk_and_a_stalled_one_take_their_time(machine: SimMachine) -> None:
    async def act(host: Host) -> None:
        loop = asyncio.get_running_loop()
        file = await host.disk.open_direct("/ring", create_bytes=MIB)
        machine.disk.latency_factor = 1000
        begun = loop.time()
        await file.write(0, [b"x"])
        assert loop.time() - begun > 0.05
        machine.disk.latency_factor = 1
        in_flight = file.write(0, [b"y"])
        machine.disk.stall(30)
        begun = loop.time()
        await asyncio.gather(in_flight, file.write(BLOCK, [b"z"]))
        assert 30 < loop.time() - begun < 31

    await machine.start(act)


@as_scenario(on_machine)
async def test_what_waits_in_a_stall_ends_when_the_disk_is_healed(machine: SimMachine) -> None:
    """Seed 23000065: what was asked for in a stall ended with it, long after all was well."""

    async def act(host: Host) -> None:
        loop = asyncio.get_running_loop()
        file = await host.disk.open_direct("/ring", create_bytes=MIB)
        machine.disk.stall(30)
        begun = loop.time()
        writes = asyncio.gather(*(file.write(BLOCK * at, [b"z"]) for at in range(2)))
        await asyncio.sleep(10)
        assert not writes.done()
        machine.disk.heal()
        await writes
        assert 10 < loop.time() - begun < 10.1

    await machine.start(act)


def test_a_process_killed_in_a_blocking_call_made_it_or_did_not() -> None:
    outcomes: set[tuple[bool, bool]] = set()

    async def scenario(machine: SimMachine) -> None:
        made: list[str] = []
        heard: list[str] = []

        async def call(host: Host) -> None:
            await host.run_blocking(lambda: made.append("made"), timeout_s=1)
            heard.append("heard")

        machine.start(call)
        await asyncio.sleep(0.0006)
        machine.kill()
        await asyncio.sleep(1)
        outcomes.add((bool(made), bool(heard)))

    for seed in range(40):
        on_machine(scenario, seed)
    assert outcomes == {(False, False), (True, False), (True, True)}


# ---- faults ----


@as_scenario(on_machine)
async def test_a_planned_error_comes_once_and_names_the_path(machine: SimMachine) -> None:
    async def act(host: Host) -> None:
        file = await host.disk.open_direct("/ring", create_bytes=MIB)
        machine.disk.fail("write", errno.EIO, path="/other")
        machine.disk.fail("write", errno.EIO)
        machine.disk.fail("read", errno.EIO, path="/ring")
        machine.disk.fail("file", errno.ENOSPC, times=2)
        with pytest.raises(OSError, match="/ring") as caught:
            await file.write(0, [b"x"])
        assert caught.value.errno == errno.EIO
        await file.write(0, [b"x"])
        with pytest.raises(OSError, match="/ring"):
            await file.read(0, BLOCK)
        assert (await file.read(0, BLOCK))[:1] == b"x"
        for _ in range(2):
            with pytest.raises(OSError, match=r"No space left.*/id"):
                await host.disk.write_file("/id", b"x")
        await host.disk.write_file("/id", b"x")

    await machine.start(act)


def test_a_failed_write_leaves_old_or_new_blocks() -> None:
    left: set[bytes] = set()

    async def scenario(machine: SimMachine) -> None:
        async def act(host: Host) -> None:
            file = await host.disk.open_direct("/ring", create_bytes=MIB)
            machine.disk.fail("write", errno.EIO)
            with pytest.raises(OSError, match="ring"):
                await file.write(0, [b"n" * BLOCK])
            left.add((await file.read(0, BLOCK))[:1])

        await machine.start(act)

    for seed in range(20):
        on_machine(scenario, seed)
    assert left == {b"n", b"\0"}


@as_scenario(on_machine)
async def test_lost_and_misdirected_writes_are_told_done(machine: SimMachine) -> None:
    async def act(host: Host) -> None:
        file = await host.disk.open_direct("/ring", create_bytes=MIB)
        machine.disk.lose_writes()
        await file.write(0, [b"x"])
        assert await file.read(0, MIB) == bytes(MIB)
        machine.disk.misdirect_writes()
        await file.write(0, [b"x"])
        read = await file.read(0, MIB)
        assert read.count(b"x") == 1
        assert read.index(b"x") > 0
        assert read.index(b"x") % BLOCK == 0

    await machine.start(act)


@as_scenario(on_machine)
async def test_rot_is_within_its_range(machine: SimMachine) -> None:
    async def act(host: Host) -> None:
        file = await host.disk.open_direct("/ring", create_bytes=MIB)
        machine.disk.rot("/ring", 5000, 5010, bits=3)
        data = await file.read(0, MIB)
        assert sum(byte.bit_count() for byte in data[5000:5010]) in (1, 3)
        assert sum(byte.bit_count() for byte in data) in (1, 3)

    await machine.start(act)


@as_scenario(in_process, settings=DiskSettings(capacity_bytes=2 * BLOCK))
async def test_a_full_disk_says_so_and_changes_nothing(host: Host) -> None:
    disk = host.disk
    await disk.write_file("/id", b"x" * 600)
    with pytest.raises(OSError, match=r"No space left.*/ring"):
        await disk.open_direct("/ring", create_bytes=2 * BLOCK)
    with pytest.raises(OSError, match="No space left"):
        await disk.write_file("/id", b"y" * 9000)
    assert await disk.read_file("/id") == b"x" * 600
    assert await disk.list_dir("/") == ["id"]


@as_scenario(in_process)
async def test_changing_parts_in_flight_is_caught(host: Host) -> None:
    file = await host.disk.open_direct("/ring", create_bytes=MIB)
    part = bytearray(b"as promised")
    write = file.write(0, [part])
    part[0] = 0
    with pytest.raises(AssertionError, match="parts changed in flight"):
        await write


@as_scenario(on_machine)
async def test_a_disk_can_be_swapped_for_an_older_or_an_empty_one(machine: SimMachine) -> None:
    async def write(host: Host) -> None:
        await host.disk.write_file("/id", b"%f" % asyncio.get_running_loop().time())

    async def look(host: Host) -> None:
        found.append(await host.disk.read_file("/id"))

    found: list[bytes | None] = []
    for act in (write, look):
        await machine.start(act)
        machine.kill()
    older = machine.disk.tree.copy()
    for act in (write, look):
        await machine.start(act)
        machine.kill()
    for tree in (older, StoredTree()):
        machine.disk.tree = tree
        await machine.start(look)
        machine.kill()
    assert found[0] is not None
    assert found[0] == found[2] != found[1]
    assert found[3] is None
