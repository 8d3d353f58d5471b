"""The bytes of one simulated file, and the bytes that a power cut may take.

Sparse, in 4 KiB blocks: a ring of 128 MiB costs only the bytes written to it. A block is *volatile*
when it shows bytes that were never synced, because a kill or an error cut their write short. Its
durable bytes are kept beside it until a later write to the file is synced, or a power cut decides.
A power cut decides block by block, and within a block sector by sector.

Source: docs/sources/reliability.md §5.1 (power cut); Pillai et al., OSDI 2014; Rebello et
al., ATC 2020 (old or new bytes after a failed sync).
"""

from __future__ import annotations

import random

from cordwood.host.seams import DISK_BLOCK_BYTES

SECTOR_BYTES = 512
"""The bytes that a disk writes whole or not at all."""

_ZERO_BLOCK = bytes(DISK_BLOCK_BYTES)


class StoredFile:
    """The content of one file. It knows nothing of paths or time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._blocks: dict[int, bytes] = {}
        self._durable: dict[int, bytes] = {}  # of volatile blocks only

    @classmethod
    def holding(cls, data: bytes) -> StoredFile:
        """A file of these bytes, all durable."""
        file = cls(len(data))
        padded = data + bytes(-len(data) % DISK_BLOCK_BYTES)
        file._put(0, padded)
        return file

    def copy(self) -> StoredFile:
        """A copy of the present content, volatile blocks included."""
        twin = StoredFile(self.size)
        twin._blocks, twin._durable = dict(self._blocks), dict(self._durable)
        return twin

    def read(self, offset: int, length: int) -> bytes:
        """Bytes as a reader sees them; fewer at the end of the file."""
        stop = min(offset + length, self.size)
        if offset >= stop:
            return b""
        first, last = offset // DISK_BLOCK_BYTES, (stop - 1) // DISK_BLOCK_BYTES
        get = self._blocks.get
        whole = b"".join([get(number, _ZERO_BLOCK) for number in range(first, last + 1)])
        start = offset - first * DISK_BLOCK_BYTES
        return whole[start : start + stop - offset]

    def write(self, offset: int, data: bytes) -> None:
        """Write and sync whole blocks. The sync also makes earlier volatile blocks durable."""
        self._put(offset, data)
        self._durable.clear()

    def write_unsynced(self, offset: int, data: bytes) -> None:
        """Write whole blocks that a power cut may take again."""
        for at in range(0, len(data), DISK_BLOCK_BYTES):
            number = (offset + at) // DISK_BLOCK_BYTES
            self._durable.setdefault(number, self._blocks.get(number, _ZERO_BLOCK))
        self._put(offset, data)

    def lose_power(self, chance: random.Random) -> None:
        """Decide each volatile block: the old bytes, the new bytes, or some sectors of each."""
        for number, old in self._durable.items():
            new = self._blocks.get(number, _ZERO_BLOCK)
            self._blocks[number] = torn(old, new, chance)
        self._durable.clear()

    def flip_bit(self, offset: int, bit: int) -> None:
        """Rot: flip one bit of one byte, in the visible and in the durable bytes."""
        number, at = divmod(offset, DISK_BLOCK_BYTES)
        for blocks in (self._blocks, self._durable):
            if blocks is self._blocks or number in blocks:
                block = bytearray(blocks.get(number, _ZERO_BLOCK))
                block[at] ^= 1 << bit
                blocks[number] = bytes(block)

    def _put(self, offset: int, data: bytes) -> None:
        first = offset // DISK_BLOCK_BYTES
        for at in range(0, len(data), DISK_BLOCK_BYTES):
            block = data[at : at + DISK_BLOCK_BYTES]
            self._blocks[first + at // DISK_BLOCK_BYTES] = block


def torn(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """One block after a power cut: old, new, or torn between sectors, a third each."""
    fate = chance.randrange(3)
    if fate < 2:
        return (old, new)[fate]
    sectors = (chance.choice((old, new))[at : at + SECTOR_BYTES] for at in _SECTOR_STARTS)
    return b"".join(sectors)


_SECTOR_STARTS = range(0, DISK_BLOCK_BYTES, SECTOR_BYTES)
