"""`format("cordwood")`: the batch and the streaming source; `sink` writes.

Plan on the driver, read on the executors. A partition is a tuple of `Slice`, an offset a
map of log to LSN, and `read` holds no state: it runs in another process than the planning.
Every rule is in a module of its own (`options`, `bounds`, `offsets`, `runs`, `splitting`);
here is only what Spark calls.

What Spark does with these classes, and what follows, is in docs/sources/spark.md §2: `pushFilters`
must not even be defined (trap 6), argument names are literal (9), offsets compare as JSON
text (2), an idle query polls some 80 times a second (1), `stop` may never be called (5).

What connects is imported where it is first used: Spark starts a dozen Python processes for a
query, most of which check options and go, and the client takes 0.4 s of a core to import.

Source: docs/sources/spark.md §2, §6, §8; CONTRIBUTING.md, "Spark".
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
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

from cordwood.errors import BadSetting, Rejected, UnknownLog
from cordwood.lsn import OLDEST
from cordwood.spark.bounds import batch_ranges, check_any, initial_places, stream_stops
from cordwood.spark.ledger_options import LedgerOptions, are_of_ledgers, parse_ledger_options
from cordwood.spark.ledger_source import LedgerReader, LedgerStreamReader
from cordwood.spark.offsets import (
    KnownOffsets,
    Limits,
    StreamOffset,
    check_cluster,
    move_on,
    ranges,
    share_bytes,
    share_out,
)
from cordwood.spark.options import SourceOptions, parse_options
from cordwood.spark.pushdown import Narrowed, narrow
from cordwood.spark.runs import advance, records_in
from cordwood.spark.shared_store import shared_store
from cordwood.spark.sink_options import SinkOptions, check_columns, parse_sink_options
from cordwood.spark.splitting import Slice, mark_objects, plan

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.spark.catalog import Catalog
    from cordwood.spark.group import CursorKeeper

NAME = "cordwood"

POLL_S = 0.3
"""For each call that it costs, an idle stream waits this long before it asks where its logs
end, with any trigger. So it makes 3.4 calls a second at most, and with the list of logs
for a pattern (1) and the list of members (0.2) fewer than 5."""

MANY_LOGS = 1000
"""From this many logs on, garbage collection slows micro-batches."""

COLLECT_EVERY = 50_000
"""New objects between two garbage collections: as many as a few answers about ten thousand logs
make."""

EAGER_POLLS = 4
"""After this many idle polls, a stream waits this long for all nodes that it asks."""

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "log": StringType(),
    "log_id": LongType(),
    "lsn": LongType(),
    "epoch": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "record_type": StringType(),
    "gap_type": StringType(),
    "gap_end_lsn": LongType(),
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
        if are_of_ledgers(self.options):
            return spark_schema(parse_ledger_options(self.options).columns)
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        if are_of_ledgers(self.options):
            of_ledgers = self._ledger_options(schema)
            of_ledgers.check_batch()
            return LedgerReader(of_ledgers)
        options = _checked_options(self.options, schema)
        options.check_batch()
        return CordwoodFilteringReader(options) if options.pushdown else CordwoodReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream."""
        if are_of_ledgers(self.options):
            return LedgerStreamReader(self._ledger_options(schema))
        options = _checked_options(self.options, schema)
        options.check_stream()
        return CordwoodStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch to be written.

        Raises:
            BadSetting: an option or a column is wrong.
            Rejected: it is to overwrite.
        """
        if overwrite:
            raise Rejected(
                "a log cannot be overwritten: write with mode('append'), or to another log"
            )
        from cordwood.spark.sink import CordwoodWriter

        options = self._sink_options(schema)
        options.check_batch()
        return CordwoodWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream to be written.

        Raises:
            BadSetting: an option or a column is wrong.
            Rejected: the output mode is complete, which writes all of its result each time.
        """
        if overwrite:
            raise Rejected("a log cannot be overwritten: use outputMode('append') or 'update'")
        from cordwood.spark.sink import CordwoodStreamWriter

        options = self._sink_options(schema)
        options.check_stream()
        return CordwoodStreamWriter(options)

    def _ledger_options(self, schema: StructType) -> LedgerOptions:
        options = parse_ledger_options(self.options)
        _check_schema(schema, options.columns)
        return options

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = parse_sink_options(self.options)
        check_columns(schema, options.log)
        return options


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of these columns, which is `layout.arrow.batch_schema`'s twin."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def _checked_options(given: Mapping[str, str], schema: StructType) -> SourceOptions:
    options = parse_options(given)
    _check_schema(schema, options.columns)
    return options


def _check_schema(schema: StructType, columns: Sequence[str]) -> None:
    ours = spark_schema(columns)
    if schema != ours:
        raise BadSetting(
            f"the columns of Cordwood are fixed ({', '.join(ours.fieldNames())}): leave "
            ".schema(...) out, and select what is wanted"
        )


def _collect_rarely(logs: int) -> None:
    """Have Python look for garbage less often in the process that plans a stream of many logs.

    Each answer about ten thousand logs makes ten thousand objects, and at Python's default the
    collector walks all of the process more than a dozen times for it: measured, reading a list of
    them takes 48 ms with that and 15 without. The process is Spark's, of this query alone.
    """
    if logs >= MANY_LOGS and 0 < gc.get_threshold()[0] < COLLECT_EVERY:
        gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


class SliceReader:
    """The part of the readers of logs that runs on executors."""

    _options: SourceOptions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition; see `slice_reader.read_slices`."""
        # Spark makes a partition of its own, without a value, when none was planned.
        slices: Sequence[Slice] = partition.value or ()
        if slices:
            from cordwood.spark.slice_reader import read_slices

            options = self._options
            connect = partial(
                shared_store, options.servers, options.request_timeout_s, options.client_settings()
            )
            yield from read_slices(
                connect,
                slices,
                options.columns,
                fail_on_data_loss=options.fail_on_data_loss,
                with_gaps=options.gaps,
            )


def plan_partitions(catalog: Catalog, slices: Sequence[Slice], options: SourceOptions) -> list[Any]:
    """Tasks for these slices.

    Raises:
        DataLoss: records are gone, and failOnDataLoss is true.
    """
    from cordwood.spark.gap_probe import check_whole

    if options.fail_on_data_loss and not options.gaps:
        check_whole(catalog.store, catalog.not_new(slices))
    planned = plan(
        catalog.spans(slices),
        target_bytes=options.target_partition_bytes,
        min_partitions=options.min_partitions,
    )
    return [InputPartition(each) for each in mark_objects(planned, catalog.tiered(slices))]


class CordwoodReader(SliceReader, DataSourceReader):
    """A batch: the logs' contents at planning."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks.

        Raises:
            BadSetting: a place lies outside its log.
            UnknownLog: a named log does not exist.
            Retryable: the cluster did not answer in time.
        """
        from cordwood.spark.catalog import Catalog

        catalog = Catalog(self._options)
        logs = catalog.selected()
        if not logs:
            check_any(self._options, logs, catalog.all_logs())
        tails = catalog.tails(logs)
        planned = batch_ranges(catalog.placed(logs, tails), logs, tails)
        left = self._narrowed.logs(logs)
        planned = {log: ends for log, ends in planned.items() if log in left}
        slices = catalog.slices(self._narrowed.ranges(planned))
        return plan_partitions(catalog, slices, self._options)


class CordwoodFilteringReader(CordwoodReader):
    """A batch that reads less where Spark's filters say so.

    A class of its own, because Spark refuses a reader that merely has `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is true (docs/sources/spark.md §2 trap 6).
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters on log, log_id and lsn; return the filters left to Spark."""
        self._narrowed, rest = narrow(filters)
        return rest


@dataclass(frozen=True, slots=True)
class _Ends:
    """The selected logs' ends at the time of the question: names and stops, by number.

    They belong together: a log may be gone from the next list, and its records still be there.
    """

    names: Mapping[int, str]
    stops: Mapping[int, int]


class CordwoodStreamReader(SliceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One instance plans in the driver's process, copies of it read in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._watched: Catalog | None = None
        self._frozen: _Ends | None = None
        self._latest: dict[int, int] | None = None
        self._is_checked = False
        self._asked_at = 0.0
        self._idle_polls = 0
        self._moved_at: float | None = None
        self._turn = 0
        self._keeper: CursorKeeper | None = None
        if options.group:
            from cordwood.spark.group import CursorKeeper

            self._keeper = CursorKeeper(options.group)
        self._offsets, self._reports = KnownOffsets(), KnownOffsets()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new stream starts; Spark asks again after a crash in batch 0.

        Raises:
            UnknownLog: a named log does not exist. With `failOnDataLoss=false` it may have been
                deleted since batch 0 was planned: the first offset tells.
            BadSetting: a place lies outside its log.
        """
        logs = self._catalog.selected()
        passed_over = self._options.passed_over
        new = StreamOffset(self._catalog.cluster, {}, is_initial=True, names=passed_over)
        if self._options.fail_on_data_loss:
            self._catalog.check_missing(self._catalog.all_logs(), new)
        if self._keeper is not None:
            from cordwood.spark.group import check_free

            check_free(self._catalog.store, self._options.group, logs)
        tails = self._catalog.tails(logs)
        carried = self._catalog.carried(logs)
        placed = self._catalog.placed(logs, tails, carried)
        places = {**carried, **initial_places(placed, logs, tails)}
        names = self._catalog.names_now(new, logs)
        away = frozenset(carried)
        return replace(new, logs=places, away=away, names=names).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits that were given; Spark knows of one, the others hold all the same."""
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_records is not None:
            return ReadMinRows(options.min_records)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Up to where the next batch reads; `start` itself if there is nothing new.

        Raises:
            BadSetting: the checkpoint is another cluster's.
            DataLoss: a log that the query selected is gone, and `failOnDataLoss` is true.
            UnknownLog: a named log does not exist, and is no deleted log of the checkpoint.
            Retryable: the cluster did not answer in time.
        """
        offset = self._offsets.parse(start)
        if not self._is_checked:
            self._check(offset)
        self._follow(offset)
        ends = self._ends(offset) if self._frozen is None else self._frozen
        away = self._away(offset, ends.names)
        names = self._catalog.names_now(offset, ends.names)
        stops = self._limited(offset, ends, self._limits(limit))
        if names is not None:
            # A name found them. They are carried also while they are empty: if they are renamed or
            # deleted while the query is down, they must be known to it.
            found = ends.names.keys() - offset.logs.keys()
            stops = {**dict.fromkeys(found, int(OLDEST)), **stops}
        moved = move_on(offset, stops, away, names)
        if moved is offset:
            self._idle_polls += 1
            return start
        self._idle_polls = 0
        self._moved_at = time.monotonic()
        return self._offsets.to_json(moved)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the present ends, and no further."""
        logs = self._catalog.selected()
        self._frozen = _Ends(logs, stream_stops(self._options, logs, self._catalog.tails(logs)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of the logs as last asked, so that a query's progress shows its lag."""
        if self._latest is None:
            return None
        return self._reports.to_json(StreamOffset(self._catalog.cluster, self._latest))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of one batch, the same tasks whenever it is run.

        Raises:
            BadSetting: the checkpoint is another cluster's, or its offsets are no pair.
            DataLoss: a log of the batch is gone, and `failOnDataLoss` is true.
        """
        upto = self._offsets.parse(end)
        if not self._is_checked:
            self._check(upto)
        planned = ranges(self._offsets.parse(start), upto)
        if not self._options.gaps:
            planned = {
                log: (first, stop)
                for log, (first, stop) in planned.items()
                if not self._catalog.is_surely_empty(log, first, stop)
            }
        return plan_partitions(self._catalog, self._catalog.slices(planned), self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is the truth, and cursors follow in `latestOffset`."""

    def _follow(self, offset: StreamOffset) -> None:
        """Move the cursors of `groupId`: Spark continues from `offset`, so everything before it is
        done.

        Spark's `commit` says the same one batch later, and of the last batch of an AvailableNow
        run never (docs/sources/spark.md §2 trap 4).
        """
        if self._keeper is None:
            return
        if not offset.is_initial:
            self._keeper.done(self._catalog.selected(), offset.logs)
        self._keeper.save(self._catalog.store, at_once=self._frozen is not None)

    @property
    def _catalog(self) -> Catalog:
        """Made on first use: the object that Spark pickles for tasks must not hold a store."""
        if self._watched is None:
            from cordwood.spark.catalog import Catalog

            self._watched = Catalog(self._options, may_miss=True)
        return self._watched

    def _check(self, offset: StreamOffset) -> None:
        """Check once that the checkpoint fits this cluster, and the names its logs."""
        check_cluster(offset.cluster, self._catalog.cluster)
        there = self._catalog.all_logs()
        self._catalog.check_there(there, offset.to_find())
        self._catalog.check_missing(there, offset)
        _collect_rarely(len(offset.logs))
        self._is_checked = True

    def _ends(self, offset: StreamOffset) -> _Ends:
        """Ask where the logs end; an idle stream waits for its turn first."""
        logs = self._catalog.selected()
        if self._idle_polls:
            due_s = self._asked_at + self._pause_s(logs) - time.monotonic()
            if due_s > 0:
                time.sleep(due_s)
        try:
            tails = self._catalog.released(logs)
        except UnknownLog:
            logs = self._catalog.select_again(offset.to_find())
            tails = self._catalog.released(logs)
        self._asked_at = time.monotonic()
        self._latest = {log: tail + 1 for log, tail in tails.items()}
        return _Ends(logs, stream_stops(self._options, logs, tails))

    def _away(self, offset: StreamOffset, names: Mapping[int, str]) -> frozenset[int]:
        """The carried logs that are not selected now; see `offsets`.

        Raises:
            DataLoss: one was deleted while it was selected, and `failOnDataLoss` is true.
        """
        away = frozenset(offset.logs.keys() - names.keys())
        if newly := away - offset.away:
            there = self._catalog.all_logs()
            self._catalog.check_there(there, {log: offset.logs[log] for log in newly})
        return away

    def _pause_s(self, logs: Mapping[int, str]) -> float:
        """How long an idle stream waits; longer the longer it is idle, see POLL_S."""
        calls = self._catalog.nodes_asked(logs)
        return POLL_S * min(calls, 1 + self._idle_polls // EAGER_POLLS)

    def _limits(self, limit: ReadLimit) -> Limits:
        """The limits of this batch: Spark's limit, and the limits that Spark does not know."""
        if isinstance(limit, ReadAllAvailable):
            # Spark asks for all present records, so the limits do not apply.
            return Limits()
        options = self._options
        waits = (
            options.min_records is not None
            and self._frozen is None
            and (
                self._moved_at is not None
                and time.monotonic() - self._moved_at < options.max_delay_s
            )
        )
        return Limits(
            limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_records,
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes,
            options.min_records or 0 if waits else 0,
        )

    def _limited(self, offset: StreamOffset, ends: _Ends, limits: Limits) -> dict[int, int]:
        """Stops no further on than the limits let; logs without new records left out."""
        names, stops, starts = ends.names, ends.stops, offset.logs
        runs = {
            log: self._catalog.runs(log, start, stop)
            for log, stop in stops.items()
            if stop > (start := starts.get(log, OLDEST))
        }
        backlog = {log: records for log in runs if (records := records_in(runs[log]))}
        # A stream passes the end of an epoch as well, if no record follows it yet. If it stayed
        # before that end and the log was trimmed meanwhile, the next record would bring a report of
        # lost records, although the stream had read all of them. An epoch with a lost end is read
        # too: it may have records, and nothing may come after it.
        passed = {
            log: stops[log]
            for log in runs
            if log not in backlog
            and (
                self._catalog.is_surely_empty(log, start := starts.get(log, OLDEST), stops[log])
                or self._catalog.may_hide_records(log, start, stops[log])
            )
        }
        total = sum(backlog.values())
        if not total:
            return passed
        if total < limits.min_records:
            return {}
        self._turn += 1
        shares = share_out(limits.max_records or total, backlog, self._turn)
        if limits.max_bytes is not None:
            firsts = {log: runs[log][0].first for log in shares}
            sizes = self._catalog.sizes(names, firsts, shares)
            shares = share_bytes(limits.max_bytes, shares, sizes, self._turn)
        moved = {
            log: stops[log] if share == backlog[log] else advance(runs[log], share)
            for log, share in shares.items()
        }
        return {**passed, **moved}
