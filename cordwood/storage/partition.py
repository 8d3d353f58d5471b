"""The nouns of LogsDB: a partition, what it holds of a log, what one read of it brings.

Source: design.md §5; LogDevice digest 2.13.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.layout import logs_db
from cordwood.layout.logs_db import DirectoryEntry, PartitionRow
from cordwood.layout.waves import StoredBlock
from cordwood.storage.tables import Row


class Part(enum.IntEnum):
    """How much of a block is wanted."""

    NOTHING = 0
    HEAD = 1
    """Header and envelope; its body is not read."""
    WHOLE = 2


Wanted = Callable[[StoredBlock], Part]
"""How much of a block is to be sent; it is shown without its body, which is not read for it."""


class Run(NamedTuple):
    """Blocks of one log in LSN order.

    Attributes:
        blocks: all that is held and wanted in [start, next), each range once.
        next: where to read on; past the bound that was asked for if that is reached.
        passed: blocks that are held there and not wanted.
        damaged: ranges `[first, last]` of which something fails its checksum: what is held there
            is not known. They lie in [start, next) too.
    """

    blocks: list[StoredBlock]
    next: int
    passed: int = 0
    damaged: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class Partition:
    """One partition: a table, and what its row says."""

    number: int
    start_us: int
    made_us: int
    bytes: int = 0
    files: int = 0

    @property
    def table(self) -> str:
        """Its table's name; their order is that of the numbers."""
        return f"p{self.number:010}"

    def row(self) -> PartitionRow:
        """For the metadata."""
        return PartitionRow(self.start_us, self.made_us, self.bytes, self.files)


@dataclass(slots=True)
class StoredLog:
    """What LogsDB holds of a log: the highest LSN, how many copies of blocks, their bytes."""

    last: int = 0
    blocks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Share:
    """What a flush brings to one partition."""

    partition: Partition
    rows: list[Row] = field(default_factory=list)
    bytes: int = 0
    entries: dict[int, DirectoryEntry] = field(default_factory=dict)

    def add(self, block: StoredBlock) -> None:
        header = block.header
        if header.stored_bytes:
            key = logs_db.body_key(header.log, header.last, header.first)
            self.rows.append((key, bytes(block.body)))
        self.rows.append((logs_db.index_key(block), bytes(block.wire)))
        self.bytes += block.wire_bytes
        time_us = header.append_time_us
        entry = DirectoryEntry(header.first, header.last, 1, block.wire_bytes, time_us, time_us)
        before = self.entries.get(header.log)
        self.entries[header.log] = entry if before is None else before.joined(entry)
