"""Gaps as rows: `includeGaps` adds them to a table, so that a loss can be found in it.

A record's row says `record` and nothing more. A gap's row says `gap`, its kind and its
last LSN; its `lsn` is the first. Together with the log, which both have, the rows tile the range:
each LSN belongs to one record or to one gap.

Source: docs/sources/spark.md §8 ("loss becomes auditable data in the lake").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.block import Gap
from cordwood.layout.arrow import batch_schema
from cordwood.lsn import ESN_MAX
from cordwood.spark.splitting import Slice

if TYPE_CHECKING:
    import pyarrow as pa


def with_gap_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of records, with the three columns that tell them from gaps."""
    import pyarrow as pa

    rows = batch.num_rows
    more = [
        pa.repeat(pa.scalar("record", pa.string()), rows),
        pa.nulls(rows, pa.string()),
        pa.nulls(rows, pa.int64()),
    ]
    schema = _with_gap_fields(batch.schema)
    return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema)


def gap_row(read: Slice, gap: Gap, columns: Sequence[str]) -> pa.RecordBatch:
    """One row for a gap; `columns` as `layout.arrow.batch_schema` takes them."""
    import pyarrow as pa

    known = {
        "log": read.name,
        "log_id": read.log_id,
        "lsn": int(gap.first),
        "epoch": gap.first >> 32,
        "offset": gap.first & ESN_MAX,
    }
    schema = batch_schema(columns)
    cells = [pa.array([known.get(field.name)], field.type) for field in schema]
    told = [pa.array(["gap"]), pa.array([gap.kind.value]), pa.array([int(gap.last)], pa.int64())]
    return pa.RecordBatch.from_arrays([*cells, *told], schema=_with_gap_fields(schema))


def _with_gap_fields(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    more = [("record_type", pa.string()), ("gap_type", pa.string()), ("gap_end_lsn", pa.int64())]
    return pa.schema([*schema, *(pa.field(name, type_) for name, type_ in more)])
