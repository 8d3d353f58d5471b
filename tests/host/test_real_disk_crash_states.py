"""The real disk's own steps (write, fsync, rename, fsync), crashed between any two of them.

The simulator takes the seam's words for granted: old or new, durable when done. Here the
system calls that are to keep them are recorded, and every state that POSIX allows after
a crash is looked at, and used again by the next start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from recorded_calls import RecordedCalls
from swaps import swap

from cordwood.host import real_disk
from cordwood.host.real_disk import RealDisk
from cordwood.sim.crash_states.content import DIRECTORY
from cordwood.sim.crash_states.disk_log import DiskLog
from cordwood.sim.crash_states.enumerate import CrashState, CrashStates
from cordwood.sim.crash_states.fates import Tearing

RING_BYTES = 3 * 4096
TEARING = Tearing((4096, 512), subsets_max=8)

Scenario = Callable[[RealDisk, str, DiskLog], Awaitable[None]]


@pytest.fixture
def log() -> DiskLog:
    return DiskLog()


@pytest.fixture
def root(tmp_path: Path, log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory; what the real disk does in it goes to `log`."""
    root = tmp_path / "root"
    root.mkdir()
    RecordedCalls(root, log).stand_in(monkeypatch)
    return root


def states_of(scenario: Scenario, root: Path, log: DiskLog) -> Iterator[CrashState]:
    """Run a scenario on the real disk; the states of its crashes."""

    async def run() -> None:
        disk = RealDisk(use_direct=False, writer_threads=1)
        try:
            await scenario(disk, str(root), log)
        finally:
            await disk.close()

    asyncio.run(run())
    return iter(CrashStates(log, tearing=TEARING, per_point=64))


def content(state: CrashState, path: str) -> bytes | None:
    number = dict(state.content.in_reach()).get(path)
    if not number:
        return None
    file = state.content.files[number]
    return file.read(0, file.size) if file.size else b""


def lay_out(state: CrashState, root: Path) -> None:
    """Make a real directory of a state."""
    for path, number in state.content.in_reach():
        if number == DIRECTORY:
            (root / path[1:]).mkdir(exist_ok=True)
        else:
            (root / path[1:]).write_bytes(content(state, path) or b"")


async def replaces_a_file(disk: RealDisk, root: str, log: DiskLog) -> None:
    log.promise(None)
    for text in (b"one", b"two" * 3000):
        await disk.write_file(f"{root}/small", text)
        log.promise(text)


async def makes_directories(disk: RealDisk, root: str, log: DiskLog) -> None:
    await disk.make_dir(f"{root}/a/b/c")
    log.promise("made")


async def makes_a_ring(disk: RealDisk, root: str, log: DiskLog) -> None:
    file = await disk.open_direct(f"{root}/ring", create_bytes=RING_BYTES)
    log.promise("made")
    await file.write(4096, [b"x" * 4096])
    log.promise("written")
    await file.close()


def broken_replacement(state: CrashState) -> bool:
    """Whether a small file is neither what it was nor what it should become."""
    texts = [b"one", b"two" * 3000]
    known = state.facts[-1] if state.facts else None
    allowed = [known, *texts[texts.index(known) + 1 :][:1]] if known else [None, texts[0]]
    return content(state, "/small") not in allowed


def broken_ring(state: CrashState) -> bool:
    """Whether a direct file is there in part, or lacks what was told durable."""
    ring = content(state, "/ring")
    if ring is None:
        return bool(state.facts)
    whole = len(ring) == RING_BYTES and not any(ring[:4096]) and not any(ring[8192:])
    return not whole or ("written" in state.facts and ring[4096:8192] != b"x" * 4096)


def test_a_small_file_is_old_or_new_and_new_once_that_was_told(root: Path, log: DiskLog):
    states = list(states_of(replaces_a_file, root, log))
    assert len(states) > 30
    assert [state.story() for state in states if broken_replacement(state)] == []
    assert {content(state, "/small") for state in states} == {None, b"one", b"two" * 3000}


def test_a_direct_file_is_there_whole_or_not_and_keeps_what_was_told_durable(
    root: Path, log: DiskLog
):
    states = list(states_of(makes_a_ring, root, log))
    assert len(states) > 30
    assert [state.story() for state in states if broken_ring(state)] == []
    torn = {content(state, "/ring") for state in states if content(state, "/ring")}
    assert len(torn) > 5  # a write in flight, in parts


def test_directories_come_from_the_top_and_all_are_there_once_that_was_told(
    root: Path, log: DiskLog
):
    states = list(states_of(makes_directories, root, log))
    found = [{path for path, _ in state.content.in_reach()} for state in states]
    assert all({"/a", "/a/b", "/a/b/c"} <= each for each, s in zip(found, states, strict=True)
               if s.facts)  # fmt: skip
    assert {"/"} in found
    assert {"/", "/a"} in found


def test_the_next_start_does_it_again_whatever_was_left(
    root: Path, log: DiskLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Temporary names that a crash left are in nobody's way, and in no listing."""

    async def both(disk: RealDisk, root: str, log: DiskLog) -> None:
        await replaces_a_file(disk, root, log)
        await makes_a_ring(disk, root, log)

    states = list(states_of(both, root, log))
    monkeypatch.undo()

    async def start_again(state: CrashState, root: Path) -> None:
        disk = RealDisk(use_direct=False, writer_threads=1)
        try:
            assert {"ring", "small"} >= set(await disk.list_dir(str(root)))
            await disk.write_file(f"{root}/small", b"three")
            assert await disk.read_file(f"{root}/small") == b"three"
            size = RING_BYTES if content(state, "/ring") is None else None
            file = await disk.open_direct(f"{root}/ring", create_bytes=size)
            assert file.size == RING_BYTES
        finally:
            await disk.close()

    leftovers = 0
    for state in states[:: max(1, len(states) // 60)]:
        again = tmp_path / f"again-{state.ordinal}"
        again.mkdir()
        lay_out(state, again)
        leftovers += any(name.endswith(".cordwood-new") for name in os.listdir(again))
        asyncio.run(start_again(state, again))
    assert leftovers > 5


class TestPlantedBugs:
    """Steps left out, each as some store once did: the states must show it."""

    def test_a_directory_that_is_not_synced(
        self, root: Path, log: DiskLog, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, real_disk._sync_dir, lambda path: None)
        assert any(map(broken_replacement, states_of(replaces_a_file, root, log)))

    def test_a_directory_that_is_not_synced_after_a_ring_was_made(
        self, root: Path, log: DiskLog, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, real_disk._sync_dir, lambda path: None)
        assert any(map(broken_ring, states_of(makes_a_ring, root, log)))

    def test_a_file_that_is_renamed_before_it_is_synced(
        self, root: Path, log: DiskLog, monkeypatch: pytest.MonkeyPatch
    ):
        def fsync(self: RecordedCalls, fd: int) -> None:
            target, _ = self._opened[fd]
            if isinstance(target, str):
                original(self, fd)

        original = RecordedCalls.fsync
        monkeypatch.setattr(RecordedCalls, "fsync", fsync)
        broken = [s for s in states_of(replaces_a_file, root, log) if broken_replacement(s)]
        assert b"" in {content(state, "/small") for state in broken}

    def test_a_ring_that_is_named_before_it_is_synced(
        self, root: Path, log: DiskLog, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(RecordedCalls, "fdatasync", lambda self, fd: None)
        assert any(map(broken_ring, states_of(makes_a_ring, root, log)))
