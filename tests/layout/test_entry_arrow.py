"""Entries of ledgers as Arrow batches: the columns of records, and what entries have of them."""

from __future__ import annotations

import pytest

from cordwood.errors import BadSetting
from cordwood.layout.arrow import batch_schema
from cordwood.layout.batch_columns import COLUMNS, COLUMNS_ON_REQUEST
from cordwood.layout.entry_arrow import entries_to_batch
from cordwood.ledger import ENTRY_MAX, LEDGER_MAX


def test_entries_have_the_columns_of_records():
    batch = entries_to_batch(7, 5, [b"a", b"", b"c"])
    assert batch.schema == batch_schema(COLUMNS)
    assert batch.to_pylist()[1] == {
        "key": None, "value": b"", "log": "ledger/7", "log_id": 7, "lsn": 6, "epoch": 1,
        "offset": 6, "timestamp": None,
    }  # fmt: skip


@pytest.mark.parametrize("column", [*COLUMNS, *COLUMNS_ON_REQUEST])
def test_each_column_comes_alone_and_with_its_type(column):
    batch = entries_to_batch(7, 0, [b"a"], [column])
    assert batch.schema == batch_schema([column])
    assert batch.num_rows == 1


def test_the_largest_ledger_and_entry_fit():
    batch = entries_to_batch(LEDGER_MAX, ENTRY_MAX, [b"end"])
    assert (batch["log_id"][0].as_py(), batch["lsn"][0].as_py()) == (LEDGER_MAX, ENTRY_MAX)


def test_a_batch_of_nothing_has_its_columns():
    assert entries_to_batch(7, 0, []).schema == batch_schema(COLUMNS)


def test_an_unknown_column_is_refused():
    with pytest.raises(BadSetting):
        entries_to_batch(7, 0, [b"a"], ["colour"])
