"""The source inside Spark: batches, streams, restarts, and what is said when it is held wrong."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cluster import LiveCluster
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

import cordwood.spark
from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.layout.arrow import batch_schema
from cordwood.spark.options import COLUMNS, OPTIONS, SERVERS
from cordwood.spark.source import spark_schema

pytestmark = [pytest.mark.spark, pytest.mark.real]

QUERY_TIMEOUT_S = 120
"""A query takes a second or two; a busy machine takes its time."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Source:
    """Reads one log of the cluster."""

    def __init__(self, spark: SparkSession, url: str, log: str) -> None:
        self.spark = spark
        self.options = {SERVERS: url, "subscribe": log}

    def batch(self, **more: str) -> DataFrame:
        return self.spark.read.format("cordwood").options(**{**self.options, **more}).load()

    def stream(self, **more: str) -> DataFrame:
        return self.spark.readStream.format("cordwood").options(**{**self.options, **more}).load()


@pytest.fixture
def log() -> str:
    """A name that no other test uses."""
    return f"/s-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def source(spark: SparkSession, cluster: LiveCluster, log: str) -> Source:
    return Source(spark, cluster.url, log)


def fill(store: BlockingStore, log: str, first: int, stop: int) -> None:
    """Records that have everything, some of them one by one."""
    numbers = range(first, stop)
    store.append_many(
        log,
        [b"value %d" % number for number in numbers],
        keys=[None if number % 3 == 0 else b"key %d" % number for number in numbers],
        timestamps=[1_700_000_000_000_000 + number * 1_001 for number in numbers],
        headers=[(("n", b"%d" % number), ("none", None)) * (number % 2) for number in numbers],
    )


def as_row(record: Record, log: str, log_id: int) -> tuple[Any, ...]:
    """What Spark should make of a record."""
    return (
        record.key,
        record.value,
        log,
        log_id,
        int(record.lsn),
        record.lsn.epoch,
        record.lsn.esn,
        EPOCH + datetime.timedelta(microseconds=record.timestamp_us),
        [(name, value) for name, value in record.headers] or None,
    )


def as_tuple(row: Row) -> tuple[Any, ...]:
    """A row of all columns, in the terms of `as_row`."""
    *plain, timestamp, headers = row
    plain = [bytes(each) if isinstance(each, bytearray) else each for each in plain]
    stamp = timestamp.astimezone(datetime.UTC)
    pairs = None if headers is None else [(h.key, h.value and bytes(h.value)) for h in headers]
    return (*plain, stamp, pairs)


def values(frame: DataFrame) -> list[str]:
    """Payloads as text, in the order of their LSNs."""
    rows = frame.selectExpr("lsn", "cast(value as string) as value").orderBy("lsn").collect()
    return [row.value for row in rows]


def numbers(first: int, stop: int) -> list[str]:
    return [f"value {number}" for number in range(first, stop)]


class TestBatch:
    def test_equals_what_was_appended(self, source: Source, store: BlockingStore, log: str):
        fill(store, log, 0, 500)
        for number in range(500, 520):
            fill(store, log, number, number + 1)
        fill(store, log, 520, 900)
        log_id = store.log(log).log_id
        with store.read(log) as reader:
            appended = [as_row(item, log, log_id) for item in reader if isinstance(item, Record)]
        assert len(appended) == 900
        frame = source.batch(includeHeaders="true", minPartitions="3")
        assert frame.rdd.getNumPartitions() == 3
        assert sorted(map(as_tuple, frame.collect()), key=lambda row: row[4]) == appended

    def test_reads_the_range_it_is_told(self, source: Source, store: BlockingStore, log: str):
        fill(store, log, 0, 50)
        first = store.tail(log) - 49
        frame = source.batch(
            startingOffsets=f'{{"{log}": {first + 10}}}', endingOffsets=f'{{"{log}": {first + 20}}}'
        )
        assert values(frame) == numbers(10, 20)

    def test_of_an_empty_log_is_empty(self, source: Source, store: BlockingStore, log: str):
        store.create_log(log)
        assert source.batch().collect() == []

    def test_leaves_out_what_is_not_asked_for(self, source: Source, store: BlockingStore, log: str):
        fill(store, log, 0, 5)
        frame = source.batch(includePayload="false")
        assert "value" not in frame.columns
        assert frame.count() == 5

    def test_is_a_view_in_sql(self, source: Source, store: BlockingStore, log: str):
        fill(store, log, 0, 40)
        pairs = ", ".join(f"`{name}` '{value}'" for name, value in source.options.items())
        source.spark.sql(f"CREATE TEMPORARY VIEW orders USING cordwood OPTIONS ({pairs})")
        try:
            (row,) = source.spark.sql(
                "SELECT count(*) AS records, count(key) AS keys, min(offset) AS first FROM orders"
            ).collect()
        finally:
            source.spark.catalog.dropTempView("orders")
        assert row.asDict() == {"records": 40, "keys": 26, "first": 1}

    def test_gaps_and_filters_through_sql(self, source: Source, store: BlockingStore, log: str):
        """Filters leave a log out and narrow the other; what is left is as without them."""
        lsns = store.append_many(f"{log}/a", [b"%d" % number for number in range(30)])
        store.append_many(f"{log}/b", [b"x"] * 30)
        asked = {
            SERVERS: source.options[SERVERS],
            "subscribePattern": f"{log}/.*",
            "filterPushdown": "true",
            "includeGaps": "true",
        }
        pairs = ", ".join(f"`{name}` '{value}'" for name, value in asked.items())
        conf = "spark.sql.python.filterPushdown.enabled"
        source.spark.conf.set(conf, "true")
        source.spark.sql(f"CREATE TEMPORARY VIEW some USING cordwood OPTIONS ({pairs})")
        try:
            rows = source.spark.sql(
                f"SELECT cast(value AS string) AS value, record_type, gap_type FROM some "
                f"WHERE log = '{log}/a' AND lsn >= {int(lsns[20])} AND key IS NULL ORDER BY lsn"
            ).collect()
        finally:
            source.spark.catalog.dropTempView("some")
            source.spark.conf.unset(conf)
        assert [row.value for row in rows] == [str(number) for number in range(20, 30)]
        assert {(row.record_type, row.gap_type) for row in rows} == {("record", None)}

    def test_goes_on_while_one_of_three_copies_is_gone(
        self, source: Source, cluster: LiveCluster, store: BlockingStore, log: str
    ):
        fill(store, log, 0, 300)
        number = store.log(log).log_id
        victim = next(
            node
            for node, status in store.status().items()
            if not any(each.log == number and each.sequencing for each in status.logs)
        )
        cluster.kill(victim)
        try:
            assert values(source.batch(minPartitions="2")) == numbers(0, 300)
        finally:
            cluster.start(victim)


class TestSchema:
    @pytest.mark.parametrize("columns", [COLUMNS, (*COLUMNS, "headers"), ("log", "lsn")])
    def test_is_the_arrow_schema_that_batches_have(self, columns):
        assert to_arrow_schema(spark_schema(columns), timezone="UTC") == batch_schema(columns)

    def test_is_fixed(self, source: Source):
        other = StructType([StructField("value", StringType())])
        reader = source.spark.read.format("cordwood").options(**source.options).schema(other)
        with pytest.raises(PySparkException, match="columns of Cordwood are fixed"):
            reader.load().collect()


class TestRegistration:
    def test_by_hand_is_fine_too_and_twice(self, source: Source, store: BlockingStore, log: str):
        cordwood.spark.register(source.spark)
        cordwood.spark.register(source.spark)
        store.append(log, b"value 0")
        assert values(source.batch()) == ["value 0"]


class TestErrors:
    def test_a_wrong_option_lists_the_right_ones(self, source: Source):
        with pytest.raises(AnalysisException) as raised:
            source.batch(subscribePatern="/x")
        told = str(raised.value)
        assert "there is no subscribepatern (did you mean subscribePattern?)" in told
        assert all(name in told for name in OPTIONS)

    def test_a_log_that_is_not_there_is_named(self, source: Source, log: str):
        with pytest.raises(PySparkException, match=f"there is no log {log}"):
            source.batch().collect()

    def test_a_cluster_that_is_not_there_says_how_to_start_one(self, source: Source):
        with pytest.raises(PySparkException, match=r"no Cordwood node answers at 127\.0\.0\.1:1 "):
            source.batch(**{SERVERS: "127.0.0.1:1"}).collect()


def to(source: Source, log: str, **more: str) -> dict[str, str]:
    """Options of the sink."""
    return {SERVERS: source.options[SERVERS], "log": log, **more}


class TestSink:
    def test_a_batch_and_a_stream_copy_a_log(
        self, source: Source, store: BlockingStore, log: str, tmp_path: Path
    ):
        """The batch twice, as one version of an application: the second is skipped."""
        fill(store, log, 0, 300)
        asked = {"txnAppId": log, "txnVersion": "7"}
        columns = ("key", "value", "timestamp", "headers", "lsn")
        frame = source.batch(includeHeaders="true").select(*columns)
        for _ in range(2):
            writer = frame.write.format("cordwood").options(**to(source, f"{log}/b", **asked))
            writer.mode("append").save()
        stream = source.stream(startingOffsets="earliest", includeHeaders="true").select(*columns)
        query = (
            stream.writeStream.format("cordwood")
            .options(**to(source, f"{log}/s"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)

        def content(name: str) -> list[tuple[Any, ...]]:
            with store.read(name) as reader:
                found = [item for item in reader if isinstance(item, Record)]
            return [(each.value, each.key, each.timestamp_us, each.headers) for each in found]

        assert content(f"{log}/b") == content(f"{log}/s") == content(log)


class Landing:
    """A query from the source to Parquet, that is stopped and started again."""

    def __init__(self, source: Source, directory: Path) -> None:
        self.source = source
        self.table = str(directory / "table")
        self.checkpoint = directory / "checkpoint"

    def writer(self, **options: str):
        frame = self.source.stream(**options)
        stream = frame.writeStream.option("checkpointLocation", str(self.checkpoint))
        return stream.format("parquet").option("path", self.table)

    def landed(self) -> list[str]:
        return values(self.source.spark.read.parquet(self.table))

    def batches(self) -> list[int]:
        """Batches that were planned so far."""
        names = [each.name for each in (self.checkpoint / "offsets").iterdir()]
        return sorted(int(name) for name in names if name.isdigit())


@pytest.fixture
def landing(source: Source, tmp_path: Path) -> Iterator[Landing]:
    yield Landing(source, tmp_path)
    for query in source.spark.streams.active:
        query.stop()


class TestStream:
    def test_lands_each_record_once_over_restarts(
        self, landing: Landing, store: BlockingStore, log: str
    ):
        """Two restarts, with records appended while it runs and while it does not."""
        for start in (0, 200, 400):
            fill(store, log, start, start + 100)
            query = landing.writer(startingOffsets="earliest").start()
            query.processAllAvailable()
            fill(store, log, start + 100, start + 200)
            for _ in range(3):
                # Each call waits for a poll that finds nothing.
                query.processAllAvailable()
            query.stop()
        assert landing.landed() == numbers(0, 600)
        # One batch for each append, and none while idle.
        assert landing.batches() == list(range(6))

    def test_reads_what_is_available_now_and_ends(
        self, landing: Landing, store: BlockingStore, log: str
    ):
        fill(store, log, 0, 250)
        for _ in range(2):
            query = (
                landing.writer(startingOffsets="earliest", maxRecordsPerTrigger="100")
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(QUERY_TIMEOUT_S)
        assert landing.landed() == numbers(0, 250)
        assert landing.batches() == [0, 1, 2]
        fill(store, log, 250, 300)
        query = landing.writer(startingOffsets="earliest").trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        assert landing.landed() == numbers(0, 300)

    def test_a_crash_in_batch_0_loses_and_repeats_nothing(
        self, landing: Landing, store: BlockingStore, log: str
    ):
        """It starts at latest, and that moves between the crash and the restart."""
        fill(store, log, 0, 50)
        seen: dict[int, list[str]] = {}

        def crash(frame: DataFrame, batch: int) -> None:
            raise RuntimeError("planted crash")

        def keep(frame: DataFrame, batch: int) -> None:
            seen[batch] = values(frame)

        def query(work):
            stream = landing.source.stream().writeStream
            return (
                stream.foreachBatch(work)
                .option("checkpointLocation", str(landing.checkpoint))
                .start()
            )

        first = query(crash)
        with pytest.raises(StreamingQueryException, match="planted crash"):
            first.awaitTermination(QUERY_TIMEOUT_S)
        assert landing.batches() == [0]
        fill(store, log, 50, 90)
        again = query(keep)
        again.processAllAvailable()
        fill(store, log, 90, 100)
        again.processAllAvailable()
        again.stop()
        assert [value for batch in sorted(seen) for value in seen[batch]] == numbers(50, 100)

    def test_a_wrong_checkpoint_says_what_is_wrong(
        self, landing: Landing, store: BlockingStore, log: str
    ):
        """The text of a failure on the driver reaches whoever waits for the query."""
        store.append(log, b"value 0")
        query = landing.writer(startingOffsets="earliest").start()
        query.processAllAvailable()
        query.stop()
        offsets = landing.checkpoint / "offsets" / "0"
        (landing.checkpoint / "offsets" / ".0.crc").unlink()
        number = str(store.log(log).log_id)
        offsets.write_text(offsets.read_text().replace(f'"{number}": "e', '"987654": "e'))
        query = landing.writer(startingOffsets="earliest").start()
        with pytest.raises(StreamingQueryException, match="CORDWOOD_DATA_LOSS log=987654"):
            query.awaitTermination(QUERY_TIMEOUT_S)
