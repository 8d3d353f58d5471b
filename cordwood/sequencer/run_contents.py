"""The contents of a run: the blocks of its entries with their headers, and the clients to answer.

An atomic group is cut into as many runs as it needs. All are numbered at once, so that no other
block comes between its blocks. Each header names the group, and the last run carries the answer.

Source: docs/design.md §2, §4.
"""

from __future__ import annotations

from cordwood.block import BlockKind, Buffer, HeaderFlag
from cordwood.layout.block_header import BLOCK_HEAD_BYTES_MAX, pack_header_fields
from cordwood.layout.waves import AppendEntry, AppendFlag
from cordwood.protocol.append_window import InFlightRun
from cordwood.wire.connection import Connection


class Waiting:
    """An entry and the client connection that waits for it."""

    __slots__ = ("connection", "entry")

    def __init__(self, connection: Connection, entry: AppendEntry) -> None:
        self.connection = connection
        self.entry = entry


class RunContents:
    """The contents of a run: headers and bodies to store, and the clients to answer.

    Attributes:
        is_paced: whether the run is of a large group, which is not sent all at once.
    """

    __slots__ = ("acks", "blocks", "bytes", "is_paced")

    def __init__(self) -> None:
        self.blocks: list[tuple[bytes, Buffer]] = []
        self.acks: list[tuple[Connection, int, int]] = []
        self.bytes = 0
        self.is_paced = False

    @property
    def size(self) -> int:
        """Bytes of the whole contents, headers and envelopes included."""
        return self.bytes + len(self.blocks) * BLOCK_HEAD_BYTES_MAX

    def has_space(self, size: int, run_bytes: int) -> bool:
        """Whether a block of `size` bytes, its header included, may join.

        Headers count: without them, tens of thousands of tiny blocks made a run that was too large
        for a WAL record.
        """
        return self.size + size <= run_bytes


SentRun = InFlightRun[RunContents]
"""A run, with what the sequencer keeps of it."""


def header_flags(entry: AppendEntry) -> int:
    """The bits of an entry that stay with its blocks."""
    return HeaderFlag.CONDITIONAL if entry.flags & AppendFlag.CONDITIONAL else 0


def space_needed(entry: AppendEntry) -> int:
    """Bytes that an entry takes on a storage node."""
    return entry.stored_bytes + BLOCK_HEAD_BYTES_MAX * (len(entry.parts) or 1)


def cut_group(
    waiting: Waiting, first: int, append_time_us: int, run_bytes: int
) -> list[tuple[RunContents, int]]:
    """The runs of a group that begins at `first`: contents and records of each.

    Args:
        run_bytes: bytes of a run, headers included; a single block may be larger.
    """
    entry = waiting.entry
    group_last = first + entry.count - 1
    runs: list[tuple[RunContents, int]] = []
    contents, count, at = RunContents(), 0, first
    for part in entry.parts:
        size = part.stored_bytes + BLOCK_HEAD_BYTES_MAX
        if contents.blocks and not contents.has_space(size, run_bytes):
            runs.append((contents, count))
            contents, count = RunContents(), 0
        header = pack_header_fields(
            BlockKind.DATA,
            part.codec,
            entry.log,
            at,
            part.records,
            append_time_us,
            entry.producer,
            entry.producer_epoch,
            entry.producer_sequence + (at - first) if entry.producer else 0,
            first,
            group_last,
            part.stored_bytes,
            part.raw_bytes,
            part.stored_crc,
            part.raw_crc,
            header_flags(entry),
        )
        contents.blocks.append((header, part.body))
        contents.bytes += part.stored_bytes
        count += part.records
        at += part.records
    contents.acks.append((waiting.connection, entry.token, first))
    runs.append((contents, count))
    for each, _ in runs:
        each.is_paced = len(runs) > 1
    return runs
