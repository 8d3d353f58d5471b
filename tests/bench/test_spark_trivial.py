"""The reference of the Spark figures: it makes as many rows as it says, shaped as ours."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from cordwood.bench.spark_trivial import TrivialSource, TrivialWriter


def source(**more: str) -> TrivialSource:
    return TrivialSource({"rows": "20000", "size": "100", **more})


@pytest.mark.parametrize("rows", ["1", "8192", "20001"])
def test_a_batch_has_all_rows(rows: str):
    trivial = source(rows=rows)
    reader = trivial.reader(trivial.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == int(rows)
    assert {batch.schema for batch in batches} == {
        to_arrow_schema(trivial.schema(), timezone="UTC")
    }
    assert {len(value.as_py()) for value in batches[0]["value"]} == {100}


def test_a_stream_goes_on_by_its_limit():
    trivial = source(limit="8000")
    reader = trivial.streamReader(trivial.schema())
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8000)
    start, counts = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        parts = reader.partitions(start, end)
        counts.append(sum(batch.num_rows for part in parts for batch in reader.read(part)))
        start = end
    assert counts == [8000, 8000, 4000]
    assert reader.latestOffset({"at": 0}, ReadAllAvailable()) == {"at": 20000}


def test_the_sink_counts():
    trivial = source(rows="9000")
    reader = trivial.reader(trivial.schema())
    (first, _) = reader.partitions()
    assert TrivialWriter().write(reader.read(first)).rows == 4500
