"""The nouns of LogsDB: a partition, its part of a log, the result of a read.

Source: docs/design.md §5; docs/sources/logdevice.md 2.13.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.layout import logs_db
from cordwood.layout.logs_db import DirectoryEntry, PartitionRow
from cordwood.layout.waves import StoredBlock
from cordwood.storage.logs_db.tables import Row


class Part(enum.IntEnum):
    """How much of a block is wanted."""

    NOTHING = 0
    HEAD = 1
    """Header and envelope; its body is not read."""
    WHOLE = 2


Wanted = Callable[[StoredBlock], Part]
"""Returns the part of a block that is to be sent. It gets the block without its body, which has not
been read yet."""


class BlockRun(NamedTuple):
    """Blocks of one log in LSN order.

    Attributes:
        blocks: all held and wanted blocks in [start, next), each range once.
        next: where to continue; past the requested bound if it is reached.
        passed: held but unwanted blocks there.
        damaged: ranges `[first, last]` with a failed checksum: their contents are unknown. They lie
            in [start, next) too.
    """

    blocks: list[StoredBlock]
    next: int
    passed: int = 0
    damaged: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Partition:
    """One partition: a table, and the values of its row in the metadata.

    Attributes:
        kept_by: a log that was not fully trimmed at the last full look, and its highest LSN here:
            the partition stays until this LSN is trimmed. None before the first look.
        expires_us: before this time no record here exceeds its log's retention; 0 if not computed
            yet.
    """

    number: int
    start_us: int
    made_us: int
    bytes: int = 0
    files: int = 0
    kept_by: tuple[int, int] | None = None
    expires_us: int = 0

    @property
    def table(self) -> str:
        """Its table's name; their order is that of the numbers."""
        return f"p{self.number:010}"

    def row(self) -> PartitionRow:
        """For the metadata."""
        return PartitionRow(self.start_us, self.made_us, self.bytes, self.files)


@dataclass(slots=True)
class StoredLog:
    """The amount that LogsDB holds of a log: the highest LSN, the number of copies of blocks, and
    their bytes."""

    last: int = 0
    blocks: int = 0
    bytes: int = 0


Homes = Mapping[int, Partition | None]
"""By `id` of an amended block, where its body lies; None where the same flush brings it."""

Added = tuple[int, Mapping[int, DirectoryEntry]]
"""A partition's number, and by log a flush's additions to its directory."""


class PartitionBlocks:
    """A flush's blocks for one partition.

    Attributes:
        bytes: of its blocks.
        blocks: those with their bodies.
    """

    __slots__ = ("_heads", "_parts", "blocks", "bytes", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.bytes = 0
        self.blocks: list[StoredBlock] = []
        self._heads: list[StoredBlock] = []
        # By log, the parts of its directory entry. A flush brings thousands of blocks.
        self._parts: dict[int, list[int]] = {}

    def add(self, block: StoredBlock) -> None:
        """Take one more block."""
        self.blocks.append(block)
        self._note(block, block.wire_bytes)

    def amend(self, block: StoredBlock) -> None:
        """Take one more copy of a block whose body is in the partition, or in this flush."""
        self._heads.append(block)
        self._note(block, len(block.wire))

    def _note(self, block: StoredBlock, size: int) -> None:
        header = block.header
        self.bytes += size
        time_us = header.append_time_us
        part = self._parts.get(header.log)
        if part is None:
            self._parts[header.log] = [header.first, header.last, 1, size, time_us, time_us]
            return
        if header.first < part[0]:
            part[0] = header.first
        if header.last > part[1]:
            part[1] = header.last
        part[2] += 1
        part[3] += size
        if time_us < part[4]:
            part[4] = time_us
        if time_us > part[5]:
            part[5] = time_us

    def entries(self) -> dict[int, DirectoryEntry]:
        """By log, the additions of all these blocks to the directory."""
        return {log: DirectoryEntry(*part) for log, part in self._parts.items()}

    def rows(self) -> Iterator[Row]:
        """The rows to write, made one by one: copying every body at once would stop the loop for as
        long as the disk takes to write them."""
        for block in self.blocks:
            header = block.header
            if header.stored_bytes:
                key = logs_db.body_key(header.log, header.last, header.first)
                yield key, bytes(block.body)
            yield logs_db.index_key(block), bytes(block.wire)
        # The index entries come after the bodies, because a table loses rows from its end.
        for block in self._heads:
            yield logs_db.index_key(block), bytes(block.wire)
