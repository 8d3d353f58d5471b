"""Streams that start after a log that they name was deleted or renamed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine import Checkpoint, Engine, at_the_sink, stored
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import UnknownLog
from cordwood.spark.jobs.land import Landed, Lander
from cordwood.spark.jobs.landing import Landing, planned_reads
from cordwood.spark.jobs.parquet_table import ParquetTable
from cordwood.spark.offsets import DataLoss
from cordwood.spark.options import SERVERS
from cordwood.spark.source import CordwoodSource, CordwoodStreamReader

pytestmark = pytest.mark.real

ALL = ReadAllAvailable()


@pytest.fixture
def log() -> str:
    return f"/g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start(store: BlockingStore, log: str) -> Callable[..., CordwoodStreamReader]:
    """A reader of two logs with a record each, as a restarted query makes it."""
    for name in "ab":
        store.append(f"{log}/{name}", b"1")

    def make(**options: str) -> CordwoodStreamReader:
        given = {"subscribe": f"{log}/a,{log}/b", "startingOffsets": "earliest", **options}
        source = CordwoodSource({SERVERS: "h:1", **given})
        return source.streamReader(schema=source.schema())

    return make


def first_end(reader: CordwoodStreamReader) -> dict[str, Any]:
    return stored(reader.latestOffset(stored(reader.initialOffset()), ALL))


def test_a_deleted_log_is_passed_over_for_good_by_one_start(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader]
):
    """No start with the same names went on."""
    end = first_end(start())
    store.log_tree.delete(f"{log}/b")
    store.append(f"{log}/a", b"2")
    with pytest.raises(DataLoss, match="LOG_GONE"):
        start().latestOffset(end, ALL)
    lenient = start(failOnDataLoss="false")
    lenient.prepareForTriggerAvailableNow()
    after = stored(lenient.latestOffset(end, ALL))
    assert len(lenient.partitions(end, after)) == 1
    assert after["away"]
    assert start().latestOffset(after, ALL) == after, "it is passed over for good"
    store.append(f"{log}/b", b"3")
    again = stored(start().latestOffset(after, ALL))
    assert len(again["logs"]) == 3, "a log that is made again is read"


def test_a_query_goes_on_after_a_log_of_it_was_deleted(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader], tmp_path: Path
):
    checkpoint = Checkpoint(directory=tmp_path)
    store.create_log(f"{log}-sink")

    def run(**more: str) -> int:
        source = {
            SERVERS: "h:1", "subscribe": f"{log}/a,{log}/b",
            "startingOffsets": json.dumps({f"{log}/a": "earliest", f"{log}/b": "earliest"}), **more,
        }  # fmt: skip
        sink = {SERVERS: "h:1", "log": f"{log}-sink", "checkpointLocation": str(tmp_path)}
        Engine(
            source, sink, checkpoint, [], lambda *_: None, list, lambda: False, lambda: None
        ).run()
        return len(at_the_sink(store, f"{log}-sink"))

    assert run() == 2
    store.log_tree.delete(f"{log}/b")
    store.append(f"{log}/a", b"2")
    with pytest.raises(UnknownLog, match=r"no log .*/b; .* one start with failOnDataLoss=false"):
        run()
    assert run(failOnDataLoss="false") == 3


def test_a_new_stream_finds_each_log_that_it_names(start: Callable[..., CordwoodStreamReader]):
    names = {"subscribe": "/typing-error"}
    with pytest.raises(UnknownLog, match="no log /typing-error"):
        start(**names).initialOffset()
    reader = start(**names, failOnDataLoss="false")
    with pytest.raises(UnknownLog, match="no log /typing-error"):
        first_end(reader)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_was_renamed_is_not_passed_over(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader], fails: str
):
    end = first_end(start())
    store.log_tree.rename(f"{log}/b", f"{log}/c")
    with pytest.raises(UnknownLog, match="If it was renamed, give its name of now"):
        start(failOnDataLoss=fails).latestOffset(end, ALL)


def test_a_dry_run_tells_the_rest_of_a_landing(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader], tmp_path: Path
):
    checkpoint = Checkpoint(directory=tmp_path)
    checkpoint.plan(0, first_end(start()))
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    store.log_tree.delete(f"{log}/b")
    store.append(f"{log}/a", b"2")
    source = {SERVERS: "h:1", "subscribe": f"{log}/a,{log}/b"}
    (planned,) = planned_reads(source, str(tmp_path))
    assert (planned.log, planned.records) == (f"{log}/a", 1)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_wrong_name_is_refused_after_a_deletion_was_passed_over(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader], fails: str
):
    """As many names were passed over as logs were gone, whichever names they were."""
    end = first_end(start())
    store.log_tree.delete(f"{log}/b")
    store.append(f"{log}/a", b"2")
    after = stored(start(failOnDataLoss="false").latestOffset(end, ALL))
    for names in (f"{log}/a,{log}/wrong", f"{log}/a,{log}/b,{log}/wrong"):
        with pytest.raises(UnknownLog, match=f"no log {log}/wrong"):
            start(subscribe=names, failOnDataLoss=fails).latestOffset(after, ALL)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_was_made_again_and_renamed_is_not_passed_over(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader], fails: str
):
    """It was found while it was empty. Its records were passed over with the deleted log."""
    end = first_end(start())
    store.log_tree.delete(f"{log}/b")
    store.create_log(f"{log}/b")
    after = stored(start(failOnDataLoss="false").latestOffset(end, ALL))
    store.append(f"{log}/b", b"2")
    store.log_tree.rename(f"{log}/b", f"{log}/c")
    with pytest.raises(UnknownLog, match="If it was renamed, give its name of now"):
        start(failOnDataLoss=fails).latestOffset(after, ALL)
    renamed = start(subscribe=f"{log}/a,{log}/c", failOnDataLoss=fails)
    last = stored(renamed.latestOffset(after, ALL))
    assert values(renamed, after, last) == [b"2"]


def test_a_log_that_was_made_again_and_deleted_is_a_loss(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader]
):
    """It was found while it was empty, and no error told that its records were lost."""
    end = first_end(start())
    store.log_tree.delete(f"{log}/b")
    store.create_log(f"{log}/b")
    after = stored(start(failOnDataLoss="false").latestOffset(end, ALL))
    store.append(f"{log}/b", b"2")
    store.log_tree.delete(f"{log}/b")
    with pytest.raises(DataLoss, match="LOG_GONE"):
        start().latestOffset(after, ALL)
    last = stored(start(failOnDataLoss="false").latestOffset(after, ALL))
    assert start().latestOffset(last, ALL) == last, "it is passed over for good"


def test_a_log_is_passed_over_beside_one_that_was_renamed_and_made_again(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader]
):
    """The renamed log was taken for the log of the other name: no start went on."""
    end = first_end(start())
    store.log_tree.rename(f"{log}/a", f"{log}/old")
    store.append(f"{log}/a", b"2")
    store.log_tree.delete(f"{log}/b")
    with pytest.raises(DataLoss, match="LOG_GONE"):
        start().latestOffset(end, ALL)
    reader = start(failOnDataLoss="false")
    after = stored(reader.latestOffset(end, ALL))
    assert values(reader, end, after) == [b"2"]
    assert start().latestOffset(after, ALL) == after


def test_a_checkpoint_of_an_earlier_version_goes_on_and_learns_names(
    store: BlockingStore, log: str, start: Callable[..., CordwoodStreamReader]
):
    """It has no names: as many may lead nowhere as logs of it are gone, at one start."""
    end = first_end(start())
    del end["names"]
    store.log_tree.delete(f"{log}/b")
    with pytest.raises(UnknownLog, match=r"no log .*/b, .*/wrong"):
        start(subscribe=f"{log}/a,{log}/b,{log}/wrong", failOnDataLoss="false").latestOffset(
            end, ALL
        )
    after = stored(start(failOnDataLoss="false").latestOffset(end, ALL))
    assert set(after["names"]) == {f"{log}/a", f"{log}/b"}
    assert start().latestOffset(after, ALL) == after
    with pytest.raises(UnknownLog, match=r"no log .*/wrong"):
        start(subscribe=f"{log}/a,{log}/wrong").latestOffset(after, ALL)


class TestLandingWithoutItsCheckpoint:
    @pytest.fixture
    def options(
        self,
        store: BlockingStore,
        log: str,
        start: Callable[..., CordwoodStreamReader],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Callable[..., dict[str, str]]:
        """Of the source, for a table that ends at an offset."""

        def made(end: dict[str, Any], **more: str) -> dict[str, str]:
            table = ParquetTable(tmp_path)
            monkeypatch.setattr(table, "last_offset", lambda: end)
            source = {SERVERS: "h:1", "subscribe": f"{log}/a,{log}/b", **more}
            landing = Landing(source, str(tmp_path), partition_by=())
            return Lander(tmp_path, table, landing, Landed(), print).source_options()

        return made

    @pytest.mark.parametrize("is_older", [False, True])
    def test_passes_over_what_was_passed_over(
        self,
        store: BlockingStore,
        log: str,
        start: Callable[..., CordwoodStreamReader],
        options: Callable[..., dict[str, str]],
        is_older: bool,
        tmp_path: Path,
    ):
        """No start went on, whatever was chosen, and a landing cannot say other names."""
        end = first_end(start())
        store.log_tree.delete(f"{log}/b")
        store.append(f"{log}/a", b"2")
        after = stored(start(failOnDataLoss="false").latestOffset(end, ALL))
        if is_older:
            del after["names"]
        store.append(f"{log}/a", b"3")
        given = options(after)
        reader = start(**given)
        initial = stored(reader.initialOffset())
        planned = stored(reader.latestOffset(initial, ALL))
        assert values(reader, initial, planned) == [b"3"]
        assert start().latestOffset(planned, ALL) == planned
        # It died in its first batch, and Spark asks once more where it starts.
        Checkpoint(directory=tmp_path / "_cordwood" / "checkpoint").plan(0, planned)
        again = start(**options(after))
        assert values(again, stored(again.initialOffset()), planned) == [b"3"]

    def test_tells_a_loss_and_passes_over_it_if_asked(
        self,
        store: BlockingStore,
        log: str,
        start: Callable[..., CordwoodStreamReader],
        options: Callable[..., dict[str, str]],
    ):
        end = first_end(start())
        store.log_tree.delete(f"{log}/b")
        store.append(f"{log}/a", b"2")
        with pytest.raises(UnknownLog, match="one start with failOnDataLoss=false"):
            start(**options(end)).initialOffset()
        reader = start(**options(end, failOnDataLoss="false"))
        initial = stored(reader.initialOffset())
        planned = stored(reader.latestOffset(initial, ALL))
        assert values(reader, initial, planned) == [b"2"]
        assert start().latestOffset(planned, ALL) == planned, "it is passed over for good"

    def test_does_not_pass_over_a_log_that_was_renamed(
        self,
        store: BlockingStore,
        log: str,
        start: Callable[..., CordwoodStreamReader],
        options: Callable[..., dict[str, str]],
    ):
        end = first_end(start())
        store.log_tree.rename(f"{log}/b", f"{log}/c")
        with pytest.raises(UnknownLog, match="give its name of now"):
            options(end, failOnDataLoss="false")


def values(reader: CordwoodStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        value
        for planned in reader.partitions(start, end)
        for batch in reader.read(planned)
        for value in batch["value"].to_pylist()
    ]
