"""`format("cordwood")`: the batch and the streaming source.

Plan on the driver, read on the executors. A partition is a tuple of `Slice`, an offset a
map of log to LSN, and `read` holds no state: it runs in another process than the planning.
Every rule is in a module of its own (`options`, `bounds`, `offsets`, `runs`, `splitting`);
here is only what Spark calls.

What Spark does with these classes, and what follows, is in the digest's §2: `pushFilters`
must not even be defined (trap 6), argument names are literal (9), offsets compare as JSON
text (2), an idle query polls some 80 times a second (1), `stop` may never be called (5).

Source: research digest on PySpark 4.3, §2, §6, §8; style.md §10.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cordwood.errors import BadSetting, Rejected
from cordwood.lsn import OLDEST
from cordwood.spark.bounds import batch_ranges, check_any, initial_places, stream_stops
from cordwood.spark.offsets import (
    StreamOffset,
    check_cluster,
    move_on,
    parse_offset,
    ranges,
    share_out,
)
from cordwood.spark.options import SourceOptions, parse_options
from cordwood.spark.runs import advance, records_in
from cordwood.spark.shared_store import shared_store
from cordwood.spark.slice_reader import read_slices
from cordwood.spark.splitting import Slice, plan
from cordwood.spark.watch import Watch

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "cordwood"

POLL_S = 0.25
"""An idle stream asks for the tails four times a second, whatever its trigger."""

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "log": StringType(),
    "log_id": LongType(),
    "lsn": LongType(),
    "epoch": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


class CordwoodSource(DataSource):
    """Spark makes one for each use; it holds the options and nothing else."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def schema(self) -> StructType:
        """The columns that the options ask for.

        Raises:
            BadSetting: an option is wrong.
        """
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        options = _checked_options(self.options, schema)
        options.check_batch()
        return CordwoodReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream."""
        return CordwoodStreamReader(_checked_options(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Writing comes with the sink."""
        raise Rejected("Cordwood cannot be written to from Spark yet: only reading is built")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Writing comes with the sink."""
        self.writer(schema, overwrite)


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of these columns, which is `layout.arrow.batch_schema`'s twin."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def _checked_options(given: Mapping[str, str], schema: StructType) -> SourceOptions:
    options = parse_options(given)
    ours = spark_schema(options.columns)
    if schema != ours:
        raise BadSetting(
            f"the columns of Cordwood are fixed ({', '.join(ours.fieldNames())}): leave "
            ".schema(...) out, and select what is wanted"
        )
    return options


class _SliceReader:
    """What both readers do on executors."""

    _options: SourceOptions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; see `slice_reader.read_slices`."""
        # Spark makes a partition of its own, without a value, when none was planned.
        slices: Sequence[Slice] = partition.value or ()
        if slices:
            options = self._options
            store = shared_store(options.servers, options.request_timeout_s)
            yield from read_slices(
                store, slices, options.columns, fail_on_data_loss=options.fail_on_data_loss
            )


def _partitions(watch: Watch, slices: Sequence[Slice], options: SourceOptions) -> list[Any]:
    planned = plan(
        watch.spans(slices),
        target_bytes=options.target_partition_bytes,
        min_partitions=options.min_partitions,
    )
    return [InputPartition(each) for each in planned]


class CordwoodReader(_SliceReader, DataSourceReader):
    """A batch: what the logs hold when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks.

        Raises:
            BadSetting: a place lies outside its log.
            UnknownLog: one that was named is not there.
            Retryable: the cluster did not answer in time.
        """
        watch = Watch(self._options)
        logs = watch.selected()
        if not logs:
            check_any(self._options, logs, watch.all_logs())
        planned = batch_ranges(self._options, logs, watch.tails(logs))
        return _partitions(watch, watch.slices(planned), self._options)


class CordwoodStreamReader(_SliceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One instance plans in the driver's process, copies of it read in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._watched: Watch | None = None
        self._frozen: dict[int, int] | None = None
        self._latest: dict[int, int] | None = None
        self._is_checked = False
        self._asked_at = 0.0
        self._is_idle = False
        self._turn = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new stream starts; Spark asks again after a crash in batch 0."""
        logs = self._watch.selected()
        places = initial_places(self._options, logs, self._watch.tails(logs))
        return StreamOffset(self._watch.cluster, places, is_initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRecordsPerTrigger`, if it was given."""
        limit = self._options.max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Up to where the next batch reads; `start` itself if there is nothing new.

        Raises:
            BadSetting: the checkpoint is another cluster's.
            DataLoss: a log of the checkpoint is gone, and `failOnDataLoss` is true.
            Retryable: the cluster did not answer in time.
        """
        offset = parse_offset(start)
        if not self._is_checked:
            self._check(offset)
        stops = self._stops() if self._frozen is None else self._frozen
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        moved = move_on(offset, self._limited(offset, stops, most))
        self._is_idle = moved is offset
        return start if moved is offset else moved.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        self._frozen = self._stops()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the logs as last asked, so that a query's progress shows its lag."""
        if self._latest is None:
            return None
        return StreamOffset(self._watch.cluster, self._latest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of one batch, the same ones whenever it is run.

        Raises:
            BadSetting: the checkpoint is another cluster's, or its offsets are no pair.
            DataLoss: a log of the batch is gone, and `failOnDataLoss` is true.
        """
        upto = parse_offset(end)
        if not self._is_checked:
            self._check(upto)
        planned = ranges(parse_offset(start), upto)
        return _partitions(self._watch, self._watch.slices(planned), self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a stream yet; the checkpoint is all there is."""

    @property
    def _watch(self) -> Watch:
        """Made on first use: what is pickled for the tasks must not hold one."""
        if self._watched is None:
            self._watched = Watch(self._options)
        return self._watched

    def _check(self, offset: StreamOffset) -> None:
        """Check once that the checkpoint fits this cluster."""
        check_cluster(offset, self._watch.cluster)
        self._watch.check_there(self._watch.all_logs(), offset.logs)
        self._is_checked = True

    def _stops(self) -> dict[int, int]:
        """Ask where the logs end; an idle stream waits for its turn first."""
        due_s = self._asked_at + POLL_S - time.monotonic()
        if self._is_idle and due_s > 0:
            time.sleep(due_s)
        logs = self._watch.selected()
        tails = self._watch.tails(logs)
        self._asked_at = time.monotonic()
        self._latest = {log: tail + 1 for log, tail in tails.items()}
        return stream_stops(self._options, logs, tails)

    def _limited(
        self, offset: StreamOffset, stops: Mapping[int, int], most: int | None
    ) -> dict[int, int]:
        """Stops no further than `most` records on; logs without new records left out."""
        names = self._watch.selected()
        runs = {
            log: self._watch.runs(names[log], offset.logs.get(log, OLDEST), stop)
            for log, stop in stops.items()
            if stop > offset.logs.get(log, OLDEST)
        }
        backlog = {log: records for log in runs if (records := records_in(runs[log]))}
        if most is None or not backlog:
            return {log: stops[log] for log in backlog}
        self._turn += 1
        return {
            log: stops[log] if share == backlog[log] else advance(runs[log], share)
            for log, share in share_out(most, backlog, self._turn).items()
        }
