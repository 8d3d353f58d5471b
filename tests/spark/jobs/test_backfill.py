"""Replay and backfill: whole, in order where asked, and taken up again."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from job_logs import appended
from live_cluster import LiveCluster
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from swaps import swap

from cordwood.block import Record
from cordwood.blocking import connect
from cordwood.cli.app import run
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, Malformed
from cordwood.spark.jobs import backfill as job
from cordwood.spark.jobs.backfill import (
    NOTE,
    PlannedBackfill,
    backfill,
    planned_backfill,
    replay,
)
from cordwood.spark.jobs.land import land
from cordwood.spark.jobs.landing import Landing, planned_reads
from cordwood.spark.jobs.stats import stats
from cordwood.spark.jobs.table import FORMATS
from cordwood.spark.jobs.table_files import ordered_steps, steps, table_files
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]


@pytest.mark.slow
def test_a_log_is_landed_written_back_copied_and_counted(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    """One log through all of these jobs, so that Spark is asked for as little as can be."""
    values = [b"%d" % n for n in range(500)]
    day_us = 86_400_000_000
    store.append_many(log, values, timestamps=[n * day_us // 250 for n in range(500)])
    source = {SERVERS: cluster.url, "subscribe": log}
    table = tmp_path / "table"
    land(spark, Landing(source, str(table)))

    sink = {SERVERS: cluster.url, "log": f"{log}/back"}
    notes = str(tmp_path / "notes")
    copied = backfill(spark, str(table), sink, notes, ordered=True, step_bytes=1)
    assert (copied.records, copied.skipped) == (500, 0)
    assert copied.steps == len(table_files(table, "parquet")) >= 2
    assert list(appended(store, f"{log}/back").values()) == values
    again = backfill(spark, str(table), sink, notes, ordered=True, step_bytes=1)
    assert (again.records, again.steps, again.skipped) == (0, 0, copied.steps)

    to = {**sink, "log": f"{log}/copy"}
    checkpoint = str(tmp_path / "checkpoint")
    (planned,) = planned_reads(source, checkpoint)
    assert planned.records == 500
    assert replay(spark, source, to, checkpoint, ordered=True).records == 500
    assert planned_reads(source, checkpoint) == []
    store.append_many(log, [b"500", b"501"])
    assert replay(spark, source, to, checkpoint, ordered=True).records == 2
    assert list(appended(store, f"{log}/copy").values()) == [*values, b"500", b"501"]

    store.append(log, b"502", timestamp=0)
    found = stats(spark, source, checkpoint)
    hours = {each.hour: (each.records, each.bytes) for each in found.hours}
    assert hours["1970-01-01T00:00Z"] == (12, sum(map(len, values[:11])) + 3)
    assert sum(each.records for each in found.hours) == 503
    assert [each.kind for each in found.gaps if each.is_loss] == []
    assert [(each.log, each.records) for each in found.lags] == [(log, 1)]


@pytest.mark.slow
def test_an_iceberg_table_is_written_back_with_what_came_later(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    """In a directory with a space and a dot; the headers are in the second batch's files only."""
    store.append_many(log, [b"%d" % n for n in range(40)])
    source = {SERVERS: cluster.url, "subscribe": log}
    table = tmp_path / "my table.v2 é"
    land(spark, Landing(source, str(table), format="iceberg"))
    store.append(log, b"40", headers=[("h", b"1")])
    land(spark, Landing({**source, "includeHeaders": "true"}, str(table), format="iceberg"))
    assert {path.name for path in tmp_path.iterdir()} == {table.name}

    notes, back = str(tmp_path / "notes"), f"{log}/back"
    verb = ["spark", "backfill", str(table), "--cluster", cluster.url, "--progress", notes]
    verb += ["--format", "iceberg", "--ordered", "--to", back]
    assert run([*verb, "--dry-run", "--json"]) == 0
    planned = json.loads(capfd.readouterr().out)
    assert (planned["files"] >= 2, planned["steps"], planned["done"]) == (True, 1, 0)
    assert not (tmp_path / "notes").exists()
    assert run([*verb, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 41
    with store.read(back) as reader:
        copied = [item for item in reader if isinstance(item, Record)]
    assert [item.value for item in copied] == [b"%d" % n for n in range(41)]
    assert [list(item.headers) for item in copied[-2:]] == [[], [("h", b"1")]]

    store.append(log, b"41")
    land(spark, Landing({**source, "includeHeaders": "true"}, str(table), format="iceberg"))
    assert run([*verb, "--dry-run"]) == 0
    assert f"in 1 steps; {planned['files']} files were written before" in capfd.readouterr().out
    sink = {SERVERS: cluster.url, "log": back}
    assert backfill(spark, str(table), sink, notes, format_="iceberg").records == 1
    assert len(appended(store, back)) == 42
    assert run([*verb[:-1], f"{log}/other"]) == 1
    assert "notes a backfill with log" in capfd.readouterr().err

    table.rename(tmp_path / "moved")
    with pytest.raises(BadSetting, match="was moved: its catalog has my table"):
        backfill(spark, str(tmp_path / "moved"), sink, str(tmp_path / "n2"), format_="iceberg")


@pytest.mark.slow
def test_a_table_of_directories_of_times_is_written_back(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    """Spark took the directories' times for its session's, which is not UTC, or for days."""
    times = [0, 1_700_000_000_123_456, 1_700_000_000_120_000, 86_400_000_000]
    times.sort()
    store.append_many(log, [b"%d" % n for n in range(4)], timestamps=times)
    source = {SERVERS: cluster.url, "subscribe": log}
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    for format_, name in (("parquet", "a%20b"), ("delta", "a b?c"), ("iceberg", "x%20y?z")):
        table, back = tmp_path / name, f"{log}/{format_}"
        by = ("timestamp", "log") if format_ == "parquet" else ("timestamp",)
        land(spark, Landing(source, str(table), format_, by))
        sink, notes = {SERVERS: cluster.url, "log": back}, str(tmp_path / f"notes-{format_}")
        done = backfill(session, str(table), sink, notes, format_=format_, ordered=True)
        assert done.records == 4
        with store.read(back) as reader:
            copied = [item for item in reader if isinstance(item, Record)]
        assert {(int(item.value), item.timestamp_us) for item in copied} == set(enumerate(times))


@pytest.mark.slow
def test_a_directory_of_a_number_is_a_key(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    """Spark took it for an int, and the sink has no place for one."""
    table, by_day = tmp_path / "table", tmp_path / "by_day"
    for key in ("key=5", "key=__HIVE_DEFAULT_PARTITION__", "key=a%3Db"):
        (table / key).mkdir(parents=True)
        pq.write_table(pa.table({"value": [key.encode()]}), table / key / "part-0.parquet")
    for day in ("2026-01-02", "2026-01-02 03%3A04%3A05+01%3A00"):
        (by_day / f"timestamp={day}").mkdir(parents=True)
        pq.write_table(pa.table({"value": [b"x"]}), by_day / f"timestamp={day}" / "part-0.parquet")
    sink = {SERVERS: cluster.url, "log": log}
    assert backfill(spark, str(table), sink, str(tmp_path / "notes")).records == 3
    with store.read(log) as reader:
        copied = {item.value: item.key for item in reader if isinstance(item, Record)}
    null = b"key=__HIVE_DEFAULT_PARTITION__"
    assert copied == {b"key=5": b"5", null: None, b"key=a%3Db": b"a=b"}
    sink = {SERVERS: cluster.url, "log": f"{log}/days"}
    assert backfill(spark, str(by_day), sink, str(tmp_path / "notes-2")).records == 2
    with store.read(f"{log}/days") as reader:
        found = sorted(item.timestamp_us for item in reader if isinstance(item, Record))
    assert found == [1_767_312_000_000_000, 1_767_319_445_000_000]
    (by_day / "timestamp=soon").mkdir()
    pq.write_table(pa.table({"value": [b"x"]}), by_day / "timestamp=soon" / "part-0.parquet")
    with pytest.raises(Exception, match="a directory names no time: timestamp=soon"):
        backfill(spark, str(by_day), sink, str(tmp_path / "notes-2"))


def test_the_verbs_say_what_they_would_do(
    cluster: LiveCluster, store: BlockingStore, log: str, capfd: pytest.CaptureFixture[str]
):
    lsns = store.append_many(log, [b"%d" % n for n in range(30)])
    at = ["--cluster", cluster.url]
    assert run(["spark", "stats", log, *at, "--dry-run", "--json"]) == 0
    (planned,) = json.loads(capfd.readouterr().out)
    assert (planned["log"], planned["stop"], planned["records"]) == (log, lsns[-1] + 1, 30)
    for verb in ("stats", "audit", "land", "replay"):
        more = {"land": ["--table", "t"], "replay": ["--checkpoint", "c", "--to", "/x"]}
        assert run(["spark", verb, *at, "--dry-run", *more.get(verb, [])]) == 1
        assert "which logs? name them, or give --pattern" in capfd.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_of_a_replay_into_another_log_is_refused(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    """What was copied to the first log was not copied to the second, with exit code 0."""
    store.append_many(log, [b"%d" % n for n in range(20)])
    source, checkpoint = {SERVERS: cluster.url, "subscribe": log}, str(tmp_path / "checkpoint")
    for name, told in (("one", 20), ("/one", 0)):
        sink = {SERVERS: cluster.url, "log": f"{log}-{name}".replace("-/", "-")}
        assert replay(spark, source, sink, checkpoint).records == told
    with pytest.raises(BadSetting, match=f"a replay into {log}-one.* goes to {log}-two.*another"):
        replay(spark, source, {SERVERS: cluster.url, "log": f"{log}-two"}, checkpoint)


@pytest.mark.slow
def test_a_checkpoint_of_a_replay_into_another_cluster_is_refused(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    """What was copied to the first cluster was not copied to the second, with exit code 0."""
    store.append(log, b"0")
    source, checkpoint = {SERVERS: cluster.url, "subscribe": log}, str(tmp_path / "checkpoint")
    sink = {SERVERS: cluster.url, "log": f"{log}-copy"}
    assert replay(spark, source, sink, checkpoint).records == 1
    with (
        connect(str(tmp_path / "other")) as other,
        pytest.raises(BadSetting, match=r"of a replay into cluster .*: give another --checkpoint"),
    ):
        replay(spark, source, {**sink, SERVERS: other.serve()}, checkpoint)


@pytest.mark.parametrize("goes", ["made again", "gone", "amid a step"])
def test_a_target_that_was_made_again_is_refused(
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    goes: str,
):
    """It had none of the records, and the next run said that all were there."""
    table, back = tmp_path / "table", f"{log}-back"
    table.mkdir()
    pq.write_table(pa.table({"value": [b"1"]}), table / "a.parquet")
    sink = {SERVERS: cluster.url, "log": back[1:]}

    def write(_spark: None, _table: Path, _files: object, into: dict[str, str], _: bool) -> int:
        assert into["logId"] == str(store.log(back).log_id), "tasks go by the noted number"
        if goes == "amid a step":
            store.log_tree.delete(back)
            store.create_log(back)
        return 1

    swap(monkeypatch, job._write_step, write)

    def run_once() -> int:
        return backfill(None, str(table), sink, str(tmp_path / "notes")).records

    said = r"into log \d+, and /.* is (log \d+|not there): .* Give another directory"
    if goes == "amid a step":
        with pytest.raises(BadSetting, match=said):
            run_once()
        return
    assert [run_once(), run_once()] == [1, 0]
    source, checkpoint = {SERVERS: cluster.url, "subscribe": log}, str(tmp_path / "checkpoint")
    store.append(log, b"1")
    with pytest.raises(AttributeError):
        replay(None, source, sink, checkpoint)
    store.log_tree.delete(back)
    if goes == "made again":
        store.create_log(back)
    with pytest.raises(BadSetting, match=said):
        run_once()
    with pytest.raises(BadSetting, match=said):
        replay(None, source, sink, checkpoint)


def test_a_backfill_goes_on_in_a_log_that_is_renamed_amid_it(
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """It ended after the step, though the manual said that only the next run is refused."""
    table, back = tmp_path / "table", f"{log}-back"
    table.mkdir()
    for number in range(3):
        pq.write_table(pa.table({"value": [b"%d" % number]}), table / f"{number}.parquet")
    sink, written = {SERVERS: cluster.url, "log": back[1:]}, []

    def write(_spark: None, _table: Path, files: list[Path], into: dict[str, str], _: bool) -> int:
        written.append(into["logId"])
        store.append(int(into["logId"]), pq.read_table(files[0])["value"][0].as_py())
        if len(written) == 1:
            store.log_tree.rename(back, f"{back}-renamed")
            store.create_log(back)
        return 1

    swap(monkeypatch, job._write_step, write)

    def run_once() -> int:
        return backfill(None, str(table), sink, str(tmp_path / "notes"), step_bytes=1).records

    assert run_once() == 3
    assert len(set(written)) == 1
    assert list(appended(store, f"{back}-renamed").values()) == [b"0", b"1", b"2"]
    assert list(appended(store, back).values()) == []
    with pytest.raises(BadSetting, match=r"into log \d+, and /.* is log \d+: .* its name again"):
        run_once()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_log_that_is_read_takes_no_copies(
    cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path, is_there: bool
):
    """Its name fits the pattern: each run copied the copies of the run before."""
    store.append(log, b"0")
    if is_there:
        store.create_log(f"{log}-copy")
    pattern = {SERVERS: cluster.url, "subscribePattern": f"{log}.*"}
    to = {SERVERS: cluster.url, "log": f"{log}-copy"[1:]}
    for source, sink in ((pattern, to), (pattern, {SERVERS: cluster.url})):
        with pytest.raises(BadSetting, match="is read, and records would go into it"):
            replay(None, source, sink, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_range_of_a_log_is_appended_to_it_again(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    lsns = store.append_many(log, [b"0", b"1", b"2"])
    source = {SERVERS: cluster.url, "subscribe": log}
    source["endingOffsets"] = json.dumps({log: int(lsns[1])})
    assert replay(spark, source, {SERVERS: cluster.url, "log": log}, str(tmp_path)).records == 1
    assert list(appended(store, log).values()) == [b"0", b"1", b"2", b"0"]


@pytest.mark.slow
def test_a_replay_counts_and_tells_every_batch(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    """Of each, and not of the last one alone."""
    store.append_many(log, [b"%d" % n for n in range(50)])
    source = {SERVERS: cluster.url, "subscribe": log, "maxRecordsPerTrigger": "10"}
    to = {SERVERS: cluster.url, "log": f"{log}/copy"}
    told: list[str] = []
    copied = replay(spark, source, to, str(tmp_path), say=told.append)
    assert (copied.records, copied.steps) == (50, 5)
    assert told == [f"batch {batch}: 10 records" for batch in range(5)]


@pytest.mark.slow
def test_an_ordered_backfill_of_several_steps_keeps_the_order(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
) -> None:
    """Two batches, of which the second has the first path."""
    table = tmp_path / "table"
    table.mkdir()
    for name, first in (("part-00000-f", 0), ("part-00000-a", 5)):
        numbers = range(first, first + 5)
        rows = {"value": [b"%d" % n for n in numbers], "log_id": [7] * 5, "lsn": [*numbers]}
        pq.write_table(pa.table(rows), table / f"{name}.parquet")
    sink = {SERVERS: cluster.url, "log": log}
    notes = str(tmp_path / "notes")
    assert backfill(spark, str(table), sink, notes, ordered=True, step_bytes=1).steps == 2
    assert list(appended(store, log).values()) == [b"%d" % n for n in range(10)]


@pytest.mark.slow
def test_the_verbs_pass_over_what_is_gone_where_they_are_told_to(
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
):
    """The error named an option that the verbs did not have."""
    lsns = store.append_many(log, [b"%d" % n for n in range(20)])
    store.trim(log, lsns[9])
    base = ["--cluster", cluster.url, "--master", "local[2]"]
    for verb in (
        ["land", log, "--table", str(tmp_path / "t")],
        ["replay", log, "--to", f"{log}-copy", "--checkpoint", str(tmp_path / "c")],
    ):
        with pytest.raises(StreamingQueryException, match=r"type=TRIM[^$]*--pass-over-losses"):
            run(["spark", *verb, *base])
        assert run(["spark", *verb, *base, "--pass-over-losses"]) == 0
    assert list(appended(store, f"{log}-copy").values()) == [b"%d" % n for n in range(10, 20)]
    assert (
        sum(pq.read_metadata(each).num_rows for each in table_files(tmp_path / "t", "parquet"))
        == 10
    )


class TestSteps:
    def test_hold_about_so_many_bytes(self, tmp_path: Path):
        files = []
        for number, size in enumerate([10, 10, 50, 5, 5, 5]):
            files.append(tmp_path / f"{number}.parquet")
            files[-1].write_bytes(bytes(size))
        assert [[file.stem for file in step] for step in steps(files, 20)] == [
            ["0", "1"], ["2"], ["3", "4", "5"],
        ]  # fmt: skip

    def test_follow_the_lsns_where_order_is_asked_for(self, tmp_path: Path) -> None:
        """They followed the paths, in which Spark has the task's number first and then chance: rows
        of the second batch were written before rows of the first."""

        def file(name: str, logs: list[int], lsns: list[int]) -> None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"log_id": logs, "lsn": lsns}), tmp_path / name)

        file("part-00000-f.parquet", [7, 7], [1, 5])
        file("part-00001-f.parquet", [7, 7], [6, 8])
        file("part-00000-a.parquet", [7, 7], [9, 12])
        file("day=1/part-00001-a.parquet", [7, 7], [13, 20])
        file("day=2/part-00000-a.parquet", [7, 7], [18, 25])  # both days are in one batch
        file("part-00002-b.parquet", [3, 3], [40, 41])
        files = table_files(tmp_path, "parquet")
        found = [[str(each.relative_to(tmp_path)) for each in step]
                 for step in ordered_steps(tmp_path, files, 1)]  # fmt: skip
        assert found == [
            ["part-00002-b.parquet"], ["part-00000-f.parquet"], ["part-00001-f.parquet"],
            ["part-00000-a.parquet"],
            ["day=1/part-00001-a.parquet", "day=2/part-00000-a.parquet"],
        ]  # fmt: skip
        assert list(ordered_steps(tmp_path, files, 1 << 20)) == [
            [tmp_path / name for step in found for name in step]
        ]
        file("part-00003-c.parquet", [2, 9], [1, 99])  # of several logs
        assert len(list(ordered_steps(tmp_path, table_files(tmp_path, "parquet"), 1))) == 1

    def test_take_the_log_from_a_directory_and_do_without_lsns(self, tmp_path: Path) -> None:
        for log in (5, 11):
            place = tmp_path / f"log_id={log}"
            place.mkdir()
            pq.write_table(pa.table({"lsn": [100 - log, 100]}), place / "a.parquet")
        found = list(ordered_steps(tmp_path, table_files(tmp_path, "parquet"), 1))
        assert [step[0].parent.name for step in found] == ["log_id=5", "log_id=11"]
        plain = tmp_path / "plain"
        plain.mkdir()
        for name in "ab":
            pq.write_table(pa.table({"value": [b"1"]}), plain / f"{name}.parquet")
        files = table_files(plain, "parquet")
        assert list(ordered_steps(plain, files, 1)) == [[each] for each in files]

    def test_what_is_no_table(self, tmp_path: Path):
        (tmp_path / "_cordwood").mkdir()
        (tmp_path / "_cordwood" / "staged.parquet").write_bytes(b"x")
        for format_ in FORMATS:
            with pytest.raises(BadSetting, match=f"holds no {format_} table"):
                table_files(tmp_path, format_)
        with pytest.raises(BadSetting, match="parquet, delta, iceberg, not 'csv'"):
            table_files(tmp_path, "csv")

    def test_delta_files_that_count(self, tmp_path: Path):
        """Not those that a later version replaced, which lie there too."""
        for number in range(3):
            write_deltalake(tmp_path, pa.table({"value": [b"%d" % number]}), mode="append")
        DeltaTable(tmp_path).optimize.compact()
        assert len(list(tmp_path.glob("*.parquet"))) == 4
        (joined,) = table_files(tmp_path, "delta")
        assert sorted(pq.read_table(joined)["value"].to_pylist()) == [b"0", b"1", b"2"]
        with pytest.raises(BadSetting, match=r"a table of delta, in which .* say --format delta"):
            table_files(tmp_path, "parquet")

    def test_delta_files_of_odd_names(self, tmp_path: Path):
        """A backfill looked for them in a directory that was not there."""
        table = tmp_path / "my lake"
        keys = ["/orders/eu", "a b", "50%", "é"]
        for key in keys:
            rows = pa.table({"value": [key.encode()], "key": [key]})
            write_deltalake(table, rows, mode="append", partition_by="key")
        found = [
            pq.ParquetFile(each).read()["value"][0].as_py() for each in table_files(table, "delta")
        ]
        assert sorted(found) == sorted(key.encode() for key in keys)

    def test_tables_whose_files_alone_are_not_what_they_say(self, tmp_path: Path):
        write_deltalake(
            tmp_path, pa.table({"value": [b"1"]}),
            configuration={"delta.enableDeletionVectors": "true"},
        )  # fmt: skip
        with pytest.raises(BadSetting, match="has Delta's deletionVectors"):
            table_files(tmp_path, "delta")

    def test_an_iceberg_table_of_another_catalog(self, tmp_path: Path):
        with closing(SqlCatalog("c", uri="sqlite://", warehouse=str(tmp_path))) as catalog:
            catalog.create_namespace("n")
            rows = pa.table({"value": [b"1", b"2"]})
            table = catalog.create_table("n.t", rows.schema)
            place = Path(table.location())
            with pytest.raises(BadSetting, match="no iceberg table, or an empty one"):
                iceberg_names(place)
            for _ in range(11):
                table.append(rows)
            assert len(iceberg_names(place)) == 11
            with pytest.raises(BadSetting, match="a table of iceberg"):
                table_files(place, "parquet")
            table.overwrite(rows)
            assert len(iceberg_names(place)) == 1

    def test_files_are_in_one_order_and_hidden_ones_left_out(self, tmp_path: Path):
        for name in ("b/2.parquet", "a/1.parquet", "_cordwood/3.parquet", "a/.4.parquet"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(name))
        found = [str(file.relative_to(tmp_path)) for file in table_files(tmp_path, "parquet")]
        assert found == ["a/1.parquet", "b/2.parquet"]


def iceberg_names(table: Path) -> list[str]:
    return [file.name for file in table_files(table, "iceberg")]


class TestNotes:
    """What lies in the directory for progress may have been written by anybody."""

    @pytest.fixture
    def planned(self, tmp_path: Path):
        table = tmp_path / "table"
        table.mkdir()
        for name in ("a", "b"):
            pq.write_table(pa.table({"value": [b"1"]}), table / f"{name}.parquet")

        def plan(note: object) -> PlannedBackfill:
            place = tmp_path / "notes" / NOTE
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(note if isinstance(note, bytes) else json.dumps(note).encode())
            return planned_backfill(str(table), str(place.parent), "back", "parquet")

        return plan

    def test_files_that_are_done_are_left_out(self, planned, tmp_path: Path):
        found = planned({"files": ["a.parquet"]})
        assert (found.files, found.steps, found.done) == (1, 1, 1)
        table = str(tmp_path / "table")
        assert planned({"files": [], "table": table, "log": "/back"}).files == 2

    @pytest.mark.parametrize(
        "note",
        [
            b"",
            b"\xff",
            b"[" * 100_000,
            [],
            {},
            {"files": "a.parquet"},
            {"files": [1]},
            {"files": ["a.parquet"], "marks": []},
            {"files": ["a.parquet"], "marks": {"a.parquet": 1}},
            {"files": ["a.parquet"], "spans": []},
            {"files": ["a.parquet"], "spans": {"a.parquet": [1, 2, 3, "4"]}},
            "x",
            None,
        ],
    )
    def test_what_is_none_of_ours(self, planned, note):
        with pytest.raises(Malformed, match=r"done\.json is no note as this job writes it"):
            planned(note)

    def test_rows_that_went_to_another_cluster_are_not_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """They were passed over, with exit code 0; notes of earlier versions name no cluster."""
        table, notes = tmp_path / "table", str(tmp_path / "notes")
        table.mkdir()
        pq.write_table(pa.table({"value": [b"1"]}), table / "a.parquet")
        clusters, written = ["one", "one", "two", "two"], []

        def write(*step: object) -> int:
            written.append(step)
            return 1

        swap(monkeypatch, job._cluster_of, lambda _: clusters.pop(0))
        swap(monkeypatch, job._write_step, write)
        swap(monkeypatch, job.target_number, lambda *_: 7)

        def run_once() -> int:
            return backfill(None, str(table), {SERVERS: "h:1", "log": "/back"}, notes).records

        assert [run_once(), run_once()] == [1, 0]
        with pytest.raises(BadSetting, match="with cluster 'one', and this one has 'two'"):
            run_once()
        note = tmp_path / "notes" / NOTE
        before = json.loads(note.read_bytes())
        del before["cluster"]
        note.write_text(json.dumps(before))
        assert run_once() == 0
        assert len(written) == 1

    def test_a_file_that_was_replaced_is_not_done(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Writers that count have the old names in a table that is made anew. Its rows were passed
        over, with exit code 0; notes of earlier versions do not say which file it was."""
        table, notes = tmp_path / "table", str(tmp_path / "notes")
        table.mkdir()
        swap(monkeypatch, job._cluster_of, lambda _: "one")
        swap(monkeypatch, job.target_number, lambda *_: 7)
        swap(monkeypatch, job._write_step, lambda *_: 1)

        def write(value: bytes) -> None:
            pq.write_table(pa.table({"value": [value]}), table / "part-0.parquet")

        def run_once() -> int:
            return backfill(None, str(table), {SERVERS: "h:1", "log": "/back"}, notes).records

        write(b"1")
        assert [run_once(), run_once()] == [1, 0]
        write(b"2")
        with pytest.raises(BadSetting, match=r"part-0\.parquet was replaced"):
            run_once()
        with pytest.raises(BadSetting, match=r"part-0\.parquet was replaced"):
            planned_backfill(str(table), notes, "back", "parquet")
        note = tmp_path / "notes" / NOTE
        before = json.loads(note.read_bytes())
        del before["marks"]
        note.write_text(json.dumps(before))
        assert run_once() == 0

    @pytest.mark.parametrize("has_lsns", [True, False])
    def test_files_that_were_joined_are_not_written_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_lsns: bool
    ):
        """A compaction's files counted as new, and their rows were written twice. The LSNs tell
        them from files that come after some were deleted."""
        table, notes = tmp_path / "table", str(tmp_path / "notes")
        table.mkdir()
        written: list[str] = []

        def write_step(_: object, path: Path, files: list[Path], *rest: object) -> int:
            written.extend(file.name for file in files)
            return len(files)

        swap(monkeypatch, job._cluster_of, lambda _: "one")
        swap(monkeypatch, job.target_number, lambda *_: 7)
        swap(monkeypatch, job._write_step, write_step)

        def write(name: str, *lsns: int) -> None:
            rows = {"value": [b"v"] * len(lsns), "log_id": [1] * len(lsns), "lsn": [*lsns]}
            kept = rows if has_lsns else {"value": rows["value"]}
            pq.write_table(pa.table(kept), table / f"{name}.parquet")

        def run_once() -> int:
            return backfill(None, str(table), {SERVERS: "h:1", "log": "/back"}, notes).records

        write("a", 1, 2)
        write("b", 3, 4)
        assert run_once() == 2
        write("c", 5, 6)
        assert run_once() == 1, "no file is gone"
        for name in "ab":
            (table / f"{name}.parquet").unlink()
        write("joined", 1, 2, 3, 4)
        for look in (run_once, lambda: planned_backfill(str(table), notes, "back", "parquet")):
            with pytest.raises(BadSetting, match=r"joined\.parquet is new, and a\.parquet, whose"):
                look()
        (table / "joined.parquet").unlink()  # so `a` and `b` were deleted
        write("d", 7, 8)
        if has_lsns:
            assert run_once() == 1
        else:
            with pytest.raises(BadSetting, match="If the missing file was deleted"):
                run_once()
            note = tmp_path / "notes" / NOTE
            before = json.loads(note.read_bytes())
            note.write_text(json.dumps({**before, "files": ["c.parquet"]}))
            assert run_once() == 1
        assert written == ["a.parquet", "b.parquet", "c.parquet", "d.parquet"]

    @pytest.mark.parametrize("other", [{"table": "/else"}, {"log": "/else"}, {"log": 7}])
    def test_another_backfills(self, planned, other):
        with pytest.raises(BadSetting, match="say the same, or give another directory"):
            planned({"files": [], **other})
