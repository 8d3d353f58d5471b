"""Write the records of a table or of other logs to a log: `cordwood spark backfill`, `… replay`.

*replay* copies a range of logs to a log, by the source and the sink, with a checkpoint: a restart
continues after the last finished micro-batch. *backfill* writes the files of a Parquet, Delta or
Iceberg table, a step of files at a time, and records each finished step.

A replay writes each record once, even if a process dies. A backfill writes at least once: its steps
exceed one publish, and a restart repeats the interrupted step as a whole. With `ordered`, one task
writes all rows and keeps their order: by `lsn` if the table has that column, else as in the files.

Source: docs/sources/spark.md §7.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cordwood.durable import make_directories, write_whole
from cordwood.errors import BadSetting
from cordwood.spark.catalog import Catalog, select
from cordwood.spark.jobs.notes import damaged, read_note, text_of
from cordwood.spark.jobs.partitions import partition_value
from cordwood.spark.jobs.table import check_path, only_writer
from cordwood.spark.jobs.table_files import steps, table_files
from cordwood.spark.options import parse_options
from cordwood.spark.places import Edge
from cordwood.spark.raw_options import RawOptions
from cordwood.spark.shared_store import shared_store
from cordwood.spark.sink_options import AT_LEAST_ONCE, TAKEN, parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REPLAY_BYTES = "32m"
"""Of records in a micro-batch of a replay: well inside the 64 MiB of one atomic group,
however its logs are spread; overheads and a sample that was not typical have the rest."""

STEP_BYTES = 512 << 20
"""Bytes of files in one step: at most this much is written again after a crash."""

NOTE = "done.json"
"""In a backfill's directory for progress."""

REPLAY_NOTE = "cordwood-replay.json"
"""In a replay's checkpoint, beside what Spark keeps there."""

PROGRESS_S = 5
"""How often a replay's progress is asked for: far fewer than a hundred micro-batches go by."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Copied:
    """The rows that a run wrote; `skipped` counts steps that an earlier run had done."""

    records: int = 0
    steps: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedBackfill:
    """The work of a backfill: the number of files; `done` were written by earlier runs."""

    files: int
    bytes: int
    steps: int
    done: int


def replay(
    spark: SparkSession,
    source: Mapping[str, str],
    sink: Mapping[str, str],
    checkpoint: str,
    *,
    ordered: bool = False,
    say: Say = lambda _: None,
) -> Copied:
    """Copy what logs hold now, each record once.

    It goes from `startingOffsets` (earliest) to `endingOffsets`.

    Args:
        sink: options of the sink; without `log`, records go to logs of the same name.
        checkpoint: a directory; with it a later run goes on.
        ordered: one task writes each micro-batch, so that a log's order is kept.
    Raises:
        BadSetting: an option is wrong, the checkpoint is of a replay into another log, or the
            target log is also read.
        StreamingQueryException: the query failed; started again, it goes on.
    """
    began = time.monotonic()
    limits = {"startingOffsets": "earliest", "maxBytesPerTrigger": REPLAY_BYTES}
    options = {**limits, "includeHeaders": "true", **source}
    log, cluster = RawOptions(sink).text("log") or "", _cluster_of(sink)
    _check_apart(options, log, cluster)
    _note_replay(check_path(checkpoint), log, cluster)
    frame = spark.readStream.format("cordwood").options(**options).load()
    frame = _columns(frame, keep_log="log" not in {name.lower() for name in sink})
    if ordered:
        frame = frame.coalesce(1)
    query = (
        frame.writeStream.format("cordwood")
        .options(**sink)
        .option("checkpointLocation", str(check_path(checkpoint)))
        .trigger(availableNow=True)
        .start()
    )
    try:
        counts = _until_done(query, say)
    finally:
        query.stop()
    return Copied(sum(counts), len(counts), 0, time.monotonic() - began)


def _cluster_of(sink: Mapping[str, str]) -> str:
    """The identity of the cluster that records go to: its addresses may change."""
    options = parse_sink_options(sink)
    return shared_store(options.servers, options.request_timeout_s).cluster_id


def _check_apart(source: Mapping[str, str], log: str, cluster: str) -> None:
    """Refuse to copy a log into itself, as a pattern may that its name fits: the next run would
    copy the copies once more.

    A range that is said to end may be appended again.

    Raises:
        BadSetting: records go to a log that is read up to its end.
    """
    options = parse_options(source)
    catalog = Catalog(options)
    if catalog.cluster != cluster:
        return
    logs, name = catalog.all_logs(), _named(log)
    made = {} if not log or name in logs.values() else {max(logs, default=0) + 1: name}
    read = select(options.selection, {**logs, **made}, may_miss=True)
    into = [
        each
        for log_id, each in read.items()
        if each == (name or each) and options.ends.of(log_id, each) is Edge.LATEST
    ]
    if into:
        raise BadSetting(
            f"{into[0]} is read, and records would go into it, to be read again by the next run: "
            "copy to a log that is not read, or say where reading ends (endingOffsets)"
        )


def _note_replay(checkpoint: Path, log: str, cluster: str) -> None:
    """Note where a checkpoint's records go.

    Spark accepts it for any sink; then records that were copied to one log would never be copied to
    another.

    Raises:
        BadSetting: they go to another log, or to another cluster.
    """
    note = checkpoint / REPLAY_NOTE
    found = read_note(note)
    if found is None:
        make_directories(checkpoint, 0o777)  # as Spark creates it: executors may run as other users
        write_whole(note, json.dumps({"log": _named(log), "cluster": cluster}).encode())
    elif (into := str(found.get("cluster", cluster))) != cluster:
        # A note of an earlier version has none.
        raise BadSetting(
            f"{checkpoint} is the checkpoint of a replay into cluster {into}, and this one goes to "
            f"cluster {cluster}: give another --checkpoint"
        )
    elif (before := text_of(note, found, "log")) != _named(log):
        raise BadSetting(
            f"{checkpoint} is the checkpoint of a replay into {before or 'logs of the same name'}, "
            f"and this one goes to {_named(log) or 'logs of the same name'}: give another "
            f"--checkpoint. If that log was renamed, remove {note} and start again"
        )


def _until_done(query: StreamingQuery, say: Say) -> list[int]:
    """The number of records of each finished micro-batch that had any."""
    counts: dict[int, int] = {}
    done = False
    while not done:
        # Spark remembers a hundred micro-batches, so they are looked at before it forgets them.
        done = bool(query.awaitTermination(PROGRESS_S))
        for progress in query.recentProgress:
            if progress.numInputRows and progress.batchId not in counts:
                counts[progress.batchId] = progress.numInputRows
                say(f"batch {progress.batchId}: {progress.numInputRows:,} records")
    return list(counts.values())


def backfill(
    spark: SparkSession,
    table: str,
    sink: Mapping[str, str],
    progress: str,
    *,
    format_: str = "parquet",
    ordered: bool = False,
    step_bytes: int = STEP_BYTES,
    say: Say = lambda _: None,
) -> Copied:
    """Write every row of a table, at least once.

    Args:
        table: a directory; its rows have the sink's columns, and other columns are left out.
            progress: a directory for the record of finished steps.
    Raises:
        BadSetting: the table is none, an option is wrong, or the note is of another backfill.
    """
    began = time.monotonic()
    path, notes = check_path(table), check_path(progress)
    copied = Copied()
    with only_writer(notes):
        note, log = notes / NOTE, RawOptions(sink).text("log") or ""
        cluster = _cluster_of(sink)
        done = _done_files(note, path, log, cluster)
        for step in steps(table_files(path, format_), step_bytes):
            # A table that grew is cut into other steps than before.
            files = [file for file in step if str(file.relative_to(path)) not in done]
            if not files:
                copied.skipped += 1
                continue
            records = _write_step(spark, path, files, sink, ordered)
            done.update(str(file.relative_to(path)) for file in files)
            content = {
                "table": str(path), "log": _named(log), "cluster": cluster, "files": sorted(done),
            }  # fmt: skip
            write_whole(note, json.dumps(content).encode())
            copied.records += records
            copied.steps += 1
            say(f"step {copied.steps}: {records:,} records of {len(files)} files")
    copied.seconds = time.monotonic() - began
    return copied


def planned_backfill(table: str, progress: str, sink_log: str, format_: str) -> PlannedBackfill:
    """The work of a backfill if it ran now; writes nothing and starts no Spark.

    Raises:
        BadSetting: as `backfill`.
    """
    path = check_path(table)
    files = table_files(path, format_)
    done = _done_files(check_path(progress) / NOTE, path, sink_log)
    left = [file for file in files if str(file.relative_to(path)) not in done]
    size = sum(file.stat().st_size for file in left)
    return PlannedBackfill(len(left), size, len(list(steps(left, STEP_BYTES))), len(done))


def _done_files(note: Path, table: Path, sink_log: str, cluster: str = "") -> set[str]:
    """The files that were written, none before the first run.

    Args:
        cluster: where rows go now; "" if no cluster was asked.
    Raises:
        BadSetting: the file belongs to another backfill, or is not a backfill's.
    """
    found = read_note(note)
    if found is None:
        return set()
    made_of = {"table": str(table), "log": _named(sink_log)}
    if cluster:  # a note of an earlier version has none
        made_of["cluster"] = cluster
    for name, value in made_of.items():
        if found.get(name, value) != value:
            raise BadSetting(
                f"{note.parent} notes a backfill with {name} {found[name]!r}, and this one has "
                f"{value!r}: say the same, or give another directory for progress"
            )
    files = found.get("files")
    if not isinstance(files, list) or not all(isinstance(each, str) for each in files):
        raise damaged(note, "files is no list of names")
    return set(files)


def _named(log: str) -> str:
    return log if not log or log.startswith("/") else f"/{log}"


def _write_step(
    spark: SparkSession, table: Path, files: Sequence[Path], sink: Mapping[str, str], ordered: bool
) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    frame = _rows(spark, table, files)
    in_order = ordered and "lsn" in frame.columns
    keep_log = "log" not in {name.lower() for name in sink}
    if ordered:
        frame = frame.repartition(1)
    if in_order:
        by = ["log_id", "lsn"] if "log_id" in frame.columns else ["lsn"]
        frame = frame.sortWithinPartitions(*by)
    seen = Observation()
    frame = _columns(frame, keep_log=keep_log).observe(seen, f.count(f.lit(1)).alias("records"))
    options = {**sink, "deliveryMode": AT_LEAST_ONCE}
    frame.write.format("cordwood").options(**options).mode("append").save()
    return int(seen.get["records"])


def _rows(spark: SparkSession, table: Path, files: Sequence[Path]) -> DataFrame:
    """The rows of some files, with the columns that only directories have.

    Trap: Spark takes a directory's value for a number, a day or a time of its session where it
    looks like one. A key `5` was refused then as a number, and a time in UTC was shifted.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    # Columns that came later are in some files only, and the schema of one would drop them.
    reader = spark.read.option("basePath", str(table)).option("mergeSchema", "true")
    frame = reader.parquet(*map(str, files))
    by = TAKEN.keys() & _directory_columns(table, files)
    if not by:
        return frame
    schema = StructType(
        [
            StructField(each.name, StringType()) if each.name in by else each
            for each in frame.schema.fields
        ]
    )
    frame = reader.schema(schema).parquet(*map(str, files))
    if "timestamp" not in by:
        return frame
    text = f.col("timestamp")
    # A landing writes UTC and does not say so. Others may write days, or say an offset.
    ways = (f.concat(text, f.lit("Z")), f.concat(text, f.lit("T00:00:00Z")), text)
    odd = f.raise_error(f.concat(f.lit("a directory names no time: timestamp="), text))
    read = f.coalesce(*map(f.try_to_timestamp, ways), odd.cast("timestamp"))
    return frame.withColumn("timestamp", f.when(text.isNotNull(), read))


def _directory_columns(table: Path, files: Sequence[Path]) -> set[str]:
    """The columns that the names of directories give values of."""
    parts = {part for file in files for part in file.relative_to(table).parts[:-1]}
    return {partition_value(part)[0] for part in parts if "=" in part}


def _columns(frame: DataFrame, *, keep_log: bool) -> DataFrame:
    """The columns that the sink takes; the log's name only where it decides."""
    names = [name for name in frame.columns if name in TAKEN and (keep_log or name != "log")]
    return frame.select(*names)
