"""The content of a disk at one instant, made to be copied and changed thousands of times.

Files have numbers, as inodes do, and separate names: a rename changes a name and no bytes, and
bytes whose name a crash removed are out of reach. Content is sparse, in 4 KiB blocks that copies
share.

Source: Pillai et al., OSDI 2014 (names and bytes reach the disk apart).
"""

from __future__ import annotations

import functools
import hashlib
import posixpath
from collections.abc import Iterator

from cordwood.host.seams import DISK_BLOCK_BYTES
from cordwood.sim.stored_file import StoredFile
from cordwood.sim.stored_tree import StoredTree

DIRECTORY = 0
"""The number that stands for a directory; files are numbered from 1."""

_ZERO_BLOCK = bytes(DISK_BLOCK_BYTES)

Key = frozenset[tuple[str, int, int]]
"""Name, size (-1: a directory) and digest of every file in reach: equal for equal contents."""


class FileBytes:
    """One file's bytes.

    Attributes:
        size: in bytes.
        digest: 64 bits that follow from the bytes alone, without blocks of zeros.
    """

    __slots__ = ("_blocks", "digest", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.digest = 0
        self._blocks: dict[int, bytes] = {}

    @classmethod
    def holding(cls, data: bytes) -> FileBytes:
        """A file of these bytes."""
        file = cls()
        file.write(0, data)
        return file

    def copy(self) -> FileBytes:
        """A copy with its own table of blocks, which shares the blocks."""
        twin = FileBytes(self.size)
        twin.digest, twin._blocks = self.digest, dict(self._blocks)
        return twin

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes; zeros past the end."""
        first = offset // DISK_BLOCK_BYTES
        last = (offset + length - 1) // DISK_BLOCK_BYTES
        get = self._blocks.get
        whole = b"".join([get(number, _ZERO_BLOCK) for number in range(first, last + 1)])
        start = offset - first * DISK_BLOCK_BYTES
        return whole[start : start + length]

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes anywhere; the file grows to hold them."""
        stop = offset + len(data)
        head = offset % DISK_BLOCK_BYTES
        tail = -stop % DISK_BLOCK_BYTES
        if head or tail:
            before = self.read(offset - head, head) if head else b""
            after = self.read(stop, tail) if tail else b""
            data = b"".join((before, data, after))
        first = (offset - head) // DISK_BLOCK_BYTES
        for at in range(0, len(data), DISK_BLOCK_BYTES):
            self._put(first + at // DISK_BLOCK_BYTES, data[at : at + DISK_BLOCK_BYTES])
        self.size = max(self.size, stop)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of every block that is not all zeros."""
        return iter(self._blocks.items())

    def _put(self, number: int, block: bytes) -> None:
        old = self._blocks.get(number)
        if old is not None:
            self.digest ^= _digest(number, old)
        if block == _ZERO_BLOCK:
            self._blocks.pop(number, None)
        else:
            self._blocks[number] = block
            self.digest ^= _digest(number, block)


@functools.lru_cache(maxsize=4096)
def _digest(number: int, block: bytes) -> int:
    """The digest of one block at its place; cached, because thousands of states share most
    blocks."""
    place = number.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(block, digest_size=8, salt=place).digest(), "little")


class Content:
    """Names and files of one disk.

    Attributes:
        names: by path, a file's number, or DIRECTORY.
        files: by number; some may have no name.
    """

    __slots__ = ("files", "names")

    def __init__(self) -> None:
        self.names: dict[str, int] = {"/": DIRECTORY}
        self.files: dict[int, FileBytes] = {}

    def copy(self) -> Content:
        """A copy of the present content. Files are shared until `own` is called for a file."""
        twin = Content()
        twin.names, twin.files = dict(self.names), dict(self.files)
        return twin

    def own(self, number: int) -> FileBytes:
        """The file, as a copy that only this content has."""
        file = self.files[number] = self.files[number].copy()
        return file

    def in_reach(self) -> Iterator[tuple[str, int]]:
        """Names whose parent directories all exist, parents first."""
        seen = {"/"}
        for path, number in sorted(self.names.items()):
            if path == "/" or posixpath.dirname(path) in seen:
                if number == DIRECTORY:
                    seen.add(path)
                yield path, number

    def key(self) -> Key:
        """The fingerprint of the content."""
        files = self.files
        return frozenset(
            (path, files[number].size, files[number].digest) if number else (path, -1, 0)
            for path, number in self.in_reach()
        )

    def tree(self) -> StoredTree:
        """The same content for a `SimDisk`; it shares nothing that can change."""
        tree = StoredTree()
        for path, number in self.in_reach():
            if number == DIRECTORY:
                tree.make_dirs(path)
                continue
            file = self.files[number]
            stored = StoredFile(file.size)
            for block, data in file.blocks():
                stored.write(block * DISK_BLOCK_BYTES, data)
            tree.put(path, stored)
        return tree
