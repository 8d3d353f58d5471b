"""A stream whose checkpoint went back a step: batches of one number are not taken for repeats."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.spark.options import SERVERS

pytestmark = pytest.mark.spark


def run(
    spark: SparkSession,
    cluster: LiveCluster,
    checkpoint: Path,
    log: str = "back/into",
    name: str = "",
) -> None:
    """Copy what is there, and stop.

    Args:
        name: of the query, which then has its checkpoint where the session says.
    """
    source = (
        spark.readStream.format("cordwood")
        .option(SERVERS, cluster.url)
        .option("subscribe", "/back/from")
        .option("startingOffsets", "earliest")
        .load()
        .select("value")
    )
    writer = source.writeStream.format("cordwood").option(SERVERS, cluster.url).option("log", log)
    writer = (
        writer.queryName(name) if name else writer.option("checkpointLocation", str(checkpoint))
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    query.stop()


def values(store: BlockingStore, log: str = "/back/into") -> list[bytes]:
    with store.read(log) as reader:
        return [item.value for item in reader if isinstance(item, Record)]


def newest(directory: Path) -> int:
    return max(int(each.name) for each in directory.iterdir() if each.name.isdigit())


@pytest.mark.slow
def test_a_checkpoint_that_lost_its_newest_plan_is_refused(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    rows = [b"%d" % n for n in range(300)]
    checkpoint = tmp_path / "checkpoint"
    for at in (0, 100):
        store.append_many("/back/from", rows[at : at + 100])
        run(spark, cluster, checkpoint)
    assert values(store) == rows[:200]
    batch = newest(checkpoint / "offsets")
    for log in ("offsets", "commits"):
        (checkpoint / log / str(batch)).unlink()
        (checkpoint / log / f".{batch}.crc").unlink()
    store.append_many("/back/from", rows[200:])
    with pytest.raises(StreamingQueryException, match="was published with other records"):
        run(spark, cluster, checkpoint)
    assert values(store) == rows[:200]


@pytest.mark.slow
def test_a_checkpoint_that_the_session_names_is_looked_at_too(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    """Spark hands the sink an option of the query, and nothing of the session's settings."""
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, str(tmp_path))
    checkpoint = tmp_path / "named so"
    try:
        for at in (0, 10):
            store.append_many("/back/from", [b"%d" % n for n in range(at, at + 10)])
            run(spark, cluster, checkpoint, "back/named", "named so")
            if at == 0:
                # Of one query, and earlier in the alphabet: it was taken for the checkpoint.
                shutil.copytree(checkpoint, tmp_path / "a copy")
        before = values(store, "/back/named")
        batch = newest(checkpoint / "offsets")
        for log in ("offsets", "commits"):
            (checkpoint / log / str(batch)).unlink()
            (checkpoint / log / f".{batch}.crc").unlink()
        store.append_many("/back/from", [b"more"])
        with pytest.raises(StreamingQueryException, match="was published with other records"):
            run(spark, cluster, checkpoint, "back/named", "named so")
        assert values(store, "/back/named") == before
    finally:
        spark.conf.unset(setting)
