"""Statistics of logs: `cordwood spark stats`.

Batches over the selected logs, with gaps as rows: records, bytes and rate for each log and hour
of its records' own time, and missing ranges by kind. With the checkpoint of a query, also how far
behind that query is. It goes in steps of some GiB, see `stats_steps`.

Source: docs/sources/spark.md §7.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cordwood.block import GapKind
from cordwood.lsn import OLDEST
from cordwood.spark.catalog import Catalog
from cordwood.spark.checkpoint import Checkpoint
from cordwood.spark.jobs.stats_steps import (
    HOUR_S,
    STEP_BYTES,
    GapsOfLog,
    HourOfLog,
    Progress,
    step_source,
)
from cordwood.spark.jobs.table import check_path
from cordwood.spark.offsets import check_cluster, parse_offset
from cordwood.spark.options import SourceOptions, parse_options
from cordwood.spark.runs import records_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTE = "stats.json"
"""In a directory for progress."""

Say = Callable[[str], None]

_CYCLE_YEARS = 400
"""The Gregorian calendar repeats after this number of years."""

_CYCLE_S = 146_097 * 86_400
"""The length of a cycle in seconds."""

_FIRST = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""The beginning of a cycle."""

_FIRST_S = 946_684_800
"""The beginning of that cycle in seconds since 1970."""

LOSSES = tuple(kind.value for kind in GapKind if kind not in (GapKind.BRIDGE, GapKind.HOLE))
"""Gaps in which records were; bridges and holes never had any."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a query is in one log: records that it has not read, at most."""

    log: str
    next_lsn: int
    end_lsn: int
    records: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The result of a run; `lags` is empty without a checkpoint."""

    hours: list[HourOfLog]
    gaps: list[GapsOfLog]
    lags: list[Lag]


def stats(
    spark: SparkSession,
    source: Mapping[str, str],
    checkpoint: str = "",
    *,
    progress: str = "",
    step_bytes: int = STEP_BYTES,
    say: Say = lambda _: None,
) -> Stats:
    """Read the logs, and sum them up.

    Args:
        source: options of the source, as for a batch.
        checkpoint: directory of a query's checkpoint, "" for none.
        progress: a directory that records finished steps until all are done; "" to begin anew each
            time.
        say: called after each step.
    Raises:
        BadSetting: an option is wrong, the checkpoint belongs to another cluster, or `progress` to
            other logs or another cluster.
        Malformed: the files in `progress` are damaged.
    """
    lags = lag_of(Checkpoint(Path(checkpoint)), source) if checkpoint else []
    note = check_path(progress) / NOTE if progress else None
    cluster = Catalog(parse_options(source)).cluster if progress else ""
    so_far = Progress(note, source, step_bytes, cluster)
    while so_far.done < len(so_far.steps):
        options = {**step_source(source, so_far.steps[so_far.done]), "includeGaps": "true"}
        so_far.on_step(*summarize(spark.read.format("cordwood").options(**options).load()))
        records = sum(each.records for each in so_far.sums.hours)
        say(f"step {so_far.done:,} of {len(so_far.steps):,}: {records:,} records so far")
    return Stats(so_far.sums.hours, so_far.sums.gaps, lags)


def summarize(frame: DataFrame) -> tuple[list[HourOfLog], list[GapsOfLog]]:
    """One pass over the rows of a source with gaps."""
    rows = (
        frame.selectExpr(
            "log",
            "record_type",
            "gap_type",
            # In any time zone of the session: hours since 1970 are in UTC.
            # Hours before 1970 are negative, and `div` would round these up.
            f"unix_seconds(timestamp) - pmod(unix_seconds(timestamp), {HOUR_S}) AS hour_s",
            "coalesce(length(value), 0) + coalesce(length(key), 0) AS bytes",
            "lsn",
            "coalesce(gap_end_lsn, lsn) AS last_lsn",
        )
        .groupBy("log", "record_type", "gap_type", "hour_s")
        .agg({"*": "count", "bytes": "sum", "lsn": "min", "last_lsn": "max"})
        .collect()
    )
    hours, gaps = [], []
    for row in sorted(rows, key=lambda row: (row.log, row.hour_s or 0, row.gap_type or "")):
        count, size = int(row["count(1)"]), int(row["sum(bytes)"])
        first, last = int(row["min(lsn)"]), int(row["max(last_lsn)"])
        if row.record_type == "gap":
            gaps.append(
                GapsOfLog(row.log, row.gap_type, count, first, last, row.gap_type in LOSSES)
            )
        else:
            hours.append(
                HourOfLog(
                    row.log,
                    hour_name(row.hour_s),
                    count,
                    size,
                    round(count / HOUR_S, 3),
                    first,
                    last,
                )
            )
    return hours, gaps


def lag_of(checkpoint: Checkpoint, source: Mapping[str, str]) -> list[Lag]:
    """How far behind the query of a checkpoint is; records are counted at most."""
    options: SourceOptions = parse_options(source)
    catalog = Catalog(options)
    logs = catalog.selected()
    last = checkpoint.done()
    places: Mapping[int, int] = {}
    if last is not None:
        offset = parse_offset(last)
        check_cluster(offset.cluster, catalog.cluster)
        places = offset.logs
    lags = []
    for log, tail in catalog.tails(logs).items():
        first = places.get(log, int(OLDEST))
        behind = records_in(catalog.runs(log, first, tail + 1)) if first <= tail else 0
        lags.append(Lag(logs[log], first, tail + 1, behind))
    return lags


def hour_name(hour_s: int) -> str:
    """An hour as ISO 8601, also of years that `datetime` lacks: a producer may set any time, and a
    record with a time far off must not prevent the report on the others.

    Args:
        hour_s: seconds since 1970, UTC.
    """
    cycles, left_s = divmod(hour_s - _FIRST_S, _CYCLE_S)
    when = _FIRST + datetime.timedelta(seconds=left_s)
    year = when.year + _CYCLE_YEARS * cycles
    # Years of more digits have a sign, in ISO's expanded form.
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+07}"
    return f"{text}-{when:%m-%dT%H:%MZ}"
