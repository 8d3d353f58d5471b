"""Landing: every format holds what the log holds, once, however often it is interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from job_logs import appended
from live_cluster import LiveCluster
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from swaps import swap

import cordwood
from cordwood.cli.app import run
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, StoreInUse
from cordwood.spark.jobs.iceberg_table import IcebergTable
from cordwood.spark.jobs.land import Landed, Lander, land
from cordwood.spark.jobs.landing import Landing, dry_run, settle
from cordwood.spark.jobs.parquet_table import ParquetTable
from cordwood.spark.jobs.table import FORMATS, OURS, only_writer
from cordwood.spark.jobs.table_files import table_files
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]

DAY_US = 86_400_000_000

QUICK, *OTHERS = FORMATS


def rows(path: Path, format_: str, columns: tuple[str, ...] | None = None) -> list[dict]:
    """A table, read without Spark; some of its columns, as Python has no dates of some years."""
    names = None if columns is None else list(columns)
    if format_ == "parquet":
        found = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=names)
    elif format_ == "delta":
        found = DeltaTable(str(path)).to_pyarrow_table(columns=names)
    else:
        table = IcebergTable(path, ())._open()
        assert table is not None
        found = table.scan(selected_fields=columns or ("*",)).to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["lsn"])


def values(path: Path, format_: str, columns: tuple[str, ...] | None = None) -> dict[int, bytes]:
    found = rows(path, format_, columns)
    assert len({row["lsn"] for row in found}) == len(found), "a record is there twice"
    return {row["lsn"]: row["value"] for row in found}


@pytest.fixture
def lands(
    spark: SparkSession, cluster: LiveCluster, log: str, tmp_path: Path
) -> Callable[..., Landed]:
    """Runs a landing of the test's log into `tmp_path/table`."""

    def run(source: dict[str, str] | None = None, **options) -> Landed:
        asked = {SERVERS: cluster.url, "subscribe": log, **(source or {})}
        return land(spark, Landing(asked, str(tmp_path / "table"), **options))

    return run


class TestFormats:
    @pytest.mark.parametrize(
        "format_", [QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
    )
    def test_hold_the_log_over_a_crash_and_new_columns(
        self,
        lands: Callable[..., Landed],
        store: BlockingStore,
        log: str,
        tmp_path: Path,
        format_,
        monkeypatch: pytest.MonkeyPatch,
    ):
        """Killed after it published and before Spark knew; then fields come, and broken ones."""
        table = tmp_path / "table"
        first = [json.dumps({"id": n, "name": f"n{n}"}).encode() for n in range(40)]
        store.append_many(log, first, timestamps=[n * DAY_US // 20 for n in range(40)])
        on_batch = Lander.on_batch

        def dies(lander: Lander, frame, batch: int) -> None:
            on_batch(lander, frame, batch)
            raise RuntimeError("planted crash")

        with monkeypatch.context() as dying:
            swap(dying, Lander.on_batch, dies)
            with pytest.raises(StreamingQueryException, match="planted crash"):
                lands(format=format_, decode="json")
        assert values(table, format_) == appended(store, log)

        second = [json.dumps({"id": n, "x": n / 2}).encode() for n in range(40, 60)]
        lsns = store.append_many(log, [*second, b"broken", b'{"id": "text"}'])
        landed = lands(format=format_, decode="json")
        assert (landed.records, landed.quarantined, landed.skipped) == (20, 2, 1)
        bad = {int(lsn) for lsn in lsns[-2:]}
        whole = appended(store, log)
        assert values(table, format_) == {k: v for k, v in whole.items() if k not in bad}
        apart = ds.dataset(f"{table}.quarantine", format="parquet").to_table().to_pylist()
        assert {row["lsn"]: row["value"] for row in apart} == {k: whole[k] for k in bad}
        found = rows(table, format_)
        if format_ != "parquet":  # a directory's reader takes the first file's columns
            assert [(row["id"], row["name"], row["x"]) for row in found] == [
                *((n, f"n{n}", None) for n in range(40)),
                *((n, None, n / 2) for n in range(40, 60)),
            ]
        assert {str(row["event_date"]) for row in found[:40]} == {"1970-01-01", "1970-01-02"}
        assert lands(format=format_, decode="json").records == 0


class TestOddRecords:
    """What one producer may send stops no landing, today or ever."""

    @pytest.mark.slow
    def test_json_of_names_and_depths_that_tables_do_not_have(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str, tmp_path: Path
    ):
        odd = [
            b'{"id": 1, "ID": 2, "Id": "three"}',
            b'{"_broken": 1, "_parsed": 2, "_error": 3, "_cordwood": 4}',
            b'{"lsn": 1, "value": 2, "event_date": 3, "": 4, "a.b": 5, "c`d": 6, "e\\u0000f": 7}',
            b'{"half": "\\ud800", "\\ud800": 1}',
            b"{}",
        ]
        bad = [b"[" * 100_000, b'{"x":' * 50_000, b"\xff", b"", b"null", b"1", b"[]"]
        store.append_many(log, [*odd, *bad])
        landed = lands(decode="json")
        assert (landed.records, landed.quarantined) == (len(odd), len(bad))
        found = rows(tmp_path / "table", "parquet")
        assert [row["value"] for row in found] == odd
        first, second, third = found[:3]
        assert (first["id"], first["ID_2"], first["Id_3"]) == (1, 2, "three")
        assert (second["_broken"], second["_parsed"], second["_error_2"]) == (1, 2, 3)
        assert (third["lsn_2"], third["event_date_2"], third["a_b"], third["c_d"]) == (1, 3, 5, 6)

    @pytest.mark.slow
    @pytest.mark.parametrize("format_", FORMATS)
    def test_times_and_partitions_that_no_table_spells(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str, tmp_path: Path, format_
    ):
        keys = ["a/b c%d=é", "", None, "#?&:", "..", "a b"]
        times = [0, 253_402_300_800_000_000, 2**62, -(2**62), 1, 2]
        values_ = [json.dumps({"k": key}).encode() for key in keys]
        store.append_many(log, values_, timestamps=times)
        asked = {"format": format_, "decode": "json", "partition_by": ("event_date", "k")}
        assert lands(**asked).records == len(keys)
        if format_ == "iceberg":  # which keeps no bounds of timestamps from there on
            store.append(log, b'{"k": "later"}', timestamp=1)
            assert lands(**asked).records == 1
        assert values(tmp_path / "table", format_, ("value", "lsn")) == appended(store, log)

    @pytest.mark.slow
    @pytest.mark.parametrize("format_", FORMATS)
    def test_values_that_name_no_directory_are_set_apart(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str, tmp_path: Path, format_
    ):
        """Too long, of a NUL, or the text that readers take for null; the longest are landed."""
        longest = {"parquet": 253, "delta": 253, "iceberg": 248}[format_]  # k= and part_k=
        fits = ["x" * longest, "/" * (longest // 3), "", None, "é" * 42, "__HIVE_DEFAULT_"]
        apart = {
            "x" * (longest + 1): "too long",
            "=" * (longest // 3 + 1): "too long",
            "é" * 127: "too long",
            "y" * 70_000: "too long",
            "a\0b": "a NUL",
            "__HIVE_DEFAULT_PARTITION__": "stands for null",
        }
        if format_ == "delta":  # which writes é as six letters where it joins files
            apart["é" * 43] = "too long"
        else:
            fits.append("é" * 43)
        keys = [*apart, *fits]
        lsns = store.append_many(log, [json.dumps({"k": key}).encode() for key in keys])
        asked = {"format": format_, "decode": "json", "partition_by": ("k",)}
        landed = lands(**asked)
        assert (landed.records, landed.quarantined) == (len(fits), len(apart))
        table = tmp_path / "table"
        found = rows(table, format_)
        assert [row["lsn"] for row in found] == [int(lsn) for lsn in lsns[len(apart) :]]
        assert [row["k"] for row in found] == [key or None for key in fits]
        bad = ds.dataset(f"{table}.quarantine", format="parquet").to_table().to_pylist()
        whole = appended(store, log)
        for row, key, reason in zip(
            sorted(bad, key=lambda row: row["lsn"]), apart, apart.values(), strict=True
        ):
            assert (json.loads(row["value"])["k"], row["value"]) == (key, whole[row["lsn"]])
            assert reason in row["error"]
        if format_ != "iceberg":
            store.append_many(log, [json.dumps({"k": key}).encode() for key in fits])
            assert lands(**asked, compact=True).compacted.removed == 2 * (len(fits) - 1)
            assert [row["k"] for row in rows(table, format_)] == [key or None for key in fits] * 2

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("format_", "column"),
        [("delta", "_day"), ("delta", ".day"), ("iceberg", "_day"), ("iceberg", ".day")],
    )
    def test_a_partition_that_looks_hidden_is_landed(
        self,
        lands: Callable[..., Landed],
        store: BlockingStore,
        log: str,
        tmp_path: Path,
        format_,
        column: str,
    ):
        lsns = store.append_many(log, [b'{"%s": "1"}' % column.encode()] * 5)
        asked = {"format": format_, "decode": "json", "schema": f"`{column}` STRING"}
        assert lands(partition_by=(column,), **asked).records == 5
        found = [
            row["lsn"]
            for path in table_files(tmp_path / "table", format_)
            for row in pq.ParquetFile(path).read().to_pylist()
        ]
        assert sorted(found) == [int(lsn) for lsn in lsns]

    @pytest.mark.slow
    def test_a_field_is_named_as_the_directories_columns_are(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str, tmp_path: Path
    ):
        store.append(log, b'{"part_event_date": "of a machine"}', timestamp=1)
        assert lands(format="iceberg", decode="json").records == 1
        (found,) = rows(tmp_path / "table", "iceberg")
        assert (found["part_event_date"], str(found["event_date"])) == (
            "of a machine",
            "1970-01-01",
        )

    def test_bytes_name_no_directory(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str
    ):
        store.append(log, b"x", key=b"\xff")
        with pytest.raises(StreamingQueryException, match=r"cannot partition by key, .* is binary"):
            lands(partition_by=("key",))


class TestRestart:
    @pytest.mark.slow
    def test_a_crash_before_publishing_leaves_nothing_behind(
        self,
        lands: Callable[..., Landed],
        store: BlockingStore,
        log: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):
        store.append_many(log, [b"%d" % n for n in range(50)])

        def dies(*_: object) -> None:
            raise RuntimeError("planted crash")

        with monkeypatch.context() as dying:
            swap(dying, ParquetTable.publish, dies)
            with pytest.raises(StreamingQueryException, match="planted crash"):
                lands(source={"maxRecordsPerTrigger": "20"}, partition_by=())
        assert list((tmp_path / "table").glob("*.parquet")) == []
        store.append_many(log, [b"%d" % n for n in range(50, 60)])
        landed = lands(source={"maxRecordsPerTrigger": "20", "minPartitions": "3"}, partition_by=())
        assert landed.records == 60
        assert values(tmp_path / "table", "parquet") == appended(store, log)

    @pytest.mark.slow
    def test_a_lost_checkpoint_goes_on_where_the_table_ends(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str, tmp_path: Path
    ):
        store.append_many(log, [b"%d" % n for n in range(30)])
        lands()
        shutil.rmtree(tmp_path / "table" / OURS / "checkpoint")
        store.append_many(log, [b"%d" % n for n in range(30, 40)])
        assert lands(compact=True).records == 10
        assert values(tmp_path / "table", "parquet") == appended(store, log)

    @pytest.mark.slow
    def test_a_lost_checkpoint_and_logs_that_went_and_came(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        tmp_path: Path,
    ):
        """The places of a log that was deleted stopped the landing for good."""
        names = [f"{log}/{name}" for name in ("stays", "renamed", "deleted")]
        wanted = [b"%s %d" % (name.encode(), n) for name in names for n in range(10)]
        for at, name in enumerate(names):
            store.append_many(name, wanted[at * 10 : at * 10 + 10])
        asked = {SERVERS: cluster.url, "subscribePattern": f"{log}/.*"}
        said: list[str] = []

        def lands() -> int:
            landing = Landing(asked, str(tmp_path / "t"), partition_by=())
            return land(spark, landing, said.append).records

        assert lands() == 30
        gone = store.log(names[2]).log_id
        store.log_tree.rename(names[1], f"{log}/other")
        store.log_tree.delete(names[2])
        wanted += [b"more %d" % n for n in range(30)]
        for at, name in enumerate((f"{log}/stays", f"{log}/other", f"{log}/new")):
            store.append_many(name, wanted[30 + at * 10 : 40 + at * 10])
        shutil.rmtree(tmp_path / "t" / OURS / "checkpoint")
        assert lands() == 30
        assert sorted(row["value"] for row in rows(tmp_path / "t", "parquet")) == sorted(wanted)
        assert f"logs of the table that are not there any more: number {gone}" in said

    @pytest.mark.slow
    def test_go_on_after_a_log_that_they_name_was_deleted(
        self, cluster: LiveCluster, store: BlockingStore, spark: SparkSession, log: str, tmp_path
    ):
        """No start went on, and a landing cannot say other names."""
        names = [f"{log}/stays", f"{log}/goes"]
        for name in names:
            store.append(name, b"1")

        def lands(**more: str) -> int:
            asked = {SERVERS: cluster.url, "subscribe": ",".join(names), **more}
            return land(spark, Landing(asked, str(tmp_path / "t"), partition_by=())).records

        assert lands() == 2
        store.log_tree.delete(names[1])
        store.append(names[0], b"2")
        with pytest.raises(Exception, match="type=LOG_GONE"):
            lands()
        assert lands(failOnDataLoss="false") == 1
        store.append(names[0], b"3")
        assert lands() == 1, "it is passed over for good"

    @pytest.mark.slow
    def test_a_lost_checkpoint_and_a_log_that_is_selected_again_later(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        tmp_path: Path,
    ):
        """It was taken for a new one, and landed from its beginning once more."""
        store.append_many(f"{log}/stays", [b"stays %d" % n for n in range(10)])
        store.append_many(f"{log}/back", [b"back %d" % n for n in range(10)])
        asked = {SERVERS: cluster.url, "subscribePattern": f"{log}/.*"}

        def lands() -> int:
            return land(spark, Landing(asked, str(tmp_path / "t"), partition_by=())).records

        assert lands() == 20
        store.log_tree.rename(f"{log}/back", f"{log}-away")
        shutil.rmtree(tmp_path / "t" / OURS / "checkpoint")
        store.append(f"{log}/stays", b"stays 10")
        assert lands() == 1
        store.append(f"{log}-away", b"back 10")
        store.log_tree.rename(f"{log}-away", f"{log}/back")
        assert lands() == 1
        shutil.rmtree(tmp_path / "t" / OURS / "checkpoint")
        assert lands() == 0

    @pytest.mark.slow
    def test_a_lost_checkpoint_and_another_cluster_is_refused(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        tmp_path: Path,
    ):
        """Places of one cluster were taken for those of the other, and its records left out."""
        store.append_many(log, [b"%d" % n for n in range(30)])
        landing = Landing({SERVERS: cluster.url, "subscribe": log}, str(tmp_path / "t"))
        assert land(spark, landing).records == 30
        shutil.rmtree(tmp_path / "t" / OURS / "checkpoint")
        number = store.log(log).log_id
        with cordwood.connect(tmp_path / "other") as other:
            for each in range(1, number):
                other.create_log(f"{log}-{each}")
            assert other.create_log(log).log_id == number
            other.append_many(log, [b"other %d" % n for n in range(50)])
            elsewhere = replace(landing, source={SERVERS: other.serve(), "subscribe": log})
            with pytest.raises(BadSetting, match=r"was landed from cluster .*, and this one is"):
                land(spark, elsewhere)
            with pytest.raises(BadSetting, match="belongs to cluster"):
                dry_run(elsewhere)
        assert land(spark, landing).records == 0

    @pytest.mark.slow
    def test_a_first_checkpoint_that_is_put_back_after_another_query_found_a_log(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):
        """It took that log for a new one too, and landed it once more from its beginning."""
        table, aside = tmp_path / "t", tmp_path / "aside"
        checkpoint = table / OURS / "checkpoint"
        on_batch = Lander.on_batch

        def lands(limit: str, dies: Callable[[Lander, object, int], None] | None = None) -> None:
            source = {SERVERS: cluster.url, "subscribePattern": f"{log}/.*"}
            source["maxRecordsPerTrigger"] = limit
            with monkeypatch.context() as dying:
                if dies is not None:
                    swap(dying, Lander.on_batch, dies)
                land(spark, Landing(source, str(table), partition_by=()))

        def before(lander: Lander, frame, batch: int) -> None:
            raise RuntimeError("planted crash")

        def after(lander: Lander, frame, batch: int) -> None:
            on_batch(lander, frame, batch)
            raise RuntimeError("planted crash")

        store.append_many(f"{log}/a", [b"a %d" % n for n in range(10)])
        lands("100")
        shutil.rmtree(checkpoint)
        store.append(f"{log}/a", b"a 10")
        with pytest.raises(StreamingQueryException, match="planted crash"):
            lands("100", before)
        shutil.move(checkpoint, aside)
        store.append(f"{log}/b", b"b 0")
        with pytest.raises(StreamingQueryException, match="planted crash"):
            lands("1", after)
        assert sorted(row["value"] for row in rows(table, "parquet"))[-1] == b"b 0"
        shutil.rmtree(checkpoint)
        shutil.move(aside, checkpoint)
        with pytest.raises(BadSetting, match=r"it does not know log .* another query landed"):
            lands("100")
        shutil.rmtree(checkpoint)
        lands("100")
        wanted = [*(b"a %d" % n for n in range(11)), b"b 0"]
        assert sorted(row["value"] for row in rows(table, "parquet")) == sorted(wanted)

    @pytest.mark.slow
    def test_decoding_that_sets_other_records_apart_each_time_lands_nothing(
        self, lands: Callable[..., Landed], store: BlockingStore, log: str, tmp_path: Path
    ):
        """One that asks a service which fails at times: records were in neither place."""
        store.append_many(log, [b"%d" % n for n in range(50)])
        asked = {"decode": "unsteady_decode:unsteady", "partition_by": ()}
        with pytest.raises(StreamingQueryException, match="says the same of the same record"):
            lands(**asked)
        assert list((tmp_path / "table").glob("*.parquet")) == []


class TestDryRun:
    def test_tells_what_is_new_and_writes_nothing(
        self,
        lands: Callable[..., Landed],
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        tmp_path: Path,
    ):
        lsns = store.append_many(log, [b"%d" % n for n in range(30)])
        asked = {SERVERS: cluster.url, "subscribe": log}
        landing = Landing(asked, str(tmp_path / "table"))
        (planned,) = dry_run(landing)
        assert (planned.log, planned.stop, planned.records) == (log, lsns[-1] + 1, 30)
        assert not (tmp_path / "table").exists()
        lands()
        assert dry_run(landing) == []
        more = store.append_many(log, [b"x"] * 5)
        (planned,) = dry_run(landing)
        assert (planned.first, planned.stop, planned.records) == (more[0], more[-1] + 1, 5)

    def test_the_verb_lands_and_says_so(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
    ):
        store.append_many(log, [b"%d" % n for n in range(30)])
        verb = ["spark", "land", log, "--cluster", cluster.url, "--table", str(tmp_path / "t")]
        assert run([*verb, "--dry-run", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)[0]["records"] == 30
        assert run([*verb, "--partition-by", "", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["records"] == 30
        assert values(tmp_path / "t", "parquet") == appended(store, log)
        assert run([*verb, "--format", "delta"]) == 1
        assert "was landed with format" in capfd.readouterr().err


class TestRefusals:
    def test_a_table_does_not_change_what_it_is_made_of(self, tmp_path: Path):
        asked = {SERVERS: "h:1", "subscribe": "a"}
        settle(tmp_path, Landing(asked, str(tmp_path)))
        for other in (
            Landing(asked, str(tmp_path), format="delta"),
            Landing(asked, str(tmp_path), partition_by=()),
            Landing(asked | {"subscribe": "b"}, str(tmp_path)),
        ):
            with pytest.raises(BadSetting, match="say the same, or give another directory"):
                settle(tmp_path, other)

    def test_one_job_at_a_time(self, tmp_path: Path):
        with (
            only_writer(tmp_path),
            pytest.raises(StoreInUse, match="another job lands into"),
            only_writer(tmp_path),
        ):
            raise AssertionError("two writers")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"format": "orc"},
            {"schema": "a INT"},
            {"format": "iceberg", "compact": True},
            {"partition_by": ("a", "A")},
            {"partition_by": ("",)},
            {"partition_by": ("event_date", ".day")},
            {"partition_by": ("event_date", "_day")},
            {"partition_by": ("é" * 51,)},
            {"partition_by": tuple("abcdefghi")},
        ],
    )
    def test_wrong_landings(self, wrong):
        with pytest.raises(BadSetting):
            Landing({}, "t", **wrong)
