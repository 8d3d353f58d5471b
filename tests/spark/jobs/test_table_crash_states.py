"""A power cut anywhere in a landing leaves each record once, in all three formats."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, MapType, StructField, StructType
from swaps import swap

from cordwood import durable
from cordwood.errors import BadSetting, Corrupt, StoreInUse
from cordwood.sim.crash_states.enumerate import CrashStates
from cordwood.sim.crash_states.fates import UNTORN
from cordwood.sim.crash_states.file_recorder import FileRecorder, build
from cordwood.spark.jobs import backfill, delta_table, iceberg_table, parquet_table, table
from cordwood.spark.jobs.land import with_nulls
from cordwood.spark.jobs.landing import Landing, table_path
from cordwood.spark.jobs.parquet_table import ParquetTable, finish_moves
from cordwood.spark.jobs.table import (
    FORMATS,
    OURS,
    StagedBatch,
    StagedFile,
    move_in,
    staged_files,
)
from cordwood.spark.jobs.table_files import table_files

BATCHES = 3
ROWS = 4
PER_POINT = 6
SCHEMA = pa.schema([("lsn", pa.int64())])
OFFSET = {"cluster": "c", "from": {}, "logs": {"1": "e1n100"}, "v": 1}


class Broken(AssertionError):
    """Records are lost, there twice, or a state could not be started from."""


def opened(root, format_):
    if format_ == "parquet":
        return ParquetTable(root)
    if format_ == "delta":
        return delta_table.DeltaLake(root, ())
    return iceberg_table.IcebergTable(root, ())


def land(root, lake, batch: int) -> None:
    """What `Lander.on_batch` does of one batch, with two files."""
    staging = root / OURS / "staging" / f"b{batch}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for part in range(2):
        first = batch * ROWS + part * ROWS // 2
        rows = pa.table({"lsn": pa.array(range(first, first + ROWS // 2), pa.int64())})
        pq.write_table(rows, staging / f"part-{batch}-{part}.parquet")
    lake.publish(StagedBatch("q", batch, OFFSET, staged_files(staging), SCHEMA))


def rows_of(root, format_) -> list[int]:
    """What a plain reader finds."""
    if format_ == "iceberg":
        found = iceberg_table.IcebergTable(root, ())._open()
        return [] if found is None else sorted(found.scan().to_arrow()["lsn"].to_pylist())
    files = sorted(root.glob("*.parquet"))
    if format_ == "delta":
        from deltalake import DeltaTable

        is_there = DeltaTable.is_deltatable(str(root))
        files = DeltaTable(str(root)).file_uris() if is_there else []
    return sorted(lsn for file in files for lsn in pq.ParquetFile(file).read()["lsn"].to_pylist())


def life(root, format_, recorder=None) -> None:
    """Land what is not in the table yet, and join the files of a Parquet or Delta table."""
    lake = opened(root, format_)
    parquet_table.remove_staging(root)
    for batch in range(lake.published("q") + 1, BATCHES):
        land(root, lake, batch)
        if recorder is not None:
            recorder.look()
            recorder.log.promise(batch)
    if format_ != "iceberg":
        lake.compact(1 << 20)


def start_again(root, format_, promised: int) -> None:
    """Start on what a crash left: what was promised is there, and all is there once at the end."""
    published = opened(root, format_).published("q")
    assert published >= promised
    parquet_table.remove_staging(root)
    assert rows_of(root, format_) == list(range((published + 1) * ROWS))
    life(root, format_)
    assert rows_of(root, format_) == list(range(BATCHES * ROWS))


def crash_everywhere(root, format_) -> int:
    """Start again from the states of a power cut in a life; how many.

    Raises:
        Broken: with the story of the crash.
    """
    root.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a catalog's engine that a crash leaves open
        recorder = FileRecorder(root)
        with recorder.recording() as log:
            life(root, format_, recorder)
        chance = random.Random(7)
        states = CrashStates(log, tearing=UNTORN, per_point=PER_POINT, chance=chance)
        for state in states:
            build(state.content, root)
            try:
                start_again(root, format_, max(state.facts, default=-1))
            except Exception as error:
                raise Broken(f"{type(error).__name__}: {error}\n{state.story()}") from error
    return states.count.states


ICEBERG = pytest.param("iceberg", marks=pytest.mark.slow)
"""Each state opens a catalog, so these are in `make prove`."""


@pytest.mark.parametrize("format_", ["parquet", "delta", ICEBERG])
def test_a_power_cut_anywhere_leaves_each_record_once(tmp_path: Path, format_):
    assert crash_everywhere(tmp_path / "t", format_) > 20


def published_before_synced(patch):
    """The manifest, or the commit, comes before the files are durable."""
    patch.setattr(parquet_table, "make_durable", lambda *_: None)
    patch.setattr(table, "make_durable", lambda *_: None)


def note_before_join_synced(patch):
    """Small files go before the joined one is durable."""
    make_durable = parquet_table.make_durable

    def but_not_joined(root, files):
        make_durable(root, [file for file in files if not file.path.name.startswith("joined")])

    patch.setattr(parquet_table, "make_durable", but_not_joined)
    patch.setattr(table, "make_durable", but_not_joined)


def files_before_manifest(patch):
    """Files are moved in before the manifest says so: a kill between the two doubles them."""
    write_whole = parquet_table.write_whole

    def late(place, content):
        note = json.loads(content)
        root = place.parents[3]
        for file in note.get("files", ()):
            staged = StagedFile(root / file["from"], "", {}, file["rows"], file["bytes"])
            table.move_in(root, [staged])
        write_whole(place, content)

    patch.setattr(parquet_table, "write_whole", late)


def directories_not_synced(patch):
    patch.setattr(durable, "_sync_all", lambda _: None)


def log_not_synced(patch):
    patch.setattr(delta_table.DeltaLake, "_sync_log", lambda _: None)


def metadata_not_synced(patch):
    patch.setattr(iceberg_table, "sync_files", lambda *_: None)


@pytest.mark.parametrize(
    ("bug", "format_"),
    [
        (published_before_synced, "parquet"),
        # The other formats take seconds each: `make prove` runs them.
        pytest.param(published_before_synced, "delta", marks=pytest.mark.slow),
        pytest.param(published_before_synced, "iceberg", marks=pytest.mark.slow),
        (note_before_join_synced, "parquet"),
        (files_before_manifest, "parquet"),
        (directories_not_synced, "parquet"),
        pytest.param(log_not_synced, "delta", marks=pytest.mark.slow),
        pytest.param(metadata_not_synced, "iceberg", marks=pytest.mark.slow),
    ],
)
def test_a_planted_bug_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug, format_: str
):
    bug(monkeypatch)
    with pytest.raises(Broken):
        crash_everywhere(tmp_path / "t", format_)


class TestRollForward:
    """What is rolled forward is compared with the manifest."""

    @pytest.mark.parametrize("left", ["gone", "empty", "short", "no footer"])
    def test_a_file_that_is_not_as_published_is_told(self, tmp_path: Path, left: str):
        land(tmp_path, ParquetTable(tmp_path), 0)
        file = tmp_path / "part-0-0.parquet"
        whole = file.read_bytes()
        file.unlink()
        if left != "gone":
            file.write_bytes({"empty": b"", "short": whole[:-1]}.get(left, bytes(len(whole))))
        with pytest.raises(Corrupt, match="restore the file from a copy"):
            ParquetTable(tmp_path)

    def test_files_that_were_joined_are_not_missed(self, tmp_path: Path):
        lake = ParquetTable(tmp_path)
        land(tmp_path, lake, 0)
        assert lake.compact(1 << 20).removed == 2
        assert ParquetTable(tmp_path).published("q") == 0

    def test_names_of_joined_files_do_not_grow(self, tmp_path: Path):
        lake = ParquetTable(tmp_path)
        lengths = set()
        for batch in range(3):
            land(tmp_path, lake, batch)
            lake.compact(1 << 20)
            (joined,) = tmp_path.glob("*.parquet")
            lengths.add(len(joined.name))
        assert len(lengths) == 1


def publish_columns(root: Path, lake, batch: int, fields: list[pa.Field]) -> None:
    """As a landing whose decode function gives these columns beside `lsn`, none of them null."""
    staging = root / OURS / "staging" / f"b{batch}"
    staging.mkdir(parents=True)
    given = pa.schema([*SCHEMA, *fields])
    rows = pa.Table.from_pylist([{"lsn": batch, **{each.name: 7 for each in fields}}], given)
    pq.write_table(rows, staging / f"part-{batch}.parquet")
    schema = to_arrow_schema(with_nulls(from_arrow_schema(given)), timezone="UTC")
    lake.publish(StagedBatch("q", batch, OFFSET, staged_files(staging), schema))


@pytest.mark.parametrize("format_", FORMATS)
def test_a_column_without_nulls_comes_and_goes(tmp_path: Path, format_):
    """As a literal does in a decode function: Iceberg refused it for good, and so did --compact."""
    lake = opened(tmp_path, format_)
    literal = pa.field("v", pa.int64(), nullable=False)
    for batch, fields in enumerate(([], [literal], [], [literal])):
        publish_columns(tmp_path, lake, batch, fields)
    if format_ != "iceberg":
        assert lake.compact(1 << 20).removed == 4
    assert rows_of(tmp_path, format_) == [0, 1, 2, 3]


def test_all_but_keys_may_be_null():
    inner = StructType([StructField("a", LongType(), False)])
    kinds = [ArrayType(inner, False), MapType(LongType(), inner, False), inner, LongType()]
    given = StructType([StructField(f"f{n}", kind, False) for n, kind in enumerate(kinds)])
    found = with_nulls(given)
    assert found.simpleString() == given.simpleString()
    assert all(field.nullable for field in found.fields)
    array, map_, struct = (field.dataType for field in found.fields[:3])
    assert array.containsNull
    assert map_.valueContainsNull
    for each in (array.elementType, map_.valueType, struct):
        assert each.fields[0].nullable


def test_what_a_zombie_attempt_writes_is_not_taken(tmp_path: Path):
    rows = pa.table({"lsn": pa.array([1], pa.int64())})
    for part in ("day=1", "_day=1", ".day=1", "_temporary/0/_temporary/attempt_1/day=1", ".hidden"):
        (tmp_path / part).mkdir(parents=True)
        pq.write_table(rows, tmp_path / part / "part-0.parquet")
    assert [file.directory for file in staged_files(tmp_path)] == [
        ".day=1", "_day=1", "day=1",
    ]  # fmt: skip


def test_delta_finds_the_end_behind_commits_of_others(tmp_path: Path):
    from deltalake import DeltaTable

    lake = opened(tmp_path, "delta")
    land(tmp_path, lake, 0)
    other = DeltaTable(str(tmp_path))
    for day in range(delta_table.HISTORY_MAX + 1):
        kept = {"delta.logRetentionDuration": f"interval {30 + day} days"}
        other.alter.set_table_properties(kept)
    assert lake.last_offset() == OFFSET


@pytest.mark.parametrize("name", ["a%20b", "a b", "a%b", "a?b", "a#b", "a%25b"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_directory_of_any_name_holds_its_own_table(tmp_path: Path, format_, name):
    """Delta's library reads `a b` in place of `a%20b`, whatever it is told: that is refused before
    there is a table. Iceberg's catalog was opened in the wrong directory, or in none."""
    (tmp_path / "a b").mkdir()
    root = tmp_path / name
    if format_ == "delta" and name in ("a%20b", "a%25b"):
        with pytest.raises(BadSetting, match="reads another directory"):
            table_path(Landing({}, str(root), format_))
        with pytest.raises(BadSetting, match="reads another directory"):
            table_files(root, format_)
        return
    assert table_path(Landing({}, str(root), format_)) == root
    for batch in range(2):
        lake = opened(root, format_)
        land(root, lake, batch)
    files = table_files(root, format_)
    assert all(file.is_relative_to(root) for file in files)
    rows = sorted(lsn for file in files for lsn in pq.ParquetFile(file).read()["lsn"].to_pylist())
    assert (lake.published("q"), rows) == (1, list(range(2 * ROWS)))
    assert {path.name for path in tmp_path.iterdir()} == {name, "a b"}


class Killed(Exception):
    """The process ends here."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("dies", "batches"),
    [
        pytest.param(lambda root, lake: land(root, lake, 1), 2, id="a batch"),
        pytest.param(lambda _, lake: lake.compact(1 << 20), 1, id="a join"),
    ],
)
def test_a_job_that_reads_the_files_first_finishes_what_a_killed_landing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Callable[..., object], batches: int
) -> None:
    """A backfill read the files that were in place, and reported success without the others. A
    killed join leaves none of its rows in place."""
    root = tmp_path / "t"
    root.mkdir()
    lake = ParquetTable(root)
    land(root, lake, 0)
    with monkeypatch.context() as patch:
        swap(patch, move_in, killed, within=parquet_table)
        with pytest.raises(Killed):
            dies(root, lake)
    wanted = list(range(batches * ROWS))
    assert rows_of(root, "parquet") != wanted
    with table.only_writer(root), pytest.raises(StoreInUse, match="another job lands into"):
        finish_moves(root)
    finish_moves(root)
    assert rows_of(root, "parquet") == wanted
    with table.only_writer(root):
        finish_moves(root)  # nothing is open, so the table is not held


def test_a_backfill_finishes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before it looks which files there are."""
    root, notes = tmp_path / "t", tmp_path / "notes"
    root.mkdir()
    lake = ParquetTable(root)
    with monkeypatch.context() as patch:
        swap(patch, move_in, killed, within=parquet_table)
        with pytest.raises(Killed):
            land(root, lake, 0)
    found: list[Path] = []

    def look(_: object, __: Path, files: Sequence[Path], *___: object) -> int:
        found.extend(files)
        return 0

    swap(monkeypatch, backfill._write_step, look, within=backfill)
    swap(monkeypatch, backfill._cluster_of, lambda _: "c", within=backfill)
    swap(monkeypatch, backfill.target_number, lambda *_: 1, within=backfill)
    backfill.backfill(None, str(root), {"log": "/a"}, str(notes))  # type: ignore[arg-type]
    assert len(found) == 2
