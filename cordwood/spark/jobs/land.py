"""Land logs in a table: `cordwood spark land`.

A stream from the source into Parquet, Delta or Iceberg. Spark reads, decodes and writes data
files; the table's adapter publishes each batch in one step with (query, batch), see
`jobs.table`. So a landing may be killed at any point and restarted, and the table holds every
record once.

The columns are the source's columns, `event_date` (the day of `timestamp`, in UTC), and decoded
columns. `log_id` and `lsn` name a record for good: keep them, they are what an audit compares. The
table's definition is stored in it, `_cordwood/table.json`, and does not change.

The checkpoint lies in the table. Should it be lost, the table itself says where to go on.

Source: docs/sources/spark.md §5, §7.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cordwood.durable import remove, write_whole
from cordwood.errors import BadSetting
from cordwood.layout.batch_columns import COLUMNS, COLUMNS_ON_REQUEST
from cordwood.spark.catalog import Catalog
from cordwood.spark.checkpoint import Checkpoint
from cordwood.spark.jobs.decode import (
    ERROR,
    decode_json,
    given_columns,
    named_function,
    with_error,
)
from cordwood.spark.jobs.json_columns import Column, add_columns
from cordwood.spark.jobs.landing import EVENT_DATE, Landing, open_table, settle, table_path
from cordwood.spark.jobs.notes import damaged, offset_of, read_columns, read_note
from cordwood.spark.jobs.parquet_table import remove_staging
from cordwood.spark.jobs.partitions import may_be_unwritable, quoted, unwritable
from cordwood.spark.jobs.set_apart import keep_apart, remove_apart, tidy
from cordwood.spark.jobs.table import (
    OURS,
    Compacted,
    LakeTable,
    StagedBatch,
    StagedFile,
    only_writer,
    staged_files,
)
from cordwood.spark.offsets import StreamOffset, parse_offset
from cordwood.spark.options import parse_options
from cordwood.spark.selecting import passed_over, select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

SAMPLE_RECORDS = 1000
"""The number of records of a batch that are searched for new JSON fields, in a tenth of a
second."""

TARGET_FILE_BYTES = 128 << 20
"""The size to which small files are joined: the lower end of the sizes that engines recommend."""

PARTITION_PREFIX = "part_"

ENDS_KEPT = 100
"""The number of batches whose ends are noted. Spark runs only the newest batch again."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Landed:
    """The result of a landing.

    Attributes:
        records, files, bytes, batches: that came into the table.
        quarantined: records that could not be decoded, or have no partition.
        skipped: batches that were in the table already, from a run that died.
        seconds: of the whole run; `busy_s` of those during which batches landed.
    """

    records: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    quarantined: int = 0
    skipped: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    compacted: Compacted = field(default_factory=Compacted)


def land(spark: SparkSession, landing: Landing, say: Say = lambda _: None) -> Landed:
    """Run a landing. After a KeyboardInterrupt it stops, and the table stays whole.

    A landing that follows returns then. Another one raises the KeyboardInterrupt.

    Args:
        say: told of each batch, in a line.
    Raises:
        BadSetting: an option of the landing is wrong, or the table was made with other options.
        StoreInUse: another job lands into the table.
        StreamingQueryException: the query failed; started again, it goes on.
    """
    _check_classic(spark)
    path = table_path(landing)
    began = time.monotonic()
    landed = Landed()
    with ExitStack() as stack:
        stack.enter_context(only_writer(path))
        settle(path, landing)
        table = open_table(path, landing)
        remove_staging(path)
        lander = Lander(path, table, landing, landed, say)
        lander.tidy_set_apart()
        lander.run(_session(spark))
        if landing.compact:
            landed.compacted = table.compact(TARGET_FILE_BYTES)
    landed.seconds = time.monotonic() - began
    return landed


def _check_classic(spark: SparkSession) -> None:
    """Refuse a session with a driver elsewhere: this process makes the table's commits.

    Raises:
        BadSetting: it is Spark Connect's.
    """
    if not hasattr(spark, "sparkContext"):
        raise BadSetting(
            "a landing commits from the driver, and a Spark Connect session has its driver "
            "elsewhere: give a master such as local[2] or spark://host:7077"
        )


def _session(spark: SparkSession) -> SparkSession:
    """A session of its own, with the settings that tables need."""
    import cordwood.spark

    session = spark.newSession()
    # Days are UTC's wherever the job runs, and INT96, Spark's default, is read by few others.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    cordwood.spark.register(session)
    return session


class Lander:
    """Puts the batches of one query into one table."""

    def __init__(
        self, path: Path, table: LakeTable, landing: Landing, landed: Landed, say: Say
    ) -> None:
        self._path = path
        self._table = table
        self._landing = landing
        self._landed = landed
        self._say = say
        self._checkpoint = Checkpoint(path / OURS / "checkpoint")
        self._note = path / OURS / "json_columns.json"
        self._ends = path / OURS / "ends"
        self._quarantine = Path(f"{path}.quarantine")
        decode = landing.decode
        self._may_set_apart = True
        self._function = named_function(decode) if decode not in ("", "json") else None
        self._columns = self._known_columns()
        if landing.schema:
            self._columns = _same_types(self._columns, given_columns(landing.schema))
            self._note_columns()

    def run(self, spark: SparkSession) -> None:
        """Land until all present records are in the table, or until stopped.

        Raises:
            BadSetting: the checkpoint does not fit the table.
        """
        self._check_checkpoint()
        writer = (
            spark.readStream.format("cordwood")
            .options(**self.source_options())
            .load()
            .writeStream.foreachBatch(self.on_batch)
            .option("checkpointLocation", str(self._checkpoint.directory))
        )
        if self._landing.follow:
            writer = writer.trigger(processingTime=f"{self._landing.trigger_s:g} seconds")
        else:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            self._say("stopping: published records stay, and the next run lands the rest")
            # Trap: only a landing that follows has no other end. Of another the caller must know
            # that records are missing, and a pipeline must not begin its next sink.
            if not self._landing.follow:
                raise
        finally:
            query.stop()

    def source_options(self) -> dict[str, str]:
        """The source's options; a new checkpoint goes on where the table ends.

        Raises:
            BadSetting: the table does not say where it ends, or is of another cluster.
            UnknownLog: a name is wrong, or its log was renamed.
        """
        given = {"startingOffsets": "earliest", **self._landing.source}
        if any(name.lower() in _STARTS for name in self._landing.source):
            given.pop("startingOffsets", None)
            given.update(self._landing.source)
        last = self._table.last_offset() if self._checkpoint.is_new else None
        if last is None and self._checkpoint.is_new and not self._table.is_empty:
            raise BadSetting(
                f"the checkpoint of {self._path} is gone, and so is the commit of the table that "
                "says where it ends (Delta's log is cleaned of what is 30 days old): landed from "
                "the beginning, records would be there twice. Put the checkpoint "
                f"{self._checkpoint.directory} back, or land in another directory"
            )
        if last is not None:
            given = {name: value for name, value in given.items() if name.lower() not in _STARTS}
            given["startingOffsets"] = json.dumps(self._still_there(given, last))
            self._say("the checkpoint is gone: going on where the table ends")
        known = last
        # Spark asks once more where the query starts if it died in its first batch.
        if not self._checkpoint.is_new and self._checkpoint.newest("commits") < 0:
            known = self._checkpoint.end_of(self._checkpoint.newest("offsets"))
        if known is not None and (over := self.passed_over(given, parse_offset(known))):
            given["passedOver"] = json.dumps(over)
        return given

    def passed_over(self, source: dict[str, str], known: StreamOffset) -> dict[str, int]:
        """The names that lead nowhere because their logs were deleted, for a new query.

        A log that was deleted since, while it was selected, is a loss: its name is left out unless
        losses are passed over, so that the query fails.

        Args:
            known: the offset that the query goes on from.
        Raises:
            UnknownLog: a name is wrong, or its log was renamed.
        """
        options = parse_options(source)
        there = Catalog(options).all_logs()
        found = select(options.selection, there, may_miss=True)
        over = passed_over(options.selection, found, there, known)
        lost = known.to_find() if options.fail_on_data_loss else {}
        return {name: log for name, log in over.items() if log not in lost}

    def _asks_for_all(self) -> bool:
        """Whether the options have an empty table begin at each log's beginning."""
        source = self._landing.source.items()
        asked = [value for name, value in source if name.lower() in _STARTS]
        return all(value.strip().lower() == "earliest" for value in asked)

    def _still_there(self, source: dict[str, str], last: Mapping[str, Any]) -> dict[str, str]:
        """The table's end positions of existing logs; keys are log numbers.

        Also of logs that are not selected now: a renamed log may come back.

        Raises:
            BadSetting: the table was landed from another cluster.
        """
        catalog = Catalog(parse_options(source))
        if last["cluster"] != catalog.cluster:
            raise BadSetting(
                f"{self._path} was landed from cluster {last['cluster']}, and this one is "
                f"{catalog.cluster}, in which its numbers and LSNs mean other records: give the "
                "address of that cluster, or land in another directory"
            )
        there, ends = catalog.all_logs(), last["logs"]
        gone = sorted(log for log in ends if int(log) not in there)
        if gone:
            self._say(f"logs of the table that are not there any more: number {', '.join(gone)}")
        return {log: end for log, end in ends.items() if log not in gone}

    def on_batch(self, frame: DataFrame, batch: int) -> None:
        """Stage and publish one batch; Spark calls this, again if a run died in it."""
        began = time.monotonic()
        query = self._checkpoint.query()
        published = self._table.published(query)
        # Race: a user restores the table while the query runs. Landing on top would hide that.
        self._checkpoint.check_next(batch, published)
        if batch <= published:
            # The number alone does not say which records a batch has: Spark plans a batch anew if
            # it lost the batch's offsets.
            self._checkpoint.check(batch, self._end_noted(query, batch))
            self._landed.skipped += 1
            self._say(f"batch {batch} is in the table already")
            return
        shaped = self._shaped(frame)
        # A name of this try alone: the JVM of a driver that was killed may still be writing.
        staging = self._path / OURS / "staging" / f"{query[:8]}-{batch}-{uuid4().hex[:8]}"
        good, apart = self._write(shaped, staging / "good")
        bad = apart.rows
        end = self._checkpoint.end_of(batch)
        # Write the note before records are set apart, because `tidy` uses these notes.
        self._note_end(query, batch, end)
        self._set_apart(shaped, staging / "bad", f"{query[:8]}-{batch:012}", apart)
        staged = StagedBatch(query, batch, end, good, _arrow_schema(shaped))
        self._checkpoint.make_durable(batch)
        self._table.publish(staged)
        self._count(staged, bad)
        self._landed.busy_s += time.monotonic() - began

    def _check_checkpoint(self) -> None:
        """See `Checkpoint.check` and `check_newest`; a new checkpoint passes."""
        has_metadata = (self._checkpoint.directory / "metadata").exists()
        if not has_metadata and self._checkpoint.is_new:
            return
        query = self._checkpoint.query()
        published = self._table.published(query)
        self._checkpoint.check(published, self._end_noted(query, published))
        last = self._table.last_offset()
        is_oldest = self._asks_for_all() or self._table.was_emptied
        self._checkpoint.check_newest(published, last, is_oldest=is_oldest)
        if published < 0 and last is not None and not self._checkpoint.is_new:
            there = Catalog(parse_options(dict(self._landing.source))).all_logs()
            self._checkpoint.check_knows(last, there)

    def _note_end(self, query: str, batch: int, end: dict[str, Any]) -> None:
        """Note which records a batch has, before it is published."""
        write_whole(self._end(query, batch), json.dumps(end, sort_keys=True).encode())
        remove([self._end(query, batch - ENDS_KEPT)])

    def _end_noted(self, query: str, batch: int) -> dict[str, Any] | None:
        note = self._end(query, batch)
        found = read_note(note)
        return None if found is None else offset_of(note, found)

    def _end(self, query: str, batch: int) -> Path:
        return self._ends / query / f"{batch:012}.json"

    def _shaped(self, frame: DataFrame) -> DataFrame:
        """The batch with the table's columns, and `_error`."""
        from pyspark.sql import functions as f

        if self._function is not None:
            frame = with_error(self._function(frame))
        elif self._landing.decode:
            self._learn_columns(frame)
            frame = decode_json(frame, self._columns)
        else:
            frame = with_error(frame)
        day = f.to_date("timestamp")
        # A producer may set any timestamp. Days outside years of four digits are null, because few
        # tools can write them: a record with such a day would stop a landing for good.
        frame = frame.withColumn(EVENT_DATE, f.when(f.year(day).between(1, 9999), day))
        return self._partitioned(frame)

    def _partitioned(self, frame: DataFrame) -> DataFrame:
        """The batch with values that can be partitions, and `_error` where one cannot."""
        from pyspark.sql import functions as f

        by = [name for name in self._landing.partition_by if name != EVENT_DATE]
        doubtful = may_be_unwritable(frame, by)
        self._may_set_apart = bool(self._landing.decode or doubtful)
        if not doubtful:
            return frame
        prefix = self._partition_prefix(frame)
        reason = unwritable(doubtful, prefix, plainly=self._landing.format == "delta")
        frame = frame.withColumn(ERROR, f.coalesce(f.col(ERROR), reason))
        if prefix:
            # Directories have one name for both, and Iceberg takes one value from each file.
            for name in (name for name, kind in doubtful if kind == "string"):
                frame = frame.withColumn(name, f.nullif(f.col(quoted(name)), f.lit("")))
        return frame

    def _partition_prefix(self, frame: DataFrame) -> str:
        """Before the names of columns that only directories have, beside the files' own."""
        if not self._table.partition_in_files:
            return ""
        prefix = PARTITION_PREFIX
        taken = {name.lower() for name in frame.columns}
        # A field may have a name with this prefix, and its column would be written over.
        while any((prefix + name).lower() in taken for name in self._landing.partition_by):
            prefix += "_"
        return prefix

    def _write(self, shaped: DataFrame, staging: Path) -> tuple[list[StagedFile], _Apart]:
        """Write the records that can be in the table; the files, and which cannot."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        if self._may_set_apart:
            # Counted on the way, so that the source is read once where all can be landed.
            shaped = _observed(shaped, seen)
        good = shaped.filter(f.col(ERROR).isNull()).drop(ERROR)
        by = list(self._landing.partition_by)
        prefix = self._partition_prefix(good)
        for name in by if prefix else ():
            good = good.withColumn(prefix + name, f.col(quoted(name)))
        writer = good.write
        if by:
            writer = writer.partitionBy(*(prefix + name for name in by))
        writer.parquet(str(staging))
        apart = _Apart.of(seen) if self._may_set_apart else _Apart()
        return staged_files(staging, prefix), apart

    def _set_apart(self, shaped: DataFrame, staging: Path, name: str, bad: _Apart) -> None:
        """Write the records that cannot be in the table beside it, raw.

        Into the batch's own directory. A repeat of the batch replaces it, or removes it if all of
        its records can land now.

        Raises:
            BadSetting: decoding, which runs a second time here, sets other records apart now.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        place = self._quarantine / name
        if not bad.rows:
            remove_apart(place)
            return
        raw = [name for name in shaped.columns if name in (*COLUMNS, *COLUMNS_ON_REQUEST, ERROR)]
        seen = Observation()
        apart = _observed(shaped, seen).filter(f.col(ERROR).isNotNull()).select(*raw)
        apart.withColumnRenamed(ERROR, "error").write.parquet(str(staging))
        if (now := _Apart.of(seen)) != bad:
            # A record that the first run set apart and only the second run accepts would be in
            # neither place.
            raise BadSetting(
                f"decoding set {bad.rows} records of this batch apart, and other ones ({now.rows}) "
                "when it ran again: nothing is landed, since some would be lost and some be there "
                "twice. A decode function says the same of the same record each time"
            )
        keep_apart(staging, place)

    def tidy_set_apart(self) -> None:
        """See `set_apart.tidy`."""
        tidy(self._quarantine, [path.name for path in self._ends.glob("*")], self._table)

    def _learn_columns(self, frame: DataFrame) -> None:
        """Find new fields in this batch; record them before their use."""
        if self._landing.schema:
            return
        rows = frame.select("value").limit(SAMPLE_RECORDS).collect()
        sample = [None if row[0] is None else bytes(row[0]) for row in rows]
        columns = add_columns(self._columns, sample, (*frame.columns, EVENT_DATE, ERROR))
        if len(columns) > len(self._columns):
            self._columns = columns
            self._note_columns()

    def _note_columns(self) -> None:
        note = [dataclasses.asdict(column) for column in self._columns]
        write_whole(self._note, json.dumps(note, indent=1).encode())

    def _known_columns(self) -> list[Column]:
        columns = read_columns(self._note)
        for column in columns:
            try:
                given_columns(f"c {column.type}")
            except BadSetting as error:
                raise damaged(self._note, f"{column.name} is {column.type!r}") from error
        return columns

    def _count(self, staged: StagedBatch, bad: int) -> None:
        records = sum(file.rows for file in staged.files)
        landed = self._landed
        landed.batches += 1
        landed.records += records
        landed.files += len(staged.files)
        landed.bytes += sum(file.bytes for file in staged.files)
        landed.quarantined += bad
        apart = f", {bad:,} set apart" if bad else ""
        self._say(f"batch {staged.batch}: {records:,} records in {len(staged.files)} files{apart}")


@dataclass(frozen=True, slots=True)
class _Apart:
    """Records of a batch that are set apart: their number, and a digest of their places."""

    rows: int = 0
    which: int = 0

    @classmethod
    def of(cls, seen: Observation) -> _Apart:
        """The counts that `_observed` gathered."""
        found = seen.get
        return cls(int(found["rows"]), int(found["which"] or 0))


def _observed(shaped: DataFrame, seen: Observation) -> DataFrame:
    """The batch; once it was written, `seen` knows the records that are set apart."""
    from pyspark.sql import functions as f

    # A function of the user's may have dropped the columns that name a record.
    named = [name for name in ("log_id", "lsn") if name in shaped.columns]
    place = f.when(f.col(ERROR).isNotNull(), f.xxhash64(f.lit(0), *named))
    return shaped.observe(seen, f.count(ERROR).alias("rows"), f.bit_xor(place).alias("which"))


_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")


def _same_types(known: Sequence[Column], given: Sequence[Column]) -> list[Column]:
    """A given schema, and the columns from before that it leaves out.

    Raises:
        BadSetting: it gives a column another type than the files have.
    """
    types = {column.name.lower(): column.type for column in known}
    for column in given:
        before = types.get(column.name.lower(), column.type)
        if before != column.type:
            raise BadSetting(
                f"the table has {column.name} as {before}, and the schema says {column.type}: "
                "types of a table stay; give the field another table"
            )
    names = {column.name.lower() for column in given}
    return [*given, *(column for column in known if column.name.lower() not in names)]


def _arrow_schema(shaped: DataFrame) -> Any:
    """The table's columns for Delta and Iceberg."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = shaped.drop(ERROR).schema
    return to_arrow_schema(with_nulls(schema), timezone="UTC")


def with_nulls(kind: Any) -> Any:
    """A type of Spark's in which everything but a map's key may be null.

    A column in which Spark expects no null, as a literal that a decode function adds, has none in
    the files before it came, nor where the next version of that function leaves it out.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    match kind:
        case StructType():
            return StructType(
                [StructField(each.name, with_nulls(each.dataType), True) for each in kind.fields]
            )
        case ArrayType():
            return ArrayType(with_nulls(kind.elementType), True)
        case MapType():
            return MapType(kind.keyType, with_nulls(kind.valueType), True)
        case _:
            return kind


def describe(landed: Landed) -> Sequence[str]:
    """The summary, a line each."""
    rate = landed.records / landed.seconds if landed.seconds else 0.0
    lines = [
        f"{landed.records:,} records in {landed.batches} batches and {landed.files} files, "
        f"{landed.bytes:,} bytes, {landed.seconds:.1f} s ({rate:,.0f} records/s)"
    ]
    if landed.skipped:
        lines.append(f"{landed.skipped} batches were in the table already")
    if landed.quarantined:
        lines.append(f"{landed.quarantined:,} records were set apart, with the reason")
    if landed.compacted.removed:
        lines.append(f"{landed.compacted.removed} small files are now {landed.compacted.added}")
    return lines
