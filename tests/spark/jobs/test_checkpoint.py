"""A checkpoint that does not fit its table is refused, with the way out."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from swaps import swap

from cordwood import durable
from cordwood.errors import BadSetting
from cordwood.spark.checkpoint import Checkpoint, begins_at
from cordwood.spark.jobs import iceberg_table
from cordwood.spark.jobs.delta_table import DeltaLake
from cordwood.spark.jobs.iceberg_table import IcebergTable
from cordwood.spark.jobs.land import Landed, Lander
from cordwood.spark.jobs.landing import Landing, open_table
from cordwood.spark.jobs.parquet_table import ParquetTable
from cordwood.spark.jobs.set_apart import remove_apart
from cordwood.spark.jobs.table import (
    FORMATS,
    OURS,
    LakeTable,
    StagedBatch,
    move_in,
    staged_files,
)
from cordwood.spark.options import SERVERS


def end(batch: int) -> dict:
    return {"cluster": "c", "from": {}, "logs": {"1": f"e1n{batch + 1}00"}, "v": 1}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Of batches 0 to 2, of which 0 and 1 are done."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for batch in range(3):
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end(batch))}")
    for batch in range(2):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    return Checkpoint(tmp_path)


@pytest.mark.parametrize("published", [1, 2])
def test_one_of_the_table_passes(checkpoint: Checkpoint, published: int):
    checkpoint.check(published, end(published))


def test_the_name_of_a_query_says_which_copy_it_uses(tmp_path: Path):
    """The first of the directories with the query's id was taken, also if it was a copy."""
    for name in ("a-copy", "named", "another"):
        (tmp_path / name / "offsets").mkdir(parents=True)
        query = "q2" if name == "another" else "q"
        (tmp_path / name / "metadata").write_text(json.dumps({"id": query}))
    root = f"file://{tmp_path}"
    assert Checkpoint.of_query(root, "q", "named") == Checkpoint(tmp_path / "named")
    assert Checkpoint.of_query(root, "q2") == Checkpoint(tmp_path / "another")
    for name in ("", "another", "gone"):
        with pytest.raises(BadSetting, match=r"/a-copy and .*/named are .*move the copies"):
            Checkpoint.of_query(root, "q", name)
    assert Checkpoint.of_query(root, "q3", "named") is None
    assert Checkpoint.of_query("s3a://bucket", "q", "named") is None


def test_a_batch_that_is_planned_alone_is_not_done(checkpoint: Checkpoint):
    """`stats` told no lag of a query whose batch failed each time, a dry run nothing to read."""
    assert checkpoint.done() == end(1)
    (checkpoint.directory / "commits" / "2").write_text("v1\n{}")
    assert checkpoint.done() == end(2)
    for batch in range(3):
        (checkpoint.directory / "commits" / str(batch)).unlink()
    assert checkpoint.done() == end(1)  # a power cut took all: one batch is to come, at least
    for batch in (1, 2):
        (checkpoint.directory / "offsets" / str(batch)).unlink()
    first = {**end(0), "from": {"1": "e1n50"}}
    (checkpoint.directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(first)}")
    assert (checkpoint.done() or {})["logs"] == {"1": "e1n50"}
    (checkpoint.directory / "offsets" / "0").unlink()
    assert checkpoint.done() is None


@pytest.mark.parametrize("name", ["plain", "a%20b", "a b", "a#b", "a?b", "a:b", "é"])
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_one_is_found_whatever_its_name(tmp_path: Path, name: str, form: str):
    """As Hadoop reads it: with a scheme, %20 was a space, and # an end. What is not found is not
    looked at, and a checkpoint that went back was taken for a good one."""
    (tmp_path / name / "offsets").mkdir(parents=True)
    found = Checkpoint.at(form.format(tmp_path / name))
    assert found == Checkpoint(tmp_path / name)


@pytest.mark.parametrize("place", ["", "s3a://bucket/x", "hdfs:/x", "file://other/x"])
def test_one_of_another_machine_is_not_looked_at(place: str):
    assert Checkpoint.at(place) is None


def test_a_start_that_failed_before_its_first_batch_has_begun_nothing(tmp_path: Path):
    (tmp_path / "metadata").write_text('{"id":"q"}')
    assert Checkpoint(tmp_path).is_new
    Checkpoint(tmp_path).check(-1, None)


@pytest.mark.parametrize(
    ("published", "noted", "told"),
    [
        (0, end(0), "batch 1 is done, and the last one in the table is 0"),
        (3, end(3), "it is an older copy, or lost its newest files"),
        (2, end(1), "its batch 2 ends elsewhere"),
        (2, None, "nothing notes where batch 2 of the table ends"),
    ],
)
def test_one_of_another_time_is_told(checkpoint: Checkpoint, published: int, noted, told: str):
    with pytest.raises(BadSetting, match=rf"{told}.* Remove that directory and start again"):
        checkpoint.check(published, noted)


@pytest.mark.parametrize("published", [1, 2])
def test_one_whose_query_landed_last_passes(checkpoint: Checkpoint, published: int):
    checkpoint.check_newest(published, end(published))


def test_one_that_was_put_back_after_another_query_landed_is_told(checkpoint: Checkpoint):
    """Its own batches are as it left them, and its next one would be in the table twice."""
    for published in (1, 2):
        with pytest.raises(BadSetting, match=r"another query landed records since.* Remove that"):
            checkpoint.check_newest(published, end(5))


def test_a_first_batch_that_begins_where_the_table_ended_passes(checkpoint: Checkpoint):
    last = {"cluster": "c", "from": {}, "logs": {"1": "e1n7", "2": "e1n9", "3": "e1n4"}, "v": 1}
    # Log 3 was deleted, log 4 found.
    first = {"cluster": "c", "from": {"1": "e1n7", "2": "e1n9", "4": "e0n1"}, "v": 1,
             "logs": {"1": "e1n8", "2": "e1n9", "4": "e1n3"}}  # fmt: skip
    assert begins_at(first, last)
    assert begins_at({"cluster": "c", "init": True, "logs": first["from"], "v": 1}, last)
    assert not begins_at({**first, "from": {**first["from"], "2": "e1n8"}}, last)


def test_a_first_batch_that_begins_behind_what_a_restore_took_away_is_told(checkpoint: Checkpoint):
    """It had begun where the table ended then, and what lay before was in no table any more."""
    last = {"cluster": "c", "from": {}, "logs": {"1": "e1n7"}, "v": 1}
    first = {"cluster": "c", "from": {"1": "e1n7"}, "logs": {"1": "e1n8"}, "v": 1}
    log_2_landed = {**first, "from": {"1": "e1n7", "2": "e1n5"}, "logs": {"1": "e1n8", "2": "e1n5"}}
    assert begins_at(first, last)
    assert not begins_at(log_2_landed, last), "the batch that had log 2 was taken away"
    assert not begins_at(first, {})
    assert begins_at({**first, "from": {"1": "e1n1", "2": "e0n1"}}, {})
    for number in (1, 2):
        (checkpoint.directory / "offsets" / str(number)).unlink()
        (checkpoint.directory / "commits" / str(number)).unlink(missing_ok=True)
    (checkpoint.directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(first)}")
    with pytest.raises(BadSetting, match=r"or the table was restored\. Remove that directory"):
        checkpoint.check_newest(-1, None)
    checkpoint.check_newest(-1, None, is_oldest=False)  # as the options have it
    checkpoint.check_newest(-1, last)


def test_a_delta_table_says_whether_it_was_restored_to_nothing(tmp_path: Path):
    root = tmp_path / "table"
    root.mkdir()
    lake = DeltaLake(root, ())
    assert not lake.was_emptied
    landed(root, lake, 0)
    assert not lake.was_emptied
    DeltaTable(str(root)).restore(0)
    assert lake.was_emptied
    landed(root, lake, 0, "p")
    assert not lake.was_emptied


def test_a_first_batch_that_does_not_know_a_log_of_the_table_is_told(checkpoint: Checkpoint):
    last = {**end(0), "logs": {"1": "e1n7", "2": "e1n9"}}
    checkpoint.check_knows(last, [1, 3])
    with pytest.raises(BadSetting, match=r"does not know log 2, .* Remove that directory"):
        checkpoint.check_knows(last, [1, 2])


def test_one_that_runs_ahead_of_its_table_is_told(checkpoint: Checkpoint):
    with pytest.raises(BadSetting, match="batches up to 2, and the last one in the table is 0"):
        checkpoint.check_newest(0, end(0))


@pytest.mark.parametrize("name", ["offsets/2", "commits/1", "metadata"])
def test_a_file_that_a_power_cut_emptied_is_told(checkpoint: Checkpoint, name: str):
    (checkpoint.directory / name).write_bytes(b"")
    with pytest.raises(BadSetting, match="Remove that directory"):
        _ = checkpoint.query(), checkpoint.check(1, end(1))


def test_what_names_a_batch_is_synced_before_it_is_published(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    synced = []
    for step in ("sync_file", "sync_directory"):
        monkeypatch.setattr(durable, step, lambda path: synced.append(path.name))
    (checkpoint.directory / "offsets" / ".2.crc").write_bytes(b"crc")
    checkpoint.make_durable(2)
    assert synced == ["metadata", ".2.crc", "2", "offsets", checkpoint.directory.name]


def test_a_delta_log_that_was_cleaned_does_not_say_where_the_landing_ends(tmp_path: Path):
    """A landing without its checkpoint began once more at the beginning of its logs."""
    root = tmp_path / "table"
    root.mkdir()
    staging = root / "_cordwood" / "staging"
    staging.mkdir(parents=True)
    pq.write_table(pa.table({"lsn": [1, 2]}), staging / "part-0.parquet")
    lake = DeltaLake(root, ())
    assert lake.is_empty
    schema = pa.schema([("lsn", pa.int64())])
    lake.publish(StagedBatch("q", 0, end(0), staged_files(staging), schema))
    landing = Landing({SERVERS: "h:1", "subscribe": "log"}, str(root), "delta")
    lander = Lander(root, lake, landing, Landed(), print)
    assert lake.last_offset() == end(0)
    later = 1 + DeltaTable(str(root)).version()
    DeltaTable(str(root)).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(str(root)).create_checkpoint()
    # What `cleanup_metadata` does, without the 30 days.
    for version in range(later):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    assert DeltaLake(root, ()).last_offset() is None
    with pytest.raises(BadSetting, match=r"is gone, and so is the commit.* in another directory"):
        lander.source_options()


def landed(root: Path, lake: LakeTable, batch: int, query: str = "q") -> None:
    staging = root / "_cordwood" / "staging" / f"{query}-{batch}"
    staging.mkdir(parents=True)
    pq.write_table(pa.table({"lsn": [batch]}), staging / f"part-{query}-{batch}.parquet")
    schema = pa.schema([("lsn", pa.int64())])
    lake.publish(StagedBatch(query, batch, end(batch), staged_files(staging), schema))


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_delta_table_that_was_restored_and_whose_log_was_cleaned_is_refused(
    tmp_path: Path, is_restored: bool
):
    """Nothing told of the restore any more, and the landing went on behind what it took away."""
    root = tmp_path / "table"
    root.mkdir()
    lake = DeltaLake(root, ())
    for batch in range(3):
        landed(root, lake, batch)
    if is_restored:
        DeltaTable(str(root)).restore(2)
    table = DeltaTable(str(root))
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.create_checkpoint()
    for version in range(table.version()):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    lake = DeltaLake(root, ())
    if not is_restored:
        assert (lake.published("q"), lake.last_offset()) == (2, None)
        lake.compact(1 << 20)
        assert (lake.published("q"), lake.last_offset()) == (2, None)
        DeltaTable(str(root)).delete()
    with pytest.raises(BadSetting, match=r"none of the files of batch 2 .* remove .*newest\.json"):
        lake.published("q")
    (root / "_cordwood" / "newest.json").unlink()
    assert lake.published("q") == 2


def test_a_delta_table_that_was_restored_says_where_it_ends_now(
    tmp_path: Path, checkpoint: Checkpoint
):
    """The landing went on behind the batches that the restore took away, which were missing."""
    root = tmp_path / "table"
    root.mkdir()
    lake = DeltaLake(root, ())
    for batch in range(3):
        landed(root, lake, batch)
    DeltaTable(str(root)).restore(2)
    assert (lake.published("q"), lake.last_offset()) == (1, end(1))
    (checkpoint.directory / "commits" / "2").write_text("v1\n{}")
    with pytest.raises(BadSetting, match=r"restored to an older version.* Remove that directory"):
        checkpoint.check(lake.published("q"), end(1))
    with pytest.raises(BadSetting, match="restored to an older version"):
        checkpoint.check_next(3, lake.published("q"))
    checkpoint.check_next(2, lake.published("q"))
    landed(root, lake, 0, "p")
    assert (lake.published("p"), lake.last_offset()) == (0, end(0))
    DeltaTable(str(root)).restore(1)
    assert (lake.published("q"), lake.published("p"), lake.last_offset()) == (0, -1, end(0))
    DeltaTable(str(root)).restore(0)
    assert (lake.published("q"), lake.last_offset()) == (-1, None)
    # The landing of "p" once more, which came after the first restore.
    DeltaTable(str(root)).restore(5)
    assert (lake.published("p"), lake.last_offset()) == (0, end(0))
    before = DeltaTable(str(root)).history(2)[1]["timestamp"]
    DeltaTable(str(root)).restore(datetime.fromtimestamp(before / 1000, UTC))
    with pytest.raises(BadSetting, match="Restore it once more, to the number of a version"):
        lake.published("q")


def test_an_iceberg_table_that_was_rolled_back_is_refused_until_it_is_rolled_forward(
    tmp_path: Path,
):
    root = tmp_path / "table"
    root.mkdir()
    lake = IcebergTable(root, ())
    for batch in range(3):
        landed(root, lake, batch)
    table = lake._open()
    assert table is not None
    first, second, third = (each.snapshot_id for each in table.metadata.snapshots)
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    for told in (lambda: lake.published("q"), lake.last_offset, lambda: landed(root, lake, 3)):
        with pytest.raises(BadSetting, match=f"batch 2 of query q.* Make snapshot {third} current"):
            told()
    # What another job appends on top hides nothing.
    table = lake._catalog.load_table(lake._name)
    table.append(pa.table({"lsn": [7]}))
    with pytest.raises(BadSetting, match="rolled back"):
        lake.published("q")
    table.refresh().manage_snapshots().set_current_snapshot(third).commit()
    assert lake.published("q") == 2
    table.refresh().append(pa.table({"lsn": [8]}))
    table.refresh().maintenance.expire_snapshots().by_ids([first, second]).commit()
    assert lake.last_offset() == end(2)


def test_an_iceberg_table_that_was_rolled_back_and_whose_snapshots_expired_is_refused(
    tmp_path: Path,
):
    """Without the snapshot that was rolled back nothing told of it, and the landing went on."""
    root = tmp_path / "table"
    root.mkdir()
    lake = IcebergTable(root, ())
    landed(root, lake, 0)
    table = lake._open()
    assert table is not None
    table.append(pa.table({"lsn": [7]}))
    first, between = (each.snapshot_id for each in table.refresh().metadata.snapshots)
    for batch in (1, 2):
        landed(root, lake, batch)
    for at in (between, first):
        table.refresh().manage_snapshots().set_current_snapshot(at).commit()
        expired = [
            each.snapshot_id
            for each in table.refresh().metadata.snapshots
            if each.snapshot_id not in (first, at)
        ]
        table.maintenance.expire_snapshots().by_ids(expired).commit()
        for told in (lambda: lake.published("q"), lake.last_offset):
            with pytest.raises(
                BadSetting, match=r"batch 2 of query q.*\. Land in another directory"
            ):
                told()


def test_an_iceberg_table_that_is_rolled_back_while_a_batch_is_published_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The commit was made again on top of the older snapshot, and hid what that lacked."""
    root = tmp_path / "table"
    root.mkdir()
    lake = IcebergTable(root, ())
    for batch in range(3):
        landed(root, lake, batch)
    table = lake._open()
    assert table is not None
    first, third = table.metadata.snapshots[0].snapshot_id, table.metadata.snapshots[2].snapshot_id

    def rolls_back(*args) -> list[Path]:
        table.manage_snapshots().rollback_to_snapshot(first).commit()
        return move_in(*args)

    with monkeypatch.context() as patched:
        swap(patched, move_in, rolls_back, within=iceberg_table)
        with pytest.raises(BadSetting, match=f"batch 2 of query q.* Make snapshot {third} current"):
            landed(root, lake, 3)
    table.refresh().manage_snapshots().set_current_snapshot(third).commit()
    assert (lake.published("q"), lake.last_offset()) == (2, end(2))

    # What another job appends meanwhile ends nothing.
    commit = lake._commit

    def races(*args) -> None:
        if not lost:
            lost.append(table.refresh().append(pa.table({"lsn": [7]})))
        commit(*args)

    lost: list[None] = []
    monkeypatch.setattr(lake, "_commit", races)
    landed(root, lake, 4)
    assert (lake.published("q"), lake.last_offset()) == (4, end(4))
    assert sorted(table.refresh().scan().to_arrow()["lsn"].to_pylist()) == [0, 1, 2, 4, 7]


def test_records_that_a_dead_batch_set_apart_go(tmp_path: Path):
    """They were there twice, once the checkpoint was lost and another query landed them."""
    root, query = tmp_path / "table", "01234567-89ab"
    root.mkdir()
    lake = ParquetTable(root)
    landing = Landing({SERVERS: "h:1", "subscribe": "log"}, str(root))
    lander = Lander(root, lake, landing, Landed(), print)
    lake.publish(StagedBatch(query, 0, end(0), [], pa.schema([])))
    for batch in range(2):
        lander._note_end(query, batch, end(batch))
    names = [f"01234567-{0:012}", f"01234567-{1:012}", f"76543210-{1:012}", "a-b"]
    for name in names:
        (tmp_path / "table.quarantine" / name).mkdir(parents=True)
    lander.tidy_set_apart()
    left = sorted(path.name for path in (tmp_path / "table.quarantine").iterdir())
    assert left == sorted(set(names) - {f"01234567-{1:012}"})


def test_records_of_a_batch_that_a_restore_took_away_come_back_with_it(tmp_path: Path):
    """A landing that was refused removed them, and the restore was undone."""
    root, query = tmp_path / "table", "01234567-89ab"
    root.mkdir()
    lake = DeltaLake(root, ())
    landing = Landing({SERVERS: "h:1", "subscribe": "log"}, str(root), "delta")
    lander = Lander(root, lake, landing, Landed(), print)
    quarantine = tmp_path / "table.quarantine"
    for batch in range(3):
        if batch < 2:
            landed(root, lake, batch, query)
        lander._note_end(query, batch, end(batch))
        apart = quarantine / f"01234567-{batch:012}"
        apart.mkdir(parents=True)
        (apart / "part.parquet").write_text(f"batch {batch}")

    def shown() -> list[str]:
        lander.tidy_set_apart()
        found = sorted(quarantine.glob("[!_]*/part.parquet"))
        return [path.read_text() for path in found]

    assert shown() == ["batch 0", "batch 1"]
    newest = DeltaTable(str(root)).version()
    DeltaTable(str(root)).restore(newest - 1)
    assert shown() == shown() == ["batch 0"]
    DeltaTable(str(root)).restore(newest)
    assert shown() == shown() == ["batch 0", "batch 1"]
    DeltaTable(str(root)).restore(newest - 1)
    assert shown() == ["batch 0"]
    remove_apart(quarantine / f"01234567-{1:012}")
    assert [path.name for path in quarantine.iterdir()] == [f"01234567-{0:012}"]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_batch_whose_column_has_another_type_is_refused(tmp_path: Path, format_):
    """A new decode function gave text for numbers: the batch was landed, and no reader took it."""
    landing = Landing({SERVERS: "h:1", "subscribe": "log"}, str(tmp_path), format_, ())
    table = open_table(tmp_path, landing)

    def lands(batch: int, **columns) -> None:
        staging = tmp_path / OURS / "staging" / str(batch)
        staging.mkdir(parents=True)
        content = pa.table({"lsn": [batch], **columns})
        pq.write_table(content, staging / f"part-{batch}.parquet")
        table.publish(StagedBatch("q", batch, end(batch), staged_files(staging), content.schema))

    lands(0, id=[1])
    told = {"iceberg": (Exception, "Cannot change column type: id: long")}
    refused, why = told.get(
        format_, (BadSetting, r"has id as (long|int64).* types of a table stay")
    )
    for wrong in (["text"], [2.5]):
        shutil.rmtree(tmp_path / OURS / "staging" / "1", ignore_errors=True)
        with pytest.raises(refused, match=why):
            lands(1, id=wrong)
    table = open_table(tmp_path, landing)
    assert (table.published("q"), table.last_offset()) == (0, end(0))
    shutil.rmtree(tmp_path / OURS / "staging" / "1")
    lands(1, more=["text"])
    with pytest.raises(refused, match=r"has more as string|column type: more: string"):
        lands(2, id=[1], more=[1])
    lands(3, id=[1])
