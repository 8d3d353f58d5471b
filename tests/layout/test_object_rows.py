"""Rows of an object as batches: they equal what its blocks give, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_objects import Made, logs, read_run, small_logs, written

from cordwood.block import Gap
from cordwood.errors import BadSetting, Malformed
from cordwood.layout.arrow import COLUMNS, COLUMNS_ON_REQUEST, batch_schema, body_to_batch
from cordwood.layout.body import parse_body
from cordwood.layout.object_file import ObjectRun, Piece, read_group
from cordwood.layout.object_rows import LogRows, file_columns, piece_rows
from cordwood.layout.object_writer import FinishedObject

ALL = (*COLUMNS, *COLUMNS_ON_REQUEST)


def rows_of(done: FinishedObject, piece: Piece, columns: Sequence[str]) -> Any:
    group = done.footer.index.groups[piece.group]
    content = memoryview(done.content)[group.start : group.stop]
    return read_group(done.footer, piece.group, content, file_columns(columns))


def parts(done: FinishedObject, run: ObjectRun, columns: Sequence[str]) -> list[LogRows]:
    return [piece_rows(piece, rows_of(done, piece, columns), log=run.log) for piece in run.pieces]


def by_blocks(run: ObjectRun, done: FinishedObject, columns: Sequence[str]) -> pa.Table:
    """The slow twin: bodies are made of the rows, and batches of the bodies."""
    batches = [
        body_to_batch(item[0], parse_body(item[1]), "/now", columns=columns)
        for item in read_run(run, done.footer, done.content) if not isinstance(item, Gap)
    ]  # fmt: skip
    return pa.Table.from_batches(batches, batch_schema(columns))


columns_wanted = st.lists(st.sampled_from(ALL), min_size=1, unique=True)


@settings(max_examples=30, deadline=None)
@given(logs(), columns_wanted, st.sampled_from([1, 100, 1 << 20]), st.integers(1, 50))
def test_rows_are_what_blocks_give(
    made: list[Made], columns: list[str], group_bytes: int, rows_max: int
) -> None:
    done = written(made, group_bytes)
    for run in done.footer.index.runs:
        found: list[pa.RecordBatch] = []
        for part in parts(done, run, columns):
            for batch in part.batches("/now", columns, rows_max):
                assert batch.schema == batch_schema(columns)
                assert 0 < batch.num_rows <= rows_max
                batch.validate(full=True)
                found.append(batch)
        table = pa.Table.from_batches(found, batch_schema(columns))
        assert table.equals(by_blocks(run, done, columns))


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_cut_has_the_rows_of_its_range(data: st.DataObject) -> None:
    done = written(small_logs())
    run = done.footer.index.runs[0]
    part = parts(done, run, ALL)[0]
    first = data.draw(st.integers(part.first, part.last))
    last = data.draw(st.integers(first, part.last))
    whole = next(part.batches("/now", ALL, 1 << 20)).to_pylist()
    [batch] = part.cut(first, last).batches("/now", ALL, 1 << 20)
    assert batch.to_pylist() == [row for row in whole if first <= row["lsn"] <= last]


def test_columns_that_nobody_asked_for_are_not_read() -> None:
    assert file_columns(["value"]) == ("value", "log_id", "lsn")
    assert file_columns(["log", "epoch", "offset"]) == ("log_id", "lsn")
    with pytest.raises(BadSetting, match="no column 'block'"):
        file_columns(["block"])


@pytest.mark.parametrize(("shift", "log"), [(1, 7), (0, 9), (-1, 7)])
def test_rows_of_another_place_are_refused(shift: int, log: int) -> None:
    done = written(small_logs())
    run = done.footer.index.runs[0]
    piece = run.pieces[0]
    rows = rows_of(done, piece, ALL)
    assert piece_rows(piece, rows, log=7).first == piece.first
    moved = piece._replace(first=piece.first + shift, last=piece.last + shift)
    with pytest.raises(Malformed, match="rows of another place"):
        piece_rows(moved, rows, log=log)
