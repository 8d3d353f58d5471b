"""What users meet around the source: an embedded store that is served, and secrets."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cordwood.block import Record
from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.embedded import embedded_store
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.settings import MIB, ClientSettings
from cordwood.spark.options import SERVERS
from cordwood.spark.sink_options import WRITE_TOKENS, parse_sink_options

pytestmark = [pytest.mark.spark, pytest.mark.real]

SECRET = "hunter2-hunter2"


@pytest.fixture
def embedded(tmp_path: Path):
    settings = ClientSettings(timeout_s=30.0)
    with open_blocking(
        lambda: open_store(embedded_store(str(tmp_path / "data"), settings, 16 * MIB)), settings
    ) as opened:
        yield opened


@pytest.mark.slow
def test_an_embedded_store_that_is_served_is_read_and_written_exactly_once(
    spark: SparkSession, embedded
):
    lsns = embedded.append_many("/orders", [b"%d" % n for n in range(100)])
    address = embedded.serve()
    frame = spark.read.format("cordwood").options(**{SERVERS: address, "subscribe": "orders"})
    rows = frame.load().select("lsn", "value")
    assert sorted(row.lsn for row in rows.collect()) == list(map(int, lsns))
    sink = {SERVERS: address, "log": "copy"}
    rows.select("value").write.format("cordwood").options(**sink).mode("append").save()
    with embedded.read("/copy") as reader:
        copied = [item.value for item in reader if isinstance(item, Record)]
    assert copied == [b"%d" % n for n in range(100)]


def test_its_bare_directory_is_refused_in_words(spark: SparkSession, tmp_path: Path):
    options = {SERVERS: str(tmp_path), "subscribe": "orders"}
    with pytest.raises(
        PySparkException, match=r"a directory: an embedded store .*store\.serve\(\)"
    ):
        spark.read.format("cordwood").options(**options).load().collect()


@pytest.mark.slow
def test_a_log_that_asks_for_a_write_token(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    """The sink is refused without it, writes with it, and shows it nowhere."""
    log = f"/e-{uuid.uuid4().hex[:8]}"
    store.create_log(log, attributes=LogAttributes(write_token=token_digest(SECRET)))
    rows = spark.createDataFrame([(b"1",)], "value BINARY")
    options = {SERVERS: cluster.url, "log": log}
    with pytest.raises(PySparkException, match="wants a write token"):
        rows.write.format("cordwood").options(**options).mode("append").save()
    options[WRITE_TOKENS] = f"another, {SECRET}"
    rows.write.format("cordwood").options(**options).mode("append").save()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    query = (
        stream.selectExpr("'2' AS value")
        .writeStream.format("cordwood")
        .options(**options, checkpointLocation=str(tmp_path))
        .trigger(once=True)
        .start()
    )
    assert query.awaitTermination(120)
    plan = query._jsq.explainInternal(True)
    assert "WriteToDataSourceV2" in plan or "MicroBatchWrite" in plan, plan
    assert SECRET not in plan
    assert SECRET not in str(query.lastProgress)
    assert SECRET not in repr(parse_sink_options(options))
    with store.read(log) as reader:
        assert [item.value for item in reader if isinstance(item, Record)] == [b"1", b"2", b"2"]


def test_secrets_are_in_no_plan_and_no_error(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore
):
    """Under any name that Spark's own redaction knows, and in words of ours."""
    log = f"/e-{uuid.uuid4().hex[:8]}"
    store.append(log, b"1")
    options = {SERVERS: cluster.url, "subscribe": log}
    with pytest.raises(PySparkException) as raised:
        spark.read.format("cordwood").options(
            **options, **{"cordwood.security.token": SECRET}
        ).load()
    assert "there is no cordwood.security.token" in str(raised.value)
    assert SECRET not in str(raised.value)
    frame = spark.read.format("cordwood").options(**options).load()
    plan = frame._jdf.queryExecution().toString()
    assert "cordwood" in plan.lower()
    assert cluster.url not in plan
