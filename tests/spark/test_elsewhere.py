"""What users meet around the source: an embedded store that is served, and secrets."""

from __future__ import annotations

import uuid

import pytest
from pyspark.errors import PySparkException

from cordwood.block import Record
from cordwood.client.aio import open_store
from cordwood.client.blocking import open_blocking
from cordwood.embedded import embedded_store
from cordwood.settings import MIB, ClientSettings
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]

SECRET = "hunter2-hunter2"


@pytest.fixture
def embedded(tmp_path):
    settings = ClientSettings(timeout_s=30.0)
    with open_blocking(
        lambda: open_store(embedded_store(str(tmp_path / "data"), settings, 16 * MIB)), settings
    ) as opened:
        yield opened


def test_an_embedded_store_that_is_served_is_read_and_written_exactly_once(spark, embedded):
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


def test_its_bare_directory_is_refused_in_words(spark, tmp_path):
    options = {SERVERS: str(tmp_path), "subscribe": "orders"}
    with pytest.raises(
        PySparkException, match=r"a directory: an embedded store .*store\.serve\(\)"
    ):
        spark.read.format("cordwood").options(**options).load().collect()


def test_secrets_are_in_no_plan_and_no_error(spark, cluster, store):
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
