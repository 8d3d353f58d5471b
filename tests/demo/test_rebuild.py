"""Files from Parquet, as Spark lays it out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood.demo.files import Files, open_files
from cordwood.demo.pieces import PiecesBroken
from cordwood.demo.rebuild import rebuild_files, same_bytes

CONTENTS = {"a.log": b"one\r\ntwo\n\n", "b.log": b"", "c.log": b"\xff\nno end"}


@pytest.fixture
def source(tmp_path: Path) -> Files:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return open_files([str(tmp_path / name) for name in CONTENTS], tmp_path / "copies")


def write(parquet: Path, rows: list[dict[str, object]], name: str) -> None:
    """One Parquet file with rows of key, value, headers and lsn."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = [("key", pa.binary()), ("value", pa.binary()), ("lsn", pa.int64())]
    schema = pa.schema([*columns, ("headers", pa.list_(header))])
    pq.write_table(pa.Table.from_pylist(rows, schema), parquet / name)


@pytest.fixture
def rows(source: Files) -> list[dict[str, object]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "lsn": lsn,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for lsn, record in enumerate(source.records(), start=1)
    ]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    (tmp_path / "parquet").mkdir()
    return tmp_path / "parquet"


def rebuilt(source: Files, parquet: Path) -> list[bytes]:
    paths = rebuild_files(parquet, source.files, parquet.parent / "rebuilt")
    return [path.read_bytes() for path in paths]


def test_files_come_back_whatever_the_names_and_runs_of_the_parquet_files(
    source: Files, rows: list[dict[str, object]], parquet: Path
):
    write(parquet, rows[3:], "part-0.parquet")
    write(parquet, rows[:3], "part-1.parquet")
    write(parquet, [], "part-2.parquet")
    assert rebuilt(source, parquet) == list(CONTENTS.values())


def test_a_row_that_is_missing_is_told(source: Files, rows: list[dict[str, object]], parquet: Path):
    write(parquet, rows[1:], "part-0.parquet")
    with pytest.raises(PiecesBroken, match="piece 0 is missing"):
        rebuilt(source, parquet)


def test_a_row_of_no_input_file_is_told(
    source: Files, rows: list[dict[str, object]], parquet: Path
):
    write(parquet, [{**rows[0], "key": b"../escape"}], "part-0.parquet")
    with pytest.raises(PiecesBroken, match="no input file"):
        rebuilt(source, parquet)


def test_a_row_without_headers_is_told(source: Files, rows: list[dict[str, object]], parquet: Path):
    write(parquet, [{**rows[0], "headers": None}], "part-0.parquet")
    with pytest.raises(PiecesBroken, match="not those of a piece"):
        rebuilt(source, parquet)


@pytest.mark.parametrize(
    ("one", "other", "size", "same"),
    [
        (b"abc", b"abc", 3, True),
        (b"abc", b"abcdef", 3, True),
        (b"abc", b"abX", 3, False),
        (b"abc", b"ab", 3, False),
        (b"abc", b"abc", 2, False),
        (b"", b"", 0, True),
    ],
)
def test_same_bytes_looks_at_as_much_as_was_taken(
    tmp_path: Path, one: bytes, other: bytes, size: int, same: bool
):
    (tmp_path / "one").write_bytes(one)
    (tmp_path / "other").write_bytes(other)
    assert same_bytes(tmp_path / "one", tmp_path / "other", size) is same
