"""Writes an object, block by block, in bounded memory beside its own bytes.

Blocks and gaps are given log by log, by number, and in order. A row group is closed once it holds
enough bytes; a large log begins in a group of its own, so that a reader of one log fetches little
of another. The finished object is read back before it counts: each body is rebuilt from the bytes
and compared by its CRC, because nodes will drop their copies and leave this file as the only one.
`finish` does so; `write_out` leaves this to the caller, which may put the object meanwhile, and
commits it after `read_back`.

Source: docs/objects.md, "Objects"; `layout.object_file` has the format.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from cordwood.block import BlockHeader, BlockKind, Buffer, Gap
from cordwood.errors import BadSetting, Malformed
from cordwood.layout.body import Body, open_body, open_raw_body, payload_bytes
from cordwood.layout.object_columns import (
    BODY_COLUMNS,
    SMALL_RECORDS,
    block_to_rows,
    object_schema,
    small_blocks_to_rows,
)
from cordwood.layout.object_file import (
    INDEX_KEY,
    TRAILER_BYTES,
    VERSION,
    Footer,
    Group,
    ObjectIndex,
    ObjectRun,
    Piece,
    footer_bytes,
    gap_row,
    pack_index,
    piece_blocks,
    read_footer,
    read_group,
)
from cordwood.layout.object_names import own_name, shared_name
from cordwood.lsn import Lsn

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 4 << 20
"""Uncompressed bytes of bodies at which a row group is closed. A reader fetches and checks a group
at once. At 4 MiB the footer has 2 KiB a group, a two thousandth."""

SHARED_GROUP_BYTES = 256 << 10
"""A group with this many bytes of one log is not shared with the next log."""

COMPRESSION = "zstd"

_READ_BACK = (*BODY_COLUMNS, "log_id", "lsn")
"""The columns that `read_back` decodes. All other columns follow from these, and decoding them
would take half as long again."""

_DICTIONARY = ["key", "log", "log_id", "epoch", "append_time", "producer", "producer_epoch"]
_DELTA = dict.fromkeys(("lsn", "offset", "timestamp"), "DELTA_BINARY_PACKED")
_STATISTICS = ["log", "log_id", "lsn", "epoch", "offset", "timestamp", "append_time", "producer",
               "producer_epoch", "producer_sequence"]  # fmt: skip
"""Columns for which the file notes the least and the largest value in each group. Noting them for
payloads would repeat whole payloads."""


@dataclass(frozen=True, slots=True)
class FinishedObject:
    """An object that may be put.

    Attributes:
        content: its bytes.
        footer_bytes: of the footer and what follows it.
        footer_crc: CRC32C of these.
        footer: the footer as a reader finds it.
    """

    content: Buffer
    footer_bytes: int
    footer_crc: int
    footer: Footer

    def name(self, day: str, number: int) -> str:
        """The object's name, for one log or several; see `object_names.shared_name`."""
        runs = self.footer.index.runs
        if len(runs) == 1:
            run = runs[0]
            return own_name(run.log, run.first, run.last, run.fence, self.footer_crc)
        return shared_name(day, number, self.footer_crc)


class ObjectWriter:
    """See the module.

    Attributes:
        raw_bytes: of all bodies given, uncompressed.
    """

    def __init__(
        self, group_bytes: int = GROUP_BYTES, shared_group_bytes: int = SHARED_GROUP_BYTES
    ) -> None:
        import pyarrow.parquet as pq

        self.raw_bytes = 0
        self._group_bytes = group_bytes
        self._shared_group_bytes = shared_group_bytes
        self._sink = ObjectSink()
        self._file = pq.ParquetWriter(
            self._sink,
            object_schema(),
            compression=COMPRESSION,
            use_dictionary=_DICTIONARY,
            column_encoding=_DELTA,
            write_statistics=_STATISTICS,
            store_schema=False,
        )
        self._groups: list[Group] = []
        self._runs: list[ObjectRun] = []
        self._log: _OpenRun | None = None
        self._rows: list[pa.RecordBatch] = []
        self._small: list[tuple[BlockHeader, Body]] = []
        self._row_count = 0
        self._pending_bytes = 0

    def begin_log(self, log: int, name: str, first: int, fence: int = 0) -> None:
        """Begin a log: the next blocks are of this log, from this LSN on.

        Args:
            fence: the fence of the turn in which the object is uploaded.
        Raises:
            BadSetting: the log's number is not above the number of the log before.
        """
        self._end_log()
        if self._runs and log <= self._runs[-1].log:
            raise BadSetting(f"log {log} after log {self._runs[-1].log}: give them by number")
        self._log = _OpenRun(log, name, int(first), fence)

    def add_block(self, header: BlockHeader, stored: Buffer) -> None:
        """Add a data block, with its body as stored.

        Raises:
            BadSetting: the block does not follow the previous one.
            Corrupt: the body contradicts its header.
        """
        self._add(header, lambda: open_body(header, stored))

    def add_merged(self, header: BlockHeader, raw: Buffer) -> None:
        """Add a data block that comes from an object, with its body uncompressed.

        The header stays as it was: its stored bytes, CRC and codec are those of the body that nodes
        kept.

        Raises:
            BadSetting: it does not follow the earlier blocks.
            Corrupt: the body contradicts its header.
        """
        self._add(header, lambda: open_raw_body(header, raw))

    def _add(self, header: BlockHeader, open_: Callable[[], Body]) -> None:
        log = self._following(int(header.first), int(header.last))
        if header.log != log.number or header.kind is not BlockKind.DATA:
            raise BadSetting(f"a {header.kind.name} of log {header.log} in the run of {log.number}")
        body = open_()
        if header.count > SMALL_RECORDS:
            self._gather_small()
            self._rows.append(block_to_rows(header, body, log.name))
        else:
            self._small.append((header, body))
        log.on_block(header, body, self._row_count)
        self._row_count += header.count
        self._pending_bytes += header.raw_bytes
        self.raw_bytes += header.raw_bytes
        if self._pending_bytes >= self._group_bytes:
            self._close_group()

    def add_gap(self, gap: Gap) -> None:
        """Add a range without records.

        Raises:
            BadSetting: the gap does not follow the previous block, or its kind is not permanent.
        """
        row = gap_row(gap)
        log = self._following(row[0], row[1])
        log.end_piece(len(self._groups))
        log.gaps.append(row)

    def finish(self) -> FinishedObject:
        """Close the object, and read all of it back.

        Raises:
            BadSetting: nothing was added.
            Corrupt: it does not read as it was written.
        """
        done = self.write_out()
        read_back(done)
        return done

    def write_out(self) -> FinishedObject:
        """Close the object. It does not count before `read_back`.

        Raises:
            BadSetting: nothing was added.
        """
        self._end_log()
        if not self._runs:
            raise BadSetting("an object of nothing")
        self._close_group()
        index = ObjectIndex(VERSION, tuple(self._groups), tuple(self._runs))
        self._file.add_key_value_metadata({INDEX_KEY: pack_index(index)})
        self._file.close()
        content = self._sink.whole()
        size = footer_bytes(content[-TRAILER_BYTES:])
        tail = content[len(content) - size :]
        crc = crc32c(tail)
        return FinishedObject(content, size, crc, read_footer(tail, crc, len(content)))

    def _following(self, first: int, last: int) -> _OpenRun:
        log = self._log
        if log is None:
            raise BadSetting("say which log it is before its blocks and gaps")
        if first != log.next or last < first:
            raise BadSetting(f"log {log.number} at {Lsn(first)}: {Lsn(log.next)} comes next")
        log.next = last + 1
        return log

    def _end_log(self) -> None:
        log = self._log
        if log is None:
            return
        if log.next == log.first:
            raise BadSetting(f"nothing was added of log {log.number}")
        self._gather_small()
        log.end_piece(len(self._groups))
        self._runs.append(log.run())
        if log.open_bytes >= self._shared_group_bytes:
            self._close_group()
        self._log = None

    def _gather_small(self) -> None:
        """Make rows of the small blocks that wait to become rows."""
        if self._small:
            name = self._log.name if self._log is not None else ""
            self._rows.append(small_blocks_to_rows(self._small, name))
            self._small = []

    def _close_group(self) -> None:
        """Write a row group of the pending rows."""
        import pyarrow as pa

        self._gather_small()
        if not self._rows:
            return
        if self._log is not None:
            self._log.end_piece(len(self._groups))
            self._log.open_bytes = 0
        start, self._sink.crc = self._sink.size, 0
        rows = pa.Table.from_batches(self._rows, object_schema())
        self._file.write_table(rows, row_group_size=rows.num_rows)
        self._groups.append(Group(start, self._sink.size, self._sink.crc, rows.num_rows))
        self._rows = []
        self._row_count = 0
        self._pending_bytes = 0


class _OpenRun:
    """Items given so far for the current log."""

    def __init__(self, number: int, name: str, first: int, fence: int) -> None:
        self.number = number
        self.name = name
        self.fence = fence
        self.first = first
        self.next = first
        self.gaps: list[tuple[int, int, str]] = []
        self.open_bytes = 0
        """Bytes of its bodies in the open row group."""
        self._pieces: list[Piece] = []
        self._open: Piece | None = None

    def on_block(self, header: BlockHeader, body: Body, row: int) -> None:
        """A block stands at a row of the open row group."""
        least, most = _times(body)
        append_us = header.append_time_us
        if self._open is None:
            first = int(header.first)
            self._open = Piece(0, row, 0, first, first, append_us, append_us, least,
                               most, 0)  # fmt: skip
        piece = self._open
        self._open = piece._replace(
            rows=piece.rows + header.count,
            last=int(header.last),
            append_last_us=append_us,
            time_min_us=min(piece.time_min_us, least),
            time_max_us=max(piece.time_max_us, most),
            bytes=piece.bytes + header.raw_bytes,
            payload=piece.payload + payload_bytes(header),
        )
        self.open_bytes += header.raw_bytes

    def end_piece(self, group: int) -> None:
        """End the open piece of this row group."""
        if self._open is not None:
            self._pieces.append(self._open._replace(group=group))
            self._open = None

    def run(self) -> ObjectRun:
        """The whole run."""
        return ObjectRun(
            self.number,
            self.name,
            self.fence,
            self.first,
            self.next - 1,
            tuple(self._pieces),
            tuple(self.gaps),
        )


class ObjectSink(io.RawIOBase):
    """Where pyarrow writes a file.

    Attributes:
        parts, size: the written parts and their size.
        crc: CRC32C of the bytes written since it was set to 0.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.crc = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        part = bytes(data)
        self.parts.append(part)
        self.size += len(part)
        self.crc = crc32c(part, self.crc)
        return len(part)

    def whole(self) -> memoryview:
        """All of it in one piece.

        NumPy asks Linux for large pages, and `bytes.join` takes 4 KiB at a time from the kernel:
        34 MB take 9 ms of a core in place of 20. NumPy also lets go of the interpreter's lock at
        each part.
        """
        content = np.empty(self.size, np.uint8)
        if self.parts:
            np.concatenate([np.frombuffer(part, np.uint8) for part in self.parts], out=content)
        return content.data


def _times(body: Body) -> tuple[int, int]:
    """The least and the largest of the records' own times."""
    if body.stamps is None:
        return body.first_timestamp_us, body.first_timestamp_us
    stamps = np.frombuffer(body.stamps, "<i8")
    return int(stamps.min()), int(stamps.max())


def read_back(done: FinishedObject) -> None:
    """Read every block of an object, and the columns by which other programs find records.

    Raises:
        Corrupt: a body is missing or differs from the given one.
    """
    content, index = memoryview(done.content), done.footer.index
    at = -1
    for run in index.runs:
        for piece in run.pieces:
            if piece.group != at:
                at = piece.group
                group = index.groups[at]
                found = content[group.start : group.stop]
                rows = read_group(done.footer, at, found, _READ_BACK)
            for _ in piece_blocks(piece, rows, log=run.log):
                pass
            _check_numbers(run.log, piece, rows)


def _check_numbers(log: int, piece: Piece, rows: pa.Table) -> None:
    """Check that the rows of a piece have the log and the LSNs of their blocks.

    Raises:
        Malformed: they do not.
    """
    lsns, logs = (
        rows.column(name).slice(piece.row, piece.rows).to_numpy() for name in ("lsn", "log_id")
    )
    expected = np.arange(piece.first, piece.last + 1, dtype=np.int64)
    if not (np.array_equal(lsns, expected) and bool((logs == log).all())):
        raise Malformed(
            f"rows of log {log} from {Lsn(piece.first)} on do not come back with their LSNs"
        )
