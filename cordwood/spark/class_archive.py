"""An archive of the classes that Spark loads, which halves the time of a session's start.

A JVM that finds the archive maps classes into memory that it would else have parsed, checked and
linked: measured on two cores, a session with one streaming batch takes 8.2 to 11.0 s where it took
15.8 to 17.6 s. The archive fits one Java and one set of jars; any other Java silently ignores it.
So an outdated archive is useless but never wrong. Making it takes about a minute and 190 MB, which
pays off for users that start Spark often: `make test` makes it, `python -m
cordwood.spark.class_archive` too.

Source: JEP 350 (dynamic class-data sharing archives).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "share" / "cordwood" / "spark-classes.jsa"
"""In Spark's own environment: it is removed with the environment."""

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Log nothing if the archive belongs to another Java."""


def archive_flags() -> tuple[str, ...]:
    """JVM options that make it use the archive; empty without an archive."""
    # Spark splits the options at spaces.
    usable = ARCHIVE.is_file() and not any(letter.isspace() for letter in str(ARCHIVE))
    return (f"-XX:SharedArchiveFile={ARCHIVE}", *_QUIET) if usable else ()


def make_archive() -> Path:
    """Run the queries of a typical session; at its end the JVM writes the archive of its loaded
    classes.

    Raises:
        JavaMissing: no Java 17 or newer.
        RuntimeError: the JVM wrote none.
    """
    from cordwood.spark.session import JAVA_FLAGS, local_session, local_settings

    # A JVM that uses an archive writes no other.
    ARCHIVE.unlink(missing_ok=True)
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as scratch:
        made = Path(scratch) / ARCHIVE.name
        usual = local_settings()[JAVA_FLAGS]
        flags = f"{usual} -XX:ArchiveClassesAtExit={made} -Xlog:disable -Xlog:all=error:stderr"
        _run_usual(local_session("cordwood classes", options={JAVA_FLAGS: flags}), scratch)
        if not made.is_file():
            raise RuntimeError(f"{shutil.which('java')} wrote no archive of classes to {made}")
        os.replace(made, ARCHIVE)
    return ARCHIVE


def _run_usual(spark: Any, scratch: str) -> None:
    """A stream into a table, a query on it, and the end of the JVM."""
    from pyspark import SparkContext

    def land(frame: Any, batch: int) -> None:
        frame.write.mode("append").parquet(f"{scratch}/table")

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = rows.writeStream.foreachBatch(land).option("checkpointLocation", f"{scratch}/told")
    query.trigger(once=True).start().awaitTermination(120)
    table = spark.read.parquet(f"{scratch}/table")
    table.createOrReplaceTempView("landed")
    spark.sql("select value % 3 as part, count(*) from landed group by 1 order by 1").toPandas()
    table.mapInArrow(lambda batches: batches, table.schema).count()
    gateway: Any = SparkContext._gateway
    spark.stop()
    # The archive is written when the JVM ends, which it does when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    gateway.shutdown()


if __name__ == "__main__":
    print(make_archive())
