"""A directory as an object store: main storage of a cluster on one machine or on a shared disk.

An object is a file below the directory. It is written under `.staging/` first and synced, then
renamed to its name, and the directories that name it are synced: a crash leaves no object, or all
of it. Files that a crash leaves under `.staging/` are removed when the store is opened a day later.

`put_if` checks its condition and stores the object under one lock. All processes of the machine
share this lock, and every rename takes it too. On a network file system without locks across
machines, `put_if` is not safe.

A name must not be a directory in the path of another name, such as `a` in `a/b`: it would be a file
and a directory.

Source: docs/objects.md, "The store"; docs/architecture.md, "Files by name".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from cordwood import durable
from cordwood.block import Buffer
from cordwood.errors import (
    AccessDenied,
    BadSetting,
    CordwoodError,
    Malformed,
    NoObject,
    ObjectChanged,
    OutcomeUnknown,
    Overloaded,
    Unreachable,
)
from cordwood.host.seams import Host
from cordwood.tier.object_store import (
    LIST_MAX,
    WHOLE_BYTES_MAX,
    Etag,
    ObjectInfo,
    check_deletion,
    check_name,
    check_page,
    check_prefix,
    check_range,
)

STAGING = ".staging"
LOCK = ".lock"

STAGING_GRACE_S = 86_400
"""A file staged for longer belongs to a dead process; no put takes this long."""

Result = TypeVar("Result")


class LocalStore:
    """See the module. Every call is made in a thread of the host's.

    Args:
        root: the directory; it is made by `open_local_store`.
    """

    def __init__(self, host: Host, root: Path) -> None:
        self._host = host
        self._root = root

    async def put(self, name: str, content: Sequence[Buffer], *, timeout_s: float) -> None:
        check_name(name)
        staged = self._staged()

        def act() -> None:
            self._stage(staged, content)
            with self._locked():
                self._publish(staged, name)

        await self._run(act, name, timeout_s, writes=True)

    async def put_if(
        self, name: str, content: bytes, expected: Etag | None, *, timeout_s: float
    ) -> Etag:
        check_name(name)
        staged = self._staged()

        def act() -> None:
            self._stage(staged, (content,))
            with self._locked():
                found = self._etag(name)
                if found != expected:
                    durable.unlink(staged)
                    raise ObjectChanged(f"{name} is not the object to replace")
                self._publish(staged, name)

        await self._run(act, name, timeout_s, writes=True)
        return _etag_of(content)

    async def read(self, name: str, *, timeout_s: float) -> tuple[bytes, Etag]:
        check_name(name)
        content = await self._run(lambda: self._read_whole(name), name, timeout_s)
        return content, _etag_of(content)

    async def get(self, name: str, start: int, stop: int, *, timeout_s: float) -> bytes:
        check_range(name, start, stop)
        return await self._run(lambda: self._read(name, start, stop), name, timeout_s)

    async def head(self, name: str, *, timeout_s: float) -> ObjectInfo | None:
        check_name(name)
        return await self._run(lambda: self._info(name), name, timeout_s)

    async def list_page(
        self, prefix: str, *, after: str = "", limit: int = LIST_MAX, timeout_s: float
    ) -> list[ObjectInfo]:
        check_prefix(prefix)
        check_page(after, limit)

        def act() -> list[ObjectInfo]:
            page: list[ObjectInfo] = []
            for name in self._names(prefix, after):
                info = self._info(name)
                if info is not None:  # None: deleted since its directory was read
                    page.append(info)
                if len(page) == limit:
                    break
            return page

        return await self._run(act, prefix, timeout_s)

    async def delete(self, names: Sequence[str], *, timeout_s: float) -> None:
        check_deletion(names)
        if not names:
            return

        def act() -> None:
            with self._locked():
                there = [name for name in names if self._info(name) is not None]
                durable.remove(self._root / name for name in there)

        await self._run(act, names[0], timeout_s, writes=True)

    async def close(self) -> None:
        """Nothing is held between two calls."""

    # ---- in a thread ----

    def _stage(self, staged: Path, content: Sequence[Buffer]) -> None:
        """Put the bytes on stable storage, under a name outside the objects' names."""
        try:
            # A large object comes in one piece, which is not copied.
            durable.write_new(staged, content[0] if len(content) == 1 else b"".join(content))
            durable.sync_file(staged)
        except OSError:
            with contextlib.suppress(OSError):
                durable.unlink(staged)
            raise

    def _publish(self, staged: Path, name: str) -> None:
        """Give staged bytes their name, durably. The lock is held."""
        place = self._root / name
        try:
            durable.make_directories(place.parent)
            durable.rename(staged, place)
        except OSError:
            with contextlib.suppress(OSError):
                durable.unlink(staged)
            raise
        try:
            durable.sync_directory(place.parent)
        except OSError as error:
            # The name exists, and may be missing after a crash.
            raise OutcomeUnknown(f"{name}: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of the store, for as long as a name is looked at and given."""
        fd = durable.open_private(self._root / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _open(self, name: str) -> int:
        """Open an object to read; a directory of the name is no object."""
        fd = durable.open_private(self._root / name, os.O_RDONLY)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return fd

    def _read(self, name: str, start: int, stop: int) -> bytes:
        with open(self._open(name), "rb") as file:
            file.seek(start)
            content = file.read(stop - start)
        if len(content) != stop - start:
            raise Malformed(f"{name} ends at byte {start + len(content)}, before byte {stop}")
        return content

    def _read_whole(self, name: str) -> bytes:
        with open(self._open(name), "rb") as file:
            content = file.read(WHOLE_BYTES_MAX + 1)
        if len(content) > WHOLE_BYTES_MAX:
            raise Malformed(f"{name} has more than {WHOLE_BYTES_MAX} bytes: read it by ranges")
        return content

    def _etag(self, name: str) -> Etag | None:
        try:
            return _etag_of(self._read_whole(name))
        except FileNotFoundError:
            return None

    def _info(self, name: str) -> ObjectInfo | None:
        try:
            found = os.lstat(self._root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return ObjectInfo(name, found.st_size, found.st_mtime_ns // 1000)

    def _names(self, prefix: str, after: str) -> Iterator[str]:
        """Names below a prefix that come after `after`, in order."""
        try:
            with os.scandir(self._root / prefix) as entries:
                # A directory stands where its slash puts its names: `a-b` before `a/c`.
                found = sorted(
                    entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                    for entry in entries
                    if not entry.name.startswith(".")
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for each in found:
            path = prefix + each
            if each.endswith("/"):
                if path > after or after.startswith(path):
                    yield from self._names(path, after)
            elif path > after:
                yield path

    def _staged(self) -> Path:
        """A new place for bytes that have no name yet."""
        return self._root / STAGING / f"{self._host.random.getrandbits(128):032x}"

    def sweep(self, before_us: int) -> None:
        """Remove files staged before a time; blocks."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._root / STAGING)
            old = [
                self._root / STAGING / name
                for name in sorted(names)
                if os.lstat(self._root / STAGING / name).st_mtime_ns < before_us * 1000
            ]
            durable.remove(old)

    async def _run(
        self, act: Callable[[], Result], what: str, timeout_s: float, *, writes: bool = False
    ) -> Result:
        """Make a call in a thread, and turn errors of the system into Cordwood's."""
        try:
            return await self._host.run_blocking(act, timeout_s=timeout_s)
        except TimeoutError as error:
            late = f"{self._root / what}: no answer within {timeout_s} s"
            raise (OutcomeUnknown if writes else Unreachable)(late) from error
        except OSError as error:
            raise _ours(error, what, writes=writes) from error


async def open_local_store(host: Host, root: str, *, timeout_s: float = 30.0) -> LocalStore:
    """Open a directory as a store; it is made if it is not there.

    Raises:
        BadSetting: it cannot be made, or a file has its name.
    """
    path = _absolute(root)
    store = LocalStore(host, path)

    def prepare() -> None:
        durable.make_directories(path / STAGING)
        store.sweep(host.clock.now_us() - STAGING_GRACE_S * 1_000_000)

    try:
        await host.run_blocking(prepare, timeout_s=timeout_s)
    except TimeoutError as error:
        raise Unreachable(f"{path}: no answer within {timeout_s} s") from error
    except OSError as error:
        raise BadSetting(f"{path} cannot hold objects: {error.strerror}") from error
    return store


def _absolute(root: str) -> Path:
    """The directory itself: the process's working directory may change."""
    return Path(os.path.abspath(root))


def _etag_of(content: bytes) -> Etag:
    return Etag(hashlib.blake2b(content, digest_size=16).hexdigest())


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_MISPLACED = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY)


def _ours(error: OSError, what: str, *, writes: bool) -> CordwoodError:
    if isinstance(error, FileNotFoundError) and not writes:
        return NoObject(f"there is no object {what}")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return AccessDenied(f"{what}: {error.strerror}: let this user read and write the directory")
    if error.errno == errno.ELOOP:
        return BadSetting(f"{what}: {error.strerror}")
    if error.errno in _NO_SPACE:
        return Overloaded(f"{what} was not stored: the disk is full")
    if error.errno in _MISPLACED:
        if writes:
            return BadSetting(f"{what} is the beginning of another object's name, or the reverse")
        return NoObject(f"there is no object {what}")
    return (OutcomeUnknown if writes else Unreachable)(f"{what}: {error.strerror}")
