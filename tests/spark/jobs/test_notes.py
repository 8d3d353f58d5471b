"""Notes beside tables are input: each that is damaged is told, and none moves a file elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood.errors import Malformed
from cordwood.spark.jobs.json_columns import Column
from cordwood.spark.jobs.landing import Landing, dry_run, settle
from cordwood.spark.jobs.notes import offset_in, read_columns
from cordwood.spark.jobs.parquet_table import ParquetTable
from cordwood.spark.jobs.table import OURS
from cordwood.spark.options import SERVERS

QUERY = "5f0c"
OFFSET = {"cluster": "c", "from": {"17": "e7n0"}, "logs": {"17": "e7n9"}, "v": 1}
FILE = {"from": "_cordwood/staging/a/1.parquet", "directory": "k=1", "rows": 1, "bytes": 2}
MANIFEST = {"query": QUERY, "batch": 3, "turn": 1, "offset": OFFSET, "files": [FILE]}
JOIN = FILE | {"from": "_cordwood/staging/j.parquet", "remove": ["k=1/a.parquet"]}
GARBAGE = [b"", b"\xff", b"[" * 100_000, b"null", b"7", b"[]", b"{}", b'"x"']
"""No object of ours, as bytes."""


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


class TestManifests:
    def test_one_of_ours_is_rolled_forward(self, tmp_path: Path):
        staged = io.BytesIO()
        pq.write_table(pa.table({"lsn": [1]}), staged)
        data = staged.getvalue()
        write(tmp_path / FILE["from"], data)
        manifest = MANIFEST | {"files": [FILE | {"rows": 1, "bytes": len(data)}]}
        write(tmp_path / OURS / "batches" / QUERY / "000000000003.json", manifest)
        table = ParquetTable(tmp_path)
        assert (table.published(QUERY), table.last_offset()) == (3, OFFSET)
        assert (tmp_path / "k=1" / "1.parquet").read_bytes() == data

    @pytest.mark.parametrize(
        "wrong",
        [
            *GARBAGE,
            MANIFEST | {"query": "other"},
            MANIFEST | {"batch": 2},
            MANIFEST | {"batch": "3"},
            MANIFEST | {"batch": True},
            MANIFEST | {"turn": -1},
            MANIFEST | {"turn": 1 << 63},
            MANIFEST | {"offset": {}},
            MANIFEST | {"offset": OFFSET | {"logs": {"17": "soon"}}},
            MANIFEST | {"offset": OFFSET | {"v": 2}},
            MANIFEST | {"files": {}},
            MANIFEST | {"files": ["a"]},
            MANIFEST | {"files": [FILE | {"rows": None}]},
            MANIFEST | {"files": [FILE | {"from": "../outside"}]},
            MANIFEST | {"files": [FILE | {"from": "/outside"}]},
            MANIFEST | {"files": [FILE | {"directory": "k=1/../../outside"}]},
            MANIFEST | {"files": [FILE | {"directory": None}]},
        ],
    )
    def test_any_other_is_told_and_nothing_is_moved(self, tmp_path: Path, wrong):
        table = tmp_path / "table"
        write(table / FILE["from"], b"data")
        write(tmp_path / "outside", b"not ours")
        note = table / OURS / "batches" / QUERY / "000000000003.json"
        write(note, wrong)
        with pytest.raises(Malformed, match=r"000000000003\.json is no note as this job writes it"):
            ParquetTable(table)
        assert (table / FILE["from"]).exists()
        assert (tmp_path / "outside").exists()

    @pytest.mark.parametrize(
        "wrong",
        [
            *GARBAGE,
            JOIN | {"remove": "k=1/a.parquet"},
            JOIN | {"remove": ["k=1/a.parquet", "../outside"]},
            JOIN | {"directory": "../outside"},
            JOIN | {"from": "/outside"},
            JOIN | {"from": None},
        ],
    )
    def test_a_compaction_removes_nothing_elsewhere(self, tmp_path: Path, wrong):
        table = tmp_path / "table"
        write(table / "k=1" / "a.parquet", b"data")
        write(tmp_path / "outside", b"not ours")
        write(table / OURS / "compactions" / "a.json", wrong)
        with pytest.raises(Malformed, match=r"a\.json is no note as this job writes it"):
            ParquetTable(table)
        assert (table / "k=1" / "a.parquet").exists()
        assert (tmp_path / "outside").exists()


@pytest.mark.parametrize("wrong", [*GARBAGE, {"format": "parquet"}])
def test_what_a_table_is_made_of(tmp_path: Path, wrong):
    landing = Landing({SERVERS: "h:1", "subscribe": "a"}, str(tmp_path))
    write(tmp_path / OURS / "table.json", wrong)
    for job in (lambda: settle(tmp_path, landing), lambda: dry_run(landing)):
        with pytest.raises(Malformed, match=r"table\.json is no note as this job writes it"):
            job()


COLUMN = {"field": "Id", "name": "id", "type": "BIGINT"}


def test_columns_of_json(tmp_path: Path):
    note = tmp_path / "json_columns.json"
    assert read_columns(note) == []
    write(note, [COLUMN])
    assert read_columns(note) == [Column("Id", "id", "BIGINT")]


@pytest.mark.parametrize(
    "wrong",
    [
        *(each for each in GARBAGE if each != b"[]"),
        [[]],
        [{}],
        [COLUMN | {"type": 7}],
        [COLUMN, COLUMN | {"name": "ID"}],
    ],
)
def test_columns_that_are_none(tmp_path: Path, wrong):
    note = tmp_path / "json_columns.json"
    write(note, wrong)
    with pytest.raises(Malformed, match=r"json_columns\.json is no note as this job writes it"):
        read_columns(note)


@pytest.mark.parametrize("wrong", ["", "{", "[]", "{}", "[" * 100_000, 7, None])
def test_an_offset_in_a_tables_own_log(tmp_path: Path, wrong: int | str | None):
    with pytest.raises(Malformed, match="restore it from a copy"):
        offset_in(tmp_path, wrong)
    assert offset_in(tmp_path, json.dumps(OFFSET)) == OFFSET
