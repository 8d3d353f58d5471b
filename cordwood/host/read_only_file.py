"""A file or device to look at: opened for reading only, so nothing here can change it.

For tools that read the files of a running node or of a dead node. Reads are direct if the file
system supports it, so they show the disk's bytes and push nothing out of the page cache. A sector
that cannot be read counts as zeros and is remembered, so that a tool can show the rest of a broken
disk.

Reads block: a tool has nothing else to do meanwhile.
"""

from __future__ import annotations

import errno
import os

from cordwood.host.aligned import AlignedBuffer
from cordwood.host.seams import DIRECT_WRITE_BYTES_MAX, DISK_BLOCK_BYTES

_UNREADABLE = (errno.EIO, errno.EILSEQ, errno.ENODATA)
"""Errors of a bad sector: an I/O error, bad data integrity, or a disk's critical medium error."""


class ReadOnlyFile:
    """See the module.

    Attributes:
        unreadable: offsets of the blocks that could not be read, each DISK_BLOCK_BYTES long.
    """

    def __init__(self, path: str) -> None:
        """Open `path`.

        Raises:
            OSError: it is not there, or may not be read.
        """
        self.path = path
        self.unreadable: set[int] = set()
        self._fd = _open(path)
        self._buffer = AlignedBuffer()
        self._size = os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def size(self) -> int:
        """Bytes, when it was opened."""
        return self._size

    async def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at `offset`, which is a block's; short only where the file ends.

        Raises:
            OSError: the machine could not read, and not for want of a sector.
        """
        chunks: list[bytes] = []
        end = min(offset + length, self._size)
        while offset < end:
            wanted = min(end - offset, DIRECT_WRITE_BYTES_MAX)
            chunk = self._read_once(offset, wanted + -wanted % DISK_BLOCK_BYTES)[: end - offset]
            chunks.append(chunk)
            offset += len(chunk)
        return b"".join(chunks)

    def _read_once(self, offset: int, length: int) -> bytes:
        view = self._buffer.first(length)
        try:
            count = os.preadv(self._fd, [view], offset)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise OSError(error.errno, error.strerror, self.path) from error
            if length > DISK_BLOCK_BYTES:
                return self._read_once(offset, DISK_BLOCK_BYTES)
            self.unreadable.add(offset)
            return bytes(length)
        if offset + count < self._size:
            count -= count % DISK_BLOCK_BYTES  # the next call has to begin with a block
        if count == 0:
            raise OSError(errno.EIO, "it ends earlier than it did", self.path)
        return bytes(view[:count])

    def close(self) -> None:
        """Close it. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags)
