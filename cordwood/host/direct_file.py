"""Durable, aligned, direct writes: by the kernel itself where it can, else in threads.

With a thread, a write is one hand-off, one copy into the thread's aligned buffer, one `pwritev`,
and one wake-up of the loop for all writes that finished meanwhile. The hand-off costs about as much
as a small write itself, so callers gather their data into few writes. If the descriptor is
`O_DIRECT | O_DSYNC` and the machine has `io_submit`, no thread is needed (`kernel_aio`). Threads do
the reads, and writes beyond the kernel's depth.

Durable means one of two things here:

- `O_DIRECT | O_DSYNC` on a file: the write returns when the bytes are stable.
- `fdatasync` after each write, on a block device (where `O_DSYNC` flushes twice)
  and on a file system without `O_DIRECT`. Each thread opens the path for itself:
  the kernel reports a failed write-back once to each open file, so with a shared
  one the thread that did not hear of it would acknowledge lost bytes.

Source: docs/sources/hotpath.md §1 (disk); Rebello et al., ATC 2020
(what fsync failures do to pages).
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import stat
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from cordwood.block import Buffer
from cordwood.errors import StoreInUse
from cordwood.host.aligned import AlignedBuffer, fill
from cordwood.host.direct_bounds import check_run, check_write, padded_bytes
from cordwood.host.kernel_aio import AioUnavailable, KernelAio, ended_badly
from cordwood.host.seams import DISK_BLOCK_BYTES

READ_CHUNK_BYTES = 4 << 20
"""One `preadv`; longer reads are several, so that a reader needs no huge buffer."""

JOINED_PARTS_MIN = 16
"""More parts than this are joined on the loop, in one call. A thread that copies them one
by one fights with the loop for the interpreter all the while: each switch may take 5 ms."""

AIO_DEPTH = 16
"""Writes that the kernel has at once; a WAL has four to eight."""

_Job = tuple["asyncio.Future[Any]", int, int, Sequence[Buffer] | None]
"""Future, offset, length in bytes (padded), and the parts to write or None for a read."""


def open_direct_fd(
    path: str, *, use_direct: bool = True, take_device: bool = False
) -> tuple[int, bool]:
    """Open `path` for direct reads and writes, or for buffered I/O if not `use_direct`.

    Args:
        take_device: claim a block device for as long as the descriptor is open, against
            mounts and other takers. A file is claimed by its directory's lock.
    Returns:
        The descriptor, and whether each write must be followed by `fdatasync`.
    Raises:
        StoreInUse: the device is taken.
    """
    base = os.O_RDWR | os.O_CLOEXEC
    is_device = stat.S_ISBLK(os.stat(path).st_mode)
    if not is_device:
        base |= os.O_NOFOLLOW  # a device may stand behind a link, nothing else
    if is_device and take_device:
        base |= os.O_EXCL
    if not use_direct:
        return _open(path, base), True
    if is_device:
        return _open(path, base | os.O_DIRECT), True
    try:
        return _open(path, base | os.O_DIRECT | os.O_DSYNC), False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # The file system has no O_DIRECT (older tmpfs, some network ones).
    return _open(path, base), True


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = "a symbolic link stands where a file is written: remove it"
            raise OSError(errno.ELOOP, text, path) from None
        if error.errno == errno.EBUSY and flags & os.O_EXCL:
            raise StoreInUse(f"{path} is mounted, or another process has taken it") from None
        raise


def write_fully(fd: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`: one call, or more where the kernel writes short.

    Direct writes need whole blocks, so the next call begins with the block that the last call left
    half written; a call that does not finish a block makes no progress.
    """
    done = 0
    while True:
        count = os.pwritev(fd, [view[done:]], offset + done)
        if count == len(view) - done:
            return
        whole = count - count % DISK_BLOCK_BYTES
        if whole == 0:
            raise OSError(errno.EIO, f"the machine wrote {count} bytes of a block")
        done += whole


class RealDirectFile:
    """A `DirectFile` on the machine. Made by `RealDisk.open_direct` on the running loop."""

    def __init__(
        self, path: str, fds: Sequence[tuple[int, bool]], *, use_kernel_aio: bool = True
    ) -> None:
        """Take over `fds`, each with whether its writes need `fdatasync`: one thread each."""
        self._path = path
        self._size = os.lseek(fds[0][0], 0, os.SEEK_END)
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._outcomes: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._wake_sent = False
        self._in_flight = 0
        self._closing = False
        self._threads_left = len(fds)
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._aio = _kernel_aio(*fds[0]) if use_kernel_aio else None
        # Daemons: a write that the disk never finishes must not hold the process's exit.
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(fd, sync_after),
                name=f"cordwood-write-{number}",
                daemon=True,
            )
            for number, (fd, sync_after) in enumerate(fds)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        return self._size

    @property
    def closed(self) -> bool:
        """Whether its threads are gone."""
        return self._stopped.done()

    def write(self, offset: int, parts: Sequence[Buffer]) -> asyncio.Future[None]:
        length = padded_bytes(parts)
        self._check(offset, length)
        check_write(self._path, self._size, offset, length)
        if self._aio is not None and self._aio.has_space:
            future = self._begin(self._aio, offset, length, parts)
            if future is not None:
                return future
        if len(parts) > JOINED_PARTS_MIN:
            parts = (b"".join(parts),)
        return self._submit(offset, length, parts)

    def _begin(
        self, aio: KernelAio, offset: int, length: int, parts: Sequence[Buffer]
    ) -> asyncio.Future[None] | None:
        """Have the kernel write it; None where it does not take it now."""
        future: asyncio.Future[None] = self._loop.create_future()
        view: memoryview

        def on_ended(result: int) -> None:
            self._in_flight -= 1
            if 0 < result < length:
                self._finish(future, offset, length, view, result)
            else:
                self._tell(future, self._named(ended_badly(result)))
            self._check_stopped()

        try:
            view = aio.write(offset, length, parts, on_ended)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOSYS):
                return None
            future.set_exception(OSError(error.errno, error.strerror, self._path))
            return future
        except (BufferError, TypeError, ValueError) as error:
            # A part that is no buffer, or was released: the caller's to hear of.
            future.set_exception(error)
            return future
        self._in_flight += 1
        return future

    def _finish(
        self,
        future: asyncio.Future[None],
        offset: int,
        length: int,
        view: memoryview,
        written: int,
    ) -> None:
        """The kernel wrote short; a thread writes the rest, as `write_fully` would."""
        whole = written - written % DISK_BLOCK_BYTES
        if whole == 0 or self._closing:
            cut = OSError(errno.EIO, f"the machine wrote {written} bytes of {length}")
            self._tell(future, self._named(cut))
            return
        self._in_flight += 1
        self._jobs.put((future, offset + whole, length - whole, (bytes(view[whole:]),)))

    def _named(self, error: OSError | None) -> OSError | None:
        return None if error is None else OSError(error.errno, error.strerror, self._path)

    async def read(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        data: bytes = await self._submit(offset, length, None)
        return data

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            # Behind all queued writes: each thread ends when nothing is left.
            for _ in range(self._threads_left):
                self._jobs.put(None)
        await asyncio.shield(self._stopped)

    def _check(self, offset: int, length: int) -> None:
        check_run(self._path, offset, length, closing=self._closing, in_flight=self._in_flight)

    def _submit(
        self, offset: int, length: int, parts: Sequence[Buffer] | None
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._in_flight += 1
        self._jobs.put((future, offset, length, parts))
        return future

    # ---- in the threads ----

    def _work(self, fd: int, sync_after: bool) -> None:
        buffer = AlignedBuffer()
        while (job := self._jobs.get()) is not None:
            future, offset, length, parts = job
            outcome: Any = None
            try:
                if parts is None:
                    outcome = _read(fd, buffer, offset, length, self._size)
                else:
                    _write(fd, buffer, offset, length, parts)
                    if sync_after:
                        os.fdatasync(fd)
            except OSError as error:
                outcome = OSError(error.errno, error.strerror, self._path)
            except (BufferError, MemoryError, TypeError, ValueError) as error:
                # A part that is no buffer, or was released: the caller's to hear of.
                outcome = error
            self._report(future, outcome)
            del job, future, parts, outcome
        os.close(fd)
        self._report(self._stopped, None)

    def _report(self, future: asyncio.Future[Any], outcome: Any) -> None:
        """Hand an outcome to the loop, waking it unless a wake-up is under way.

        `_settle` clears the flag before it looks, so an outcome appended while the
        flag was up is always seen. Two threads may both find it down: one wake-up
        too many, which does no harm.
        """
        self._outcomes.append((future, outcome))
        if self._wake_sent:
            return
        self._wake_sent = True
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            # The loop was closed with this in flight: no caller is left.
            assert self._loop.is_closed()

    # ---- on the loop ----

    def _settle(self) -> None:
        self._wake_sent = False
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            if future is self._stopped:
                self._threads_left -= 1
                continue
            self._in_flight -= 1
            self._tell(future, outcome)
        self._check_stopped()

    def _tell(self, future: asyncio.Future[Any], outcome: Any) -> None:
        if future.done():
            return  # the caller cancelled it; the bytes were written all the same
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _check_stopped(self) -> None:
        """Its end is when the threads are gone and the kernel writes nothing more."""
        if not self._closing or self._stopped.done():
            return
        aio = self._aio
        if aio is not None and aio.in_flight:
            return
        if aio is not None:
            self._aio = None
            aio.close()
        if self._threads_left == 0:
            for thread in self._threads:
                # Each said so with its last call, so this waits for its return alone.
                thread.join()
            self._stopped.set_result(None)


def _kernel_aio(fd: int, sync_after: bool) -> KernelAio | None:
    """The kernel's own way, None where a write by it would not be durable, or it has none."""
    if sync_after:
        return None
    try:
        return KernelAio(fd, AIO_DEPTH)
    except AioUnavailable:
        return None


def _write(
    fd: int, buffer: AlignedBuffer, offset: int, length: int, parts: Sequence[Buffer]
) -> None:
    view = buffer.first(length)
    fill(view, parts)
    write_fully(fd, view, offset)


def _read(fd: int, buffer: AlignedBuffer, offset: int, length: int, size: int) -> bytes:
    chunks: list[bytes] = []
    done = 0
    # A direct read ends short at the file's end, and before a bad sector too: there the
    # next call, from that sector on, says so. So only the size says where the end is.
    while done < length and offset + done < size:
        view = buffer.first(min(length - done, READ_CHUNK_BYTES))
        count = os.preadv(fd, [view], offset + done)
        if count == 0:
            break
        chunks.append(bytes(view[:count]))
        done += count
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
