"""Memory at the start of a page, as `O_DIRECT` asks for."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from cordwood.block import Buffer
from cordwood.host.seams import DIRECT_WRITE_BYTES_MAX, DISK_BLOCK_BYTES

BUFFER_BYTES_MIN = 256 << 10
"""A buffer starts so: most waves fit, and idle files stay cheap."""

_ZEROS = bytes(DISK_BLOCK_BYTES)


class AlignedBuffer:
    """Page-aligned memory that grows.

    Attributes:
        address: where it starts, as the kernel is told.
    """

    def __init__(self) -> None:
        self.address: int
        self._take(BUFFER_BYTES_MIN)

    def first(self, length: int) -> memoryview:
        """The first `length` bytes, at most DIRECT_WRITE_BYTES_MAX; older views stay valid."""
        assert 0 < length <= DIRECT_WRITE_BYTES_MAX, length
        if length > len(self._view):
            self._take(1 << (length - 1).bit_length())
        return self._view[:length]

    def _take(self, size: int) -> None:
        memory = mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._view = memoryview(memory)


def fill(view: memoryview, parts: Sequence[Buffer]) -> None:
    """Put `parts` into `view` back to back, and zeros after them; less than a block of these.

    Raises:
        BufferError, TypeError, ValueError: a part is no buffer, or was released.
    """
    at = 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    view[at:] = _ZEROS[: len(view) - at]
