"""`scan_logs`: Spark's own Parquet scan of main storage and the source for the rest, as one table.

Each table is compared with that of `format("cordwood")`, which reads through other code.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from swaps import swap, swap_value

import cordwood.spark
from cordwood import aio
from cordwood.client.blocking.blocking_files import BlockingFiles
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import AccessDenied, BadSetting
from cordwood.host.real import real_host
from cordwood.host.seams import Host
from cordwood.layout.object_names import head_name
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.lsn import OLDEST, LogId
from cordwood.protocol.merge_plan import MergePolicy
from cordwood.settings import MIB
from cordwood.spark import scan
from cordwood.spark.offsets import DataLoss
from cordwood.spark.options import SERVERS
from cordwood.spark.parquet_files import files_frame, hadoop_address, why_unreadable
from cordwood.spark.scan import LEASE_S
from cordwood.tier.addresses import open_object_store
from cordwood.tier.collect import collect_log
from cordwood.tier.compact import compact_log
from cordwood.tier.log_manifest import LogManifest
from cordwood.tier.patient_store import PatientStore
from cordwood.tier.repair import repair_log
from cordwood.tier.shared_upload import LogItems, gather
from cordwood.tier.shared_upload import upload_shared as shared_upload
from cordwood.tier.uploader import LogUploader
from cordwood.uploading.log_source import LogSource

pytestmark = [pytest.mark.spark, pytest.mark.real]

GRACE_S = 3600.0
OBJECT_BYTES = 4096


class TieredLog:
    """A log of the cluster, parts of which the test moves to main storage itself."""

    def __init__(self, spark: SparkSession, url: str, store: BlockingStore, name: str) -> None:
        self.spark, self.url, self.store, self.name = spark, url, store, name
        self.log_id = store.create_log(name).log_id
        self.address = store.tiered(name).address

    def append(self, first: int, stop: int) -> list[int]:
        """Records with everything: keys or none, headers or none, empty values; their LSNs."""
        numbers = range(first, stop)
        return [
            int(lsn)
            for lsn in self.store.append_many(
                self.name,
                [b"" if n % 5 == 0 else b"value %d" % n for n in numbers],
                keys=[None if n % 3 == 0 else b"key %d" % n for n in numbers],
                # Long before 1900 too: Spark's own reader converts such times if it is let.
                timestamps=[(n % 7 - 3) * 10**15 + n for n in numbers],
                headers=[(("n", b"%d" % n), ("none", None)) * (n % 2) for n in numbers],
            )
        ]

    def upload(self, object_bytes: int = OBJECT_BYTES) -> None:
        """Move what is new to main storage."""

        async def act(objects: PatientStore, host: Host) -> None:
            async with aio.connect(self.url) as client:
                info = await client.log(self.name)
                manifest = LogManifest(objects, info.log_id, host, "test")
                uploader = LogUploader(
                    objects, manifest, host, info.log_id, info.name,
                    created_us=info.created_us, object_bytes=object_bytes,
                )  # fmt: skip
                async with LogSource(client, info.log_id, await uploader.next_lsn()) as source:
                    await uploader.run(source.items(), source.first)

        self.do(act)

    def compact(self) -> None:
        """Merge all objects into one."""

        async def act(objects: PatientStore, host: Host) -> None:
            manifest = LogManifest(objects, self.log_id, host, "test")
            await compact_log(objects, manifest, host, self.log_id, MergePolicy(shared_bytes_min=1))

        self.do(act)

    def collect(self, later_s: float) -> int:
        """The number of objects that a collection deletes so much later."""
        deleted: list[int] = []

        async def act(objects: PatientStore, host: Host) -> None:
            at_us = host.clock.now_us() + round(later_s * 1e6)
            manifest = LogManifest(objects, self.log_id, host, "test")
            done = await collect_log(objects, manifest, self.log_id, at_us, GRACE_S)
            deleted.append(done.deleted)

        self.do(act)
        return deleted[0]

    def do(self, act: Callable[[PatientStore, Host], Awaitable[None]]) -> None:
        async def main() -> None:
            async with real_host() as host:
                objects = await open_object_store(host, self.address)
                await act(objects, host)
                await objects.close()

        asyncio.run(main())

    @property
    def objects(self) -> list[Path]:
        return sorted(Path(self.address).glob(f"logs/{self.log_id:016x}/objects/*.parquet"))

    def options(self, **more: str) -> dict[str, str]:
        return {SERVERS: self.url, "subscribe": self.name, "includeHeaders": "true", **more}

    def source(self, **more: str) -> DataFrame:
        return self.spark.read.format("cordwood").options(**self.options(**more)).load()

    def scan(self, **more: str) -> DataFrame:
        return cordwood.spark.scan_logs(self.spark, self.options(**more), must_scan=True)


@pytest.fixture
def log(spark: SparkSession, cluster: LiveCluster, store: BlockingStore) -> TieredLog:
    return TieredLog(spark, cluster.url, store, f"/scan-{uuid.uuid4().hex[:8]}")


def rows(frame: DataFrame) -> list[Row]:
    """All rows, with times as numbers: Python has none before the year 1."""
    if "timestamp" in frame.columns:
        frame = frame.withColumn("timestamp", sf.unix_micros("timestamp"))
    order = [name for name in ("log_id", "lsn") if name in frame.columns]
    return frame.orderBy(*order).collect()


def plan_of(frame: DataFrame) -> str:
    """The physical plan, in full."""
    return str(frame._jdf.queryExecution().explainString(  # PySpark only prints it
        frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    ))  # fmt: skip


class TestTheSameTable:
    def test_objects_and_live_records_are_one_table(self, log: TieredLog) -> None:
        for at in range(0, 300, 100):
            log.append(at, at + 100)
            log.upload()
        log.append(300, 350)
        assert len(log.objects) >= 3
        scanned = log.scan()
        assert scanned.schema == log.source().schema
        assert (found := rows(scanned)) == rows(log.source())
        assert len(found) == 350
        assert "Scan parquet" in plan_of(scanned)
        assert "cordwood_rest" in plan_of(scanned)

    def test_a_log_that_is_wholly_in_objects_needs_no_source(self, log: TieredLog) -> None:
        log.append(0, 200)
        log.upload()
        scanned = log.scan()
        assert scanned.schema == log.source().schema
        assert rows(scanned) == rows(log.source())
        assert "cordwood_rest" not in plan_of(scanned)

    def test_a_log_without_objects_is_the_sources(self, log: TieredLog) -> None:
        log.append(0, 50)
        assert rows(log.scan()) == rows(log.source())

    @pytest.mark.slow
    def test_ranges_cut_objects_at_the_record(self, log: TieredLog) -> None:
        lsns = log.append(0, 100)
        log.upload()
        lsns += log.append(100, 200)
        log.upload()
        lsns += log.append(200, 220)
        for low, high in ((30, 150), (40, 60), (150, 210), (205, 215)):
            ends = {
                "startingOffsets": f'{{"{log.name}": "{lsns[low]}"}}',
                "endingOffsets": f'{{"{log.name}": "{lsns[high]}"}}',
            }
            found = rows(log.scan(**ends))
            assert [row.lsn for row in found] == lsns[low:high]
            assert found == rows(log.source(**ends))

    def test_records_after_the_call_are_not_in_it(self, log: TieredLog) -> None:
        log.append(0, 50)
        log.upload()
        log.append(50, 60)
        scanned = log.scan()
        log.append(60, 80)
        log.upload()
        assert scanned.count() == 60
        assert log.scan().count() == 80

    def test_columns_may_be_chosen_for_both_parts(self, log: TieredLog) -> None:
        log.append(0, 60)
        log.upload()
        log.append(60, 80)
        wanted = ("value", "lsn", "log")
        scanned = cordwood.spark.scan_logs(log.spark, log.options(), columns=wanted, must_scan=True)
        assert tuple(scanned.columns) == wanted
        assert rows(scanned) == rows(log.source().select(*wanted))
        with pytest.raises(BadSetting, match="columns has nothing"):
            cordwood.spark.scan_logs(log.spark, log.options(), columns=["nothing"])

    def test_a_directory_with_the_signs_of_a_pattern(self, log: TieredLog, tmp_path: Path) -> None:
        lsns = log.append(0, 20)
        log.address = str(tmp_path / "a [b]{c}*?\\ %20 x=1")
        log.upload()
        files = BlockingFiles(log.address)
        try:
            found = files.hold(LogId(log.log_id), OLDEST, lsns[-1] + 1, made_us=0,
                               unmarked_stop=lsns[-1] + 1, holder="test", lease_s=0)  # fmt: skip
        finally:
            files.close()
        assert why_unreadable(log.spark, log.address, found.parts[0].name) == ""
        frame = files_frame(log.spark, log.address, log.log_id, "/x", found.parts, ["lsn", "value"])
        assert [row.lsn for row in rows(frame)] == lsns


class TestSeveralLogs:
    @pytest.mark.slow
    def test_objects_of_several_logs_give_each_log_its_own(
        self, log: TieredLog, spark: SparkSession, cluster: LiveCluster, store: BlockingStore
    ) -> None:
        """Records of two logs share an object. Then the share of one log is merged, so that its
        records are in two files."""
        other = TieredLog(spark, cluster.url, store, f"{log.name}-other")
        upload_shared([log, other], 0)
        upload_shared([log, other], 20)
        log.append(40, 60)
        log.upload()
        other.append(40, 50)
        shared = list(Path(log.address).glob("shared/*/*.parquet"))
        assert len(shared) >= 2
        for _ in range(2):
            options = log.options(subscribe=f"{log.name},{other.name}")
            scanned = cordwood.spark.scan_logs(spark, options, must_scan=True)
            source = spark.read.format("cordwood").options(**options).load()
            assert len(found := rows(scanned)) == 60 + 50
            assert found == rows(source)
            assert rows(other.scan()) == rows(other.source())
            log.compact()  # and look again
        assert all(path.exists() for path in shared)

    def test_a_filter_on_the_log_drops_the_files_of_other_logs(
        self, log: TieredLog, spark: SparkSession, cluster: LiveCluster, store: BlockingStore
    ) -> None:
        other = TieredLog(spark, cluster.url, store, f"{log.name}-other")
        for each in (log, other):
            each.append(0, 30)
            each.upload()
        options = log.options(subscribe=f"{log.name},{other.name}")
        scanned = cordwood.spark.scan_logs(spark, options, must_scan=True)
        filtered = scanned.where(f"log = '{other.name}'")
        assert rows(filtered) == rows(other.source())
        assert f"logs/{log.log_id:016x}/" in plan_of(scanned)
        assert f"logs/{log.log_id:016x}/" not in plan_of(filtered)

    def test_the_smallest_of_many_logs_are_the_sources_and_have_no_lease(
        self,
        log: TieredLog,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A scan of ten thousand logs left ten thousand leases for six hours, and each collection
        reads all leases."""
        swap_value(monkeypatch, lambda: scan.SCANNED_LOGS_MAX, 1)
        other = TieredLog(spark, cluster.url, store, f"{log.name}-other")
        for each, records in ((log, 30), (other, 20)):
            each.append(0, records)
            each.upload()
        leases = Path(log.address) / "leases"
        before = {*leases.glob("*")}
        options = log.options(subscribe=f"{log.name},{other.name}")
        with caplog.at_level(logging.WARNING):
            scanned = cordwood.spark.scan_logs(spark, options)
        assert "1 logs with fewer records than 1 others" in caplog.text
        (lease,) = {*leases.glob("*")} - before
        assert f"logs/{log.log_id:016x}/".encode() in lease.read_bytes()
        source = spark.read.format("cordwood").options(**options).load()
        assert rows(scanned) == rows(source)
        assert f"logs/{log.log_id:016x}/" in plan_of(scanned)
        assert f"logs/{other.log_id:016x}/" not in plan_of(scanned)

    def test_a_renamed_log_has_its_present_name(self, log: TieredLog, store: BlockingStore) -> None:
        log.append(0, 20)
        log.upload()
        log.name = f"{log.name}-new"
        store.log_tree.rename(log.name.removesuffix("-new"), log.name)
        assert {row.log for row in rows(log.scan())} == {log.name}


def upload_shared(logs: list[TieredLog], first: int) -> None:
    """Append 20 records to each log, and put all that is new of the logs into one object."""
    for each in logs:
        each.append(first, first + 20)

    async def act(objects: PatientStore, host: Host) -> None:
        shares = []
        async with aio.connect(logs[0].url) as client:
            for each in logs:
                info = await client.log(each.name)
                manifest = LogManifest(objects, info.log_id, host, "test")
                head = await manifest.load()
                start = head.end if head is not None else 0
                async with LogSource(client, info.log_id, start) as source:
                    items, lost = await gather(source.items(), MIB)
                    assert lost is None
                    shares.append(
                        LogItems(
                            info.log_id, info.name, info.created_us, manifest, source.first, items
                        )
                    )
        await shared_upload(objects, host, shares)

    logs[0].do(act)


def lose(log: TieredLog, path: Path) -> None:
    """Delete an object and the manifest; the operator accepts the loss."""
    path.unlink()
    (Path(log.address) / head_name(log.log_id)).unlink()

    async def act(objects: PatientStore, host: Host) -> None:
        manifest = LogManifest(objects, log.log_id, host, "test")
        await repair_log(objects, manifest, log.log_id, accept=True)

    log.do(act)


class TestWhatIsGone:
    def test_trimmed_records_are_left_out_or_told(
        self, log: TieredLog, store: BlockingStore
    ) -> None:
        """The trim ends inside an object, and main storage has not heard of it."""
        lsns = log.append(0, 200)
        log.upload()
        log.append(200, 220)
        store.trim(log.name, lsns[70])
        with pytest.raises(DataLoss, match="type=TRIM"):
            log.scan()
        with pytest.raises(PySparkException, match="type=TRIM"):
            log.source().count()
        scanned = log.scan(failOnDataLoss="false")
        assert next(row.lsn for row in rows(scanned)) == lsns[71]
        assert scanned.count() == 220 - 71
        after = {"startingOffsets": f'{{"{log.name}": "{lsns[71]}"}}'}
        assert rows(log.scan(**after)) == rows(scanned) == rows(log.source(**after))

    def test_records_that_main_storage_lost_come_from_nodes(self, log: TieredLog) -> None:
        log.append(0, 100)
        log.upload(object_bytes=100)
        log.append(100, 200)
        log.upload(object_bytes=100)
        log.append(200, 300)
        log.upload(object_bytes=100)
        assert len(log.objects) == 3
        lose(log, log.objects[1])
        scanned = log.scan()
        assert rows(scanned) == rows(log.source())
        assert scanned.count() == 300
        assert plan_of(scanned).count("/objects/") >= 1
        assert "cordwood_rest" in plan_of(scanned)

    def test_merged_and_trimmed_files_stay_for_the_query(
        self, log: TieredLog, store: BlockingStore
    ) -> None:
        for at in range(0, 80, 20):
            lsns = log.append(at, at + 20)
            log.upload()
        before = log.objects
        scanned = log.scan()
        expected = rows(scanned)
        log.compact()
        store.trim(log.name, lsns[5])
        assert len(log.objects) == len(before) + 1
        assert log.collect(later_s=GRACE_S + 60) == 0, "the lease keeps all files"
        assert rows(scanned) == expected
        assert log.collect(later_s=LEASE_S + 60) == len(before)
        assert [row.lsn for row in rows(log.scan(failOnDataLoss="false"))] == lsns[6:]

    def test_a_query_whose_files_are_gone_fails(self, log: TieredLog) -> None:
        """Also in a session that passes over missing files."""
        for at in range(0, 80, 20):
            log.append(at, at + 20)
            log.upload()
        scanned = cordwood.spark.scan_logs(log.spark, log.options(), must_scan=True, lease_s=0)
        log.compact()
        assert log.collect(later_s=GRACE_S + 60) == 4
        log.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
        try:
            with pytest.raises((PySparkException, Py4JError), match="FILE_NOT_EXIST"):
                scanned.count()
        finally:
            log.spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        assert log.scan().count() == 80


class TestPushdown:
    def test_filters_and_columns_reach_the_files(self, log: TieredLog) -> None:
        lsns = log.append(0, 100)
        log.upload()
        log.append(100, 120)
        scanned = log.scan()
        chosen = scanned.where(f"lsn > {lsns[50]} AND timestamp > '1970-01-02'").select("value")
        plan = plan_of(chosen)
        assert f"GreaterThan(lsn,{lsns[50]})" in plan
        assert "GreaterThan(timestamp," in plan
        (files,) = [part for part in plan.split("\n\n") if ") Scan parquet" in part]
        (schema,) = [line for line in files.splitlines() if line.startswith("ReadSchema")]
        assert schema == "ReadSchema: struct<value:binary,lsn:bigint,timestamp:timestamp>"
        wanted = log.source().where(f"lsn > {lsns[50]} AND timestamp > '1970-01-02'")
        assert sorted(chosen.collect()) == sorted(wanted.select("value").collect())

    def test_a_filter_narrows_the_sources_part(self, log: TieredLog) -> None:
        log.append(0, 40)
        log.upload()
        lsns = log.append(40, 80)
        log.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            scanned = log.scan().where(f"lsn >= {lsns[30]}")
            assert [row.lsn for row in rows(scanned)] == lsns[30:]
            assert f"GreaterThanOrEqual(lsn,{lsns[30]})" in plan_of(scanned)
        finally:
            log.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


class TestTheSourceForAll:
    def test_gaps_as_rows_are_the_sources(
        self, log: TieredLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        log.append(0, 40)
        log.upload()
        options = log.options(includeGaps="true")
        with caplog.at_level(logging.WARNING):
            scanned = cordwood.spark.scan_logs(log.spark, options)
        assert "includeGaps" in caplog.text
        assert rows(scanned) == rows(log.source(includeGaps="true"))
        with pytest.raises(BadSetting, match="includeGaps"):
            cordwood.spark.scan_logs(log.spark, options, must_scan=True)

    def test_a_store_that_the_session_cannot_read(
        self, log: TieredLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.append(0, 40)
        log.upload()
        log.append(40, 50)
        swap(monkeypatch, hadoop_address, s3_address)
        with caplog.at_level(logging.WARNING):
            scanned = cordwood.spark.scan_logs(log.spark, log.options())
        assert "S3AFileSystem not found" in caplog.text
        assert rows(scanned) == rows(log.source())
        assert "Scan parquet" not in plan_of(scanned)
        assert not list(Path(log.address).glob("leases/*")) or log.collect(later_s=0) == 0
        with pytest.raises(BadSetting, match="must_scan=True refuses"):
            log.scan()

    def test_ledgers_are_refused(self, log: TieredLog) -> None:
        with pytest.raises(BadSetting, match="scan_logs reads logs"):
            cordwood.spark.scan_logs(log.spark, {SERVERS: log.url, "ledgers": "1"})

    def test_a_guarded_log_asks_for_its_token(
        self, spark: SparkSession, cluster: LiveCluster, store: BlockingStore
    ) -> None:
        name = f"/scan-{uuid.uuid4().hex[:8]}"
        store.create_log(name, attributes=LogAttributes(read_token=token_digest("a secret")))
        store.append(name, b"x")
        options = {SERVERS: cluster.url, "subscribe": name}
        with pytest.raises(AccessDenied, match="asks for a read token"):
            cordwood.spark.scan_logs(spark, options)
        told = cordwood.spark.scan_logs(spark, options | {"cordwood.read.tokens": "a secret"})
        assert told.count() == 1


def s3_address(address: str) -> str:
    return "s3a://bucket/prefix"
