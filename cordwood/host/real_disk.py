"""The disk seam on the machine's files.

Small files go through a bounded pool; direct files have threads of their own
(`direct_file`). A new file has a temporary name until all of it is synced, so that a crash leaves
the old state or the new state; `list_dir` leaves temporary names out.

Source: Pillai et al., OSDI 2014 (losses of a rename without a synced directory); CONTRIBUTING.md,
"The idea".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from cordwood.durable import open_private
from cordwood.errors import BadSetting, StoreInUse
from cordwood.host.direct_bounds import check_create
from cordwood.host.direct_file import RealDirectFile, open_direct_fd, write_fully
from cordwood.host.forked_child import leave_in_child
from cordwood.host.private_directory import check_private
from cordwood.host.seams import DirLock
from cordwood.host.threads import BlockingPool

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

WRITER_THREADS = 4
"""Threads a direct file: at 4 in flight the disk is at its best, more gain nothing."""

FILE_THREADS = 2
"""Threads for small files, over one disk: they are rare."""

ZERO_CHUNK_BYTES = 4 << 20
"""One write while a new direct file is zeroed."""

OWNER_BYTES_MAX = 1024
"""Bytes of the `lock` file that a refusal quotes."""

_NEW_SUFFIX = ".cordwood-new"


class RealDisk:
    """A `Disk` on this machine's file systems.

    Args:
        writer_threads: threads of each direct file, and so writes to it at once.
        use_direct: False never asks for `O_DIRECT`, as on a file system without it.
        use_kernel_aio: False writes by threads alone, as where there is no `io_submit`.
    """

    def __init__(
        self,
        *,
        writer_threads: int = WRITER_THREADS,
        use_direct: bool = True,
        use_kernel_aio: bool = True,
    ) -> None:
        if writer_threads < 1:
            raise BadSetting(f"writer_threads is {writer_threads}; it must be at least 1")
        self._writer_threads = writer_threads
        self._use_direct = use_direct
        self._use_kernel_aio = use_kernel_aio
        self._pool = BlockingPool("cordwood-disk", FILE_THREADS)
        self._making = threading.Lock()
        self._direct_files: set[RealDirectFile] = set()

    async def open_direct(self, path: str, *, create_bytes: int | None = None) -> RealDirectFile:
        if create_bytes is not None:
            check_create(path, create_bytes)
            await self._run(path, lambda: self._create(path, create_bytes))
        opening = _Opening(path, self._use_direct, self._writer_threads)
        try:
            await self._run(path, opening.open)
        except BaseException:
            opening.abandon()
            raise
        file = RealDirectFile(path, opening.fds, use_kernel_aio=self._use_kernel_aio)
        # Removed once closed, so that the set holds only open files.
        self._direct_files = {other for other in self._direct_files if not other.closed}
        self._direct_files.add(file)
        return file

    async def read_file(self, path: str) -> bytes | None:
        return await self._run(path, lambda: _read_file(path))

    async def write_file(self, path: str, data: bytes) -> None:
        await self._run(path, lambda: self._replace_file(path, data))

    async def make_dir(self, path: str) -> None:
        await self._run(path, lambda: _make_dir(path))

    async def list_dir(self, path: str) -> list[str]:
        return await self._run(path, lambda: _list_dir(path))

    async def space(self, path: str) -> tuple[int, int]:
        return await self._run(path, lambda: _space(path))

    async def takes_direct(self, path: str) -> bool:
        return self._use_direct and await self._run(path, lambda: _takes_direct(path))

    def lock_dir(self, path: str, owner: str) -> DirLock:
        return RealDirLock(path, owner)

    async def close(self) -> None:
        """Close the direct files still open and stop the threads. Safe to call twice."""
        for file in list(self._direct_files):
            await file.close()
        self._pool.close()

    # One at a time: two makers of one path would share its temporary name.

    def _create(self, path: str, size: int) -> None:
        with self._making:
            _create_zeroed(path, size, self._use_direct)

    def _replace_file(self, path: str, data: bytes) -> None:
        with self._making:
            _write_file(path, data)

    async def _run(self, path: str, function: Callable[[], Result]) -> Result:
        with _naming(path):
            return await self._pool.run(function)


class RealDirLock:
    """A `DirLock`: an flock on the directory's `lock` file.

    It belongs to the open file, not to the process, so a second opener in one
    process is refused as well; the kernel drops it when the process dies. A forked child has the
    same open file, and closes it at once: it would keep the lock after its parent's end.
    """

    def __init__(self, path: str, owner: str) -> None:
        with _naming(path):
            check_private(path)
            fd = open_private(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT)
            try:
                _take(fd, path)
                os.ftruncate(fd, 0)
                os.pwrite(fd, owner.encode()[:OWNER_BYTES_MAX], 0)
            except BaseException:
                os.close(fd)
                raise
        self._fd: int | None = fd
        self._path = path
        leave_in_child(self)

    def _leave_in_child(self) -> None:
        """See `forked_child.Leaver`."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def check(self) -> None:
        if self._fd is None:
            return
        try:
            there = os.stat(os.path.join(self._path, "lock"))
        except FileNotFoundError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._fd)):
            raise StoreInUse(
                f"{self._path} was moved or removed while it was open, and nothing is written to "
                "that path any more: close this store and open it where it is now"
            )

    def release(self) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        # The name of an earlier holder must not be quoted.
        os.ftruncate(fd, 0)
        # Race: a child that another thread is just starting has a copy of the descriptor until it
        # executes its program. Closing ours would leave the lock with it.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _take(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, OWNER_BYTES_MAX, 0).decode(errors="replace") or "another process"
        raise StoreInUse(f"{path} is in use by {owner}") from None


class _Opening:
    """Descriptors being opened in a thread, closed again if the caller gives up meanwhile."""

    def __init__(self, path: str, use_direct: bool, count: int) -> None:
        self.fds: list[tuple[int, bool]] = []
        self._path, self._use_direct, self._count = path, use_direct, count
        self._abandoned = False

    def open(self) -> None:
        # A process killed while it made the file may have left the directory entry unsynced, and
        # later durable writes must not be lost with the entry.
        _sync_dir(os.path.dirname(self._path))
        for number in range(self._count):
            self.fds.append(
                open_direct_fd(self._path, use_direct=self._use_direct, take_device=number == 0)
            )
        if self._abandoned:
            self.abandon()

    def abandon(self) -> None:
        """Close all open files. Both sides may call it: each pops the files that it closes."""
        self._abandoned = True
        with contextlib.suppress(IndexError):
            while True:
                os.close(self.fds.pop()[0])


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Put `path` into an OSError that came from a descriptor and names none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def _create_zeroed(path: str, size: int, use_direct: bool) -> None:
    """Make a file of `size` zeros under its name at once, durably.

    Allocated *and written*: a first write into allocated but unwritten space
    changes metadata, which makes each durable write of a ring's first lap slow.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    new_path = path + _NEW_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new_path)  # a crash left it
    os.close(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        fd = _open_for_zeroing(new_path, use_direct)
        try:
            _fill_with_zeros(fd, size)
        finally:
            os.close(fd)
        # A link and not a rename: a rename would replace what another opener made.
        os.link(new_path, path)
    finally:
        os.unlink(new_path)
    _sync_dir(os.path.dirname(path))


def _open_for_zeroing(path: str, use_direct: bool) -> int:
    # Direct, so that the zeros do not push a ring's worth of pages out of the cache;
    # without O_DSYNC, because one sync at the end does for all of them.
    base = os.O_WRONLY | os.O_CLOEXEC
    if not use_direct:
        return os.open(path, base)
    try:
        return os.open(path, base | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, base)


def _fill_with_zeros(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        # No fallocate here (some network and FUSE ones): the zeros below allocate.
    with mmap.mmap(-1, min(size, ZERO_CHUNK_BYTES)) as zeros, memoryview(zeros) as view:
        for offset in range(0, size, ZERO_CHUNK_BYTES):
            with view[: size - offset] as chunk:
                write_fully(fd, chunk, offset)
    os.fdatasync(fd)


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb", opener=open_private) as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write_file(path: str, data: bytes) -> None:
    new_path = path + _NEW_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new_path)  # left by a crash, or a link that another user put there
    fd = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    os.replace(new_path, path)
    _sync_dir(os.path.dirname(path))


def _make_dir(path: str) -> None:
    missing: list[str] = []
    at = os.path.abspath(path)
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    if not missing and not os.path.isdir(at):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        _sync_dir(os.path.dirname(directory))


def _list_dir(path: str) -> list[str]:
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if not name.endswith(_NEW_SUFFIX))


def _sync_dir(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _space(path: str) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _takes_direct(directory: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            flags = fcntl.fcntl(file, fcntl.F_GETFL)
            fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError as error:
        logger.info("%s is written through the page cache: %s", directory, error)
        return False
    return True
