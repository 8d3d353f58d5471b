"""Filters that narrow a batch, and those that are left to Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from cordwood.spark.pushdown import Narrowed, narrow

LOGS = {1: "/a", 2: "/b", 3: "/c"}


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], LOGS),
        ([EqualTo(("log",), "/b")], {2: "/b"}),
        ([In(("log",), ("/b", "/c", "/x"))], {2: "/b", 3: "/c"}),
        ([EqualTo(("log_id",), 3)], {3: "/c"}),
        ([In(("log_id",), (1, 2)), EqualTo(("log",), "/b")], {2: "/b"}),
        ([EqualTo(("log",), "/a"), EqualTo(("log",), "/b")], {}),
    ],
)
def test_logs_are_left_out(filters, left):
    narrowed, rest = narrow(filters)
    assert narrowed.logs(LOGS) == left
    assert rest == []


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], {1: (10, 20), 2: (15, 30)}),
        ([GreaterThan(("lsn",), 16)], {1: (17, 20), 2: (17, 30)}),
        ([GreaterThanOrEqual(("lsn",), 16)], {1: (16, 20), 2: (16, 30)}),
        ([LessThan(("lsn",), 12)], {1: (10, 12)}),
        ([LessThanOrEqual(("lsn",), 15)], {1: (10, 16), 2: (15, 16)}),
        ([EqualTo(("lsn",), 25), IsNotNull(("lsn",))], {2: (25, 26)}),
        ([GreaterThan(("lsn",), 40)], {}),
    ],
)
def test_ranges_are_cut(filters, left):
    narrowed, rest = narrow(filters)
    assert narrowed.ranges({1: (10, 20), 2: (15, 30)}) == left
    assert rest == []


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(("key",), b"x"),
        EqualTo(("epoch",), 3),
        EqualTo(("headers", "key"), "x"),
        StringStartsWith(("log",), "/a"),
        Not(EqualTo(("log",), "/a")),
        GreaterThan(("lsn",), "e7n1"),
        In(("log",), ("/a", None)),
    ],
)
def test_others_are_left_to_spark(filter_):
    assert narrow([filter_]) == (Narrowed(), [filter_])
