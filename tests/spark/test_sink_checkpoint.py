"""A stream whose checkpoint went back a step: batches of one number are not taken for repeats."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from cordwood.block import Record
from cordwood.spark.options import SERVERS

pytestmark = pytest.mark.spark


def run(spark, cluster, checkpoint: Path) -> None:
    """Copy what is there, and stop."""
    source = (
        spark.readStream.format("cordwood")
        .option(SERVERS, cluster.url)
        .option("subscribe", "/back/from")
        .option("startingOffsets", "earliest")
        .load()
        .select("value")
    )
    query = (
        source.writeStream.format("cordwood")
        .option(SERVERS, cluster.url)
        .option("log", "back/into")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    query.stop()


def values(store) -> list[bytes]:
    with store.read("/back/into") as reader:
        return [item.value for item in reader if isinstance(item, Record)]


def newest(directory: Path) -> int:
    return max(int(each.name) for each in directory.iterdir() if each.name.isdigit())


def test_a_checkpoint_that_lost_its_newest_plan_is_refused(spark, cluster, store, tmp_path):
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
