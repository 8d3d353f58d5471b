"""Writing with `format("cordwood")`: batches of Arrow in, appends out.

A task appends its rows in order, and is done when all of them are on stable storage on every
copy: `write` returns only then. So what Spark commits is written. What it runs again, a task or
a micro-batch, is written again: at least once. Rows of one partition stay in their order, in
each log that they go to; partitions have no order among them.

Exactly once is by stage and publish, which the store does not have yet; see `sink_options`.

Source: research digest on PySpark 4.3, §2 (traps 9, 10, 12), §8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from cordwood.client.blocking import BlockingStore
from cordwood.errors import BadSetting
from cordwood.lsn import Lsn
from cordwood.settings import ClientSettings
from cordwood.spark.shared_store import shared_store
from cordwood.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

IN_FLIGHT_MAX = 8
"""Batches of a task that wait for their acks: enough to hide the round trip, and at Spark's
10,000 rows a batch well inside the client's window."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task wrote."""

    records: int
    bytes: int


class _Writer:
    """What both writers do on executors."""

    _options: SinkOptions

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append what comes; return once all of it is durable.

        Raises:
            BadSetting: a value is null, or a row has no log.
            CordwoodError: an append failed; Spark may run the task again.
        """
        options = self._options
        settings = ClientSettings(timeout_s=options.request_timeout_s, codec=options.codec)
        store = shared_store(options.servers, options.request_timeout_s, settings)
        return write_batches(store, iterator, options.log)


class CordwoodWriter(_Writer, DataSourceArrowWriter):
    """A batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: what tasks wrote is durable."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back from a log."""


class CordwoodStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: what tasks wrote is durable."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be taken back from a log; Spark calls this after a publish too (trap 12)."""


def write_batches(
    store: BlockingStore, batches: Iterator[pa.RecordBatch], default_log: str
) -> Written:
    """Append batches of rows, in order for each log.

    Raises:
        BadSetting: a value is null, or a row has no log.
        CordwoodError: as `Store.append_many`; some rows may be stored.
    """
    in_flight: deque[Future[list[Lsn]]] = deque()
    records = size = 0
    for batch in batches:
        for log, rows in _by_log(batch, default_log):
            values = _bytes(rows, "value")
            if None in values:
                raise BadSetting("a value is null: a record of Cordwood has a value, perhaps empty")
            while len(in_flight) >= IN_FLIGHT_MAX:
                in_flight.popleft().result()
            in_flight.append(
                store.append_many_soon(
                    log,
                    values,
                    keys=_bytes(rows, "key") if _has(rows, "key") else None,
                    timestamps=_times(rows) if _has(rows, "timestamp") else None,
                    headers=_headers(rows) if _has(rows, "headers") else None,
                )
            )
            records += len(values)
            size += sum(map(len, values))
    for future in in_flight:
        future.result()
    return Written(records, size)


def _by_log(batch: pa.RecordBatch, default_log: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each log, in their order."""
    import pyarrow.compute as pc

    if not batch.num_rows:
        return
    if "log" not in batch.schema.names:
        yield default_log, batch
        return
    logs = batch.column("log")
    for log in pc.unique(logs).to_pylist():
        name = log or default_log
        if not name:
            raise BadSetting("a row's log is null, and there is no option log for such rows")
        rows = pc.is_null(logs) if log is None else pc.equal(logs, log)
        yield name, batch if logs.null_count == 0 and _all_equal(batch, log) else batch.filter(rows)


def _all_equal(batch: pa.RecordBatch, log: str) -> bool:
    import pyarrow.compute as pc

    ends = pc.min_max(batch.column("log")).as_py()
    return bool(ends["min"] == ends["max"] == log)


def _has(rows: pa.RecordBatch, column: str) -> bool:
    """Whether a column is there and says anything."""
    if column not in rows.schema.names:
        return False
    found = rows.column(column)
    return bool(found.null_count < len(found))


def _bytes(rows: pa.RecordBatch, column: str) -> list[Any]:
    import pyarrow as pa

    found = rows.column(column)
    if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
        found = found.cast(pa.binary())
    values: list[Any] = found.to_pylist()
    return values


def _times(rows: pa.RecordBatch) -> Sequence[int]:
    """µs since 1970; a null takes now, as a record without one does."""
    import time

    import pyarrow as pa

    stamps = rows.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    now_us = time.time_ns() // 1000
    found: Sequence[int] = stamps.fill_null(now_us).to_pylist()
    return found


def _headers(rows: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]]:
    return [
        [(pair["key"], pair["value"]) for pair in pairs or ()]
        for pairs in rows.column("headers").to_pylist()
    ]
