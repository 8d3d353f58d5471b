"""Writes handed to the kernel itself, by Linux's io_submit, without a thread between.

A write by a thread is two hand-offs: to the thread, which has to be woken and then waits
for the interpreter, and back to the loop. Together they cost as much as a small write
takes. Here the loop copies the parts into an aligned buffer, one system call starts the
write, and an eventfd that the loop watches says that some have ended.

Only for `O_DIRECT | O_DSYNC` on a file that was allocated and written beforehand, where
the kernel starts a write without waiting for the disk, and ends it when the bytes are
stable. Python has no module for it, so that the calls go through ctypes: the numbers and
layouts below are the kernel's interface to programs, which does not change.

Source: io_submit(2), io_setup(2), eventfd(2); include/uapi/linux/aio_abi.h.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable, Sequence

from cordwood.block import Buffer
from cordwood.host.aligned import AlignedBuffer, fill

OnEnded = Callable[[int], None]
"""Told how many bytes were written, or minus an errno. It must not raise."""

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""io_setup, io_destroy, io_getevents, io_submit."""

_PWRITE = 1
_FLAG_EVENTFD = 1


class _Iocb(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("iocb", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _NoWait(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class AioUnavailable(Exception):
    """This machine lacks these calls, or grants no more of them."""


class _Slot:
    """One write slot: its control block, its buffer, and its callback."""

    __slots__ = ("address", "buffer", "iocb", "iocb_at", "on_ended")

    def __init__(self, number: int, fd: int, event_fd: int) -> None:
        self.buffer = AlignedBuffer()
        self.on_ended: OnEnded | None = None
        self.iocb = _Iocb(
            data=number, opcode=_PWRITE, fd=fd, flags=_FLAG_EVENTFD, event_fd=event_fd
        )
        # The kernel takes an array of pointers.
        self.iocb_at = (ctypes.c_void_p * 1)(ctypes.addressof(self.iocb))


class KernelAio:
    """Writes to one descriptor, up to `depth` in flight; used only on the loop that made it.

    Attributes:
        in_flight: writes that have not ended.
    """

    def __init__(self, fd: int, depth: int) -> None:
        """
        Raises:
            AioUnavailable: see the class.
        """
        self._calls = _numbers()
        self.in_flight = 0
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._call(self._calls[0], ctypes.c_long(depth), ctypes.byref(self._context))
        except OSError as error:
            os.close(self._event_fd)
            raise AioUnavailable(f"io_setup: {error}") from error
        self._fd = os.dup(fd)
        self._slots = [_Slot(number, self._fd, self._event_fd) for number in range(depth)]
        self._free = list(reversed(self._slots))
        self._events = (_Event * depth)()
        self._no_wait = _NoWait(0, 0)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._event_fd, self._on_ready)

    @property
    def has_space(self) -> bool:
        """Whether one more write may be started."""
        return bool(self._free)

    def write(
        self, offset: int, length: int, parts: Sequence[Buffer], on_ended: OnEnded
    ) -> memoryview:
        """Start a write of `parts`, padded with zeros to `length`; returns the written bytes, which
        stay unchanged until `on_ended` was called and no longer.

        Raises:
            OSError: it was not started.
            BufferError, TypeError, ValueError: a part is no buffer.
        """
        slot = self._free[-1]
        view = slot.buffer.first(length)
        fill(view, parts)
        iocb = slot.iocb
        iocb.address = slot.buffer.address
        iocb.length = length
        iocb.offset = offset
        self._call(self._calls[3], self._context, ctypes.c_long(1), slot.iocb_at)
        self._free.pop()
        self.in_flight += 1
        slot.on_ended = on_ended
        return view

    def close(self) -> None:
        """Let go of it; nothing may be in flight."""
        assert not self.in_flight, "the kernel writes from buffers that would go"
        self._loop.remove_reader(self._event_fd)
        self._call(self._calls[1], self._context)
        os.close(self._event_fd)
        os.close(self._fd)

    def _on_ready(self) -> None:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            return
        events = self._events
        most = ctypes.c_long(len(self._slots))
        count = self._call(
            self._calls[2], self._context, ctypes.c_long(0), most, events,
            ctypes.byref(self._no_wait),
        )  # fmt: skip
        for event in events[:count]:
            slot = self._slots[event.data]
            on_ended, slot.on_ended = slot.on_ended, None
            assert on_ended is not None, "what ends was begun"
            self.in_flight -= 1  # before it is told: it may close this at the last one
            on_ended(event.result)
            self._free.append(slot)  # and after: it may still look at the buffer

    def _call(self, number: int, *arguments: object) -> int:
        result: int = self._syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def _numbers() -> tuple[int, int, int, int]:
    if not sys.platform.startswith("linux") or not hasattr(os, "eventfd"):
        raise AioUnavailable("this is not Linux")
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None or sys.maxsize < 1 << 32:
        raise AioUnavailable(f"its calls are not known on {platform.machine()}")
    return numbers


def ended_badly(result: int) -> OSError | None:
    """What `OnEnded` was told, as an error; None where something was written."""
    if result > 0:
        return None
    code = -result or errno.EIO
    return OSError(code, os.strerror(code))
