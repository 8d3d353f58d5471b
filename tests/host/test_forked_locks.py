"""A process that forks while it has a directory locked: the lock is the parent's alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.host.real_disk import RealDirLock

FORKS = """
import os
import sys
from cordwood.errors import StoreInUse
from cordwood.host.real_disk import RealDisk

path, how = sys.argv[1:]
lock = RealDisk().lock_dir(path, "the parent")
told, tells = os.pipe()
if os.fork() == 0:
    lock.release()
    try:
        RealDisk().lock_dir(path, "the child")
    except StoreInUse as error:
        os.write(tells, b"refused")
    os.read(0, 1)
    os._exit(0)
print(os.read(told, 7).decode(), flush=True)
if how == "closed":
    lock.release()
    RealDisk().lock_dir(path, "the parent again")
    print("locked", flush=True)
os._exit(9)
"""

LOCKS = """
import sys
from cordwood.host.real_disk import RealDisk

RealDisk().lock_dir(sys.argv[1], "a later process")
print("locked")
"""


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_forked_child_keeps_no_lock_of_its_parent(tmp_path: Path, how: str) -> None:
    """A store could not be opened again, also by its own process, before the child ended."""
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(path), how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdout, parent.stdin:  # at its end the child ends too
        assert parent.stdout.readline() == "refused\n", "the parent has its lock as before"
        if how == "closed":
            assert parent.stdout.readline() == "locked\n"
        assert parent.wait(30) == 9
        later = subprocess.run(
            [sys.executable, "-c", LOCKS, str(path)], capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert (later.stdout, later.returncode) == ("locked\n", 0), later.stderr


def test_a_lock_ends_though_a_process_is_just_being_started(tmp_path: Path) -> None:
    """A child has copies of all descriptors until it executes its program. A store that was closed
    in that moment was "in use by another process"."""
    tmp_path.chmod(0o700)
    lock = RealDirLock(str(tmp_path), "the first")
    (fd,) = (
        int(each)
        for each in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{each}") == str(tmp_path.resolve() / "lock")
    )
    copy = os.dup(fd)  # of the same open file, as a child's is
    try:
        lock.release()
        RealDirLock(str(tmp_path), "the second").release()
    finally:
        os.close(copy)
