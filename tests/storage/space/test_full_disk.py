"""A full disk: what is trimmed gives its space back while the disk is full, and nothing raises."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from made_blocks import LOG, STORAGE, Made, at, flush, made_host, packed, run, turns
from scenarios import as_scenario

from cordwood.protocol.disk_space import LOW_BYTES_MIN, DiskRoom, to_write
from cordwood.sim.planted import find_bug, planted
from cordwood.storage.logs_db.flusher import Flusher
from cordwood.storage.logs_db.tables import Row, TablesNoSpace
from cordwood.storage.said_once import SaidOfEach, SaidOnce
from cordwood.storage.space.space_watch import SpaceWatch

MIB = 1 << 20
BODY = bytes(1000)


class TestRoom:
    def test_what_is_not_flushed_counts_as_written(self) -> None:
        room = DiskRoom()
        assert room.first_wave_space(5 * MIB, 7) == 7, "nobody has looked yet"
        room.on_free(100 * MIB, 10 * MIB)
        most = room.first_wave_space(0, 1 << 40)
        assert to_write(most) <= 90 * MIB < to_write(most + 2)
        assert room.first_wave_space(most, 1 << 40) == 0
        assert room.takes(most), "the reserve is for what was numbered already"
        assert not room.takes(most + 5 * MIB)

    def test_a_flush_is_taken_off_until_the_disk_is_looked_at(self) -> None:
        room = DiskRoom()
        room.on_free(100 * MIB, 10 * MIB)
        before = room.first_wave_space(20 * MIB, 1 << 40)
        room.on_flushed(20 * MIB)
        assert abs(room.first_wave_space(0, 1 << 40) - before) <= 2

    def test_no_mark_no_bound(self) -> None:
        room = DiskRoom()
        room.on_free(0, 0)
        assert room.first_wave_space(5 * MIB, 7) == 7

    def test_a_flush_that_does_not_fit_is_not_begun_but_a_small_one_is(self) -> None:
        room = DiskRoom()
        room.on_free(10 * MIB, 0)
        assert room.flush_fits(9 * MIB)
        assert not room.flush_fits(10 * MIB)
        room.on_free(0, 0)
        assert room.flush_fits(LOW_BYTES_MIN // 4 - 1)


class FullTables:
    """The tables of a disk on which no partition is flushed any more."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables
        self.flushes = 0
        self.is_full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    async def write(self, table: str, rows: Sequence[Row]) -> None:
        if self.is_full and table.startswith("p"):
            self.flushes += 1
            raise TablesNoSpace("No space left on device")
        await self._tables.write(table, rows)


async def filled(made: Made) -> tuple[Flusher, asyncio.Task[None], FullTables]:
    """A storage engine whose flush finds no room, with five blocks of LOG."""
    tables = FullTables(made.engine.logs.tables)
    made.engine.logs._tables = cast(Any, tables)
    for esn in range(1, 6):
        made.store(packed(at(esn), BODY, lng=at(esn - 1)))
        await turns()
    flusher = Flusher(made.engine, STORAGE, made_host(made.disk).clock, lambda: None)
    work = asyncio.create_task(flusher.run())
    await turns()
    return flusher, work, tables


async def trim_makes_it_writable() -> bool:
    made = await Made.new()
    flusher, work, tables = await filled(made)
    asked = asyncio.ensure_future(flusher.flush())
    await asyncio.sleep(3)
    assert tables.flushes > 1
    assert made.engine.is_out_of_space
    await made.engine.trim(LOG, at(5), at(5))
    await asyncio.sleep(3)
    is_free = asked.done() and not made.engine.is_out_of_space
    if is_free:
        assert made.engine.wal.trim_offset >= 0
        assert made.engine.unflushed_bytes == 0
    await flusher.close()
    await work
    asked.cancel()
    return is_free


def test_a_flush_that_waits_for_space_leaves_out_what_is_trimmed_meanwhile() -> None:
    assert run(trim_makes_it_writable)
    with planted(find_bug("flushes-what-is-trimmed")):
        assert not run(trim_makes_it_writable)


@as_scenario(run)
async def test_a_node_that_stops_with_a_flush_that_waits_raises_nothing() -> None:
    made = await Made.new()
    flusher, work, tables = await filled(made)
    asked = asyncio.ensure_future(flusher.flush())
    await asyncio.sleep(1.5)
    await flusher.close()
    await work
    assert isinstance(asked.exception(), Exception), "it is not in LogsDB"
    assert not made.engine.failed
    tables.is_full = False
    await made.engine.wal.close()
    await made.open()
    assert len(made.held()) == 5, "the WAL has all of it"


class LowDisk:
    async def space(self, path: str) -> tuple[int, int]:
        return 0, 1000 * MIB


async def low_disk_drops_the_newest(disk: Any = None) -> bool:
    made = await Made.new()
    made.store(packed(at(1), BODY, lng=at(0)))
    await turns()
    await flush(made, now_us=1)
    await made.engine.trim(LOG, at(1), at(1))
    assert len(made.engine.logs.partitions) == 1, "it is the newest, and young"

    watch = SpaceWatch(made.engine, cast(Any, disk or LowDisk()), "there", STORAGE, lambda: None)
    await watch.look()
    assert made.engine.low_space
    assert made.engine.free_bytes == 0
    return not made.engine.logs.partitions


def test_a_disk_that_is_gone_after_a_drop_ends_no_watch(caplog: pytest.LogCaptureFixture) -> None:
    """The second measurement of a look stood outside of what handles its errors."""
    sizes = iter([(0, 1000 * MIB)])

    class Disk:
        async def space(self, path: str) -> tuple[int, int]:
            try:
                return next(sizes)
            except StopIteration:
                raise OSError("the disk is gone") from None

    assert run(lambda: low_disk_drops_the_newest(Disk()))
    assert "the space on the disk is not known: the disk is gone" in caplog.text


def test_while_the_disk_is_low_the_newest_partition_goes_too() -> None:
    assert run(low_disk_drops_the_newest)
    with planted(find_bug("newest-stays-on-full-disk")):
        assert not run(low_disk_drops_the_newest)


def test_one_line_for_what_is_tried_again_each_second(caplog: pytest.LogCaptureFixture) -> None:
    said = SaidOnce(logging.getLogger("said"))
    caplog.set_level(logging.INFO)
    for free in range(5):
        said.warning(f"a flush has to wait: {free} MiB")
    said.warning("a flush has to wait: the disk is gone")
    said.over("flushes go on")
    said.over("flushes go on")
    assert [record.message for record in caplog.records] == [
        "a flush has to wait: 0 MiB", "a flush has to wait: the disk is gone", "flushes go on",
    ]  # fmt: skip


def test_only_what_is_in_trouble_is_kept_of_many_logs(caplog: pytest.LogCaptureFixture) -> None:
    """A node kept some bytes for each log that it had ever uploaded, or merged objects of."""
    said = SaidOfEach(logging.getLogger("said"))
    caplog.set_level(logging.INFO)
    for log in range(100):
        said.over(log, f"log {log}: uploads go on")
    for _ in range(2):
        for log in (7, 8, 9):
            said.warning(log, f"log {log}: its upload waits")
    said.over(7, "log 7: uploads go on")
    said.keep({7, 8})
    said.over(9, "log 9 was deleted since, and nothing is told of it")
    said.warning(8, "log 8: its upload waits")
    assert [record.message for record in caplog.records] == [
        "log 7: its upload waits", "log 8: its upload waits", "log 9: its upload waits",
        "log 7: uploads go on",
    ]  # fmt: skip
    assert [*vars(said)["_said"]] == [8]


SCRIPT = """
import os, sys, time, cordwood
from cordwood.errors import Overloaded
from cordwood.settings import ClientSettings
path = sys.argv[1] + "/store"
settings = ClientSettings(timeout_s=4)
body = os.urandom(1000)
def fill(store):
    count = 0
    while True:
        try:
            store.append_many("log", [body] * 500)
        except Overloaded:
            return count
        count += 500
def again(store):
    store.trim("log", store.tail("log"))
    until = time.monotonic() + 30
    while True:
        try:
            return store.append_many("log", [body] * 500)
        except Overloaded:
            assert time.monotonic() < until, "it stays full"
store = cordwood.connect(path, settings=settings)
assert fill(store) > 1000
again(store)
assert fill(store) > 1000
store.close()
store = cordwood.connect(path, settings=settings)
assert store.status()[1].node == 1
again(store)
store.close()
print("all of it")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting takes root"
)
def test_an_embedded_store_that_filled_its_disk_is_written_again_after_a_trim(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    place = tmp_path / "small"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=176m tmpfs {place} && exec {sys.executable} {script} {place}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if "permission denied" in done.stderr.lower() and "mount" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert (done.stdout.strip(), done.returncode) == ("all of it", 0), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.count("has to wait") < 10
