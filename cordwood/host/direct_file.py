"""Durable, aligned, direct writes, in threads of their own.

A write is one hand-off to a thread, one copy into that thread's aligned buffer,
one `pwritev`, and one wake-up of the loop for all writes that finished
meanwhile. The hand-off costs about as much as a small write itself, so callers
gather what they have into few writes.

Durable means one of two things here:

- `O_DIRECT | O_DSYNC` on a file: the write returns when the bytes are stable.
- `fdatasync` after each write, on a block device (where `O_DSYNC` flushes twice)
  and on a file system without `O_DIRECT`. Each thread opens the path for itself:
  the kernel reports a failed write-back once to each open file, so with a shared
  one the thread that did not hear of it would acknowledge lost bytes.

Source: research digest of the hot path, §1 (disk); Rebello et al., ATC 2020
(what fsync failures do to pages).
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import queue
import stat
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from cordwood.block import Buffer
from cordwood.errors import StoreInUse
from cordwood.host.direct_bounds import check_run, check_write, padded_bytes
from cordwood.host.seams import DIRECT_WRITE_BYTES_MAX, DISK_BLOCK_BYTES

READ_CHUNK_BYTES = 4 << 20
"""One `preadv`; longer reads are several, so that a reader needs no huge buffer."""

BUFFER_BYTES_MIN = 256 << 10
"""A thread's buffer starts so: most waves fit, and idle files stay cheap."""

JOINED_PARTS_MIN = 16
"""More parts than this are joined on the loop, in one call. A thread that copies them one
by one fights with the loop for the interpreter all the while: each switch may take 5 ms."""

_ZEROS = bytes(DISK_BLOCK_BYTES)

_Job = tuple["asyncio.Future[Any]", int, int, Sequence[Buffer] | None]
"""Future, offset, length in bytes (padded), and the parts to write or None for a read."""


class AlignedBuffer:
    """Page-aligned memory that grows, as `O_DIRECT` asks for."""

    def __init__(self) -> None:
        self._view = memoryview(mmap.mmap(-1, BUFFER_BYTES_MIN))

    def first(self, length: int) -> memoryview:
        """The first `length` bytes, at most DIRECT_WRITE_BYTES_MAX; older views stay valid."""
        assert 0 < length <= DIRECT_WRITE_BYTES_MAX, length
        if length > len(self._view):
            self._view = memoryview(mmap.mmap(-1, 1 << (length - 1).bit_length()))
        return self._view[:length]


def open_direct_fd(
    path: str, *, use_direct: bool = True, take_device: bool = False
) -> tuple[int, bool]:
    """Open `path` for direct reads and writes, or for buffered ones if not `use_direct`.

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
        if error.errno == errno.EBUSY and flags & os.O_EXCL:
            raise StoreInUse(f"{path} is mounted, or another process has taken it") from None
        raise


def write_fully(fd: int, view: memoryview, offset: int) -> None:
    """Write all of `view` at `offset`: one call, or more where the kernel writes short.

    Direct writes want whole blocks, so the next call begins with the block that the
    last one left half written; one that does not finish a block gets no further.
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

    def __init__(self, path: str, fds: Sequence[tuple[int, bool]]) -> None:
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
        for number, (fd, sync_after) in enumerate(fds):
            # Daemons: a write that the disk never finishes must not hold the process's exit.
            threading.Thread(
                target=self._work,
                args=(fd, sync_after),
                name=f"cordwood-write-{number}",
                daemon=True,
            ).start()

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
        if len(parts) > JOINED_PARTS_MIN:
            parts = (b"".join(parts),)
        return self._submit(offset, length, parts)

    async def read(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        data: bytes = await self._submit(offset, length, None)
        return data

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            # Behind all that is queued: each thread ends when nothing is left.
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
            # The loop was closed with this in flight: nobody is left to be told.
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
            if future.done():
                continue  # the caller cancelled it; the bytes were written all the same
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if self._threads_left == 0 and not self._stopped.done():
            self._stopped.set_result(None)


def _write(
    fd: int, buffer: AlignedBuffer, offset: int, length: int, parts: Sequence[Buffer]
) -> None:
    view = buffer.first(length)
    at = 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    view[at:] = _ZEROS[: length - at]
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
