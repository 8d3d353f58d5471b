"""Statistics in steps: they add up to what one pass gives, and go on where they were stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from pyspark.sql import SparkSession

from cordwood.cli.app import run
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, Malformed
from cordwood.spark.jobs.stats import NOTE, hour_name, stats
from cordwood.spark.jobs.stats_steps import (
    HOUR_S,
    GapsOfLog,
    HourOfLog,
    Progress,
    Sums,
    step_source,
)
from cordwood.spark.options import SERVERS
from cordwood.spark.splitting import Slice

HOUR = HourOfLog("/a", "1970-01-01T00:00Z", 3, 30, 0.001, 5, 9)
GAPS = GapsOfLog("/a", "dataloss", 2, 4, 4, True)
SOURCE = {"subscribe": "a"}
NOTED = {
    "source": SOURCE,
    "steps": [[[1, "/a", 1, 10]], [[1, "/a", 10, 20], [2, "/b", 1, 3]]],
    "done": 1,
    "hours": [
        {"log": "/a", "hour": "1970-01-01T00:00Z", "records": 3, "bytes": 30, "per_s": 0.001,
         "first_lsn": 5, "last_lsn": 9},
    ],
    "gaps": [],
}  # fmt: skip


def test_steps_add_up():
    sums = Sums()
    sums.add([HOUR], [GAPS])
    sums.add(
        [
            HourOfLog("/b", HOUR.hour, 1, 1, 0.0, 2, 2),
            HourOfLog("/a", HOUR.hour, 3597, 70, 0.999, 2, 7),
        ],
        [GapsOfLog("/a", "dataloss", 1, 2, 9, True), GapsOfLog("/a", "bridge", 1, 8, 8, False)],
    )
    assert sums.hours == [
        HourOfLog("/a", HOUR.hour, 3600, 100, 1.0, 2, 9),
        HourOfLog("/b", HOUR.hour, 1, 1, 0.0, 2, 2),
    ]
    assert sums.gaps == [
        GapsOfLog("/a", "bridge", 1, 8, 8, False),
        GapsOfLog("/a", "dataloss", 3, 2, 9, True),
    ]


def test_a_step_reads_its_own_ranges_and_keeps_all_else():
    source = {
        "subscribePattern": "/.*", "startingOffsets": "earliest", "ENDINGTIMESTAMP": "7",
        "failOnDataLoss": "false",
    }  # fmt: skip
    options = step_source(source, [Slice(17, "/a", 5, 9), Slice(18, "/b,c", 1, 4)])
    assert options == {
        "failOnDataLoss": "false",
        "assign": "[17, 18]",
        "startingOffsets": '{"17": 5, "18": 1}',
        "endingOffsets": '{"17": 9, "18": 4}',
    }


class TestNotes:
    def test_a_note_is_read_back_whatever_its_slices_know(self, tmp_path: Path):
        note = tmp_path / NOTE
        note.write_text(json.dumps(NOTED))
        progress = Progress(note, SOURCE, 1)
        known = Slice(3, "/c", 1, 9, "s3://bucket/store", made_us=77)
        progress.steps = [*progress.steps, [known], [known]]
        progress.on_step([], [])
        again = Progress(note, SOURCE, 1)
        assert again.done == 2
        assert again.steps == [*progress.steps[:2], [Slice(3, "/c", 1, 9)], [Slice(3, "/c", 1, 9)]]

    @pytest.mark.parametrize("more", [[""], ["s3://bucket/store"], ["s3://bucket/store", 77]])
    def test_a_note_of_a_version_that_noted_more_is_read(self, more, tmp_path: Path):
        (tmp_path / NOTE).write_text(
            json.dumps(NOTED | {"steps": [[[1, "/a", 1, 10, *more]], [[2, "/b", 1, 3]]]})
        )
        steps = Progress(tmp_path / NOTE, SOURCE, 1).steps
        assert steps == [[Slice(1, "/a", 1, 10)], [Slice(2, "/b", 1, 3)]]

    def test_what_is_done_is_not_done_again_and_the_note_goes_in_the_end(self, tmp_path: Path):
        note = tmp_path / NOTE
        note.write_text(json.dumps(NOTED))
        progress = Progress(note, SOURCE, 1)
        assert (progress.done, progress.sums.hours) == (1, [HOUR])
        assert progress.steps[1] == [Slice(1, "/a", 10, 20), Slice(2, "/b", 1, 3)]
        progress.on_step([], [GAPS])
        assert progress.sums.gaps == [GAPS]
        assert not note.exists()

    def test_other_logs_are_refused(self, tmp_path: Path):
        (tmp_path / NOTE).write_text(json.dumps(NOTED))
        with pytest.raises(BadSetting, match="give another directory"):
            Progress(tmp_path / NOTE, {"subscribe": "b"}, 1)

    def test_another_cluster_is_refused(self, tmp_path: Path):
        # Its logs have the numbers of this one's: the sums would be of both.
        note = tmp_path / NOTE
        note.write_text(json.dumps(NOTED | {"cluster": "one"}))
        assert Progress(note, SOURCE, 1, "one").done == 1
        with pytest.raises(BadSetting, match="cluster one, and this one is two"):
            Progress(note, SOURCE, 1, "two")

    def test_the_cluster_is_noted(self, tmp_path: Path):
        note = tmp_path / NOTE
        note.write_text(json.dumps(NOTED | {"steps": [*NOTED["steps"], [[3, "/c", 1, 2]]]}))
        Progress(note, SOURCE, 1, "one").on_step([], [])
        with pytest.raises(BadSetting, match="cluster one"):
            Progress(note, SOURCE, 1, "two")

    @pytest.mark.parametrize(
        "change",
        [
            {"done": 3}, {"done": -1}, {"done": True}, {"done": "1"}, {"steps": 7},
            {"steps": [[[1, "/a", 1]]]}, {"steps": [[[1, 2, 3, 4]]]},
            {"steps": [[[1, "/a", -1, 1 << 64]]]}, {"hours": [{}]}, {"hours": [[1]]},
            {"hours": [NOTED["hours"][0] | {"records": "3"}]},
            {"hours": [NOTED["hours"][0] | {"records": True}]},
            {"gaps": [NOTED["hours"][0]]}, {"gaps": None},
        ],
        ids=str,
    )  # fmt: skip
    def test_one_that_is_damaged_is_told(self, change, tmp_path: Path):
        (tmp_path / NOTE).write_text(json.dumps(NOTED | change))
        with pytest.raises(Malformed, match="begin"):
            Progress(tmp_path / NOTE, SOURCE, 1)


@pytest.mark.parametrize(
    ("hour_s", "name"),
    [
        (0, "1970-01-01T00:00Z"),
        (-HOUR_S, "1969-12-31T23:00Z"),
        (1_709_164_800, "2024-02-29T00:00Z"),
        (253_402_300_799 // HOUR_S * HOUR_S, "9999-12-31T23:00Z"),
        (253_402_300_800, "+010000-01-01T00:00Z"),
        (-62_135_596_800, "0001-01-01T00:00Z"),
        (-62_135_596_800 - HOUR_S, "0000-12-31T23:00Z"),
        (-62_167_219_200 - HOUR_S, "-000001-12-31T23:00Z"),
        ((2**63 - 1) // (HOUR_S * 1_000_000) * HOUR_S, "+294247-01-10T04:00Z"),
        (-(2**63) // (HOUR_S * 1_000_000) * HOUR_S, "-290308-12-21T19:00Z"),
    ],
)
def test_every_hour_has_a_name(hour_s: int, name: str):
    assert hour_name(hour_s) == name


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.slow
def test_hours_of_any_time_are_told(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str
):
    """A record's time is its producer's word: one that is far off ends nobody's statistics."""
    half_us = HOUR_S * 500_000
    for times in ([-half_us, -1], [0, 1, half_us], [2**63 - 1], [-(2**63)]):
        store.append_many(log, [b"x"] * len(times), timestamps=times)
    found = stats(spark, {SERVERS: cluster.url, "subscribe": log}).hours
    assert [(each.hour, each.records) for each in found] == [
        ("-290308-12-21T19:00Z", 1),
        ("1969-12-31T23:00Z", 2),
        ("1970-01-01T00:00Z", 3),
        ("+294247-01-10T04:00Z", 1),
    ]


@pytest.mark.real
@pytest.mark.spark
@pytest.mark.slow
def test_statistics_that_are_stopped_go_on(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    """In steps of a few blocks each, beside one pass; what came later is not counted."""
    for hour in range(6):
        values = [b"%d" % n for n in range(500)]
        store.append_many(log, values, timestamps=hour * HOUR_S * 1_000_000)
    source = {SERVERS: cluster.url, "subscribe": log}
    whole = stats(spark, source)
    assert [each.records for each in whole.hours] == [500] * 6

    class Stopped(Exception):
        pass

    told: list[str] = []

    def stop(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            raise Stopped

    notes = tmp_path / "notes"
    with pytest.raises(Stopped):
        stats(spark, source, progress=str(notes), step_bytes=600, say=stop)
    assert told[0].startswith("step 1 of ")
    noted = json.loads((notes / NOTE).read_bytes())
    assert (noted["done"], len(noted["steps"]) > 3) == (2, True)
    store.append(log, b"later")
    verb = ["spark", "stats", log, "--start", "", "--cluster", cluster.url, "--json"]
    assert run([*verb, "--progress", str(notes)]) == 0
    shown = capfd.readouterr()
    assert f"step 3 of {len(noted['steps'])}" in shown.err
    hours = [HourOfLog(**each) for each in json.loads(shown.out)["hours"]]
    assert hours == whole.hours
    assert list(notes.iterdir()) == []
