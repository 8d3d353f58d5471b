"""Makes Arrow batches of a useful size from blocks, or from rows of objects.

A block becomes a batch without touching records one by one; only runs of tiny blocks are gathered
record by record, because each batch costs time by itself.

Source: docs/sources/spark.md §3 (8 k rows or 4 MiB a batch); docs/design.md §2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cordwood.block import Codec, Record
from cordwood.client.blocks import HeldBlock
from cordwood.client.read.delivered import body_of
from cordwood.layout.arrow import body_to_batch, records_to_batch
from cordwood.layout.object_rows import LogRows
from cordwood.protocol.gap_detection import Delivery

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX = 8192
"""Rows of a batch. With 65,536 rows, reading alone was 20 % quicker, but reading and writing
Parquet was 20 % slower."""

BATCH_BYTES = 4 << 20
"""The approximate uncompressed bytes of a batch. Batches of large records reach this bound
first."""

SMALL_BLOCK_RECORDS = 30
SMALL_BLOCK_BYTES = 64 << 10
"""Blocks below both bounds are gathered record by record, which takes less time; `layout.arrow` has
the figures. Large records are not copied one by one, however few there are."""


COPY_BYTES_MAX = 128 << 10
"""A larger block is a batch of its own. Copying 256 KiB into fresh memory costs 100 µs on a virtual
machine; an extra batch costs its receiver about 30."""


@dataclass(slots=True)
class _Run:
    """The records `[first, last]` of a piece of an object, from one block or several."""

    name: str
    piece: LogRows
    first: int
    last: int


class BatchGatherer:
    """Makes batches of about ROWS_MAX rows or BATCH_BYTES of blocks of any size.

    Attributes:
        columns: of the batches.
        given: the first LSN after the batches given so far; with several logs, it belongs to the
            log of the last batch.
    """

    def __init__(self, columns: Sequence[str], keys: Set[bytes] | None = None) -> None:
        """
        Args:
            keys: rows with another key, or none, are left out; None wants all.
        """
        self.columns = tuple(columns)
        self.given = 0
        self._gathered = 0
        self._keys = None if keys is None else sorted(keys)
        # The columns to decode: rows are chosen by their keys, whether or not the keys are wanted.
        self._asked = self.columns
        if keys is not None and "key" not in self.columns:
            self._asked = (*self.columns, "key")
        self._log = (0, "")
        self._records: list[Record] = []
        self._run: _Run | None = None
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, name: str, delivery: Delivery[HeldBlock]) -> Iterator[pa.RecordBatch]:
        """Take a block of the log `name`; yields the batches that became full.

        Raises:
            Corrupt: its body cannot be read.
        """
        if (rows := delivery.block.rows) is not None:
            yield from self._add_to_run(name, rows.piece, delivery.first, delivery.last)
            return
        yield from self._end_run()
        header = delivery.block.header
        # The read stream checked the stored bytes on arrival; decompressed bytes are new.
        verify = header.codec is not Codec.NONE
        body = body_of(delivery.block, verify=verify)
        start, stop = delivery.first - header.first, delivery.last - header.first + 1
        record_bytes = header.raw_bytes / header.count
        if stop - start < SMALL_BLOCK_RECORDS and header.raw_bytes < SMALL_BLOCK_BYTES:
            if self._log != (header.log, name):
                self._close_records()
                self._log = (header.log, name)
            self._records += body.records(header.first, header.append_time_us, start, stop)
            self._gathered = header.first + stop
            yield from self._grow(stop - start, round(record_bytes * (stop - start)))
            return
        step = max(1, min(ROWS_MAX, round(BATCH_BYTES / record_bytes)))
        for first in range(start, stop, step):
            last = min(stop, first + step)
            batch = body_to_batch(
                header, body, name, start=first, stop=last, columns=self._asked
            )  # fmt: skip
            size = round(record_bytes * (last - first))
            yield from self._take(batch, header.first + last, size, step)

    def add_rows(self, name: str, rows: LogRows) -> Iterator[pa.RecordBatch]:
        """Take records of the log `name` that are rows already; yields as `add` does."""
        yield from self._end_run()
        step = _rows_of_batch(rows)
        record_bytes = _record_bytes(rows)
        behind = rows.first
        for batch in rows.batches(name, self._asked, step):
            behind += batch.num_rows
            yield from self._take(batch, behind, round(record_bytes * batch.num_rows), step)

    def _add_to_run(
        self, name: str, piece: LogRows, first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        """Take a block that is rows. A run of these blocks is cut from their piece at once, because
        a cut costs more than the rows of a small block."""
        run = self._run
        if run is None or run.piece is not piece or run.last + 1 != first or run.name != name:
            yield from self._end_run()
            self._close_records()
            run = self._run = _Run(name, piece, first, last)
        run.last = last
        # Trap: `given` is not to pass rows that are still in the run.
        if run.last - run.first + 1 >= _rows_of_batch(piece):
            yield from self._end_run()

    def _end_run(self) -> Iterator[pa.RecordBatch]:
        run, self._run = self._run, None
        if run is not None:
            yield from self.add_rows(run.name, run.piece.cut(run.first, run.last))

    def _take(
        self, batch: pa.RecordBatch, behind: int, size: int, step: int
    ) -> Iterator[pa.RecordBatch]:
        """Take a batch that ends before the LSN `behind`. `step` rows would make a full batch."""
        if size >= COPY_BYTES_MAX or batch.num_rows >= step // 2:
            # Large enough as it is: do not copy it into a larger batch.
            yield from self.finish()
            self.given = self._gathered = behind
            yield from self._wanted([batch])
            return
        self._close_records()
        self._batches.append(batch)
        self._gathered = behind
        yield from self._grow(batch.num_rows, size)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows gathered so far, if any."""
        import pyarrow as pa

        yield from self._end_run()
        self._close_records()
        batches, self._batches = self._batches, []
        self._rows = self._bytes = 0
        batches = self._wanted(batches)
        self.given = self._gathered
        if len(batches) > 1:
            yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
        else:
            yield from batches

    def _wanted(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The rows with one of the keys, if only these are wanted."""
        if self._keys is None:
            return batches
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = pa.array(self._keys, pa.binary())
        kept = [batch.filter(pc.is_in(batch.column("key"), value_set=keys)) for batch in batches]
        columns = list(self.columns)
        return [batch.select(columns) for batch in kept if batch.num_rows]

    def _grow(self, rows: int, size: int) -> Iterator[pa.RecordBatch]:
        self._rows += rows
        self._bytes += size
        if self._rows >= ROWS_MAX or self._bytes >= BATCH_BYTES:
            yield from self.finish()

    def _close_records(self) -> None:
        if self._records:
            log, name = self._log
            batch = records_to_batch(log, name, self._records, columns=self._asked)
            self._batches.append(batch)
            self._records = []


def _record_bytes(rows: LogRows) -> float:
    return rows.bytes / (rows.last - rows.first + 1)


def _rows_of_batch(rows: LogRows) -> int:
    """The most rows of a batch."""
    return max(1, min(ROWS_MAX, round(BATCH_BYTES / max(1, _record_bytes(rows)))))
