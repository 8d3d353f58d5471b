"""One DataFrame for logs: Spark's own Parquet scan of main storage, and the source for the rest.

Arrow batches of a Python source go through a socket into the JVM, and Spark prunes no columns of
it. Spark's own reader of the same files has neither cost. So the driver reads the manifests once,
and divides the range of each log: files that Spark reads itself, and ranges for the source. Both
are settled in this call: a query of the DataFrame reads the same range, whenever it runs.

The source does the work that Spark's own reader cannot do: gaps as rows, lost and trimmed ranges,
and stores that the session cannot read.

Source: docs/spark.md, "Spark's own Parquet reader"; docs/objects.md, "Read leases".
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from cordwood.block import GapKind
from cordwood.client.blocking.blocking_files import BlockingFiles, FilePart
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.values import Tiered
from cordwood.errors import AccessDenied, BadSetting, CordwoodError, UnknownLog
from cordwood.lsn import LogId, Lsn
from cordwood.spark.bounds import batch_ranges, check_any
from cordwood.spark.catalog import Catalog
from cordwood.spark.gap_probe import may_not_read
from cordwood.spark.ledger_options import are_of_ledgers
from cordwood.spark.offsets import data_loss
from cordwood.spark.options import SourceOptions, parse_options
from cordwood.spark.parquet_files import empty_frame, files_frame, why_unreadable
from cordwood.spark.rest_source import NAME, RANGES, Rest, RestSource
from cordwood.spark.splitting import Slice, joined
from cordwood.tier.read_leases import LEASE_S_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

LEASE_S = 6 * 3600.0
"""A query over years of a log takes minutes to hours. A lease costs the space of objects that are
merged or trimmed meanwhile."""

SCANNED_LOGS_MAX = 64
"""Each log has scans of its own, and Spark takes some milliseconds to plan each. The logs with the
fewest records are left to the source."""

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@dataclass(slots=True)
class _Plan:
    """The division of the ranges: files that Spark scans, and ranges for the source.

    Attributes:
        address: of main storage; "" as long as nothing is found there.
        scanned: the parts of each log, with the log's name, by its number.
        rest: ranges for the source.
    """

    address: str = ""
    scanned: dict[int, tuple[str, list[FilePart]]] = field(default_factory=dict)
    rest: list[Slice] = field(default_factory=list)

    def leave_to_source(self, log: int) -> None:
        """Give the files of a log to the source."""
        name, parts = self.scanned.pop(log)
        self.rest += [Slice(log, name, part.first, part.last + 1) for part in parts]

    def rest_by_lsn(self) -> tuple[Slice, ...]:
        """The ranges for the source, joined where they touch."""
        return joined(self.rest)


def scan_logs(
    spark: SparkSession,
    options: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    must_scan: bool = False,
    lease_s: float = LEASE_S,
) -> DataFrame:
    """A DataFrame of logs, of which Spark reads main storage by its own Parquet reader.

    It has the rows and the columns that `spark.read.format("cordwood").options(**options).load()`
    has at the time of this call. Later records are not in it: call again. Filters and the choice of
    columns reach the Parquet files as in any Parquet table.

    The files stay for `lease_s`, also if they are trimmed or merged meanwhile. A query that runs
    longer, or later, may fail because a file is missing; it never leaves records out.

    Args:
        spark: a session that can read main storage: with the credentials of the store, and with
            Hadoop's module for it (`hadoop-aws` for S3).
        options: the options of a batch of `format("cordwood")`.
        columns: the wanted columns, in order; None for all. The source's part sends no others.
        must_scan: raise an error if Spark's own reader cannot read main storage, in place of a
            warning and a DataFrame that the source reads as a whole.
        lease_s: seconds for which the files stay at least, up to LEASE_S_MAX; 0 for no lease. The
            store must take writes of the driver for a lease.
    Raises:
        BadSetting: an option or a column is wrong; `must_scan`, and a part that files could give
            has to be read by the source.
        UnknownLog: a named log does not exist.
        DataLoss: records of the range are trimmed, and `failOnDataLoss` is true.
        AccessDenied: this query may not read a log.
        Retryable: the cluster did not answer in time.
    """
    from cordwood.spark import register

    parsed = _checked(options, lease_s)
    wanted = _wanted_columns(parsed, columns)
    register(spark)
    plan = _planned(spark, parsed, must_scan, lease_s)
    rest = plan.rest_by_lsn()
    frames = [
        files_frame(spark, plan.address, log, name, parts, wanted)
        for log, (name, parts) in plan.scanned.items()
    ]
    if rest:
        frames.append(_rest_frame(spark, options, Rest(rest, wanted)))
    else:
        # The source's columns may be null, and constants may not: the type stays the same.
        frames.append(empty_frame(spark, wanted))
    return reduce(lambda one, other: one.union(other), frames)


def _checked(options: Mapping[str, str], lease_s: float) -> SourceOptions:
    if are_of_ledgers(options):
        raise BadSetting(
            "scan_logs reads logs, and the option ledgers is given: read ledgers with "
            'spark.read.format("cordwood")'
        )
    if not 0 <= lease_s <= LEASE_S_MAX:
        raise BadSetting(f"lease_s is {lease_s:g}; it is 0 to {LEASE_S_MAX:g} seconds")
    parsed = parse_options(options)
    parsed.check_batch()
    return parsed


def _wanted_columns(parsed: SourceOptions, columns: Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return parsed.columns
    unknown = [each for each in columns if each not in parsed.columns]
    if unknown or not columns or len({*columns}) < len(columns):
        told = f"columns has {', '.join(unknown)}" if unknown else "columns is empty or repeats one"
        raise BadSetting(
            f"{told}: with these options there are {', '.join(parsed.columns)} (includeHeaders and "
            "includeGaps add columns)"
        )
    return tuple(columns)


def _rest_frame(spark: SparkSession, options: Mapping[str, str], rest: Rest) -> DataFrame:
    spark.dataSource.register(RestSource)
    given = {name: str(value) for name, value in options.items()}
    if spark.conf.get(PUSHDOWN, "false") == "true":
        given = {name: value for name, value in given.items() if name.lower() != "filterpushdown"}
        given["filterPushdown"] = "true"
    return spark.read.format(NAME).options(**given, **{RANGES: rest.to_json()}).load()


def _planned(spark: SparkSession, parsed: SourceOptions, must_scan: bool, lease_s: float) -> _Plan:
    """Divide each log's range; see `scan_logs`."""
    catalog = Catalog(parsed)
    logs = catalog.selected()
    if not logs:
        check_any(parsed, logs, catalog.all_logs())
    tails = catalog.tails(logs)
    ranges = batch_ranges(catalog.placed(logs, tails), logs, tails)
    slices = [Slice(log, logs[log], *ends) for log, ends in ranges.items()]
    planner = _Planner(spark, parsed, must_scan, lease_s)
    try:
        return planner.plan(catalog.store, slices)
    except BaseException:
        planner.end_leases()
        raise
    finally:
        planner.close()


class _Planner:
    """Divides ranges; of one call.

    Args:
        must_scan, lease_s: as of `scan_logs`.
    """

    def __init__(
        self, spark: SparkSession, parsed: SourceOptions, must_scan: bool, lease_s: float
    ) -> None:
        self._spark = spark
        self._parsed = parsed
        self._must_scan = must_scan
        self._lease_s = lease_s
        self._files: BlockingFiles | None = None
        self._plan = _Plan()

    def plan(self, store: BlockingStore, slices: Sequence[Slice]) -> _Plan:
        """Divide these ranges; see `scan_logs` for what it raises."""
        plan = self._plan
        if self._parsed.gaps:
            self._leave("includeGaps asks for gaps as rows, and files have records only")
            plan.rest += slices
            return plan
        for each in slices:
            told, kept = self._ask(store, each)
            if kept is None:
                continue
            if not told.address:
                plan.rest.append(kept)
                continue
            try:
                self._divide(told, kept)
            except CordwoodError as error:
                # The source's tasks have more patience, and nodes may have what the store lost.
                self._leave(f"{kept.name}: {error}")
                plan.rest.append(kept)
        self._check_readable()
        self._limit_logs()
        return plan

    def end_leases(self, logs: Collection[LogId] | None = None) -> None:
        """End the leases of logs of which no file is read; None for all logs."""
        if self._files is not None:
            # A lease that cannot be ended ends by itself.
            with contextlib.suppress(CordwoodError):
                self._files.end_leases(logs)

    def close(self) -> None:
        """Let the store go."""
        if self._files is not None:
            self._files.close()

    def _ask(self, store: BlockingStore, whole: Slice) -> tuple[Tiered, Slice | None]:
        """Where main storage has the log, and the range without trimmed records; None for no range.

        Raises:
            DataLoss: records are trimmed, and failOnDataLoss is true.
            AccessDenied: this query may not read the log.
        """
        try:
            told = store.tiered(whole.log_id)
            trim = int(store.extent(whole.log_id).trim)
        except AccessDenied as error:
            raise may_not_read(whole.name) from error
        except UnknownLog:
            # It was deleted just now: the source knows what failOnDataLoss says of that.
            return Tiered("", Lsn(0), 0), whole
        if trim < whole.start:
            return told, whole
        kept_from = min(trim + 1, whole.stop)
        if self._parsed.fail_on_data_loss:
            raise data_loss(whole.log_id, whole.name, whole.start, kept_from, GapKind.TRIM.name)
        # Objects may have trimmed records for another minute, and nodes give none.
        left = replace(whole, start=kept_from)
        return told, left if left.start < left.stop else None

    def _divide(self, told: Tiered, whole: Slice) -> None:
        """Find a range's files, and put what they do not give into the rest."""
        if self._files is None:
            self._files = BlockingFiles(told.address)
            self._plan.address = told.address
        found = self._files.hold(
            LogId(whole.log_id),
            whole.start,
            whole.stop,
            made_us=told.created_us,
            unmarked_stop=int(told.upto) + 1,
            holder=f"spark {self._spark.conf.get('spark.app.name', '')}",
            lease_s=self._lease_s,
        )
        if found.parts:
            self._plan.scanned[whole.log_id] = (whole.name, found.parts)
        self._plan.rest += [replace(whole, start=low, stop=high) for low, high in found.rest]

    def _check_readable(self) -> None:
        """Leave all to the source if Spark's own reader does not find the files."""
        plan = self._plan
        if not plan.scanned:
            return
        some = next(iter(plan.scanned.values()))[1][0]
        if why := why_unreadable(self._spark, plan.address, some.name):
            self._leave(f"Spark's own reader cannot read main storage: {why}")
            for log in list(plan.scanned):
                plan.leave_to_source(log)
            self.end_leases()

    def _limit_logs(self) -> None:
        scanned = self._plan.scanned
        small = sorted(scanned, key=lambda log: -sum(part.rows for part in scanned[log][1]))
        if small := small[SCANNED_LOGS_MAX:]:
            self._leave(
                f"{len(small)} logs with fewer records than {SCANNED_LOGS_MAX} others: a query has "
                "scans of that many logs"
            )
        for log in small:
            self._plan.leave_to_source(log)
        if small:
            # Each collection reads all leases. A scan of ten thousand logs has as many.
            self.end_leases([LogId(log) for log in small])

    def _leave(self, why: str) -> None:
        """Warn that the source reads ranges that files could give.

        Raises:
            BadSetting: that is refused.
        """
        if self._must_scan:
            raise BadSetting(
                f"{why}. must_scan=True refuses to read this by the source. Leave it out, or give "
                "the session what it needs to read the store (docs/spark.md says what)"
            )
        logger.warning('read by format("cordwood"), and not by Spark\'s own reader: %s', why)
