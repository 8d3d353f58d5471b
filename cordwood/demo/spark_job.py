"""The demo's Spark half: `python -m cordwood.demo.spark_job`, a separate process.

In a separate process Spark boots while the log is being written. Its JVM and its workers can be
stopped as one session in every case, and their output stays off the screen. The process boots,
waits for a Job on standard input, does it, and ends. Messages go to standard output, everything
else to standard error.

1. Land: the job of `cordwood spark land`, from `format("cordwood")` to Parquet, all records, each
   once. They are landed raw and decoded later, so that a record that does not decode is not lost.
   2. Audit: count, LSNs and digest of the Parquet rows, summed up in SQL. 3. Query: per carrier or
   per file.

Source: docs/sources/spark.md §1, §7 ("land raw first, decode second").
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cordwood.demo.digest import SPARK_SUMS
from cordwood.demo.pieces import ENDS, FILE
from cordwood.demo.spark_messages import (
    Answered,
    Audited,
    Booted,
    Event,
    Failed,
    Job,
    Landed,
    Row,
    pack,
    read_job,
)
from cordwood.errors import CordwoodError
from cordwood.spark.jobs import land as jobs
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import SERVERS
from cordwood.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES = 2
"""Tasks at once, and splits of the log: the demo is made for two cores."""

NOWHERE = "127.0.0.1:1"
"""Loading a stream asks for its schema only; no node is called before it starts."""


def land(spark: SparkSession, job: Job) -> Landed:
    """Land all records of the log in Parquet, with the job of `cordwood spark land`.

    Raises:
        StreamingQueryException: the query failed.
    """
    source = {
        SERVERS: job.servers,
        "subscribe": job.log,
        "includeHeaders": str(job.query == "files").lower(),
        "minPartitions": str(CORES),
    }
    landing = Landing(source, job.parquet, partition_by=())
    done = jobs.land(spark, landing, say=lambda text: print(text, file=sys.stderr))
    return Landed(done.seconds, done.records, done.batches)


def audit(landed: DataFrame) -> Audited:
    """Sum up the Parquet rows."""
    start = time.perf_counter()
    row = landed.selectExpr(
        "count(*)",
        "count(DISTINCT lsn)",
        "coalesce(min(lsn), 0)",
        "coalesce(max(lsn), 0)",
        *SPARK_SUMS,
    ).collect()[0]
    return Audited(time.perf_counter() - start, *row)


def delays_by_carrier(landed: DataFrame) -> DataFrame:
    """Flights, those that arrived, and their minutes of delay; by carrier."""
    flights = landed.selectExpr(
        "key", "from_json(CAST(value AS STRING), 'arr_delay INT').arr_delay AS delay"
    )
    return _grouped(flights, units="count(delay)", total="coalesce(sum(delay), 0)")


def lines_by_file(landed: DataFrame) -> DataFrame:
    """Pieces, lines and the bytes in them, by file; `demo.pieces` says what ends a line."""
    pieces = landed.selectExpr(
        "key",
        "octet_length(value) AS bytes",
        f"CAST(get(filter(headers, h -> h.key = '{ENDS}'), 0).value AS STRING) AS ends",
    )
    is_line = f"ends IS NULL OR (ends = '{FILE.decode()}' AND bytes > 0)"
    return _grouped(pieces, units=f"count_if({is_line})", total="sum(bytes)")


QUERIES = {"flights": delays_by_carrier, "files": lines_by_file}


def _grouped(frame: DataFrame, *, units: str, total: str) -> DataFrame:
    from pyspark.sql.functions import expr

    figures = (expr("count(*)"), expr(units), expr(total))
    return frame.groupBy("key").agg(*figures).toDF("key", "records", "units", "total")


def answer(frame: DataFrame) -> Answered:
    """Run a query of QUERIES."""
    start = time.perf_counter()
    rows = [Row(bytes(row[0]), *row[1:]) for row in frame.collect()]
    return Answered(time.perf_counter() - start, rows)


def boot(scratch: str) -> tuple[SparkSession, Booted]:
    """Start Spark, and the workers in which it plans Cordwood's source.

    The workers take 3 s to start; here they start while the log is still being written.

    Args:
        scratch: a directory for Spark's own files.
    Raises:
        JavaMissing: the text says how to get one.
    """
    start = time.perf_counter()
    options = {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
    }
    spark = local_session("cordwood demo", CORES, options=options)
    spark.readStream.format("cordwood").options(**{SERVERS: NOWHERE, "subscribe": "any"}).load()
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session that runs has a JVM"
    java = jvm.System.getProperty("java.version")
    return spark, Booted(time.perf_counter() - start, spark.version, java)


def work(spark: SparkSession, job: Job, say: Callable[[Event], None]) -> None:
    """Do a job, and report each step."""
    say(land(spark, job))
    landed = spark.read.parquet(job.parquet)
    say(audit(landed))
    say(answer(QUERIES[job.query](landed)))


def main() -> int:
    """Boot, wait for a job, do it."""
    out = _keep_stdout()

    def say(event: Event) -> None:
        out.write(pack(event))
        out.flush()

    try:
        spark, booted = boot(sys.argv[1])
        say(booted)
        line = sys.stdin.buffer.readline()
        if line:
            work(spark, read_job(line), say)
    except Exception as error:  # noqa: BLE001
        # The other process must hear of every error: this process has no screen.
        traceback.print_exc()
        text = str(error)
        say(Failed(text if isinstance(error, CordwoodError) else f"{type(error).__name__}: {text}"))
        return 1
    return 0


def _keep_stdout() -> BinaryIO:
    """Keep standard output for messages: the output of Spark's JVM goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    sys.exit(main())
