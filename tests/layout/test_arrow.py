"""Arrow batches: equal to the records, made of the body's own bytes, in Spark's schema."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.block import BlockHeader, Buffer, Codec
from cordwood.errors import BadSetting
from cordwood.layout.arrow import (
    COLUMNS,
    COLUMNS_ON_REQUEST,
    batch_schema,
    body_to_batch,
    records_to_batch,
)
from cordwood.layout.body import Body, encode_body, open_body, seal_body
from cordwood.lsn import EPOCH_MAX, ESN_ISSUED_MAX, make_lsn

EVERY = COLUMNS + COLUMNS_ON_REQUEST
LOG = 2**62 - 1
NAME = "/orders/é"


def block_of(
    raw: bytes, count: int, *, first: int | None = None, codec: Codec = Codec.NONE, shift: int = 0
) -> tuple[BlockHeader, Body]:
    """Seal a body and open it again, `shift` bytes off from where bytes objects start."""
    stored, stored_crc, raw_crc = seal_body(raw, codec)
    header = BlockHeader(
        log=LOG,
        first=make_lsn(EPOCH_MAX, 7) if first is None else first,
        count=count,
        append_time_us=1_700_000_000_000_001,
        codec=codec,
        stored_bytes=len(stored),
        raw_bytes=len(raw),
        stored_crc=stored_crc,
        raw_crc=raw_crc,
    )
    return header, open_body(header, memoryview(bytes(shift) + stored)[shift:])


def body_of(count: int, shift: int = 0) -> tuple[BlockHeader, Body]:
    """Make a block that has every column, with nulls in each that can have them."""
    raw = encode_body(
        [b"v%d" % i for i in range(count)],
        timestamps_us=range(1000, 1000 + count),
        keys=[None if i % 3 == 1 else b"k%d" % i for i in range(count)],
        headers=[[(f"é{j}", None if j == 1 else b"h") for j in range(i % 3)] for i in range(count)],
    )
    return block_of(raw, count, shift=shift)


def address_of(view: Buffer) -> int:
    address: int = pa.py_buffer(view).address
    return address


def lies_in(buffer: pa.Buffer, body: Body) -> bool:
    """Say whether a buffer is a part of the body, and no copy of it."""
    start = address_of(body.raw)
    inside: bool = start <= buffer.address <= buffer.address + buffer.size <= start + len(body.raw)
    return inside


times = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
rows = st.tuples(
    st.binary(max_size=9),
    st.none() | st.binary(max_size=4),
    times,
    st.lists(st.tuples(names, st.none() | st.binary(max_size=3)), max_size=2),
)


@given(
    st.lists(rows, min_size=1, max_size=40),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.sampled_from(Codec),
    st.integers(0, 7),
    st.data(),
)
def test_batch_equals_records(
    table: Sequence[tuple[bytes, bytes | None, int, list[tuple[str, bytes | None]]]],
    present: tuple[bool, bool, bool],
    codec: Codec,
    shift: int,
    data: st.DataObject,
) -> None:
    values, keys, stamps, headers = zip(*table, strict=True)
    raw = encode_body(
        values,
        timestamps_us=stamps if present[0] else stamps[0],
        keys=keys if present[1] else None,
        headers=headers if present[2] else None,
    )
    header, body = block_of(raw, len(table), codec=codec, shift=shift)
    start = data.draw(st.integers(0, len(table)))
    stop = data.draw(st.integers(start, len(table)))
    batch = body_to_batch(header, body, NAME, start=start, stop=stop, columns=EVERY)
    batch.validate(full=True)
    records = body.records(header.first, header.append_time_us, start, stop)
    assert batch.equals(records_to_batch(LOG, NAME, records, columns=EVERY))


def test_whole_batch_cell_by_cell() -> None:
    header, body = body_of(3)
    batch = body_to_batch(header, body, NAME, columns=EVERY)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1000, 1001, 1002]
    appended = batch.column("append_time").cast(pa.int64())
    assert appended.to_pylist() == [header.append_time_us] * 3
    assert batch.drop_columns(["timestamp", "append_time"]).to_pydict() == {
        "key": [b"k0", None, b"k2"],
        "value": [b"v0", b"v1", b"v2"],
        "log": [NAME] * 3,
        "log_id": [LOG] * 3,
        "lsn": [int(header.first) + i for i in range(3)],
        "epoch": [EPOCH_MAX] * 3,
        "offset": [7, 8, 9],
        "headers": [
            None,
            [{"key": "é0", "value": b"h"}],
            [{"key": "é0", "value": b"h"}, {"key": "é1", "value": None}],
        ],
    }


def test_highest_esns_do_not_wrap() -> None:
    raw = encode_body([b"", b""], timestamps_us=5)
    header, body = block_of(raw, 2, first=make_lsn(EPOCH_MAX, ESN_ISSUED_MAX - 1))
    batch = body_to_batch(header, body, NAME)
    assert batch.column("offset").to_pylist() == [ESN_ISSUED_MAX - 1, ESN_ISSUED_MAX]
    assert batch.column("lsn").to_pylist() == [header.first, header.first + 1]


def test_columns_that_the_body_has_are_not_copied() -> None:
    header, body = body_of(100)
    assert address_of(body.raw) % 8 == 0
    batch = body_to_batch(header, body, NAME, start=10, stop=90, columns=EVERY)
    for name in ("value", "key", "timestamp"):
        buffers = batch.column(name).buffers()
        assert any(buffers)
        assert all(lies_in(buffer, body) for buffer in buffers if buffer is not None), name
    made, *given_ = batch.column("headers").buffers()  # which records have any is made
    assert not lies_in(made, body)
    assert sum(buffer is not None for buffer in given_) == 6
    assert all(lies_in(buffer, body) for buffer in given_ if buffer is not None)


def test_crooked_body_has_its_integers_copied_and_nothing_else() -> None:
    header, body = body_of(100, shift=1)
    assert address_of(body.raw) % 8 == 1
    batch = body_to_batch(header, body, NAME)
    _, offsets, data = batch.column("value").buffers()
    assert lies_in(data, body)
    validity, key_offsets, key_data = batch.column("key").buffers()
    assert lies_in(validity, body)
    assert lies_in(key_data, body)
    for copied in (offsets, key_offsets, batch.column("timestamp").buffers()[1]):
        assert not lies_in(copied, body)
        assert copied.address % 8 == 0


def test_batch_keeps_the_body_alive() -> None:
    header, body = body_of(100)
    batch = body_to_batch(header, body, NAME)
    del body
    assert batch.column("value").to_pylist() == [b"v%d" % i for i in range(100)]


def test_columns_come_as_asked_for() -> None:
    header, body = body_of(4)
    batch = body_to_batch(header, body, NAME, columns=["lsn", "key"])
    assert batch.schema.names == ["lsn", "key"]
    assert batch.schema == batch_schema(["lsn", "key"])
    assert body_to_batch(header, body, NAME).schema.names == list(COLUMNS)
    with pytest.raises(BadSetting, match="no column 'partition'; columns are key, value"):
        body_to_batch(header, body, NAME, columns=["lsn", "partition"])
    with pytest.raises(BadSetting, match="no column 'partition'"):
        records_to_batch(LOG, NAME, [], columns=["partition"])


def test_no_record_is_an_empty_batch() -> None:
    header, body = body_of(4)
    batch = body_to_batch(header, body, NAME, start=4, columns=EVERY)
    assert batch.num_rows == 0
    assert batch.equals(records_to_batch(LOG, NAME, [], columns=EVERY))


def test_every_field_is_nullable_as_spark_has_it() -> None:
    sql = pytest.importorskip("pyspark.sql.types")
    to_arrow_schema = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    header = sql.StructType([sql.StructField("key", sql.StringType()),
                             sql.StructField("value", sql.BinaryType())])  # fmt: skip
    kinds = {
        "key": sql.BinaryType(),
        "value": sql.BinaryType(),
        "log": sql.StringType(),
        "log_id": sql.LongType(),
        "lsn": sql.LongType(),
        "epoch": sql.IntegerType(),
        "offset": sql.LongType(),
        "timestamp": sql.TimestampType(),
        "headers": sql.ArrayType(header),
        "append_time": sql.TimestampType(),
    }
    schema = sql.StructType([sql.StructField(name, kind) for name, kind in kinds.items()])
    assert batch_schema(EVERY).equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)


def test_pyarrow_is_loaded_only_when_a_batch_is_made() -> None:
    code = "import sys, cordwood.layout.arrow; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
