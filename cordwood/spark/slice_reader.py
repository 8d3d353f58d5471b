"""The work of a task: it reads slices of logs and makes Arrow batches.

Blocks come straight from the storage nodes. They become batches without touching records one by
one; only runs of tiny blocks are gathered record by record. Where the driver found that main
storage holds the slice, its objects' rows become batches, without blocks in between. What arrives
must tile the slice: a record that was skipped, or came twice, ends the task.

Source: docs/sources/spark.md §3 (8 k rows or 4 MiB a batch), §8 (gaps).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import takewhile
from typing import TYPE_CHECKING

from cordwood.block import Gap, GapKind
from cordwood.client.blocking.blocking_readers import BlockingReader
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.blocks import DeliveredBlock
from cordwood.client.values import BatchGatherer, LogRows
from cordwood.errors import CordwoodError, UnknownLog, Unreachable
from cordwood.lsn import LogId, format_lsn
from cordwood.spark.gap_probe import HARMLESS, unreadable
from cordwood.spark.gap_rows import gap_row, with_gap_columns
from cordwood.spark.offsets import data_loss
from cordwood.spark.options import GAP_COLUMNS
from cordwood.spark.shared_store import shared_history
from cordwood.spark.splitting import Slice

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

STALL_TIMEOUT_S = 120.0
"""How long a task waits for the next block: Spark's own patience (`spark.network.timeout`),
and longer than a node's restart. Then it fails, and Spark may try it elsewhere."""

Taken = DeliveredBlock | LogRows | Gap


def read_slices(
    connect: Callable[[], BlockingStore],
    slices: Sequence[Slice],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool,
    with_gaps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read slices one after another, in batches that may hold several of them.

    Args:
        connect: reaches the cluster; called only for what objects do not give.
        with_gaps: give every gap as a row too, with GAP_COLUMNS after `columns`; then none
            is a failure.
    Raises:
        DataLoss: records are gone, and `fail_on_data_loss`.
        Unreachable: no node sent anything for STALL_TIMEOUT_S.
    """
    gatherer = BatchGatherer([name for name in columns if name not in GAP_COLUMNS])
    batches = _read(connect, slices, gatherer, fail_on_data_loss, with_gaps)
    yield from map(_as_records, batches) if with_gaps else batches


def _as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of records, or the row of a gap, which is so already, with GAP_COLUMNS."""
    return batch if GAP_COLUMNS[0] in batch.schema.names else with_gap_columns(batch)


def _read(
    connect: Callable[[], BlockingStore],
    slices: Sequence[Slice],
    gatherer: BatchGatherer,
    fail_on_data_loss: bool,
    with_gaps: bool,
) -> Iterator[pa.RecordBatch]:
    failing = fail_on_data_loss and not with_gaps
    for each in slices:
        try:
            # Trap: what ends the loop does not end the generator. Left to Python's collector, which
            # may run in the client's own thread, its reader would not be closed.
            with closing(_runs_of(connect, each, gatherer.columns)) as runs:
                for taken in tiled(each, runs, fail_on_data_loss=failing):
                    if isinstance(taken, LogRows):
                        yield from gatherer.add_rows(each.name, taken)
                    elif not isinstance(taken, Gap):
                        yield from gatherer.add(each.name, taken)
                    elif with_gaps:
                        yield from gatherer.finish()
                        yield gap_row(each, taken, gatherer.columns)
        except UnknownLog as error:
            # It was deleted after the slice was planned. Find the log by number: a renamed log is
            # still the same, and its old name may lead to another log.
            if fail_on_data_loss:
                raise data_loss(each.log_id, each.name, each.start, None, "LOG_GONE") from error
    yield from gatherer.finish()


def _runs_of(
    connect: Callable[[], BlockingStore], read: Slice, columns: Sequence[str]
) -> Generator[Sequence[Taken]]:
    """A slice's records: from objects where the slice says so, and the rest from nodes."""
    start = read.start
    if read.objects:
        why = "main storage ends there"
        try:
            history = shared_history(read.objects)
            asked = history.runs(
                LogId(read.log_id), start, read.stop, columns, made_us=read.made_us
            )
            with closing(asked) as runs:
                for run in runs:
                    kept = list(takewhile(_is_kept, run))
                    if kept:
                        start = kept[-1].last + 1
                        yield kept
                    if len(kept) < len(run):
                        # A node may still have the range, so nodes decide.
                        why = "main storage does not have the records there"
                        break
        except CordwoodError as error:
            why = str(error)
        if start >= read.stop:
            return
        logger.warning("%s is read from nodes from %s on: %s", read.name, format_lsn(start), why)
    with connect().read(read.log_id, start, read.stop - 1) as reader:
        yield from _runs(reader, read)


def _is_kept(taken: Taken) -> bool:
    """Whether main storage decides about this range.

    Trap: after a repair with too high a first LSN, a manifest begins above the trim point. Nodes
    know the trim point.
    """
    return not (isinstance(taken, Gap) and taken.kind in (GapKind.DATA_LOSS, GapKind.TRIM))


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
        AccessDenied: this query may not read them, with `fail_on_data_loss` or without.
    """
    expected = read.start
    for run in runs:
        for taken in run:
            if taken.first != expected:
                raise AssertionError(_torn(read, expected, taken.first))
            expected = taken.last + 1
            if isinstance(taken, Gap) and (
                taken.kind is GapKind.ACCESS or (fail_on_data_loss and taken.kind not in HARMLESS)
            ):
                raise unreadable(read, taken)
            yield taken
    if expected != read.stop:
        raise AssertionError(_torn(read, expected, read.stop))


def _torn(read: Slice, expected: int, came: int) -> str:
    return (
        f"the reader of {read.name} skipped or repeated records: at {format_lsn(expected)} came "
        f"{format_lsn(came)}"
    )
