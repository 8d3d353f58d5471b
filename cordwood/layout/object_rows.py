"""Rows of an object as Arrow batches, without making bodies of them first.

For readers of columns, such as Spark. Columns that the reader does not ask for are not decoded.
LSN, epoch and offset follow from the index, and so do log and number: a piece has a row for each
LSN. The row group's CRC32C covers every byte of it and finds damage. Before the uploader committed
the object, it built the bodies from these rows and compared them with the CRCs of their appends.
The LSNs and log numbers in the rows are compared with the index too.

The column `log` has the name that the reader knows, and not that of the upload.

A client's stream gives blocks, and its reader may ask for columns. So `piece_row_blocks` gives
blocks that are rows. A body is made only if the reader asks for records after all.

Source: docs/objects.md, "Objects" and "Damage".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cordwood.block import BlockHeader, Buffer
from cordwood.errors import Malformed
from cordwood.layout.arrow import batch_schema
from cordwood.layout.object_columns import (
    BODY_COLUMNS,
    SOURCE_COLUMNS,
    block_starts,
    rows_to_blocks,
)
from cordwood.layout.object_file import Piece, check_end, check_place
from cordwood.lsn import ESN_MAX, Lsn

if TYPE_CHECKING:
    import pyarrow as pa

_MADE = ("log", "log_id", "lsn", "epoch", "offset")
"""Columns that follow from the place of a row."""

_COMPARED = ("log_id", "lsn")

ROW_BLOCK_COLUMNS = (*BODY_COLUMNS, "append_time", *_COMPARED)
"""The columns from which blocks are made that are rows: all that a reader may ask for, and what a
body needs."""


@dataclass(frozen=True, slots=True)
class LogRows:
    """The records `[first, last]` of a log, one a row.

    Attributes:
        rows: columns of the file, each of them one array.
        log: the log's number.
        bytes: of the bodies, approximately: the piece's bytes in proportion to the rows.
    """

    rows: pa.Table
    log: int
    first: int
    last: int
    bytes: int

    def cut(self, first: int, last: int) -> LogRows:
        """The records of `[first, last]`, which must lie within these rows."""
        count = last - first + 1
        rows = self.rows.slice(first - self.first, count)
        share = self.bytes * count // (self.last - self.first + 1)
        return replace(self, rows=rows, first=first, last=last, bytes=share)

    def batches(self, name: str, columns: Sequence[str], rows_max: int) -> Iterator[pa.RecordBatch]:
        """Batches with at most this many rows.

        Args:
            name: the value of the column `log`.
            columns: those that `file_columns` was given.
        """
        for first in range(self.first, self.last + 1, rows_max):
            last = min(self.last, first + rows_max - 1)
            yield _batch(self.cut(first, last), name, columns)


@dataclass(frozen=True, slots=True)
class RowBlock:
    """A block's records as rows.

    Attributes:
        header: the block's, as it was appended.
        piece: the rows of all blocks around it, so that a run of blocks is cut from them at once.
        table: these rows with BODY_COLUMNS.
    """

    header: BlockHeader
    piece: LogRows
    table: pa.Table

    def body(self) -> Buffer:
        """Make the block's body, uncompressed.

        Raises:
            ChecksumMismatch: it is not the appended body.
        """
        at = self.header.first - self.piece.first
        rows = self.table.slice(at, self.header.count)
        [(_, body)] = rows_to_blocks(rows)
        return body


def piece_row_blocks(piece: Piece, rows: pa.Table, *, log: int) -> list[RowBlock]:
    """The blocks of a piece, as rows.

    Args:
        rows: its row group's, with ROW_BLOCK_COLUMNS.
        log: the log of the piece.
    Raises:
        Malformed: they are rows or blocks of another place.
    """
    whole = rows.slice(piece.row, piece.rows).combine_chunks()
    taken = _checked(piece, whole, log)
    table = whole.select(BODY_COLUMNS)
    blocks: list[RowBlock] = []
    expected = piece.first
    for header, _ in block_starts(whole):
        check_place(piece, header, expected, log=log)
        expected = header.last + 1
        blocks.append(RowBlock(header, taken, table))
    check_end(piece, expected, log=log)
    return blocks


def file_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of an object from which these columns of a reader are made.

    Raises:
        BadSetting: a column is not known.
    """
    batch_schema(columns)
    wanted = {*columns, *_COMPARED}
    return tuple(
        name for name in SOURCE_COLUMNS
        if name in wanted and (name not in _MADE or name in _COMPARED)
    )  # fmt: skip


def piece_rows(piece: Piece, rows: pa.Table, *, log: int) -> LogRows:
    """The records of a piece.

    Args:
        rows: its row group's, with `file_columns`.
        log: the log of the piece.
    Raises:
        Malformed: they are rows of another place.
    """
    return _checked(piece, rows.slice(piece.row, piece.rows).combine_chunks(), log)


def _checked(piece: Piece, rows: pa.Table, log: int) -> LogRows:
    """The records of a piece, of rows that are the piece's alone."""
    lsns = rows.column("lsn").to_numpy()
    logs = rows.column("log_id").to_numpy()
    wanted = np.arange(piece.first, piece.last + 1, dtype=np.int64)
    if not (np.array_equal(lsns, wanted) and bool((logs == log).all())):
        raise Malformed(
            f"rows of another place stand where those of log {log} at {Lsn(piece.first)} should"
        )
    kept = [name for name in rows.column_names if name not in _COMPARED]
    if "value" in kept and rows.column("value").null_count:
        raise Malformed("a row of an object lacks its value")
    return LogRows(rows.select(kept), log, piece.first, piece.last, piece.bytes)


def _batch(part: LogRows, name: str, columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = batch_schema(columns)
    lsns = np.arange(part.first, part.last + 1, dtype=np.int64)
    arrays = [_column(part, name, field.name, lsns).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(part: LogRows, name: str, column: str, lsns: np.ndarray) -> pa.Array:
    import pyarrow as pa

    match column:
        case "lsn":
            return pa.array(lsns)
        case "offset":
            return pa.array(lsns & ESN_MAX)
        case "epoch":
            return pa.array((lsns >> 32).astype(np.int32))
        case "log_id":
            return pa.array(np.full(len(lsns), part.log, np.int64))
        case "log":
            return pa.repeat(pa.scalar(name, pa.string()), len(lsns))
        case _:
            chunks = part.rows.column(column).chunks
            assert len(chunks) == 1, "a piece's columns were joined"
            return chunks[0]
