"""The sink: what it takes, what it refuses, and that a partition's rows stay in order."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from collections.abc import Iterator
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
from swaps import swap, swap_value

from cordwood.block import Record
from cordwood.client.aio import open_store
from cordwood.client.blocking.blocking_store import BlockingStore, open_blocking
from cordwood.client.find.log_finding import LogFinding
from cordwood.embedded import embedded_store
from cordwood.errors import (
    BadSetting,
    OutOfSequence,
    RecordTooLarge,
    Rejected,
    StageExpired,
    UnknownLog,
    Unreachable,
)
from cordwood.layout.limits import GROUP_BYTES_MAX
from cordwood.protocol.producers import PLACES_MAX
from cordwood.settings import MIB, ClientSettings
from cordwood.spark import sink as sink_module
from cordwood.spark import sink_rows as sink_rows_module
from cordwood.spark.delivery import publish, publish_in_parts, stage_all
from cordwood.spark.idempotent import OnceAppender, producer_id
from cordwood.spark.options import SERVERS
from cordwood.spark.sink import CordwoodStreamWriter, CordwoodWriter, Written, write_portions
from cordwood.spark.sink_options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    IDEMPOTENT,
    SINK_OPTIONS,
    check_columns,
    parse_sink_options,
)
from cordwood.spark.sink_rows import CUT_BYTES, ROW_BLOCK_BYTES, ROW_BLOCK_RECORDS, row_blocks
from cordwood.spark.source import CordwoodSource

LEAST = {SERVERS: "h:1", "log": "a"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

UTC = datetime.UTC


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingStore]:
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


def write_batches(store: BlockingStore, batches, log):
    """As a task that appends."""
    options = parse_sink_options({**LEAST, "log": log, "deliveryMode": AT_LEAST_ONCE})
    return write_portions(store, row_blocks(batches, options.log), options, "q", 0, 0)


class TestWriting:
    def test_rows_keep_their_order_over_many_batches(self, store: BlockingStore):
        batches = [
            batch(value=pa.array([b"%d" % n for n in range(at, at + 700)]))
            for at in range(0, 21_000, 700)
        ]
        written = write_batches(store, iter(batches), "/a")
        assert written.records == 21_000
        assert [int(each.value) for each in records(store, "/a")] == list(range(21_000))
        assert written.bytes == sum(len(each.value) for each in records(store, "/a"))

    def test_all_that_a_record_has(self, store: BlockingStore):
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

    def test_a_column_says_which_log(self, store: BlockingStore):
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

    def test_a_null_value_is_no_record(self, store: BlockingStore):
        with pytest.raises(BadSetting, match="value is null"):
            write_batches(store, iter([batch(value=pa.array([b"x", None]))]), "/a")

    def test_a_failure_is_told(self, store: BlockingStore):
        rows = batch(value=pa.array([b"x", bytes(8 * MIB)]))
        with pytest.raises(RecordTooLarge):
            write_batches(store, iter([rows]), "/a")

    def test_nothing_is_fine(self, store: BlockingStore):
        assert write_batches(store, iter([]), "/a").records == 0


def numbered(first: int, stop: int) -> list[pa.RecordBatch]:
    """Rows in batches of 700."""
    return [
        batch(value=pa.array([b"%d" % n for n in range(at, min(at + 700, stop))]))
        for at in range(first, stop, 700)
    ]


def values(store: BlockingStore, log: str) -> list[int]:
    return [int(each.value) for each in records(store, log)]


class TestPortions:
    def test_rows_are_gathered_and_keep_their_order(self):
        found = list(row_blocks(iter(numbered(0, 40_000)), "/a"))
        assert [value for each in found for value in each.values] == [
            b"%d" % n for n in range(40_000)
        ]
        assert len(found) == 3
        assert all(len(each.values) >= ROW_BLOCK_RECORDS for each in found[:-1])

    def test_a_column_that_comes_late_is_null_before(self):
        rows = [batch(value=pa.array([b"1"])), batch(value=pa.array([b"2"]), key=pa.array([b"k"]))]
        (found,) = row_blocks(iter(rows), "/a")
        assert (found.values, found.keys) == ([b"1", b"2"], [None, b"k"])

    def test_many_logs_do_not_fill_the_memory(self, monkeypatch: pytest.MonkeyPatch):
        swap_value(monkeypatch, lambda: sink_rows_module.HELD_BYTES, 1000)
        rows = batch(
            value=pa.array([b"x" * 100] * 50), log=pa.array([f"/l{n % 25}" for n in range(50)])
        )
        found = list(row_blocks(iter([rows, rows]), ""))
        assert sum(len(each.values) for each in found) == 100
        assert len(found) > 25

    @pytest.mark.parametrize("column", ["value", "key", "headers"])
    def test_large_rows_fit_into_an_atomic_group(self, column: str):
        """Only values counted, and no batch of Arrow was cut by its bytes. A task of
        deliveryMode=idempotent appends a row block as one group, and was refused each time."""
        count, large = 9000, b"x" * 8000
        columns = {"value": pa.array([b"%d" % n for n in range(count)])}
        match column:
            case "value":
                columns["value"] = pa.array([b"%d" % n + large for n in range(count)])
            case "key":
                columns["key"] = pa.array([large] * count)
            case _:
                pair = [{"key": "h", "value": large}]
                columns["headers"] = pa.array([pair] * count, HEADERS)
        found = list(row_blocks(iter([batch(**columns)]), "/a"))
        assert [int(v.rstrip(b"x")) for each in found for v in each.values] == list(range(count))
        assert count * len(large) > GROUP_BYTES_MAX
        assert max(each.held for each in found) <= CUT_BYTES + ROW_BLOCK_BYTES

    def test_keys_of_many_logs_do_not_fill_the_memory(self, monkeypatch: pytest.MonkeyPatch):
        swap_value(monkeypatch, lambda: sink_rows_module.HELD_BYTES, 1000)
        rows = batch(
            value=pa.array([b""] * 50),
            key=pa.array([b"x" * 100] * 50),
            log=pa.array([f"/l{n % 25}" for n in range(50)]),
        )
        found = list(row_blocks(iter([rows, rows]), ""))
        assert sum(len(each.values) for each in found) == 100
        assert len(found) > 25


class TestOnce:
    """What two attempts of a task, or two runs of a batch, leave in the log."""

    def test_staged_rows_are_there_when_they_are_published_and_once(self, store: BlockingStore):
        for attempt in range(2):
            refs, count, _ = stage_all(store, row_blocks(iter(numbered(0, 20_000)), "/a"), 60.0)
            assert count == 20_000
            if not attempt:
                assert "/a" not in {log.name for log in store.logs()} or not values(store, "/a")
            publish(store, "q", 3, refs)
        assert values(store, "/a") == list(range(20_000))

    def test_an_attempt_of_other_partitions_changes_nothing(self, store: BlockingStore):
        once, _, _ = stage_all(store, row_blocks(iter(numbered(0, 900)), "/a"), 60.0)
        publish(store, "q", 0, once)
        again, _, _ = stage_all(store, row_blocks(iter(numbered(100, 900)), "/a"), 60.0)
        assert publish(store, "q", 0, again).is_repeat
        assert values(store, "/a") == list(range(900))

    def test_a_producers_rows_are_there_once_though_the_log_forgot_where(
        self, store: BlockingStore
    ):
        """A task of more row blocks than the log remembers, and a first try that died half-way."""
        rows = numbered(0, 7 * ROW_BLOCK_RECORDS)
        cut = list(row_blocks(iter(rows), "/a"))
        assert len(cut) > PLACES_MAX + 1
        OnceAppender(store, "q", 0, 1).append(cut[:-1])
        for _ in range(2):
            OnceAppender(store, "q", 0, 1).append(row_blocks(iter(rows), "/a"))
        assert values(store, "/a") == list(range(7 * ROW_BLOCK_RECORDS))
        OnceAppender(store, "q", 1, 1).append(row_blocks(iter(numbered(0, 10)), "/a"))
        assert values(store, "/a")[-10:] == list(range(10))

    @pytest.mark.parametrize("done", [1, 2, 3])
    def test_a_try_whose_rows_come_in_other_batches_stores_each_once(
        self, store: BlockingStore, done: int
    ):
        """Arrow's batches may be cut in another way, and so are row blocks."""

        def cut(size: int) -> list[pa.RecordBatch]:
            every = [b"%d" % n for n in range(40_000)]
            return [batch(value=pa.array(every[at : at + size])) for at in range(0, 40_000, size)]

        first = list(row_blocks(iter(cut(10_000)), "/a"))
        OnceAppender(store, "q", 0, 1).append(first[:done])
        for size in (8_192, 10_000, 40_000):
            OnceAppender(store, "q", 0, 1).append(row_blocks(iter(cut(size)), "/a"))
        assert values(store, "/a") == list(range(40_000))

    def test_a_log_spelled_in_two_ways_is_one_sequence(self, store: BlockingStore):
        rows = batch(
            value=pa.array([b"%d" % n for n in range(200)]),
            log=pa.array([("four", "/four", None)[n % 3] for n in range(200)]),
        )
        for _ in range(2):
            OnceAppender(store, "q", 0, 1).append(row_blocks(iter([rows, rows]), "/four"))
        assert values(store, "/four") == [*range(200)] * 2

    def test_rows_before_which_some_are_missing_are_not_taken_for_stored(
        self, store: BlockingStore
    ):
        (block,) = row_blocks(iter(numbered(0, 10)), "/a")
        OnceAppender(store, "q", 0, 1).append([block])
        ahead = OnceAppender(store, "q", 0, 1)
        ahead._next["/a"] = 50
        ahead._begin_anew()
        with pytest.raises(OutOfSequence):
            ahead.append([block])
        assert values(store, "/a") == list(range(10))

    def test_a_name_that_is_given_to_another_log_within_a_task(self, store: BlockingStore):
        """The other log took the second block for its first, and the next attempt's first
        block for a repeat of it."""
        store.append("/new", b"100")

        def cut():
            for at in (0, 10):
                yield from row_blocks(iter(numbered(at, at + 10)), "/a")

        def moving(task):
            first, second = cut()
            yield first
            task._settle()
            store.log_tree.rename("/a", "/old")
            store.log_tree.rename("/new", "/a")
            yield second

        task = OnceAppender(store, "q", 0, 1, "/a")
        with pytest.raises(Rejected, match="Run the batch again"):
            task.append(moving(task))
        for _ in range(2):
            OnceAppender(store, "q", 0, 1, "/a").append(cut())
        assert values(store, "/old") == list(range(10))
        assert values(store, "/a") == [100, *range(20)]

    def test_names_that_change_logs_between_two_attempts(self, store: BlockingStore):
        """Rows for one log were taken for those of the other, and were nowhere."""
        cut = [
            next(row_blocks(iter(numbered(at, at + 10)), log))
            for at, log in ((0, "/a"), (10, "/b"), (20, "/c"))
        ]
        store.append("/b", b"100")
        OnceAppender(store, "q", 0, 1, "/c").append([cut[0], cut[2]])
        for was, becomes in (("/a", "/d"), ("/b", "/a"), ("/d", "/b"), ("/c", "/e")):
            store.log_tree.rename(was, becomes)
        OnceAppender(store, "q", 0, 1, "/c").append(cut[:2])
        assert values(store, "/a") == [100, *range(10)]
        assert values(store, "/b") == [*range(10), *range(10, 20)]
        (renamed,) = row_blocks(iter(numbered(20, 30)), "/e")
        OnceAppender(store, "q", 0, 1, "/e").append([renamed])
        assert values(store, "/e") == list(range(20, 30)), "the one log of a query, renamed"

    def test_more_partitions_than_a_log_tells_apart_are_refused(self, store: BlockingStore):
        with pytest.raises(BadSetting, match=r"up to 1000 partitions.*coalesce"):
            OnceAppender(store, "q", 0, 1000)

    def test_each_partition_and_query_is_a_producer_of_its_own(self):
        found = {producer_id(query, part) for query in ("a", "b") for part in range(100)}
        assert len(found) == 200
        assert min(found) >= 1

    def test_a_write_that_nobody_runs_again_is_published_in_parts(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """It is so where it is more than one group holds; order is kept."""
        refs = [
            stage_all(store, row_blocks(iter(numbered(at, at + 100)), "/a"), 60.0)[0][0]
            for at in range(0, 1000, 100)
        ]
        whole = BlockingStore.publish

        def narrow(self, query, batch, refs, *more, **how):
            if len(refs) > 3:
                raise RecordTooLarge("4 blocks; it has at most 3")
            return whole(self, query, batch, refs, *more, **how)

        swap(monkeypatch, BlockingStore.publish, narrow, within=BlockingStore)
        publish_in_parts(store, "w", refs)
        assert values(store, "/a") == list(range(1000))

    def test_a_batch_that_is_too_large_says_what_to_do(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        def narrow(self, *_, **__):
            raise RecordTooLarge("a batch of 5000 staged blocks; it has at most 4000")

        swap(monkeypatch, BlockingStore.publish, narrow, within=BlockingStore)
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        writer = CordwoodWriter(parse_sink_options({**LEAST, "txnAppId": "x", "txnVersion": "1"}))
        message = writer.write(iter(numbered(0, 10)))
        with pytest.raises(RecordTooLarge, match=r"several versions.*coalesce"):
            writer.commit([message])
        stream = CordwoodStreamWriter(parse_sink_options(LEAST))
        with pytest.raises(RecordTooLarge, match=r"idempotent.*coalesce.*maxBytesPerTrigger"):
            stream.commit([Written("q", 0, 0, (), 0, 0)], 0)

    def test_a_version_that_was_written_is_skipped(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        for version, rows in (("1", (0, 5)), ("1", (5, 9)), ("0", (5, 9)), ("2", (5, 7))):
            asked = {**LEAST, "txnAppId": "nightly", "txnVersion": version}
            writer = CordwoodWriter(parse_sink_options(asked))
            writer.commit([writer.write(iter(numbered(*rows)))])
        assert values(store, "/a") == list(range(7))

    def test_a_version_is_each_logs_own(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """As in Delta's foreachBatch, which writes one version into two tables."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        for log in ("good", "bad", "/good"):
            asked = {**LEAST, "log": log, "txnAppId": "app", "txnVersion": "7"}
            writer = CordwoodWriter(parse_sink_options(asked))
            writer.commit([writer.write(iter(numbered(0, 10)))])
        assert values(store, "/good") == values(store, "/bad") == list(range(10))

    def test_a_version_is_not_skipped_for_other_logs_of_the_column(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        asked = {SERVERS: "h:1", "txnAppId": "app", "txnVersion": "7"}

        def write(log: str) -> None:
            rows = batch(value=pa.array([b"1"]), log=pa.array([log]))
            writer = CordwoodWriter(parse_sink_options(asked))
            writer.commit([writer.write(iter([rows]))])

        write("one")
        write("/one")
        with pytest.raises(BadSetting, match=r"written into /one.*for /two.*txnAppId of its own"):
            write("/two")
        assert values(store, "/one") == [1]

    def test_a_version_goes_into_a_log_that_was_made_again(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        for _ in range(2):
            store.create_log("/a")
            writer = CordwoodWriter(
                parse_sink_options({**LEAST, "txnAppId": "app", "txnVersion": "7"})
            )
            writer.commit([writer.write(iter(numbered(0, 10)))])
            assert values(store, "/a") == list(range(10))
            store.log_tree.delete("/a")

    def test_a_version_goes_into_the_log_that_it_was_staged_for(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """The log is renamed between the tasks and the commit, and another one gets its name."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        for log in ("/a", "/b"):
            store.create_log(log)

        def write(version: str, log: str, rows: tuple[int, int], *renames: tuple[str, str]) -> None:
            asked = {**LEAST, "log": log, "txnAppId": "app", "txnVersion": version}
            writer = CordwoodWriter(parse_sink_options(asked))
            message = writer.write(iter(numbered(*rows)))
            for was, becomes in renames:
                store.log_tree.rename(was, becomes)
            writer.commit([message])

        write("1", "/a", (0, 5), ("/a", "/c"))
        write("2", "/c", (5, 9), ("/c", "/d"), ("/b", "/c"))
        assert values(store, "/d") == list(range(9))
        write("2", "/c", (0, 3))
        assert values(store, "/c") == list(range(3)), "this log has no version 2 yet"
        write("2", "/c", (0, 3))
        assert values(store, "/c") == list(range(3))

    def test_a_version_of_a_log_that_was_renamed_since_is_refused_with_the_right_advice(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """The error asked for another txnAppId alone: with it the rows were there twice."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)

        def write(log: str) -> None:
            asked = {**LEAST, "log": log, "txnAppId": "app", "txnVersion": "1"}
            writer = CordwoodWriter(parse_sink_options(asked))
            writer.commit([writer.write(iter(numbered(0, 5)))])

        write("/a")
        store.log_tree.rename("/a", "/c")
        with pytest.raises(BadSetting, match=r"written into /a, .* /c.*renamed.*do not write it"):
            write("/c")
        assert values(store, "/c") == list(range(5))

    def test_a_version_that_a_name_scattered_over_two_logs_is_refused(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """It was not there on the driver, so that each task made it or found it."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        store.create_log("/b")
        asked = parse_sink_options({**LEAST, "log": "/a", "txnAppId": "app", "txnVersion": "1"})
        writer = CordwoodWriter(asked)
        messages = [writer.write(iter(numbered(0, 5)))]
        store.log_tree.rename("/a", "/c")
        store.log_tree.rename("/b", "/a")
        messages.append(writer.write(iter(numbered(5, 9))))
        with pytest.raises(Rejected, match=r"/a led to log \d+ and to log \d+ .* nothing .*again"):
            writer.commit(messages)
        assert values(store, "/a") == values(store, "/c") == []
        again = CordwoodWriter(asked)
        again.commit([again.write(iter(numbered(0, 9)))])
        assert values(store, "/a") == list(range(9))

    def test_a_version_of_a_log_that_took_the_name_after_the_driver_looked(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """It has that version, so that the rows counted as its repeat, and were nowhere."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        asked = parse_sink_options({**LEAST, "log": "/a", "txnAppId": "app", "txnVersion": "1"})
        first = CordwoodWriter(asked)
        first.commit([first.write(iter(numbered(0, 5)))])
        store.log_tree.rename("/a", "/c")
        writer = CordwoodWriter(asked)
        store.log_tree.rename("/c", "/a")
        with pytest.raises(Rejected, match=r"/a was not there .* nothing was written"):
            writer.commit([writer.write(iter(numbered(5, 9)))])
        assert values(store, "/a") == list(range(5))

    @pytest.mark.parametrize(
        ("mode", "version"),
        [(EXACTLY_ONCE, "1"), (EXACTLY_ONCE, None), (IDEMPOTENT, None), (AT_LEAST_ONCE, None)],
    )
    def test_rows_go_to_the_log_that_the_driver_found_though_tasks_remember_another(
        self,
        store: BlockingStore,
        monkeypatch: pytest.MonkeyPatch,
        mode: str,
        version: str | None,
    ):
        """The log was renamed and made again just before the write. Clients of tasks remembered
        the old log: a version that it had was lost, and other rows went into it."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        app = {} if version is None else {"txnAppId": "app", "txnVersion": version}
        asked = parse_sink_options({**LEAST, "deliveryMode": mode, **app})

        def write(first: int, stop: int) -> None:
            writer = CordwoodWriter(asked)
            rows = batch(
                value=pa.array([b"%d" % n for n in range(first, stop)]),
                log=pa.array([(None, "a", "/a")[n % 3] for n in range(first, stop)]),
            )
            with monkeypatch.context() as here:
                if is_stale:
                    swap(here, LogFinding.find_log, stale, within=LogFinding)
                message = writer.write(iter([rows]))
            writer.commit([message])

        finding, is_stale = LogFinding.find_log, False

        async def stale(self, log, **how):
            """As a client finds it that remembers the name."""
            return await finding(self, "/old" if log == "/a" else log, **how)

        write(0, 9)
        store.log_tree.rename("/a", "/old")
        store.create_log("/a")
        is_stale = True
        write(9, 18)
        assert values(store, "/old") == list(range(9))
        assert values(store, "/a") == list(range(9, 18))

    def test_rows_go_by_the_number_that_is_given(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        number = store.create_log("/a").log_id
        asked = parse_sink_options({**LEAST, "logId": str(number)})
        store.log_tree.rename("/a", "/c")
        store.create_log("/a")
        for make in (CordwoodWriter, CordwoodStreamWriter):
            written = make(asked)._write(iter(numbered(0, 5)), "q", 0)
            assert {ref.log_id for ref in written.refs} == {number}
            publish(store, "q", int(make is CordwoodStreamWriter), written.refs)
        assert values(store, "/c") == [*range(5)] * 2
        store.log_tree.delete("/c")
        with pytest.raises(UnknownLog, match=f"log number {number} was deleted"):
            CordwoodWriter(asked)._write(iter(numbered(0, 5)), "q", 0)
        assert values(store, "/a") == []
        with pytest.raises(BadSetting, match="logId is the number of the log of the option log"):
            parse_sink_options({SERVERS: "h:1", "logId": "7"})

    def test_a_version_needs_the_log_by_which_it_is_counted(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        """All rows name other logs: they were staged, and never published."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        asked = {**LEAST, "log": "/default", "txnAppId": "app", "txnVersion": "7"}

        def write() -> None:
            rows = batch(value=pa.array([b"1", b"2"]), log=pa.array(["/b", "/b"]))
            writer = CordwoodWriter(parse_sink_options(asked))
            writer.commit([writer.write(iter([rows]))])

        with pytest.raises(UnknownLog, match=r"no log /default.*nothing was written"):
            write()
        assert values(store, "/b") == []
        store.create_log("/default")
        for _ in range(2):
            write()
        assert values(store, "/b") == [1, 2]

    def test_a_batch_that_was_planned_anew_is_no_repeat(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        """A power cut took offsets/1: Spark plans batch 1 anew, with a later end."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        offsets = tmp_path / "checkpoint" / "offsets"
        offsets.mkdir(parents=True)
        (offsets.parent / "metadata").write_text('{"id": "q"}')
        asked = {**LEAST, "checkpointLocation": offsets.parent.as_uri()}

        def commit(number: int, first: int, stop: int, planned_at: int) -> None:
            plan = f'v1\n{{"batchTimestampMs":{planned_at}}}\n{{"logs":{{"1":{stop}}}}}'
            (offsets / str(number)).write_text(plan)
            (offsets / str(number + 1)).unlink(missing_ok=True)
            writer = CordwoodStreamWriter(parse_sink_options(asked))
            refs, *_ = stage_all(store, row_blocks(iter(numbered(first, stop)), "/a"), 60.0)
            message = Written("q", number, 0, tuple(refs), 0, 0, begun=writer.begun)
            writer.commit([message], number)

        commit(0, 0, 10, 1)
        commit(1, 10, 20, 2)
        commit(1, 10, 20, 3)
        with pytest.raises(Rejected, match=r"batch 1 .* other records.*checkpoint"):
            commit(1, 10, 30, 4)
        with pytest.raises(Rejected, match=r"batch 0 .* nothing is remembered.*checkpoint"):
            commit(0, 0, 10, 1)
        commit(2, 20, 30, 5)
        assert values(store, "/a") == list(range(30))

    @pytest.mark.parametrize("now", ["another plan", "no plan", "no checkpoint"])
    def test_a_batch_that_another_driver_planned_anew_since_is_refused(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, now: str
    ):
        """Its rows were published with the digest of the other plan, whose rows were lost."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        checkpoint = tmp_path / "checkpoint"
        plan = checkpoint / "offsets" / "0"
        plan.parent.mkdir(parents=True)
        (checkpoint / "metadata").write_text('{"id": "anew"}')
        plan.write_text('v1\n{}\n{"logs":{"1":10}}')
        asked = {**LEAST, "checkpointLocation": str(checkpoint)}
        writer = CordwoodStreamWriter(parse_sink_options(asked))
        refs, *_ = stage_all(store, row_blocks(iter(numbered(0, 10)), "/anew"), 60.0)
        message = Written("anew", 0, 0, tuple(refs), 0, 0, begun=writer.begun)
        if now == "another plan":
            plan.write_text('v1\n{}\n{"logs":{"1":20}}')
        elif now == "no plan":
            plan.unlink()
        else:
            shutil.rmtree(checkpoint)
        # Spark makes another writer for the commit.
        writer = CordwoodStreamWriter(parse_sink_options(asked))
        with pytest.raises((Rejected, BadSetting), match=r"batch 0"):
            writer.commit([message], 0)
        assert store.published("anew") is None

    def test_tasks_without_one_plan_are_refused(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        """Also tasks of an earlier version, which do not tell theirs."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        (tmp_path / "offsets").mkdir()
        (tmp_path / "metadata").write_text('{"id": "told"}')
        (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logs":{"1":10}}')
        asked = parse_sink_options({**LEAST, "checkpointLocation": str(tmp_path)})
        told = Written("told", 0, 0, (), 0, 0, begun=CordwoodStreamWriter(asked).begun)
        untold = dataclasses.replace(told, partition=1)
        del untold.__dict__["begun"]
        for messages, said in (
            ([untold], "has another plan of batch 0"),
            ([told, untold], "several plans"),
        ):
            with pytest.raises(Rejected, match=said):
                CordwoodStreamWriter(asked).commit(messages, 0)
        assert store.published("told") is None
        CordwoodStreamWriter(asked).commit([told, dataclasses.replace(told, partition=1)], 0)
        assert store.published("told") is not None

    def test_an_abort_releases_blocks_whatever_the_checkpoint_has_by_then(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        """Spark makes a writer for it, and the plan may not be there any more."""
        swap(monkeypatch, sink_module.shared_store, lambda *_: store, within=sink_module)
        (tmp_path / "offsets" / "0").mkdir(parents=True)
        asked = parse_sink_options({**LEAST, "checkpointLocation": str(tmp_path)})
        refs, *_ = stage_all(store, row_blocks(iter(numbered(0, 10)), "/a"), 60.0)
        writer = CordwoodStreamWriter(asked)
        with pytest.raises(BadSetting, match="does not say what batch 0 reads"):
            writer.write(iter(numbered(0, 10)))
        writer.abort([Written("gone", 0, 0, tuple(refs), 0, 0), None], 0)
        with pytest.raises(StageExpired):
            publish(store, "gone", 0, refs)
        with pytest.raises(BadSetting, match="does not say what batch 0 reads"):
            CordwoodStreamWriter(dataclasses.replace(asked, delivery=IDEMPOTENT))

    def test_what_was_aborted_is_not_there_and_what_was_published_stays(
        self, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
    ):
        with monkeypatch.context() as here:
            swap(here, sink_module.shared_store, lambda *_: store, within=sink_module)
            writer = CordwoodWriter(parse_sink_options(LEAST))
            message = writer.write(iter(numbered(0, 5)))
            writer.commit([message])
            writer.abort([message, None])
            other = CordwoodWriter(parse_sink_options(LEAST))
            other.abort([other.write(iter(numbered(5, 9)))])
        assert values(store, "/a") == list(range(5))

        def away(*_):
            raise Unreachable("the cluster is gone, which is why Spark aborts")

        swap(monkeypatch, sink_module.shared_store, away, within=sink_module)
        writer.abort([message])


class TestOptions:
    def test_exactly_once_is_what_there_is_unless_said_otherwise(self):
        assert parse_sink_options(LEAST).delivery == EXACTLY_ONCE
        for mode in (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE):
            assert parse_sink_options({**LEAST, "deliveryMode": mode.upper()}).delivery == mode

    def test_an_application_and_its_versions(self):
        found = parse_sink_options({**LEAST, "txnAppId": "nightly", "txnVersion": "17"})
        assert (found.app, found.version) == ("nightly", 17)
        found.check_batch()
        with pytest.raises(BadSetting, match="txnVersion is for batch writes"):
            found.check_stream()
        for half in ({"txnAppId": "nightly"}, {"txnVersion": "0"}):
            with pytest.raises(BadSetting, match="go together"):
                parse_sink_options({**LEAST, **half}).check_batch()
        parse_sink_options({**LEAST, "txnAppId": "nightly"}).check_stream()
        for mode in (IDEMPOTENT, AT_LEAST_ONCE):
            with pytest.raises(BadSetting, match="are for deliveryMode=exactlyOnce"):
                dataclasses.replace(found, delivery=mode).check_batch()

    def test_what_is_taken(self):
        found = parse_sink_options({**LEAST, "codec": "ZSTD", "checkpointLocation": "x"})
        assert (found.servers, found.log, found.codec) == ("cordwood://h:1", "/a", "zstd")

    def test_what_is_wrong(self):
        with pytest.raises(BadSetting) as raised:
            parse_sink_options({**LEAST, "topic": "a"})
        assert all(name in str(raised.value) for name in SINK_OPTIONS)
        for name, value in (
            (SERVERS, "./data"), ("codec", "gzip"), ("deliveryMode", "maybe"), ("txnAppId", ""),
            ("txnAppId", "x" * 201), ("txnVersion", "-1"), ("txnVersion", "1.5"),
            ("stageTtl", "10"), ("logId", "0"),
        ):  # fmt: skip
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
    def test_what_is_refused(self, fields, log: str, said: str):
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
