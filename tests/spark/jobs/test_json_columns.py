"""Columns from JSON: what a sample shows, and what never changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.spark.jobs.json_columns import FIELDS_MAX, Column, add_columns


def columns(*records: object, known: tuple[Column, ...] = (), taken: tuple[str, ...] = ()):
    sample = [json.dumps(record).encode() for record in records]
    return [(each.name, each.type) for each in add_columns(known, sample, taken)]


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([], []),
        ([{"a": 1, "b": 1.5, "c": "x", "d": True}],
         [("a", "BIGINT"), ("b", "DOUBLE"), ("c", "STRING"), ("d", "BOOLEAN")]),
        ([{"a": 1}, {"a": 2.5}], [("a", "DOUBLE")]),
        ([{"a": 1}, {"a": "x"}], [("a", "STRING")]),
        ([{"a": True}, {"a": 1}], [("a", "STRING")]),
        ([{"a": {"b": 1}}, {"c": [1]}], [("a", "STRING"), ("c", "STRING")]),
        ([{"a": None}, {"a": None, "b": 1}], [("b", "BIGINT")]),
        ([{"a": 1 << 63}], [("a", "STRING")]),
        ([5, "text", [1], None], []),
        ([{"\ud800": 1, "a": 1}], [("a", "BIGINT")]),
    ],
)  # fmt: skip
def test_types(records, wanted):
    assert columns(*records) == wanted


def test_a_type_that_is_settled_stays():
    known = (Column("a", "a", "BIGINT"),)
    assert columns({"a": "x", "b": 1}, known=known) == [("a", "BIGINT"), ("b", "BIGINT")]


def test_names_differ_whatever_the_case_and_fit_every_reader():
    found = add_columns((), [b'{"Id": 1, "ID": 2, "a b": 3, "value": 4, "": 5}'], ("value",))
    assert [(each.field, each.name) for each in found] == [
        ("Id", "Id"), ("ID", "ID_2"), ("a b", "a_b"), ("value", "value_2"), ("", "_"),
    ]  # fmt: skip


def test_what_is_no_json_tells_nothing():
    assert add_columns((), [None, b"\xff", b"{", "nan"], ()) == []


def test_keys_that_are_data_do_not_make_columns_for_ever():
    sample = [json.dumps({f"k{number}": 1}) for number in range(FIELDS_MAX * 2)]
    assert len(add_columns((), sample, ())) == FIELDS_MAX


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.none())))
def test_two_samples_are_as_good_as_one_for_what_the_first_showed(records):
    sample = [json.dumps(record) for record in records]
    half = len(sample) // 2
    first = add_columns((), sample[:half], ("value",))
    both = add_columns(first, sample[half:], ("value",))
    assert both[: len(first)] == first
    names = [column.name.lower() for column in both]
    assert len(set(names)) == len(names)
