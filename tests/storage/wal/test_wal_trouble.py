"""Disks that stall, have no space or cost money: the WAL's own handling, in virtual time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest
from made_blocks import LOG, Made, at, packed, run
from scenarios import as_scenario, now

from cordwood.errors import BadSetting
from cordwood.host.seams import Host
from cordwood.layout.waves import Refusal, StoreRefusal
from cordwood.nodes import NodeId
from cordwood.sim.disk import DiskSettings, SimDisk
from cordwood.sim.host import SimMachine, Simulation
from cordwood.storage.wal.delta_wal import Wal, WalFailed, WalLimits, WalNoSpace, WalStalled
from cordwood.write_budget import GP3, WriteBudget

OWNER = NodeId(5)
PATH = "/wal"
MIB = 1 << 20
QUICK = DiskSettings(slow_chance=0.0)

Act = Callable[[Host, SimDisk], Awaitable[None]]


def play(act: Act, *, seed: int = 1) -> Simulation:
    """Run `act` in a process of a simulated machine."""

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("node")
        await machine.start(lambda host: _coroutine(act(host, machine.disk)))

    simulation = Simulation(seed, disk=QUICK)
    simulation.run(scenario)
    assert simulation.loop.unhandled == []
    return simulation


async def _coroutine(awaited: Awaitable[None]) -> None:
    await awaited


async def make(host: Host, limits: WalLimits | None = None, ring: int = 64 * MIB) -> Wal:
    await Wal.format(host.disk, PATH, ring + 8192, owner=OWNER)
    wal, found = await start(host, limits)
    assert found == []
    return wal


async def start(host: Host, limits: WalLimits | None = None) -> tuple[Wal, list[bytes]]:
    wal = await Wal.open(host.disk, PATH, owner=OWNER, limits=limits)
    return wal, [body async for _, body in wal.recover()]


# ---- stalls ----


@as_scenario(play)
async def test_a_stall_refuses_stores_and_ends_with_the_write(host: Host, disk: SimDisk) -> None:
    wal = await make(host)
    disk.stall(12.0)
    began = now()
    done = wal.append([b"waits"])[1]
    await asyncio.sleep(4.9)
    second = wal.append([b"is taken: nobody knows of a stall yet"])[1]
    assert wal.trouble is None
    await asyncio.sleep(1.2)
    used = wal.used_bytes
    for reserve_ok in (False, True):
        with pytest.raises(WalStalled, match=r"/wal.*5 s"):
            wal.append([b"refused"], reserve_ok=reserve_ok)
    assert isinstance(wal.trouble, WalStalled)
    assert wal.used_bytes == used
    assert not done.done()
    await asyncio.gather(done, second)
    assert 12.0 <= now() - began < 12.1
    assert wal.trouble is None
    await wal.append([b"after"])[1]
    await wal.close()
    _, found = await start(host)
    assert found == [b"waits", b"is taken: nobody knows of a stall yet", b"after"]


@as_scenario(play)
async def test_a_stall_that_does_not_end_is_given_up_and_nothing_is_acknowledged(
    host: Host, disk: SimDisk
) -> None:
    wal = await make(host)
    offset, done = wal.append([b"durable"])
    await done
    disk.stall(100.0)
    began = now()
    waiting = [wal.append([b"never"])[1] for _ in range(3)]
    trim = asyncio.ensure_future(wal.trim(offset))
    for each in waiting:
        with pytest.raises(WalFailed, match="did not end within 30 s"):
            await each
    assert 30.0 <= now() - began <= 31.1
    with pytest.raises(WalFailed):
        await trim
    with pytest.raises(WalFailed):
        wal.append([b"x"])
    closing = now()
    await wal.close()
    assert now() - closing < 11.0  # it does not wait for the disk
    await asyncio.sleep(100.0)
    assert isinstance(wal.failure, WalFailed)


def test_a_process_that_was_stopped_does_not_blame_its_disk() -> None:
    async def scenario(simulation: Simulation) -> None:
        machine: SimMachine = simulation.machine("node")
        wals: list[Wal] = []

        async def main(host: Host) -> None:
            wal = await make(host)
            wals.append(wal)
            for _ in range(2000):
                await wal.append([b"x" * 5000])[1]
                assert wal.trouble is None

        running = machine.start(main)
        for _ in range(6):
            await asyncio.sleep(0.05)
            machine.pause()
            await asyncio.sleep(40.0)
            machine.resume()
        await running
        assert wals[0].failure is None

    for seed in range(5):
        Simulation(seed, disk=QUICK).run(scenario)


def test_an_idle_wal_sets_no_timers() -> None:
    async def act(host: Host, disk: SimDisk) -> None:
        wal = await make(host)
        await wal.append([b"x"])[1]
        await asyncio.sleep(10.0)

    simulation = play(act)
    # Format, header writes and one append; ticks would add one a second.
    assert simulation.loop.time() < 10.1


def test_a_stall_comes_before_it_is_given_up() -> None:
    with pytest.raises(BadSetting):
        WalLimits(stall_s=10.0, give_up_s=5.0)


# ---- no space ----


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@as_scenario(play)
async def test_no_space_is_waited_out_and_nothing_is_acknowledged_before(
    host: Host, disk: SimDisk, *, code: int
) -> None:
    wal = await make(host)
    await wal.append([b"durable"])[1]
    disk.fail("write", code, times=3)
    began = now()
    done = wal.append([b"waits" * 2000])[1]
    await asyncio.sleep(0.5)
    with pytest.raises(WalNoSpace, match="no space"):
        wal.append([b"refused"])
    assert isinstance(wal.trouble, WalNoSpace)
    assert not done.done()
    await done
    assert 3.0 <= now() - began < 3.1  # a try a second, and not more
    assert wal.trouble is None
    await wal.append([b"after"])[1]
    wal, found = await start(host)
    assert found == [b"durable", b"waits" * 2000, b"after"]


@as_scenario(play)
async def test_no_space_for_a_header_delays_the_trim_only(host: Host, disk: SimDisk) -> None:
    wal = await make(host)
    offset, done = wal.append([b"trimmed"])
    await done
    disk.fail("write", errno.ENOSPC)
    trim = asyncio.ensure_future(wal.trim(offset))
    await asyncio.sleep(0.5)
    assert not trim.done()
    assert wal.trim_offset == -1
    await trim
    assert wal.trim_offset == offset


@as_scenario(play)
async def test_what_was_pending_is_written_when_there_is_space_again(
    host: Host, disk: SimDisk
) -> None:
    wal = await make(host, WalLimits(block_bytes=4096))
    disk.fail("write", errno.ENOSPC, times=4)
    waiting = [wal.append([bytes([number]) * 3000])[1] for number in range(40)]
    await asyncio.gather(*waiting)
    _, found = await start(host)
    assert found == [bytes([number]) * 3000 for number in range(40)]


@as_scenario(play)
async def test_a_close_does_not_wait_for_space(host: Host, disk: SimDisk) -> None:
    wal = await make(host)
    disk.fail("write", errno.ENOSPC, times=1000)
    done = wal.append([b"lost"])[1]
    await asyncio.sleep(2.5)
    closing = now()
    await wal.close()
    with pytest.raises(WalFailed):
        await done
    assert now() - closing < 0.1


@as_scenario(play)
async def test_a_failed_write_is_not_tried_again_even_among_refused_ones(
    host: Host, disk: SimDisk
) -> None:
    wal = await make(host, WalLimits(block_bytes=4096))
    disk.fail("write", errno.ENOSPC, times=2)
    disk.fail("write", errno.EIO)
    waiting = [wal.append([b"x" * 3000])[1] for _ in range(4)]
    for each in waiting:
        with pytest.raises(WalFailed):
            await each
    await asyncio.sleep(10.0)
    assert isinstance(wal.failure, WalFailed)
    await wal.close()


# ---- a budget ----


async def write_for(wal: Wal, seconds: float, record: int, queue: int) -> None:
    """Keep `queue` records waiting for so long."""
    end = now() + seconds

    async def one() -> None:
        while now() < end:
            offset, done = wal.append([bytes(record)])
            await done
            if wal.used_bytes > wal.capacity_bytes // 2:
                await wal.trim(offset)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(queue):
            tasks.create_task(one())


@pytest.mark.slow
@pytest.mark.parametrize(("record", "queue"), [(100, 32), (4056, 32), (262_104, 16)])
@as_scenario(play)
async def test_a_busy_wal_keeps_to_its_budget_and_uses_it(
    host: Host, disk: SimDisk, *, record: int, queue: int
) -> None:
    wal = await make(host, WalLimits(budget=GP3), ring=256 * MIB)
    writes: list[tuple[float, int]] = []
    watch(disk, writes)
    await write_for(wal, 1.0, record, queue)
    settled = [(at, length) for at, length in writes if at >= writes[0][0] + 0.3]
    span = settled[-1][0] - settled[0][0]
    operations, moved = len(settled) - 1, sum(length for _, length in settled[1:])
    assert operations <= 3000 * span + 2
    assert moved <= 125 * MIB * span + 2 * (256 << 10)
    assert operations > 0.95 * 3000 * span or moved > 0.95 * 125 * MIB * span


def watch(disk: SimDisk, writes: list[tuple[float, int]]) -> None:
    """Note when each direct write is handed to the disk, and its length."""
    begin = disk.begin

    def noting(process, kind, path, act, **how):  # type: ignore[no-untyped-def]
        if kind == "write":
            writes.append((now(), len(how["write"][2])))
        return begin(process, kind, path, act, **how)

    disk.begin = noting  # type: ignore[method-assign]


@as_scenario(play)
async def test_an_idle_wal_with_a_budget_writes_at_once(host: Host, disk: SimDisk) -> None:
    wal = await make(host, WalLimits(budget=GP3))
    for _ in range(5):
        await asyncio.sleep(1.0)
        began = now()
        await wal.append([b"alone"])[1]
        assert now() - began < 0.001


@as_scenario(play)
async def test_what_waits_for_the_budget_shares_a_block(host: Host, disk: SimDisk) -> None:
    wal = await make(host, WalLimits(budget=WriteBudget(operations_per_s=10)))
    writes: list[tuple[float, int]] = []
    await asyncio.sleep(1.0)
    watch(disk, writes)
    for _ in range(200):
        wal.append([b"x" * 100])
        await asyncio.sleep(0.01)
    await wal.append([b"last"])[1]
    assert 18 <= len(writes) <= 24
    await wal.close()


@as_scenario(play)
async def test_headers_are_charged_and_never_wait(host: Host, disk: SimDisk) -> None:
    wal = await make(host, WalLimits(budget=WriteBudget(operations_per_s=10)))
    offset = 0
    for _ in range(20):
        offset, done = wal.append([b"x"])
        await done
    began = now()
    await wal.trim(offset)
    assert now() - began < 0.01
    await wal.append([b"x"])[1]
    assert 0.08 < now() - began < 0.25


@as_scenario(play)
async def test_a_close_writes_what_waits_for_the_budget(host: Host, disk: SimDisk) -> None:
    wal = await make(host, WalLimits(budget=WriteBudget(operations_per_s=20), block_bytes=4096))
    waiting = [wal.append([bytes([number]) * 3000])[1] for number in range(20)]
    await wal.close()
    assert all(done.done() for done in waiting)
    wal, found = await start(host)
    assert found == [bytes([number]) * 3000 for number in range(20)]
    assert wal.recovery is not None
    assert wal.recovery.was_graceful


# ---- what the storage engine makes of it ----


@as_scenario(run)
async def test_an_engine_on_a_stalled_disk_refuses_and_comes_back() -> None:
    made = await Made.new(by_hand=True)
    slow = made.store(packed(at(1)))
    await asyncio.sleep(7.0)
    settled = made.store(packed(at(2)), packed(at(1), log=LOG + 1), wave=4)
    assert settled == [
        tuple(StoreRefusal(4, log, Refusal.FULL) for log in (LOG, LOG + 1)),
    ]
    with pytest.raises(WalStalled):
        await made.engine.seal(LOG, 2, 0)
    assert (slow, made.engine.failed, made.held()) == ([], "", [])
    made.disk.file.end_all()
    await asyncio.sleep(0.01)
    assert slow == [()]
    made.disk.by_hand = made.disk.file.by_hand = False
    again = made.store(packed(at(1, epoch=2)), wave=5)
    await asyncio.sleep(0.01)
    assert again == [()]


@as_scenario(run)
async def test_an_engine_on_a_disk_that_never_ends_a_write_has_failed() -> None:
    made = await Made.new(by_hand=True)
    settled = made.store(packed(at(1)))
    await asyncio.sleep(32.0)
    assert settled == [(StoreRefusal(1, LOG, Refusal.FAILED),)]
    assert "did not end within 30 s" in made.engine.failed
    made.disk.file.end_all()
    await asyncio.sleep(1.0)
    assert made.held() == []
