"""A directory as a store: crashes, links, full disks, other processes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scenarios import as_scenario
from store_stages import on_real_host

from cordwood import durable
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Overloaded,
)
from cordwood.host.seams import Host
from cordwood.sim.crash_states.enumerate import CrashStates
from cordwood.sim.crash_states.fates import UNTORN
from cordwood.sim.crash_states.file_recorder import FileRecorder, build
from cordwood.sim.host import Simulation
from cordwood.tier.local_store import STAGING, LocalStore, open_local_store

IN = {"timeout_s": 20.0}
DAY_S = 86_400
NAMES = ("log/head", "log/objects/1", "log/objects/2", "log/objects/3")


def on_store(tmp_path: Path, act) -> None:
    async def main(host: Host) -> None:
        await act(await open_local_store(host, str(tmp_path / "objects")))

    on_real_host(main)


def in_one_step(main: Callable[[Host], object]) -> None:
    """Run on a simulated host, whose blocking calls are made on this thread."""

    async def scenario(simulation: Simulation) -> None:
        await simulation.machine("node").start(main)

    Simulation(1).run(scenario)


class TestCrashes:
    async def life(self, store: LocalStore, recorder: FileRecorder) -> None:
        """Two objects, and a pointer that names how many there are once they are durable."""
        etag = None
        for count, name in enumerate(NAMES[1:], 1):
            await store.put(name, [name.encode() * 400], **IN)
            etag = await store.put_if(NAMES[0], b"%d" % count, etag, **IN)
            recorder.look()
            recorder.log.promise(count)

    def test_a_power_cut_leaves_whole_objects_and_none_that_was_promised_is_missing(
        self, tmp_path: Path
    ):
        root = tmp_path / "objects"
        root.mkdir()
        recorder = FileRecorder(root)

        async def record(host: Host) -> None:
            with recorder.recording():
                await self.life(await open_local_store(host, str(root)), recorder)

        in_one_step(record)
        states = CrashStates(recorder.log, tearing=UNTORN)
        for state in states:
            build(state.content, root)
            promised, told = max(state.facts, default=0), state.story()

            async def look(host: Host, promised: int = promised, told: str = told) -> None:
                store = await open_local_store(host, str(root))
                try:
                    committed = int((await store.read(NAMES[0], **IN))[0])
                except NoObject:
                    committed = 0
                assert committed >= promised, told
                for name in NAMES[1 : 1 + committed]:
                    assert (await store.read(name, **IN))[0] == name.encode() * 400
                listed = [info.name for info in await store.list_page("", **IN)]
                assert set(listed) <= set(NAMES)
                for name in listed:
                    size = len((await store.read(name, **IN))[0])
                    assert size == (1 if name == NAMES[0] else 400 * len(name))

            in_one_step(look)
        assert states.count.whole_points == states.count.points > 30

    @as_scenario(on_real_host)
    async def test_what_a_dead_process_staged_goes_after_a_day_and_no_sooner(
        self, host: Host, *, tmp_path: Path
    ) -> None:
        await open_local_store(host, str(tmp_path / "objects"))
        old, new = (tmp_path / "objects" / STAGING / name for name in ("old", "new"))
        for path, age_s in ((old, DAY_S + 60), (new, DAY_S - 60)):
            path.write_bytes(b"half of an obj")
            then_s = host.clock.now_us() / 1e6 - age_s
            os.utime(path, (then_s, then_s))
        store = await open_local_store(host, str(tmp_path / "objects"))
        assert (old.exists(), new.exists()) == (False, True)
        assert await store.list_page("", **IN) == []


class TestFiles:
    def test_objects_are_their_owner_s_alone(self, tmp_path: Path):
        async def act(store: LocalStore) -> None:
            await store.put("a/b", [b"x"], **IN)
            assert stat.S_IMODE((tmp_path / "objects/a/b").stat().st_mode) == 0o600
            assert stat.S_IMODE((tmp_path / "objects/a").stat().st_mode) == 0o700

        on_store(tmp_path, act)

    def test_a_link_is_not_followed(self, tmp_path: Path):
        (tmp_path / "precious").write_bytes(b"theirs")

        async def act(store: LocalStore) -> None:
            (tmp_path / "objects/link").symlink_to(tmp_path / "precious")
            with pytest.raises(BadSetting):
                await store.read("link", **IN)
            assert await store.head("link", **IN) is None
            assert await store.list_page("", **IN) == []
            await store.put("link", [b"ours"], **IN)

        on_store(tmp_path, act)
        assert (tmp_path / "precious").read_bytes() == b"theirs"
        assert (tmp_path / "objects/link").read_bytes() == b"ours"

    def test_a_name_is_no_file_and_directory_at_once(self, tmp_path: Path):
        async def act(store: LocalStore) -> None:
            await store.put("a/b", [b"x"], **IN)
            for name in ("a", "a/b/c"):
                with pytest.raises(BadSetting, match="beginning"):
                    await store.put(name, [b"x"], **IN)
            assert os.listdir(tmp_path / "objects" / STAGING) == []

        on_store(tmp_path, act)

    def test_a_file_in_the_place_of_the_directory_is_told(self, tmp_path: Path):
        (tmp_path / "objects").write_bytes(b"")
        with pytest.raises(BadSetting, match="cannot hold objects"):
            on_store(tmp_path, lambda store: asyncio.sleep(0))


HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1] + "/.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
open(sys.argv[1] + "/head", "wb").write(b"theirs")
"""


def holder(root: Path) -> subprocess.Popen[str]:
    """A process that holds the store's lock until it is told to go on."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=pipe, stdout=pipe, text=True
    )


class TestTrouble:
    @pytest.mark.parametrize(
        ("step", "code", "kind"),
        [
            ("write_new", errno.ENOSPC, Overloaded),
            ("sync_file", errno.EDQUOT, Overloaded),
            ("sync_file", errno.EIO, OutcomeUnknown),
            ("rename", errno.EACCES, AccessDenied),
            ("sync_directory", errno.ENOSPC, OutcomeUnknown),
        ],
    )
    def test_a_disk_s_error_says_whether_it_was_stored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code, kind
    ):
        async def act(store: LocalStore) -> None:
            await store.put("a/b", [b"old"], **IN)

            def fail(*_: object) -> None:
                raise OSError(code, os.strerror(code))

            with monkeypatch.context() as patched:
                patched.setattr(durable, step, fail)
                with pytest.raises(kind):
                    await store.put("a/b", [b"new"], **IN)
            left = os.listdir(tmp_path / "objects" / STAGING)
            assert left == []
            is_new = step == "sync_directory"
            assert (await store.read("a/b", **IN))[0] == (b"new" if is_new else b"old")

        on_store(tmp_path, act)

    def test_another_process_s_condition_is_waited_for(self, tmp_path: Path):
        """It holds the lock, and replaces the pointer before it lets go."""
        root = tmp_path / "objects"

        async def act(store: LocalStore) -> None:
            etag = await store.put_if("head", b"ours", None, **IN)
            other = holder(root)
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            fd = os.open(root / ".lock", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(fd)
            swap = asyncio.ensure_future(store.put_if("head", b"again", etag, **IN))
            await asyncio.sleep(0)
            await asyncio.to_thread(other.communicate, "go on\n")
            with pytest.raises(ObjectChanged):
                await swap
            assert (await store.read("head", **IN))[0] == b"theirs"

        on_store(tmp_path, act)
