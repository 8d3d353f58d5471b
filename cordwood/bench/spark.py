"""How fast Spark reads, lands and writes a log, beside a trivial Python source and sink in Spark.

One session on `local[2]`, one log of small records, on a local cluster that shares the machine's
cores. Each figure is a ratio to the trivial source or sink (`spark_trivial`), measured right
before it in the same session.

Source: docs/sources/spark.md §3, §8 (bars).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordwood.bench.figure import Figure, Sample, make_figure
from cordwood.bench.place import bench_place
from cordwood.bench.spark_trivial import NAME, TrivialSource
from cordwood.client.blocking import blocking_store as blocking
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.settings import MIB
from cordwood.spark.jobs.land import land
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import SERVERS
from cordwood.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = "/bench/spark"
BATCH = 8192

CORES = 2

TRIGGERS = 4
"""Micro-batches of a stream that is measured; their median counts."""

TINY_ROWS = 2
TINY_TRIGGERS = 20

TINY_LOG_BYTES = 4096
"""Far more bytes than the one record and its envelope that each of many logs holds."""

MAKING_AT_ONCE = 256
"""Logs that are made side by side: a quarter of a sequencer's queue of activations."""

QUERY_TIMEOUT_S = 600.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SparkBench:
    """The sizes of the measurement.

    Attributes:
        records, size: of the log; bytes of a record.
        logs: number of logs that one stream reads for the figure of many logs, which is then the
            only figure; 0 measures all other figures.
    """

    records: int
    size: int
    repeats: int
    logs: int = 0


async def bench_spark(
    bench: SparkBench, *, url: str | None, directory: str, nodes: int, say: Say
) -> list[Figure]:
    """Measure all figures.

    Raises:
        CordwoodError: the cluster did not start, or something failed in it.
    """
    # The log, the sink's records of each repeat, and a record or two of each tiny log.
    stored = bench.records * bench.size * (1 + bench.repeats) + bench.logs * TINY_LOG_BYTES
    blocks = max(1, stored // MIB)
    async with bench_place(url, directory, nodes=nodes, blocks=blocks, block_bytes=MIB) as place:
        # Spark blocks; nodes are processes of their own, and this loop only holds them.
        return await asyncio.to_thread(_measure, bench, place.url, place.directory, say)


def _measure(bench: SparkBench, url: str, directory: str, say: Say) -> list[Figure]:
    with blocking.connect(url) as store:
        if not bench.logs:
            say(f"appending {bench.records:,} records of {bench.size} B")
            fill(store, LOG, bench.records, bench.size)
        spark = local_session(
            "cordwood bench", CORES, quick_start=False, options={"spark.local.dir": directory}
        )
        try:
            spark.dataSource.register(TrivialSource)
            runs = Runs(spark, bench, url, Path(directory))
            return _figures(runs, store, say)
        finally:
            spark.stop()


def fill(store: BlockingStore, log: str, records: int, size: int) -> None:
    """Append random records of a size."""
    values = [os.urandom(size) for _ in range(min(records, BATCH))]
    for at in range(0, records, BATCH):
        store.append_many(log, values[: records - at])


def make_logs(store: BlockingStore, count: int, say: Say) -> None:
    """Append a record to each of many logs."""
    for first in range(0, count, MAKING_AT_ONCE):
        numbers = range(first, min(count, first + MAKING_AT_ONCE))
        made = [store.append_many_soon(f"/bench/many/{number}", [b"x"]) for number in numbers]
        for one in made:
            one.result(QUERY_TIMEOUT_S)
        if first // MAKING_AT_ONCE % 10 == 9:
            say(f"made {numbers.stop:,} of {count:,} logs")


def _figures(runs: Runs, store: BlockingStore, say: Say) -> list[Figure]:
    bench = runs.bench
    parameters: dict[str, int | float | str] = {
        "records": bench.records, "size": bench.size, "nodes": len(store.members),
        "master": f"local[{CORES}]", "cores": os.cpu_count() or 0,
    }  # fmt: skip
    trivial = "the same rows, prebuilt, yielded by a Python source that does nothing else"
    plan: list[tuple[str, str, Callable[[], float], Callable[[], float], str]] = [
        ("spark_batch_to_noop", "rows/s", lambda: runs.batch(runs.ours()),
         lambda: runs.batch(runs.trivial()), trivial),
        ("spark_stream_to_noop", "rows/s", runs.stream, runs.trivial_stream, trivial),
        ("spark_micro_batch", "ms", runs.tiny, runs.trivial_tiny, trivial),
        ("spark_land_parquet", "rows/s", runs.land, runs.trivial_parquet,
         "the same rows from that source, written to Parquet by Spark alone"),
        ("spark_sink", "rows/s", runs.sink, runs.trivial_sink,
         "the same rows into a Python sink that forgets them"),
    ]  # fmt: skip
    if not bench.logs:
        fill(store, runs.tiny_log, TINY_ROWS * TINY_TRIGGERS, bench.size)
    else:
        say(f"making {bench.logs:,} logs")
        make_logs(store, bench.logs, say)
        plan = [("spark_many_logs", "ms", lambda: runs.many(store), lambda: runs.one(store),
                 "a micro-batch of a stream over one log")]  # fmt: skip
    figures = []
    for name, unit, measure, refer, told in plan:
        refer(), measure()  # workers start here, and not in the first repeat
        samples = []
        for repeat in range(bench.repeats):
            reference = refer()
            samples.append(Sample(measure(), reference))
            say(f"{name}: {repeat + 1} of {bench.repeats}")
        figures.append(make_figure(name, unit, samples, reference_is=told, parameters=parameters))
    return figures


class Runs:
    """Each measurement, once."""

    tiny_log = "/bench/tiny"

    def __init__(self, spark: SparkSession, bench: SparkBench, url: str, directory: Path) -> None:
        self.bench = bench
        self._spark = spark
        self._servers = url
        self._scratch = directory / "scratch"
        self._number = 0

    def ours(self, log: str = LOG) -> DataFrame:
        """The log as a batch."""
        reader = self._spark.read.format("cordwood").options(**self._source(log))
        return reader.option("minPartitions", str(CORES)).load()

    def trivial(self) -> DataFrame:
        """A frame of the trivial source with as many rows."""
        options = {"rows": str(self.bench.records), "size": str(self.bench.size)}
        return self._spark.read.format(NAME).options(**options).load()

    def batch(self, frame: DataFrame) -> float:
        """Rows a second into nothing."""
        return self._rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def stream(self) -> float:
        """Rows a second of a stream into nothing, by trigger."""
        return self._stream_rate("cordwood", self._limited(LOG, self.bench.records // TRIGGERS))

    def trivial_stream(self) -> float:
        """Likewise, of the trivial source."""
        limit = str(self.bench.records // TRIGGERS)
        options = {"rows": str(self.bench.records), "size": str(self.bench.size), "limit": limit}
        return self._stream_rate(NAME, options)

    def tiny(self) -> float:
        """Milliseconds of a micro-batch of two rows."""
        return self._batch_ms("cordwood", self._limited(self.tiny_log, TINY_ROWS))

    def trivial_tiny(self) -> float:
        """Likewise, of the trivial source."""
        rows = str(TINY_ROWS * TINY_TRIGGERS)
        return self._batch_ms(NAME, {"rows": rows, "size": "100", "limit": str(TINY_ROWS)})

    def land(self) -> float:
        """Rows a second into a table, while batches are landed."""
        landing = Landing(
            {**self._source(LOG), "minPartitions": str(CORES)}, str(self._place()), partition_by=()
        )
        landed = land(self._spark, landing)
        return landed.records / landed.busy_s

    def trivial_parquet(self) -> float:
        """Rows a second into Parquet."""
        place = str(self._place())
        return self._rate(lambda: self.trivial().write.parquet(place))

    def sink(self) -> float:
        """Rows a second into a log, each once and durable when it is published."""
        options = {SERVERS: self._servers, "log": "/bench/sink"}
        frame = self.trivial().select("value")
        return self._rate(
            lambda: frame.write.format("cordwood").options(**options).mode("append").save()
        )

    def trivial_sink(self) -> float:
        """Rows a second into the trivial sink."""
        frame = self.trivial().select("value")
        return self._rate(lambda: frame.write.format(NAME).mode("append").save())

    def many(self, store: BlockingStore) -> float:
        """Milliseconds of a micro-batch over many logs, one of which has new records."""
        return self._new_row_ms(store, {"subscribePattern": "/bench/many/.*"})

    def one(self, store: BlockingStore) -> float:
        """Likewise, over that log alone."""
        return self._new_row_ms(store, {"subscribe": "/bench/many/0"})

    def _new_row_ms(self, store: BlockingStore, logs: dict[str, str]) -> float:
        options = {SERVERS: self._servers, "startingOffsets": "latest", **logs}
        query = self._writer("cordwood", options).start()
        try:
            query.processAllAvailable()
            for _ in range(5):
                store.append("/bench/many/0", b"x")
                query.processAllAvailable()
        finally:
            query.stop()
        return statistics.median(_durations_ms(query))

    def _source(self, log: str) -> dict[str, str]:
        return {SERVERS: self._servers, "subscribe": log}

    def _limited(self, log: str, rows: int) -> dict[str, str]:
        limit = {"maxRecordsPerTrigger": str(max(1, rows)), "startingOffsets": "earliest"}
        return {**self._source(log), **limit, "minPartitions": str(CORES)}

    def _rate(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        return self.bench.records / (time.perf_counter() - began)

    def _writer(self, format_: str, options: dict[str, str]) -> Any:
        stream = self._spark.readStream.format(format_).options(**options).load()
        checkpoint = str(self._place())
        return stream.writeStream.format("noop").option("checkpointLocation", checkpoint)

    def _run(self, format_: str, options: dict[str, str]) -> Any:
        query = self._writer(format_, options).trigger(availableNow=True).start()
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            raise TimeoutError(f"a stream did not end within {QUERY_TIMEOUT_S:g} s")
        return query

    def _stream_rate(self, format_: str, options: dict[str, str]) -> float:
        query = self._run(format_, options)
        rates = [
            each.numInputRows / each.durationMs["triggerExecution"] * 1000
            for each in query.recentProgress
            if each.numInputRows
        ]
        return float(statistics.median(rates))

    def _batch_ms(self, format_: str, options: dict[str, str]) -> float:
        return statistics.median(_durations_ms(self._run(format_, options)))

    def _place(self) -> Path:
        """A new directory; the directory before it is removed."""
        shutil.rmtree(self._scratch / str(self._number), ignore_errors=True)
        self._number += 1
        return self._scratch / str(self._number)


def _durations_ms(query: Any) -> list[float]:
    """The durations of the triggers that had rows, without the first, which starts workers."""
    found = [
        float(each.durationMs["triggerExecution"])
        for each in query.recentProgress
        if each.numInputRows
    ]
    return found[1:] or found
