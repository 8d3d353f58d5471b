"""Spark's own Parquet reader over the objects of main storage.

An object's name becomes an address of Hadoop's. Each log gets up to two scans, and one more for
each object of which some records do not count: a scan of whole files needs no filter, so a query of
one column decodes one column. `log` and `log_id` are constants of a scan, so that a filter on them
drops the scans of other logs.

Source: docs/spark.md, "Spark's own Parquet reader"; docs/sources/spark.md §2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cordwood.spark.source import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cordwood.client.blocking.blocking_files import FilePart

READ_OPTIONS = {
    # A file that is missing or damaged must end the query, whatever the session says: its records
    # would be left out in silence.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Read times before 1900 as they were written. Only files of old versions of Spark need a
    # conversion.
    "datetimeRebaseMode": "CORRECTED",
}

HADOOP_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs"}
"""Schemes of main storage and Hadoop's for the same address. Azure's `az://` is missing: Hadoop's
address of a container needs the account, which Cordwood's does not have."""

_CONSTANT = ("log", "log_id")
_GLOB = "\\{}[]*?"


def hadoop_address(address: str) -> str | None:
    """Hadoop's address of a store of ours; None if there is none.

    Args:
        address: a directory, `file://…`, or an address with another scheme.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return f"file:{os.path.abspath(address)}"
    if scheme == "file":
        return f"file:{os.path.abspath(rest)}"
    hadoop = HADOOP_SCHEMES.get(scheme)
    return None if hadoop is None else f"{hadoop}://{rest.rstrip('/')}"


def why_unreadable(spark: SparkSession, address: str, name: str) -> str:
    """Why Spark's own reader cannot read an object; "" if its driver finds the object.

    Args:
        address: of main storage.
        name: of an object that is there.
    """
    base = hadoop_address(address)
    if base is None:
        return f"Hadoop has no address for {urlsplit(address).scheme}:// stores"
    if not hasattr(spark, "sparkContext"):
        # Spark Connect: the files are the server's, and nothing here can look.
        return "" if base.startswith("file:") else "Spark Connect does not tell its file systems"
    return _why_not_found(spark, f"{base}/{name}")


def _why_not_found(spark: SparkSession, path: str) -> str:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session: Any = spark
    try:
        hadoop = session._jvm.org.apache.hadoop.fs.Path(path)
        conf = session._jsparkSession.sessionState().newHadoopConf()
        found = hadoop.getFileSystem(conf).exists(hadoop)
    except (Py4JError, PySparkException) as error:
        said = str(getattr(error, "java_exception", error)).strip().splitlines()
        return f"{urlsplit(path).scheme}: {said[0] if said else type(error).__name__}"
    return "" if found else f"Spark's driver does not find {path}"


def files_frame(
    spark: SparkSession,
    address: str,
    log: int,
    name: str,
    parts: Sequence[FilePart],
    columns: Sequence[str],
) -> DataFrame:
    """The records of a log that some objects hold.

    Args:
        address: of main storage.
        name: the value of the column `log`.
        parts: at least one.
        columns: in order; those of `spark_schema`, without those of gaps.
    """
    whole = [part for part in parts if part.is_whole and not part.is_shared]
    shared = [part for part in parts if part.is_whole and part.is_shared]
    scan = _scanner(spark, address, log, name, columns)
    frames = []
    if whole:
        frames.append(scan(whole, ""))
    if shared:
        frames.append(scan(shared, f"log_id = {log}"))
    # An object's other records may be in another object, too. So each has a filter of its own.
    for part in parts:
        if not part.is_whole:
            kept = f"lsn >= {part.first} AND lsn <= {part.last}"
            frames.append(scan([part], f"log_id = {log} AND {kept}"))
    return reduce(lambda one, other: one.union(other), frames)


def empty_frame(spark: SparkSession, columns: Sequence[str]) -> DataFrame:
    """No rows, with the source's columns, each of which may be null."""
    from pyspark.sql import functions as sf

    nulls = [sf.lit(None).cast(field.dataType).alias(field.name) for field in spark_schema(columns)]
    return spark.range(1).where("false").select(*nulls)


def _scanner(
    spark: SparkSession, address: str, log: int, name: str, columns: Sequence[str]
) -> Callable[[Sequence[FilePart], str], DataFrame]:
    from pyspark.sql import functions as sf

    base = hadoop_address(address)
    assert base is not None, f"Hadoop has no address for {address}"
    constants = {"log": sf.lit(name), "log_id": sf.lit(log).cast("bigint")}
    wanted = [
        constants[each].alias(each) if each in constants else sf.col(each) for each in columns
    ]
    filtered = {"log_id", "lsn"}
    schema = spark_schema([each for each in columns if each not in _CONSTANT or each in filtered])
    missing = filtered - set(schema.fieldNames())
    schema = spark_schema([*schema.fieldNames(), *sorted(missing)])

    def scan(parts: Sequence[FilePart], condition: str) -> DataFrame:
        paths = [_escaped(f"{base}/{part.name}") for part in parts]
        frame = spark.read.options(**READ_OPTIONS).schema(schema).parquet(*paths)
        return (frame.where(condition) if condition else frame).select(*wanted)

    return scan


def _escaped(path: str) -> str:
    """A path in which pattern characters are escaped: a directory's name may contain them."""
    return "".join(f"\\{sign}" if sign in _GLOB else sign for sign in path)
