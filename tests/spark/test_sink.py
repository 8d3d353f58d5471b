"""The sink: what it takes, what it refuses, and that a partition's rows stay in order."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cordwood.block import Record
from cordwood.client.aio import open_store
from cordwood.client.blocking import BlockingStore, open_blocking
from cordwood.embedded import embedded_store
from cordwood.errors import BadSetting, RecordTooLarge, Rejected
from cordwood.settings import MIB, ClientSettings
from cordwood.spark.options import SERVERS
from cordwood.spark.sink import write_batches
from cordwood.spark.sink_options import (
    SINK_NOT_YET,
    SINK_OPTIONS,
    check_columns,
    parse_sink_options,
)
from cordwood.spark.source import CordwoodSource

LEAST = {SERVERS: "h:1", "log": "a", "deliveryMode": "atLeastOnce"}

UTC = datetime.UTC


@pytest.fixture
def store(tmp_path: Path):
    settings = ClientSettings(timeout_s=10.0)
    with open_blocking(
        lambda: open_store(embedded_store(str(tmp_path), settings, 16 * MIB)), settings
    ) as opened:
        yield opened


def records(store: BlockingStore, log: str) -> list[Record]:
    with store.read(log) as reader:
        return [item for item in reader if isinstance(item, Record)]


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class TestWriting:
    def test_rows_keep_their_order_over_many_batches(self, store):
        batches = [
            batch(value=pa.array([b"%d" % n for n in range(at, at + 700)]))
            for at in range(0, 21_000, 700)
        ]
        written = write_batches(store, iter(batches), "/a")
        assert written.records == 21_000
        assert [int(each.value) for each in records(store, "/a")] == list(range(21_000))
        assert written.bytes == sum(len(each.value) for each in records(store, "/a"))

    def test_all_that_a_record_has(self, store):
        when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        pairs = [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
        rows = batch(
            value=pa.array(["eins", ""]),
            key=pa.array([b"k", None]),
            timestamp=pa.array([when, when], pa.timestamp("us", "UTC")),
            headers=pa.array([pairs, None], header),
            lsn=pa.array([7, 8]),
        )
        write_batches(store, iter([rows]), "/a")
        one, two = records(store, "/a")
        assert (one.value, one.key, one.headers) == (b"eins", b"k", (("h", b"x"), ("n", None)))
        assert (two.value, two.key, two.headers) == (b"", None, ())
        assert one.timestamp_us == two.timestamp_us == int(when.timestamp() * 1_000_000)

    def test_a_column_says_which_log(self, store):
        logs = ["/a", "/b", None, "/a", "/b"]
        rows = batch(value=pa.array([b"%d" % n for n in range(5)]), log=pa.array(logs))
        write_batches(store, iter([rows, rows]), "/c")
        found = {log: [each.value for each in records(store, log)] for log in ("/a", "/b", "/c")}
        assert found == {
            "/a": [b"0", b"3"] * 2,
            "/b": [b"1", b"4"] * 2,
            "/c": [b"2"] * 2,
        }
        with pytest.raises(BadSetting, match="log is null"):
            write_batches(store, iter([rows]), "")

    def test_a_null_value_is_no_record(self, store):
        with pytest.raises(BadSetting, match="value is null"):
            write_batches(store, iter([batch(value=pa.array([b"x", None]))]), "/a")

    def test_a_failure_is_told(self, store):
        rows = batch(value=pa.array([b"x", bytes(8 * MIB)]))
        with pytest.raises(RecordTooLarge):
            write_batches(store, iter([rows]), "/a")

    def test_nothing_is_fine(self, store):
        assert write_batches(store, iter([]), "/a").records == 0


class TestOptions:
    def test_exactly_once_is_refused_and_says_what_there_is(self):
        for mode in ({}, {"deliveryMode": "exactlyOnce"}):
            with pytest.raises(BadSetting, match=r"not built yet.*deliveryMode=atLeastOnce"):
                parse_sink_options({SERVERS: "h:1", "log": "a", **mode})

    def test_what_is_taken(self):
        found = parse_sink_options({**LEAST, "codec": "ZSTD", "checkpointLocation": "x"})
        assert (found.servers, found.log, found.codec) == ("cordwood://h:1", "/a", "zstd")

    def test_what_is_wrong(self):
        with pytest.raises(BadSetting) as raised:
            parse_sink_options({**LEAST, "topic": "a"})
        assert all(name in str(raised.value) for name in SINK_OPTIONS)
        for name in SINK_NOT_YET:
            with pytest.raises(BadSetting, match=f"{name} is not built yet"):
                parse_sink_options({**LEAST, name: "x"})
        for name, value in ((SERVERS, "./data"), ("codec", "gzip"), ("deliveryMode", "maybe")):
            with pytest.raises(BadSetting, match=name):
                parse_sink_options({**LEAST, name: value})


class TestColumns:
    @pytest.mark.parametrize(
        ("fields", "log", "said"),
        [
            ({"key": BinaryType()}, "/a", "no column value"),
            ({"value": LongType()}, "/a", "value is bigint; it is binary or string"),
            ({"value": StringType(), "colour": StringType()}, "/a", "no place for .* colour"),
            ({"value": StringType()}, "", "to which log"),
            ({"value": StringType(), "log": IntegerType()}, "", "log is int"),
        ],
    )  # fmt: skip
    def test_what_is_refused(self, fields, log, said):
        schema = StructType([StructField(name, type_) for name, type_ in fields.items()])
        with pytest.raises(BadSetting, match=said):
            check_columns(schema, log)

    def test_the_sources_own_columns_may_come_along(self):
        headers = ArrayType(
            StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        )
        schema = StructType(
            [
                StructField("value", BinaryType()),
                StructField("log", StringType()),
                StructField("lsn", LongType()),
                StructField("epoch", IntegerType()),
                StructField("timestamp", TimestampType()),
                StructField("headers", headers),
            ]
        )
        check_columns(schema, "")

    def test_a_log_is_not_overwritten(self):
        schema = StructType([StructField("value", BinaryType())])
        source = CordwoodSource(dict(LEAST))
        for make in (source.writer, source.streamWriter):
            with pytest.raises(Rejected, match="cannot be overwritten"):
                make(schema, True)
