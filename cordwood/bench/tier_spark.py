"""How fast Spark reads main storage through Cordwood, beside Spark's own reader of the same files.

One log is uploaded. Then one session on `local[2]` reads its objects in turn with Spark's reader
and in two ways of Cordwood's: with the tasks of `format("cordwood")`, planned, cut and read as in a
cluster whose nodes let go of all of it, so that no node is asked; and with the files of
`scan_logs`, found in the manifest and held under a lease. All give the same columns.

Two queries: all columns into nothing, and one sum over one column. Spark offers Python sources no
pruning of columns: in the second query its own reader decodes one column, and the source gives all.

No figure counts the making of a DataFrame. For Spark's reader that is the listing of the files, and
a job that reads their schema. For `scan_logs` it is the manifest and the lease too: `plan_ms` says
how long that takes without a cluster.

Source: docs/objects.md, "Reading"; docs/sources/spark.md §2, §3.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cordwood.bench.append import Say
from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.place import PREFIX
from cordwood.bench.tier import LOG, MADE_US, TierProfile, made_blocks, upload_log
from cordwood.client.blocking.blocking_files import BlockingFiles
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.values import Tiered
from cordwood.errors import BadSetting, Unreachable
from cordwood.host.real import real_host
from cordwood.layout.batch_columns import COLUMNS
from cordwood.lsn import LogId, Lsn, make_lsn
from cordwood.spark.options import TARGET_PARTITION_BYTES
from cordwood.spark.parquet_files import empty_frame, files_frame
from cordwood.spark.runs import LsnRun
from cordwood.spark.scan import LEASE_S
from cordwood.spark.session import local_session
from cordwood.spark.source import spark_schema
from cordwood.spark.splitting import Slice, Span, mark_objects, plan
from cordwood.tier.addresses import open_object_store
from cordwood.tier.collect import list_all

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CORES = 2
NAME = "cordwood_bench_objects"


class ObjectsSource(DataSource):
    """The source's scan of objects. Options: `address` of the store, `records`, `bytes` of them."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return NAME

    def schema(self) -> StructType:
        """The columns of Cordwood's source."""
        return spark_schema(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch."""
        return ObjectsReader(self.options)


class ObjectsReader(DataSourceReader):
    """Plans the tasks from what a cluster would say, and reads as `CordwoodReader` does."""

    def __init__(self, options: Any) -> None:
        self._address = str(options["address"])
        self._records = int(options["records"])
        self._bytes = int(options["bytes"])

    def partitions(self) -> list[InputPartition]:
        """The slices of each task."""
        first = make_lsn(1, 1)
        stop = first + self._records
        whole = Slice(LOG, "/bench", first, stop)
        span = Span(whole, (LsnRun(first, stop),), self._bytes / self._records)
        planned = plan([span], target_bytes=TARGET_PARTITION_BYTES, min_partitions=CORES)
        held = Tiered(self._address, Lsn(stop - 1), MADE_US)
        return [InputPartition(each) for each in mark_objects(planned, {LOG: held})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        from cordwood.spark.slice_reader import read_slices

        yield from read_slices(_no_node, partition.value, COLUMNS, fail_on_data_loss=True)


def _no_node() -> BlockingStore:
    raise Unreachable("a task of the benchmark asked a node: main storage lacked a part of the log")


async def bench_tier_spark(
    profile: TierProfile, *, store: str, directory: str, repeats: int, say: Say
) -> list[Figure]:
    """Upload a log, and read it `repeats` times each way.

    Args:
        store: a directory; "" for a directory that is made and removed.
        directory: the place of that directory, and of Spark's scratch files.
    Raises:
        BadSetting: the store is no directory; Spark's own reader needs more than the wheel has.
        CordwoodError: the store failed.
    """
    if "://" in store:
        raise BadSetting(f"{store}: Spark's own reader is measured on a directory alone")
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    try:
        address = _place(store or below)
        blocks = made_blocks(profile)
        async with real_host() as host:
            objects = await open_object_store(host, address)
            try:
                await upload_log(objects, host, blocks)
                files = [
                    os.path.join(address, info.name) async for info in list_all(objects, "logs/")
                    if info.name.endswith(".parquet")
                ]  # fmt: skip
            finally:
                await objects.close()
        say(f"tier --spark: {len(files)} objects")
        records = sum(header.count for header, _ in blocks)
        size = sum(header.raw_bytes for header, _ in blocks)
        del blocks
        measure = partial(_measure, address, files, records, size, profile, below, repeats, say)
        return await asyncio.to_thread(measure)
    finally:
        shutil.rmtree(below, ignore_errors=True)


def _place(directory: str) -> str:
    """The absolute path of the objects: Spark's workers have another working directory."""
    return os.path.join(os.path.abspath(directory), "spark")


def _measure(
    address: str,
    files: list[str],
    records: int,
    size: int,
    profile: TierProfile,
    directory: str,
    repeats: int,
    say: Say,
) -> list[Figure]:
    spark = local_session(
        "cordwood bench", CORES, quick_start=False, options={"spark.local.dir": directory}
    )
    try:
        spark.dataSource.register(ObjectsSource)
        options = {"address": address, "records": str(records), "bytes": str(size)}

        def ours() -> DataFrame:
            return spark.read.format(NAME).options(**options).load()

        def scan() -> DataFrame:
            return _scan(spark, address, records)

        def plain() -> DataFrame:
            return spark.read.parquet(*files).select(*COLUMNS)

        parameters: dict[str, int | float | str] = {
            "record_bytes": profile.record_bytes, "records": records, "body_bytes": size,
            "objects": len(files), "master": f"local[{CORES}]", "cores": os.cpu_count() or 0,
        }  # fmt: skip
        queries: tuple[tuple[str, Callable[[SparkSession, DataFrame], int | None]], ...] = (
            ("read", _into_nothing), ("sum", _sum),
        )  # fmt: skip
        # The figure's name, and the DataFrame that it is measured on.
        ways = (("tier_spark", ours), ("tier_spark_scan", scan))
        told = "spark.read.parquet of the same files and columns"
        for _, query in queries:
            for _, made in ways:
                _same(query(spark, plain()), query(spark, made()))  # what starts, starts here
        parameters["plan_ms"] = round(1000 * _seconds(scan), 1)
        figures = []
        for word, query in queries:
            samples: dict[str, list[Sample]] = {name: [] for name, _ in ways}
            for repeat in range(repeats):
                # Right after its reference: other programs share the cores, and come and go.
                for name, made in ways:
                    reference = records / _seconds(partial(query, spark, plain()))
                    rate = records / _seconds(partial(query, spark, made()))
                    samples[name].append(Sample(rate, reference))
                say(f"{word}: {repeat + 1} of {repeats}")
            figures += [
                make_figure(
                    f"{name}_{word}", "records/s", samples[name], reference_is=told,
                    parameters=parameters,
                )
                for name, _ in ways
            ]  # fmt: skip
        return figures
    finally:
        spark.stop()


def _scan(spark: SparkSession, address: str, records: int) -> DataFrame:
    """The log as `scan_logs` gives it where the manifest has all of it."""
    first = make_lsn(1, 1)
    files = BlockingFiles(address)
    try:
        found = files.hold(
            LogId(LOG), first, first + records,
            made_us=MADE_US, unmarked_stop=first, holder="benchmark", lease_s=LEASE_S,
        )  # fmt: skip
    finally:
        files.close()
    assert not found.rest, f"main storage lacks {found.rest}"
    frame = files_frame(spark, address, LOG, "/bench", found.parts, COLUMNS)
    return frame.union(empty_frame(spark, COLUMNS))


def _into_nothing(spark: SparkSession, frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _sum(spark: SparkSession, frame: DataFrame) -> int:
    """The bytes of all values."""
    found = frame.selectExpr("sum(length(value)) as bytes").first()
    return int(found["bytes"]) if found is not None else 0


def _same(theirs: int | None, ours: int | None) -> None:
    assert theirs == ours, f"Spark's own reader gives {theirs} bytes of values, and ours {ours}"


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
