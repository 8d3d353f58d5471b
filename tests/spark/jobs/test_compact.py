"""Compaction of main storage by a real Spark: fewer objects, the same records."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from pyspark.sql import SparkSession

from cordwood import aio
from cordwood.block import Gap
from cordwood.client.blocking.blocking_history import BlockingHistory
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.host.real import real_host
from cordwood.spark.jobs.compact import compact, plan
from cordwood.tier.addresses import open_object_store
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.uploader import LogUploader
from cordwood.uploading.log_source import LogSource

pytestmark = [pytest.mark.spark, pytest.mark.real]

OBJECTS = 5


def upload(url: str, log: str, directory: Path) -> int:
    """Put what is new of a log into an object; its number."""

    async def main() -> int:
        async with real_host() as host, aio.connect(url) as client:
            store = await open_object_store(host, str(directory))
            info = await client.log(log)
            manifest = LogManifest(store, info.log_id, host, "test")
            uploader = LogUploader(store, manifest, host, info.log_id, info.name)
            async with LogSource(client, info.log_id, await uploader.next_lsn()) as source:
                await uploader.run(source.items(), source.first)
            await store.close()
            return int(info.log_id)

    return asyncio.run(main())


def digest(directory: Path, log: int) -> tuple[int, str]:
    """Records of a log, and the SHA-256 of all of them with their LSNs."""
    history = BlockingHistory(str(directory))
    count, summed = 0, hashlib.sha256()
    try:
        columns = ("lsn", "key", "value", "timestamp", "headers", "append_time")
        for run in history.runs(log, 1, 1 << 62, columns):
            for taken in run:
                if not isinstance(taken, Gap):
                    count += taken.last - taken.first + 1
                    for batch in taken.batches("", columns, 1):
                        summed.update(repr(batch.to_pydict()).encode())
    finally:
        history.close()
    return count, summed.hexdigest()


@pytest.mark.slow
def test_small_objects_become_large_ones_on_executors(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    logs = {}
    for log in ("/compact-a", "/compact-b"):
        for number in range(OBJECTS):
            store.append_many(log, [b"%d-%d " % (number, each) * 9 for each in range(500)])
            logs[log] = upload(cluster.url, log, tmp_path)
    before = {log: digest(tmp_path, log) for log in logs.values()}
    assert all(count == 500 * OBJECTS for count, _ in before.values())
    assert [each.objects for each in plan(str(tmp_path))] == [OBJECTS, OBJECTS]
    done = compact(spark, str(tmp_path))
    assert (done.merged, done.replaced, done.left) == (2, 2 * OBJECTS, [])
    assert {log: digest(tmp_path, log) for log in logs.values()} == before
    assert plan(str(tmp_path)) == []
    rows = spark.read.parquet(*map(str, tmp_path.glob("logs/*/objects/*-40000000*.parquet")))
    assert rows.count() == done.records == 1000 * OBJECTS
    damaged = next(tmp_path.glob("logs/*/objects/*-40000000*.parquet"))
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    assert compact(spark, str(tmp_path)).merged == 0
