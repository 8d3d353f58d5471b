"""A WAL in a process of its own whose system calls strace makes fail, stall or kill.

The simulator breaks the disk at the seam; here the machine itself says EIO, in a thread, to
the calls that really are made. What was acknowledged must be there afterwards.

Source: Rebello et al., ATC 2020; docs/sources/reliability.md §5.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import wal_writer
from strace_at_hand import find_strace, run_traced

from cordwood.host.real_disk import RealDisk
from cordwood.storage.wal.delta_wal import Wal

RECORDS = 60
WRITES = "pwritev,pwritev2,pwrite64"

Run = Callable[..., list[str]]


@pytest.fixture
def traced(tmp_path: Path, require: Callable[[str, str], None]) -> Run:
    """Runs the writer under strace with injections; gives what it said."""
    strace = find_strace(require)

    def run(*inject: str, how: str = "direct", wants: int = 0) -> list[str]:
        path = str(tmp_path / "wal")
        asyncio.run(_format(path))
        done = run_traced(
            strace,
            [wal_writer.__file__, path, str(RECORDS), how],
            tmp_path / "calls",
            trace=f"{WRITES},fdatasync,io_submit",
            inject=inject,
        )
        assert done.status == wants, done.errors
        _check_kept(path, done.lines)
        return done.lines

    return run


async def _format(path: str) -> None:
    disk = RealDisk()
    await Wal.format(disk, path, 1 << 20, owner=wal_writer.OWNER)
    await disk.close()


def _check_kept(path: str, said: list[str]) -> None:
    """All that was acknowledged comes back; of the rest some may, whole and in order."""
    acked = [int(line.split()[1]) for line in said if line.startswith("ack ")]
    assert acked == list(range(len(acked)))
    found = asyncio.run(_recovered(path))
    numbers = [int(body[:8]) for body in found]
    assert found == [wal_writer.body(number) for number in numbers]
    assert numbers == sorted(set(numbers))
    assert numbers[: len(acked)] == acked
    assert all(number < RECORDS for number in numbers)


async def _recovered(path: str) -> list[bytes]:
    disk = RealDisk()
    try:
        wal = await Wal.open(disk, path, owner=wal_writer.OWNER)
        return [body async for _, body in wal.recover()]
    finally:
        await disk.close()


# strace counts for each thread: `when=4` is the fourth write of each of four.


def test_a_write_that_fails_ends_the_wal_for_good(traced: Run) -> None:
    said = traced(f"{WRITES}:error=EIO:when=4")
    assert said[-2:] == ["failed WalFailed", "failed WalFailed"]
    assert len(said) < RECORDS


def test_a_write_that_the_kernel_does_not_take_ends_the_wal_for_good(traced: Run) -> None:
    said = traced("io_submit:error=EIO:when=8", how="kernel")
    assert said[-2:] == ["failed WalFailed", "failed WalFailed"]
    assert len(said) < RECORDS


def test_where_the_kernel_has_no_room_threads_write(traced: Run) -> None:
    said = traced("io_submit:error=EAGAIN:when=2+2", how="kernel")
    assert [line for line in said if line.startswith("ack")] == [
        f"ack {number}" for number in range(RECORDS)
    ]


@pytest.mark.parametrize("write", [3, 17])
def test_killed_as_the_kernel_takes_a_write(traced: Run, write: int) -> None:
    said = traced(f"io_submit:signal=KILL:when={write}", how="kernel", wants=-9)
    assert len(said) < RECORDS
    assert not any(line.startswith("failed") for line in said)


def test_a_sync_that_fails_once_is_never_tried_again(traced: Run) -> None:
    """The kernel says EIO once and forgets the pages: the next sync would say all is well."""
    said = traced("fdatasync:error=EIO:when=4", how="buffered")
    assert said[-2:] == ["failed WalFailed", "failed WalFailed"]
    assert len(said) < RECORDS


@pytest.mark.slow
def test_no_space_for_a_while_loses_nothing(traced: Run) -> None:
    said = traced(f"{WRITES}:error=ENOSPC:when=4")
    assert "refused WalNoSpace" in said
    assert [line for line in said if line.startswith("ack")] == [
        f"ack {number}" for number in range(RECORDS)
    ]


@pytest.mark.slow
def test_a_stalled_write_refuses_and_comes_back(traced: Run) -> None:
    said = traced(f"{WRITES}:delay_enter=1500000:when=4")
    assert "refused WalStalled" in said
    assert said.count("ack 0") == 1
    assert said[-1] == f"ack {RECORDS - 1}"


@pytest.mark.parametrize("write", [2, 5])
def test_killed_in_the_middle_of_a_write(traced: Run, write: int) -> None:
    said = traced(f"{WRITES}:signal=KILL:when={write}", wants=-9)
    assert len(said) < RECORDS
    assert not any(line.startswith("failed") for line in said)
