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
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c

from cordwood.durable import make_directories, write_whole
from cordwood.errors import BadSetting
from cordwood.spark.catalog import Catalog
from cordwood.spark.jobs.notes import count_of, damaged, read_note, text_of
from cordwood.spark.jobs.parquet_table import finish_moves
from cordwood.spark.jobs.partitions import partition_value
from cordwood.spark.jobs.table import check_path, only_writer
from cordwood.spark.jobs.table_files import Span, ordered_steps, span_of, steps, table_files
from cordwood.spark.options import parse_options
from cordwood.spark.places import Edge
from cordwood.spark.raw_options import RawOptions
from cordwood.spark.selecting import select
from cordwood.spark.shared_store import shared_store
from cordwood.spark.sink_options import AT_LEAST_ONCE, LOG_ID, TAKEN, parse_sink_options
from cordwood.spark.target_log import known_number, number_to_append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REPLAY_BYTES = "32m"
"""The bytes of records in a micro-batch of a replay. It is well below the 64 MiB of one atomic
group, even if all records belong to one log. The rest is for overheads, and for sizes that differ
from the sample."""

STEP_BYTES = 512 << 20
"""Bytes of files in one step: at most this much is written again after a crash."""

MARKED_BYTES = 64 << 10
"""The bytes at the end of a file that its mark covers: most footers as a whole."""

NOTE = "done.json"
"""In a backfill's directory for progress."""

REPLAY_NOTE = "cordwood-replay.json"
"""In a replay's checkpoint, beside what Spark keeps there."""

LOG_NUMBER = "log_id"
"""In both notes: the number of the target log. A note of an earlier version has none."""

PROGRESS_S = 5
"""How often a replay's progress is read: far fewer than a hundred micro-batches end in this
time."""

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
        BadSetting: an option is wrong, the checkpoint is of a replay into another log, the
            target log was made again since, or it is also read.
        UnknownLog: the target log is not there, and appends make no logs.
        StreamingQueryException: the query failed; started again, it goes on.
    """
    began = time.monotonic()
    limits = {"startingOffsets": "earliest", "maxBytesPerTrigger": REPLAY_BYTES}
    options = {**limits, "includeHeaders": "true", **source}
    log, cluster = RawOptions(sink).text("log") or "", _cluster_of(sink)
    _check_apart(options, log, cluster)
    note = check_path(checkpoint) / REPLAY_NOTE
    number = target_number(note, sink)
    _note_replay(note, log, cluster, number)
    frame = spark.readStream.format("cordwood").options(**options).load()
    frame = _columns(frame, keep_log="log" not in {name.lower() for name in sink})
    if ordered:
        frame = frame.coalesce(1)
    query = (
        frame.writeStream.format("cordwood")
        .options(**by_number(sink, number))
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
    """Refuse to copy a log into itself, which happens if a pattern also matches the target: the
    next run would copy the copies once more.

    A range with a stated end may be appended to its own log.

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


def _note_replay(note: Path, log: str, cluster: str, number: int | None) -> None:
    """Note where a checkpoint's records go.

    Spark accepts it for any sink; then records that were copied to one log would never be copied to
    another.

    Args:
        number: the log's, None if records name their logs themselves.
    Raises:
        BadSetting: they go to another log, or to another cluster.
    """
    found, checkpoint = read_note(note), note.parent
    if found is None:
        make_directories(checkpoint, 0o777)  # as Spark creates it: executors may run as other users
        content = {"log": _named(log), "cluster": cluster, LOG_NUMBER: number}
        write_whole(note, json.dumps(content).encode())
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


def target_number(note: Path, sink: Mapping[str, str], known: int | None = None) -> int | None:
    """The number of the log that records go to, which is made if it is not there, as an append
    makes it.

    Trap: a log that was deleted and made again has the name, and none of the records. Its progress
    would say that all of them are there.

    Args:
        known: its number until now in this run, which goes on in it if it was renamed; None to
            look at the note.
    Returns:
        None if records name their logs themselves.
    Raises:
        BadSetting: it was another number until now.
        UnknownLog: it is not there, and appends make no logs.
    """
    options = parse_sink_options(sink)
    if not options.log:
        return None
    if options.log_id is not None:
        raise BadSetting(f"the number of {options.log} is looked up here: leave {LOG_ID} out")
    found = read_note(note) or {}
    before = known
    if before is None and found.get(LOG_NUMBER) is not None:
        before = count_of(note, found, LOG_NUMBER)
    store = shared_store(options.servers, options.request_timeout_s)
    if known is not None and known_number(store, known) is not None:
        return known
    if str(found.get("cluster", store.cluster_id)) != store.cluster_id or (
        found and text_of(note, found, "log") != _named(options.log)
    ):
        return before  # another check refuses it, and says so better
    number = (known_number if before is not None else number_to_append)(store, options.log)
    if before not in (None, number):
        now = "is not there" if number is None else f"is log {number}"
        raise BadSetting(
            f"{note.parent} notes what was written into log {before}, and {options.log} {now}: it "
            "was deleted or renamed since. Give another directory to write all of it from the "
            f"beginning, or give log {before} its name again"
        )
    return number


def by_number(sink: Mapping[str, str], number: int | None) -> dict[str, str]:
    """The options of a sink whose records all go to that log, even if its name moves."""
    return {**sink, **({} if number is None else {LOG_ID: str(number)})}


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
        BadSetting: the table is none, an option is wrong, the note is of another backfill, the log
            was made again since, a file was replaced since its rows were written, or such files may
            have been joined.
        UnknownLog: the log is not there, and appends make no logs.
        StoreInUse: a landing publishes a batch into the table, or joins its files, right now.
    """
    began = time.monotonic()
    path, notes = check_path(table), check_path(progress)
    copied = Copied()
    with only_writer(notes):
        note, log = notes / NOTE, RawOptions(sink).text("log") or ""
        cluster = _cluster_of(sink)
        done = _done_files(note, path, log, cluster)
        number = target_number(note, sink)
        if format_ == "parquet":
            finish_moves(path)
        found = table_files(path, format_)
        spans = _spans_of(note)
        _check_same(path, found, done, notes)
        _check_joined(path, found, done, spans, note)
        cut = ordered_steps(path, found, step_bytes) if ordered else steps(found, step_bytes)
        for step in cut:
            # A table that grew is cut into other steps than before.
            files = [file for file in step if str(file.relative_to(path)) not in done]
            if not files:
                copied.skipped += 1
                continue
            marks = {str(file.relative_to(path)): _mark_of(file) for file in files}
            records = _write_step(spark, path, files, by_number(sink, number), ordered)
            done |= marks
            spans |= {
                name: span for name in marks if (span := span_of(path, path / name)) is not None
            }
            content = {
                "table": str(path), "log": _named(log), LOG_NUMBER: number, "cluster": cluster,
                "files": sorted(done),
                "marks": {name: mark for name, mark in sorted(done.items()) if mark},
                "spans": dict(sorted(spans.items())),
            }  # fmt: skip
            write_whole(note, json.dumps(content).encode())
            target_number(note, sink, number)
            copied.records += records
            copied.steps += 1
            say(f"step {copied.steps}: {records:,} records of {len(files)} files")
    copied.seconds = time.monotonic() - began
    return copied


def planned_backfill(
    table: str, progress: str, sink_log: str, format_: str, *, ordered: bool = False
) -> PlannedBackfill:
    """The work of a backfill if it ran now; writes nothing and starts no Spark.

    Raises:
        BadSetting: as `backfill`.
    """
    path, notes = check_path(table), check_path(progress)
    files = table_files(path, format_)
    done = _done_files(notes / NOTE, path, sink_log)
    _check_same(path, files, done, notes)
    _check_joined(path, files, done, _spans_of(notes / NOTE), notes / NOTE)
    left = [file for file in files if str(file.relative_to(path)) not in done]
    size = sum(file.stat().st_size for file in left)
    cut = ordered_steps(path, left, STEP_BYTES) if ordered else steps(left, STEP_BYTES)
    return PlannedBackfill(len(left), size, len(list(cut)), len(done))


def _done_files(note: Path, table: Path, sink_log: str, cluster: str = "") -> dict[str, str]:
    """The files that were written, with their marks; none before the first run.

    A file that an earlier version noted has the mark "".

    Args:
        cluster: where rows go now; "" if no cluster was asked.
    Raises:
        BadSetting: the file belongs to another backfill, or is not a backfill's.
    """
    found = read_note(note)
    if found is None:
        return {}
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
    marks = found.get("marks", {})
    if not isinstance(marks, dict):
        raise damaged(note, "marks is no object")
    return {name: text_of(note, marks, name) if name in marks else "" for name in files}


def _spans_of(note: Path) -> dict[str, Span]:
    """The spans of the files that were written, as far as they are known. A note of an earlier
    version has none.

    Raises:
        Malformed: the note is not a backfill's.
    """
    spans = (read_note(note) or {}).get("spans", {})
    if not isinstance(spans, dict) or not all(map(_is_span, spans.values())):
        raise damaged(note, "spans are no lists of four numbers")
    return {name: (span[0], span[1], span[2], span[3]) for name, span in spans.items()}


def _is_span(value: object) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [int] * 4


def _mark_of(file: Path) -> str:
    """Tells a file from another one of its name: its size, and the CRC32C of its end, where Parquet
    has the footer."""
    with file.open("rb") as data:
        size = data.seek(0, os.SEEK_END)
        data.seek(max(0, size - MARKED_BYTES))
        return f"{size}-{crc32c(data.read()):08x}"


def _check_same(
    table: Path, files: Sequence[Path], done: Mapping[str, str], progress: Path
) -> None:
    """Check that files that were written are still the same files.

    Trap: some writers name files by number. A table that was made anew has the names of the old one
    then, and none of its rows would be written.

    Raises:
        BadSetting: a file was replaced.
    """
    for file in files:
        name = str(file.relative_to(table))
        if (mark := done.get(name)) and mark != _mark_of(file):
            raise BadSetting(
                f"{file} was replaced since this backfill wrote its rows, and it is not known "
                f"which of its rows are new: give a directory for progress other than {progress} "
                "to write the table from its beginning"
            )


def _check_joined(
    table: Path,
    files: Sequence[Path],
    done: Mapping[str, str],
    spans: Mapping[str, Span],
    note: Path,
) -> None:
    """Check that no new file may have rows that were written.

    Trap: `--compact` of a landing, and engines, join files or write them anew. The new file has
    rows of files that were written and are gone. Files that are gone may also have been deleted.
    Their LSNs tell the two apart, if the rows have LSNs.

    Raises:
        BadSetting: a new file may have rows of a file that is gone.
    """
    present = {str(file.relative_to(table)) for file in files}
    if not (gone := sorted(done.keys() - present)):
        return
    for file in files:
        if str(file.relative_to(table)) in done:
            continue
        span = span_of(table, file)
        if was := next((name for name in gone if _may_share(span, spans.get(name))), None):
            raise BadSetting(
                f"{file} is new, and {was}, whose rows were written, is not in the table any "
                "more: they may have been joined, and rows would be written again. If they were, "
                f"add the new file to `files` in {note}. If it also has rows that were not "
                "written, write the table to another log, with another directory for progress. If "
                "the missing file was deleted, remove it from `files` there"
            )


def _may_share(one: Span | None, other: Span | None) -> bool:
    """Whether two files may have a row in common."""
    if one is None or other is None:
        return True
    return one[:2] <= other[2:] and other[:2] <= one[2:]


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
    """The columns whose values are in the names of directories."""
    parts = {part for file in files for part in file.relative_to(table).parts[:-1]}
    return {partition_value(part)[0] for part in parts if "=" in part}


def _columns(frame: DataFrame, *, keep_log: bool) -> DataFrame:
    """The columns that the sink takes. The log's name is among them only if it decides the
    target."""
    names = [name for name in frame.columns if name in TAKEN and (keep_log or name != "log")]
    return frame.select(*names)
