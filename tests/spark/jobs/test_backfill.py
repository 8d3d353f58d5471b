"""Replay and backfill: whole, in order where asked, and taken up again."""

from __future__ import annotations

import json

import pytest
from job_logs import appended

from cordwood.cli.app import run
from cordwood.errors import BadSetting
from cordwood.spark.jobs.backfill import backfill, replay, steps, table_files
from cordwood.spark.jobs.land import land
from cordwood.spark.jobs.landing import Landing, planned_reads
from cordwood.spark.jobs.stats import stats
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]


def test_a_log_is_landed_written_back_copied_and_counted(spark, cluster, store, log, tmp_path):
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


def test_the_verbs_say_what_they_would_do(cluster, store, log, capfd):
    lsns = store.append_many(log, [b"%d" % n for n in range(30)])
    at = ["--cluster", cluster.url]
    assert run(["spark", "stats", log, *at, "--dry-run", "--json"]) == 0
    (planned,) = json.loads(capfd.readouterr().out)
    assert (planned["log"], planned["stop"], planned["records"]) == (log, lsns[-1] + 1, 30)
    for verb in ("stats", "audit", "land", "replay"):
        more = {"land": ["--table", "t"], "replay": ["--checkpoint", "c", "--to", "/x"]}
        assert run(["spark", verb, *at, "--dry-run", *more.get(verb, [])]) == 1
        assert "which logs? name them, or give --pattern" in capfd.readouterr().err


def test_a_replay_counts_and_tells_every_batch(spark, cluster, store, log, tmp_path):
    """Of each, and not of the last one alone."""
    store.append_many(log, [b"%d" % n for n in range(50)])
    source = {SERVERS: cluster.url, "subscribe": log, "maxRecordsPerTrigger": "10"}
    to = {SERVERS: cluster.url, "log": f"{log}/copy"}
    told: list[str] = []
    copied = replay(spark, source, to, str(tmp_path), say=told.append)
    assert (copied.records, copied.steps) == (50, 5)
    assert told == [f"batch {batch}: 10 records" for batch in range(5)]


class TestSteps:
    def test_hold_about_so_many_bytes(self, tmp_path):
        files = []
        for number, size in enumerate([10, 10, 50, 5, 5, 5]):
            files.append(tmp_path / f"{number}.parquet")
            files[-1].write_bytes(bytes(size))
        assert [[file.stem for file in step] for step in steps(files, 20)] == [
            ["0", "1"], ["2"], ["3", "4", "5"],
        ]  # fmt: skip

    def test_what_is_no_table(self, tmp_path):
        (tmp_path / "_cordwood").mkdir()
        (tmp_path / "_cordwood" / "staged.parquet").write_bytes(b"x")
        for format_ in ("parquet", "delta"):
            with pytest.raises(BadSetting, match=f"holds no {format_} table"):
                table_files(tmp_path, format_)
        with pytest.raises(BadSetting, match="parquet or delta"):
            table_files(tmp_path, "csv")

    def test_files_are_in_one_order_and_hidden_ones_left_out(self, tmp_path):
        for name in ("b/2.parquet", "a/1.parquet", "_cordwood/3.parquet", "a/.4.parquet"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(name))
        found = [str(file.relative_to(tmp_path)) for file in table_files(tmp_path, "parquet")]
        assert found == ["a/1.parquet", "b/2.parquet"]
