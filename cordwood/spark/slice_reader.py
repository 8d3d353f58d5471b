"""Slices of logs in, Arrow batches out: what a task does.

Blocks come straight from the storage nodes and become batches without touching records
one by one; only runs of tiny blocks are gathered record by record. What arrives must
tile the slice: a record that was skipped, or came twice, ends the task.

Source: research digest on PySpark 4.3, §3 (8 k rows or 4 MiB a batch), §8 (gaps).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cordwood.block import Codec, Gap, GapKind, Record
from cordwood.client.blocking import BlockingReader, BlockingStore
from cordwood.client.read_stream import HeldBlock
from cordwood.errors import Unreachable
from cordwood.layout.arrow import body_to_batch, records_to_batch
from cordwood.layout.body import open_body
from cordwood.lsn import format_lsn
from cordwood.protocol.gap_detection import Delivery
from cordwood.spark.gap_rows import gap_row, with_gap_columns
from cordwood.spark.offsets import data_loss
from cordwood.spark.options import GAP_COLUMNS
from cordwood.spark.splitting import Slice

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX = 8192
"""Rows of a batch: 64 k gave +20 % into nothing and -20 % into Parquet."""

BATCH_BYTES = 4 << 20
"""Uncompressed bytes of a batch, about; large records reach this first."""

SMALL_BLOCK_RECORDS = 30
SMALL_BLOCK_BYTES = 64 << 10
"""Blocks below both are cheaper gathered record by record; `layout.arrow` has the figures.
Large records are not copied one by one, however few there are."""

STALL_TIMEOUT_S = 120.0
"""How long a task waits for the next block: Spark's own patience (`spark.network.timeout`),
and longer than a node's restart. Then it fails, and Spark may try it elsewhere."""

_PASSED_OVER = frozenset({GapKind.BRIDGE, GapKind.HOLE})
"""Nothing was ever acknowledged there."""

Taken = Delivery[HeldBlock] | Gap


def read_slices(
    store: BlockingStore,
    slices: Sequence[Slice],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool,
    with_gaps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read slices one after another, in batches that may hold several of them.

    Args:
        with_gaps: give every gap as a row too, with GAP_COLUMNS behind `columns`; then none
            is a failure.
    Raises:
        DataLoss: records are gone, and `fail_on_data_loss`.
        Unreachable: no node sent anything for STALL_TIMEOUT_S.
    """
    gatherer = BatchGatherer([name for name in columns if name not in GAP_COLUMNS])
    batches = _read(store, slices, gatherer, fail_on_data_loss, with_gaps)
    yield from map(_as_records, batches) if with_gaps else batches


def _as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of records, or the row of a gap, which is so already, with GAP_COLUMNS."""
    return batch if GAP_COLUMNS[0] in batch.schema.names else with_gap_columns(batch)


def _read(
    store: BlockingStore,
    slices: Sequence[Slice],
    gatherer: BatchGatherer,
    fail_on_data_loss: bool,
    with_gaps: bool,
) -> Iterator[pa.RecordBatch]:
    for each in slices:
        with store.read(each.name, each.start, each.stop - 1) as reader:
            if reader.info.log_id != each.log_id:
                # Another log has the name now; none of its records were planned.
                if fail_on_data_loss:
                    raise data_loss(each.log_id, each.name, each.start, None, "LOG_GONE")
                continue
            runs = _runs(reader, each)
            failing = fail_on_data_loss and not with_gaps
            for taken in tiled(each, runs, fail_on_data_loss=failing):
                if isinstance(taken, Delivery):
                    yield from gatherer.add(each.name, taken)
                elif with_gaps:
                    yield from gatherer.finish()
                    yield gap_row(each, taken, gatherer.columns)
    yield from gatherer.finish()


def _runs(reader: BlockingReader, read: Slice) -> Iterator[Sequence[Taken]]:
    try:
        yield from reader.block_runs(timeout_s=STALL_TIMEOUT_S)
    except Unreachable as error:
        raise Unreachable(
            f"no node sent {read.name} from {format_lsn(reader.next_lsn)} on for "
            f"{STALL_TIMEOUT_S:g} s; `cordwood status` tells which are up"
        ) from error


def tiled(
    read: Slice, runs: Iterable[Sequence[Taken]], *, fail_on_data_loss: bool
) -> Iterator[Taken]:
    """The blocks and gaps of a slice, in order, which are checked to tile it.

    Raises:
        DataLoss: records are gone, and `fail_on_data_loss`.
    """
    expected = read.start
    for run in runs:
        for taken in run:
            if taken.first != expected:
                raise AssertionError(_torn(read, expected, taken.first))
            expected = taken.last + 1
            if fail_on_data_loss and isinstance(taken, Gap) and taken.kind not in _PASSED_OVER:
                kind = taken.kind.name
                raise data_loss(read.log_id, read.name, taken.first, expected, kind)
            yield taken
    if expected != read.stop:
        raise AssertionError(_torn(read, expected, read.stop))


def _torn(read: Slice, expected: int, came: int) -> str:
    return (
        f"the reader of {read.name} skipped or repeated records: at {format_lsn(expected)} came "
        f"{format_lsn(came)}"
    )


class BatchGatherer:
    """Makes batches of about ROWS_MAX rows or BATCH_BYTES of blocks of any size.

    Attributes:
        columns: of the batches.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._log = (0, "")
        self._records: list[Record] = []
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, name: str, delivery: Delivery[HeldBlock]) -> Iterator[pa.RecordBatch]:
        """Take a block of the log `name`; gives the batches that are full.

        Raises:
            Corrupt: its body cannot be read.
        """
        header = delivery.block.header
        # The read stream summed the stored bytes when they came; inflated ones are new.
        verify = header.codec is not Codec.NONE
        body = open_body(header, delivery.block.stored.body, verify=verify)
        start, stop = delivery.first - header.first, delivery.last - header.first + 1
        record_bytes = header.raw_bytes / header.count
        if stop - start < SMALL_BLOCK_RECORDS and header.raw_bytes < SMALL_BLOCK_BYTES:
            if self._log != (header.log, name):
                self._close_records()
                self._log = (header.log, name)
            self._records += body.records(header.first, header.append_time_us, start, stop)
            yield from self._grow(stop - start, round(record_bytes * (stop - start)))
            return
        step = max(1, min(ROWS_MAX, round(BATCH_BYTES / record_bytes)))
        for first in range(start, stop, step):
            last = min(stop, first + step)
            batch = body_to_batch(
                header, body, name, start=first, stop=last, columns=self.columns
            )  # fmt: skip
            if last - first >= step // 2:
                # Large enough as it is: not copied into a larger one.
                yield from self.finish()
                yield batch
                continue
            self._close_records()
            self._batches.append(batch)
            yield from self._grow(last - first, round(record_bytes * (last - first)))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give what was gathered so far, if anything."""
        import pyarrow as pa

        self._close_records()
        batches, self._batches = self._batches, []
        self._rows = self._bytes = 0
        if len(batches) > 1:
            yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
        else:
            yield from batches

    def _grow(self, rows: int, size: int) -> Iterator[pa.RecordBatch]:
        self._rows += rows
        self._bytes += size
        if self._rows >= ROWS_MAX or self._bytes >= BATCH_BYTES:
            yield from self.finish()

    def _close_records(self) -> None:
        if self._records:
            log, name = self._log
            batch = records_to_batch(log, name, self._records, columns=self.columns)
            self._batches.append(batch)
            self._records = []
