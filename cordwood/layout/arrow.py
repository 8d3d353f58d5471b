"""A block's body as an Arrow batch, without touching records one by one.

Payloads, keys, offsets, timestamps and headers are the body's own bytes: the batch holds views of
them and keeps the body alive, so no code may write again to the buffer from which the body was
opened. Only columns that a body does not hold for each record (log, LSN, a common timestamp) are
made here, in bulk. Arrow reads integers at multiples of their size; if the columns of a body start
elsewhere, its integer columns are copied, and its columns of bytes are not.

Columns, in the default order::

    key        binary             null for no key
    value      binary
    log        string             not a dictionary: Spark takes plain strings only
    log_id     int64
    lsn        int64
    epoch      int32
    offset     int64              the esn, so that a Kafka job finds what it expects
    timestamp  timestamp[us, UTC] the record's own
    headers    list<element: struct<key: string, value: binary>>   on request; null for
                                  none, as Spark's Kafka source has it
    append_time timestamp[us, UTC]   on request; the sequencer's

Every field is nullable, even if it holds no null: Spark demands the same nullability as in its own
schema, and fields there are nullable by default.

pyarrow is imported inside functions, so that only readers that ask for batches load it.

Source: docs/design.md §2; docs/sources/spark.md §2 trap 8, §6; Spark's KafkaRecordToRowConverter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cordwood.block import BlockHeader, Record
from cordwood.errors import BadSetting
from cordwood.layout.batch_columns import COLUMNS as COLUMNS
from cordwood.layout.batch_columns import COLUMNS_ON_REQUEST as COLUMNS_ON_REQUEST
from cordwood.layout.body import Body
from cordwood.layout.columns import BytesColumn
from cordwood.lsn import ESN_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEMAS_KEPT = 64
"""Schemas cost 20 µs to build; a process asks for a handful of different ones."""


def batch_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of a batch with these columns, in this order.

    Raises:
        BadSetting: a name is in neither COLUMNS nor COLUMNS_ON_REQUEST.
    """
    return _schema_of(tuple(columns))


@lru_cache(maxsize=_SCHEMAS_KEPT)
def _schema_of(columns: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    time = pa.timestamp("us", tz="UTC")
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "log": pa.string(),
        "log_id": pa.int64(),
        "lsn": pa.int64(),
        "epoch": pa.int32(),
        "offset": pa.int64(),
        "timestamp": time,
        "headers": pa.list_(pa.field("element", header)),
        "append_time": time,
    }
    unknown = [name for name in columns if name not in types]
    if unknown:
        raise BadSetting(f"no column {unknown[0]!r}; columns are {', '.join(types)}")
    return pa.schema([pa.field(name, types[name]) for name in columns])


def body_to_batch(
    header: BlockHeader,
    body: Body,
    log_name: str,
    *,
    start: int = 0,
    stop: int | None = None,
    columns: Sequence[str] = COLUMNS,
) -> pa.RecordBatch:
    """Make a batch of the records `[start, stop)` of a block.

    Args:
        body: the result of `open_body` for `header`.
        log_name: the value of the column `log`.
        columns: names of COLUMNS and COLUMNS_ON_REQUEST, in the wanted order. Columns left out cost
            nothing.
    Raises:
        BadSetting: a column is not known.
    """
    import pyarrow as pa

    if stop is None:
        stop = body.count
    assert 0 <= start <= stop <= body.count, f"[{start}, {stop}) of {body.count} records"
    schema = batch_schema(columns)
    block = _Rows(header, body, log_name, start, stop)
    arrays = [block.column(field.name, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def records_to_batch(
    log: int, log_name: str, records: Sequence[Record], *, columns: Sequence[str] = COLUMNS
) -> pa.RecordBatch:
    """Make one batch of records of one log, from any number of blocks.

    It is for runs of small blocks. `body_to_batch` takes some 27 µs for each block, even for a
    block with few records. This function takes 0.4 µs for each record, and `Body.records` takes 0.4
    µs more. So it is quicker for blocks of less than about 30 records.

    Raises:
        BadSetting: a column is not known.
    """
    import pyarrow as pa

    schema = batch_schema(columns)
    values: dict[str, Callable[[], list[object]]] = {
        "key": lambda: [record.key for record in records],
        "value": lambda: [record.value for record in records],
        "log": lambda: [log_name] * len(records),
        "log_id": lambda: [log] * len(records),
        "lsn": lambda: [int(record.lsn) for record in records],
        "epoch": lambda: [record.lsn >> 32 for record in records],
        "offset": lambda: [record.lsn & ESN_MAX for record in records],
        "timestamp": lambda: [record.timestamp_us for record in records],
        "headers": lambda: [
            [{"key": key, "value": value} for key, value in record.headers] or None
            for record in records
        ],
        "append_time": lambda: [record.append_time_us for record in records],
    }
    arrays = [pa.array(values[field.name](), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Rows:
    """The records `[start, stop)` of a block, column by column."""

    def __init__(
        self, header: BlockHeader, body: Body, log_name: str, start: int, stop: int
    ) -> None:
        self.header = header
        self.body = body
        self.log_name = log_name
        self.start = start
        self.count = stop - start

    def column(self, name: str, type_: pa.DataType) -> pa.Array:
        """Make the column of this name, which `batch_schema` knows."""
        header = self.header
        match name:
            case "key":
                return self._bytes(self.body.keys, type_)
            case "value":
                return self._bytes(self.body.values, type_)
            case "log":
                return self._log(type_)
            case "log_id":
                return self._constant(header.log, type_)
            case "lsn":
                return self._rising(header.first, type_)
            case "epoch":
                return self._constant(header.first >> 32, type_)
            case "offset":
                return self._rising(header.first & ESN_MAX, type_)
            case "timestamp":
                return self._timestamp(type_)
            case "headers":
                return self._headers(type_)
            case _:
                assert name == "append_time", name
                return self._constant(header.append_time_us, type_)

    def _bytes(self, column: BytesColumn | None, type_: pa.DataType) -> pa.Array:
        import pyarrow as pa

        if column is None:
            return pa.nulls(self.count, type_)
        return _bytes_array(column, type_, self.start, self.count)

    def _log(self, type_: pa.DataType) -> pa.Array:
        import pyarrow as pa

        name = self.log_name.encode()
        offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(len(name))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(name * self.count)]
        return pa.Array.from_buffers(type_, self.count, buffers, 0)

    def _constant(self, value: int, type_: pa.DataType) -> pa.Array:
        import pyarrow as pa

        dtype = np.int32 if type_.bit_width == 32 else np.int64
        buffer = pa.py_buffer(np.full(self.count, value, dtype))
        return pa.Array.from_buffers(type_, self.count, [None, buffer], 0)

    def _rising(self, first: int, type_: pa.DataType) -> pa.Array:
        import pyarrow as pa

        first += self.start
        buffer = pa.py_buffer(np.arange(first, first + self.count, dtype=np.int64))
        return pa.Array.from_buffers(type_, self.count, [None, buffer], 0)

    def _timestamp(self, type_: pa.DataType) -> pa.Array:
        import pyarrow as pa

        stamps = self.body.stamps
        if stamps is None:
            return self._constant(self.body.first_timestamp_us, type_)
        buffers = [None, _integers(stamps, 8)]
        return pa.Array.from_buffers(type_, self.count, buffers, 0, self.start)

    def _headers(self, type_: pa.DataType) -> pa.Array:
        import pyarrow as pa

        columns = self.body.header_columns
        if columns is None:
            return pa.nulls(self.count, type_)
        pairs = pa.StructArray.from_arrays(
            [
                _bytes_array(columns.names, pa.string(), 0, columns.names.count),
                _bytes_array(columns.values, pa.binary(), 0, columns.values.count),
            ],
            fields=list(type_.value_type),
        )
        starts = np.frombuffer(columns.starts, "<i4")
        some = np.packbits(starts[:-1] < starts[1:], bitorder="little")
        buffers = [pa.py_buffer(some), _integers(columns.starts, 4)]
        return pa.Array.from_buffers(type_, self.count, buffers, -1, self.start, [pairs])


def _bytes_array(column: BytesColumn, type_: pa.DataType, start: int, count: int) -> pa.Array:
    """Wrap a column's own bytes."""
    import pyarrow as pa

    validity, nulls = None, 0
    if column.validity is not None:
        validity, nulls = pa.py_buffer(column.validity), -1
    buffers = [validity, _integers(column.offsets, 4), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(type_, count, buffers, nulls, start)


def _integers(view: memoryview, width: int) -> pa.Buffer:
    """Wrap integers of `width` bytes, or a copy of them if they do not start at a multiple of
    `width`."""
    import pyarrow as pa

    buffer = pa.py_buffer(view)
    if buffer.address % width:
        # The contents of a bytes object start at a multiple of 16 on 64-bit machines.
        buffer = pa.py_buffer(bytes(view))
    return buffer
