"""The stream reader as Spark calls it, on a real cluster, without a JVM: crashes between calls."""

from __future__ import annotations

import gc
import json
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from calls_counted import counted_calls
from live_cluster import LiveCluster
from pyspark.sql.datasource import DataSourceReader, EqualTo, GreaterThanOrEqual
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from swaps import swap_value

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore, connect
from cordwood.errors import AccessDenied, BadSetting, UnknownLog, Unreachable
from cordwood.layout.arrow import COLUMNS
from cordwood.log_attributes import LogAttributes, token_digest
from cordwood.lsn import OLDEST, Lsn, format_lsn, parse_lsn
from cordwood.spark import catalog
from cordwood.spark import group as group_module
from cordwood.spark.offsets import DataLoss
from cordwood.spark.options import READ_TOKENS, SELECTIONS, SERVERS
from cordwood.spark.slice_reader import read_slices
from cordwood.spark.source import (
    EAGER_POLLS,
    POLL_S,
    CordwoodReader,
    CordwoodSource,
    CordwoodStreamReader,
    _collect_rarely,
)
from cordwood.spark.splitting import Slice

pytestmark = pytest.mark.real

ALL = ReadAllAvailable()

IDLE_CALLS_PER_S_MAX = 5


@pytest.fixture
def log() -> str:
    """A name that no other test uses."""
    return f"/t-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def new_reader(cluster: LiveCluster, log: str) -> Callable[..., CordwoodStreamReader]:
    """A reader as a restarted query makes it; options by name."""

    def make(**options: str) -> CordwoodStreamReader:
        if not options.keys() & set(SELECTIONS):
            options["subscribe"] = log
        source = CordwoodSource({SERVERS: cluster.url, **options})
        return source.streamReader(schema=source.schema())

    return make


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from a checkpoint."""
    return json.loads(json.dumps(offset))


def values(reader: CordwoodStreamReader | CordwoodReader, partitions) -> list[bytes]:
    """Read partitions as tasks do."""
    return [
        value
        for partition in partitions
        for batch in reader.read(partition)
        for value in batch["value"].to_pylist()
    ]


def append_time_ms(store: BlockingStore, log: str) -> int:
    """When the last record of a log was appended."""
    tail = store.tail(log)
    with store.read(log, tail, tail) as reader:
        (record,) = reader
    assert isinstance(record, Record)
    return record.append_time_us // 1000


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


class TestBatch0:
    @pytest.mark.slow
    def test_crashes_after_it_was_planned_and_latest_moved(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, numbers(0, 500))
        first = new_reader()
        start = stored(first.initialOffset())
        store.append_many(log, numbers(500, 540))
        end = stored(first.latestOffset(start, ALL))
        store.append_many(log, numbers(540, 570))

        again = new_reader()
        moved = stored(again.initialOffset())
        assert moved != start
        assert values(again, again.partitions(moved, end)) == numbers(500, 540)
        after = stored(again.latestOffset(end, ALL))
        assert values(again, again.partitions(end, after)) == numbers(540, 570)

    def test_crashes_while_it_is_empty(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        """Spark then stores the initial offset itself as the end of batch 0."""
        store.append_many(log, numbers(0, 5))
        first = new_reader()
        start = stored(first.initialOffset())
        assert first.latestOffset(start, ALL) is start
        store.append_many(log, numbers(5, 9))

        again = new_reader()
        assert again.partitions(stored(again.initialOffset()), start) == []
        after = stored(again.latestOffset(start, ALL))
        assert values(again, again.partitions(start, after)) == numbers(5, 9)

    def test_starts_where_it_is_told(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        lsns = store.append_many(log, numbers(0, 5))
        for starts, wanted in (
            ("earliest", numbers(0, 5)),
            (json.dumps({log: str(lsns[2])}), numbers(2, 5)),
            (json.dumps({log[1:]: int(lsns[2])}), numbers(2, 5)),
        ):
            reader = new_reader(startingOffsets=starts)
            start = stored(reader.initialOffset())
            end = stored(reader.latestOffset(start, ALL))
            assert values(reader, reader.partitions(start, end)) == wanted


class TestIdle:
    def test_nothing_new_is_the_very_same_offset(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        reader = new_reader(startingOffsets="earliest")
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
        for _ in range(3):
            assert reader.latestOffset(end, ALL) is end

    def test_polls_wait_for_their_turn(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        reader = new_reader()
        start = stored(reader.initialOffset())
        reader.latestOffset(start, ALL)
        began = time.monotonic()
        polls = 3
        for _ in range(polls):
            reader.latestOffset(start, ALL)
        assert time.monotonic() - began >= polls * POLL_S * 0.99
        assert 1 / POLL_S < IDLE_CALLS_PER_S_MAX

    def test_costs_less_than_five_calls_a_second(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        """Counted, for many logs on all nodes and a pattern that looks for more."""
        for number in range(12):
            store.append(f"{log}/{number}", b"1")
        reader = new_reader(subscribePattern=f"{log}/.*")
        start = stored(reader.initialOffset())
        for _ in range(EAGER_POLLS * 3):
            # So long is it eager; what follows is what it costs by the hour.
            reader._idle_polls += 1
        assert reader.latestOffset(start, ALL) is start
        with counted_calls() as calls:
            began = time.monotonic()
            while time.monotonic() - began < 2.5:
                assert reader.latestOffset(start, ALL) is start
            seconds = time.monotonic() - began
        assert calls["AskReleased"] >= 3
        assert calls.total() / seconds <= IDLE_CALLS_PER_S_MAX, calls

    def test_what_comes_is_seen_at_the_next_poll(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        reader = new_reader()
        start = stored(reader.initialOffset())
        assert reader.latestOffset(start, ALL) is start
        last = store.append(log, b"2")
        end = reader.latestOffset(start, ALL)
        assert end["logs"] == {str(store.log(log).log_id): format_lsn(last + 1)}


class TestLimit:
    def read_all(self, reader: CordwoodStreamReader, limit: int) -> list[list[bytes]]:
        """Batches until nothing is new."""
        batches = []
        start = stored(reader.initialOffset())
        while True:
            end = reader.latestOffset(start, ReadMaxRows(limit))
            if end is start:
                return batches
            batches.append(values(reader, reader.partitions(start, stored(end))))
            start = stored(end)

    def test_is_the_option_and_caps_every_batch(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, numbers(0, 250))
        reader = new_reader(startingOffsets="earliest", maxOffsetsPerTrigger="100")
        assert reader.getDefaultReadLimit() == ReadMaxRows(100)
        batches = self.read_all(reader, 100)
        assert list(map(len, batches)) == [100, 100, 50]
        assert [value for batch in batches for value in batch] == numbers(0, 250)

    def test_is_left_aside_when_spark_asks_for_all(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, numbers(0, 250))
        reader = new_reader(startingOffsets="earliest", maxRecordsPerTrigger="10")
        start = stored(reader.initialOffset())
        end = stored(reader.latestOffset(start, ALL))
        assert values(reader, reader.partitions(start, end)) == numbers(0, 250)

    def test_without_the_option_there_is_none(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        assert new_reader().getDefaultReadLimit() == ALL

    def test_is_shared_by_logs(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(f"{log}/a", numbers(0, 90))
        store.append_many(f"{log}/b", numbers(100, 110))
        reader = new_reader(subscribe=f"{log}/a,{log}/b", startingOffsets="earliest")
        batches = self.read_all(reader, 20)
        assert all(len(batch) <= 20 for batch in batches)
        assert all(any(value < b"2" for value in batch) for batch in batches[:1])
        found = [value for batch in batches for value in batch]
        assert sorted(found, key=int) == numbers(0, 90) + numbers(100, 110)
        assert len(batches) == 5


class TestBytes:
    def test_a_batch_has_about_so_many(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, [bytes(1000)] * 100)
        store.append_many(log, [bytes(10)] * 1000)
        reader = new_reader(startingOffsets="earliest", maxBytesPerTrigger="25k")
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxBytes(25 << 10)
        sizes = []
        start = stored(reader.initialOffset())
        while (end := reader.latestOffset(start, limit)) is not start:
            sizes.append(list(map(len, values(reader, reader.partitions(start, stored(end))))))
            start = stored(end)
        assert sum(map(len, sizes)) == 1100
        assert all(sum(batch) <= 26 << 10 for batch in sizes)
        assert len(sizes) <= 8

    def test_with_a_limit_of_records_both_hold(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, [bytes(1000)] * 100)
        reader = new_reader(
            startingOffsets="earliest", maxBytesPerTrigger="50k", maxRecordsPerTrigger="20"
        )
        start = stored(reader.initialOffset())
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert len(values(reader, reader.partitions(start, stored(end)))) == 20

    def test_a_record_that_is_larger_still_comes(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, [bytes(5000)] * 3)
        reader = new_reader(startingOffsets="earliest", maxBytesPerTrigger="1k")
        start = stored(reader.initialOffset())
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert len(values(reader, reader.partitions(start, stored(end)))) == 1


class TestWaiting:
    def test_few_records_wait_for_more_but_not_too_long(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, numbers(0, 20))
        reader = new_reader(
            startingOffsets="earliest", minOffsetsPerTrigger="15", maxTriggerDelay="700ms"
        )
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMinRows(15)
        start = stored(reader.initialOffset())
        first = stored(reader.latestOffset(start, limit))
        store.append_many(log, numbers(20, 30))
        assert reader.latestOffset(first, limit) is first
        store.append_many(log, numbers(30, 36))
        second = stored(reader.latestOffset(first, limit))
        assert values(reader, reader.partitions(first, second)) == numbers(20, 36)
        store.append(log, b"36")
        began = time.monotonic()
        while (third := reader.latestOffset(second, limit)) is second:
            assert time.monotonic() - began < 5
        assert values(reader, reader.partitions(second, stored(third))) == [b"36"]

    def test_nothing_waits_when_all_there_is_was_asked_for(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        reader = new_reader(startingOffsets="earliest", minOffsetsPerTrigger="15")
        reader.prepareForTriggerAvailableNow()
        start = stored(reader.initialOffset())
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) is not start


class TestTimes:
    def test_a_stream_starts_at_what_was_appended_then(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, numbers(0, 30))
        cut_ms = append_time_ms(store, log) + 1
        while time.time() * 1000 < cut_ms + 1:
            time.sleep(0.001)
        store.append_many(log, numbers(30, 50))
        by_log = json.dumps({log: cut_ms})
        for option, value in (
            ("startingTimestamp", str(cut_ms)),
            ("startingOffsetsByTimestamp", by_log),
        ):
            reader = new_reader(**{option: value})
            start = stored(reader.initialOffset())
            end = stored(reader.latestOffset(start, ALL))
            assert values(reader, reader.partitions(start, end)) == numbers(30, 50)

    def test_a_batch_has_both_ends(self, cluster: LiveCluster, store: BlockingStore, log: str):
        store.append_many(log, numbers(0, 30))
        cut_ms = append_time_ms(store, log) + 1
        while time.time() * 1000 < cut_ms + 1:
            time.sleep(0.001)
        store.append_many(log, numbers(30, 50))
        asked = {SERVERS: cluster.url, "subscribe": log}
        for option, wanted in (
            ("startingTimestamp", numbers(30, 50)),
            ("endingTimestamp", numbers(0, 30)),
        ):
            source = CordwoodSource({**asked, option: str(cut_ms)})
            reader = source.reader(source.schema())
            assert values(reader, reader.partitions()) == wanted

    def test_a_time_after_the_last_record_is_an_error_or_the_end(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        last = store.append(log, b"1")
        late = str(int(time.time() * 1000) + 60_000)
        with pytest.raises(BadSetting, match=f"{log} has no record from .* on"):
            new_reader(startingTimestamp=late).initialOffset()
        reader = new_reader(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
        offset = reader.initialOffset()
        assert offset["logs"] == {str(store.log(log).log_id): format_lsn(last + 1)}


class TestGroup:
    """`groupId`: cursors of the store that follow a query."""

    @pytest.fixture
    def group(self) -> str:
        return f"g-{uuid.uuid4().hex[:8]}"

    def positions(self, store: BlockingStore, group) -> dict[str, int]:
        (found,) = store.consumers(group)
        return found.positions

    def test_cursors_follow_what_is_done_and_never_what_is_planned(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        group: str,
        monkeypatch: pytest.MonkeyPatch,
    ):
        swap_value(monkeypatch, lambda: group_module.SAVE_EVERY_S, 0.0)
        store.append_many(log, numbers(0, 30))
        reader = new_reader(startingOffsets="earliest", groupId=group)
        start = stored(reader.initialOffset())
        end = stored(reader.latestOffset(start, ReadMaxRows(10)))
        assert self.positions(store, group) == {}
        reader.partitions(start, end)
        assert self.positions(store, group) == {}
        reader.latestOffset(end, ReadMaxRows(10))
        number = str(store.log(log).log_id)
        assert self.positions(store, group) == {log: parse_lsn(end["logs"][number])}

    def test_the_last_batch_of_available_now_is_saved(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        group: str,
    ):
        last = store.append_many(log, numbers(0, 30))[-1]
        reader = new_reader(startingOffsets="earliest", groupId=group)
        reader.prepareForTriggerAvailableNow()
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ReadMaxRows(20)))
        end = stored(reader.latestOffset(end, ReadMaxRows(20)))
        assert reader.latestOffset(end, ReadMaxRows(20)) is end
        assert self.positions(store, group) == {log: last + 1}

    def test_a_new_query_starts_where_the_consumer_stands(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        group: str,
    ):
        lsns = store.append_many(f"{log}/a", numbers(0, 10))
        store.append_many(f"{log}/b", numbers(10, 13))
        store.save_cursors(group, {f"{log}/a": lsns[7]})
        asked = {"subscribePattern": f"{log}/.*", "groupId": group, "startingOffsets": "cursor"}
        reader = new_reader(**asked)
        start = stored(reader.initialOffset())
        end = stored(reader.latestOffset(start, ALL))
        assert values(reader, reader.partitions(start, end)) == numbers(7, 13)
        source = CordwoodSource({SERVERS: reader._options.servers, **asked})
        batch = source.reader(source.schema())
        assert values(batch, batch.partitions()) == numbers(7, 13)

    def test_cursors_never_go_back(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        group: str,
    ):
        lsns = store.append_many(log, numbers(0, 10))
        store.save_cursors(group, {log: lsns[8]})
        reader = new_reader(startingOffsets="earliest", groupId=group)
        reader.prepareForTriggerAvailableNow()
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ReadMaxRows(3)))
        reader.latestOffset(end, ReadMaxRows(3))
        assert self.positions(store, group) == {log: lsns[8]}

    def test_a_consumer_with_members_is_not_a_querys(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        group: str,
    ):
        store.append(log, b"1")
        with (
            store.consumer(group, log, member="anna"),
            pytest.raises(BadSetting, match=f"anna, a member of that consumer, reads {log}"),
        ):
            new_reader(groupId=group).initialOffset()

    def test_a_cluster_that_does_not_answer_fails_no_query(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        group: str,
    ):
        store.append(log, b"1")
        reader = new_reader(startingOffsets="earliest", groupId=group)
        reader.prepareForTriggerAvailableNow()
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))

        class Away:
            def consumer_by_number(self, name):
                raise Unreachable("nobody answers")

        reader._keeper.done({1: log}, {1: 1 << 32})
        reader._keeper.save(Away(), at_once=True)
        assert reader.latestOffset(end, ALL) is end
        assert self.positions(store, group) != {}


class TestGapRows:
    def test_rows_tile_what_was_read(self, cluster: LiveCluster, store: BlockingStore, log: str):
        """Also below the first epoch, where a bridge says that nobody ever wrote."""
        last = store.append_many(log, numbers(0, 5))[-1]
        source = CordwoodSource({SERVERS: cluster.url, "subscribe": log, "includeGaps": "true"})
        reader = source.reader(source.schema())
        (partition,) = reader.partitions()
        batches = list(reader.read(partition))
        assert {batch.schema for batch in batches} == {
            to_arrow_schema(source.schema(), timezone="UTC")
        }
        expected = OLDEST
        for row in (row for batch in batches for row in batch.to_pylist()):
            assert row["lsn"] == expected
            assert (row["record_type"] == "gap") == (row["value"] is None)
            assert row["log"] == log
            expected = (row["gap_end_lsn"] or row["lsn"]) + 1
        assert expected == last + 1


class TestTrimmed:
    """What was trimmed, by those who ask for it all the same."""

    @pytest.fixture
    def kept_from(self, store: BlockingStore, log: str) -> Lsn:
        """A log of 30 records whose first 12 were trimmed."""
        lsns = store.append_many(log, numbers(0, 12))
        kept = store.append_many(log, numbers(12, 30))[0]
        store.trim(log, lsns[-1])
        return kept

    def test_is_told_when_a_batch_is_planned(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        kept_from: Lsn,
    ):
        said = f"requested={format_lsn(OLDEST)} oldest={format_lsn(kept_from)} type=TRIM"
        source = CordwoodSource({SERVERS: cluster.url, "subscribe": log})
        with pytest.raises(DataLoss, match=said):
            source.reader(source.schema()).partitions()
        reader = new_reader(startingOffsets="earliest")
        start = stored(reader.initialOffset())
        end = stored(reader.latestOffset(start, ALL))
        with pytest.raises(DataLoss, match="type=TRIM"):
            reader.partitions(start, end)

    def test_is_passed_over_and_never_read_again_from_the_start(
        self, cluster: LiveCluster, log: str, kept_from: Lsn
    ):
        source = CordwoodSource({SERVERS: cluster.url, "subscribe": log, "failOnDataLoss": "false"})
        reader = source.reader(source.schema())
        assert values(reader, reader.partitions()) == numbers(12, 30)

    def test_is_a_row_with_include_gaps(self, cluster: LiveCluster, log: str, kept_from: Lsn):
        source = CordwoodSource({SERVERS: cluster.url, "subscribe": log, "includeGaps": "true"})
        reader = source.reader(source.schema())
        rows = [
            row
            for each in reader.partitions()
            for batch in reader.read(each)
            for row in batch.to_pylist()
        ]
        (gone,) = [row for row in rows if row["gap_type"] == "trim"]
        assert gone["gap_end_lsn"] == kept_from - 1
        assert [row["value"] for row in rows if row["record_type"] == "record"] == numbers(12, 30)


class TestFilters:
    def test_narrow_what_is_planned(self, cluster: LiveCluster, store: BlockingStore, log: str):
        lsns = store.append_many(f"{log}/a", numbers(0, 20))
        store.append_many(f"{log}/b", numbers(20, 40))
        source = CordwoodSource(
            {SERVERS: cluster.url, "subscribePattern": f"{log}/.*", "filterPushdown": "true"}
        )
        reader = source.reader(source.schema())
        kept = EqualTo(("key",), b"x")
        rest = reader.pushFilters(
            [EqualTo(("log",), f"{log}/a"), GreaterThanOrEqual(("lsn",), int(lsns[5])), kept]
        )
        assert rest == [kept]
        assert values(reader, reader.partitions()) == numbers(5, 20)

    def test_are_not_even_defined_unless_asked_for(self, cluster: LiveCluster, log: str):
        """Spark refuses a reader that has `pushFilters` while its own switch is off."""
        source = CordwoodSource({SERVERS: cluster.url, "subscribe": log})
        reader = source.reader(source.schema())
        assert type(reader).pushFilters is DataSourceReader.pushFilters


class TestAvailableNow:
    def test_reads_up_to_what_was_there(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append_many(log, numbers(0, 30))
        reader = new_reader(startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        start = stored(reader.initialOffset())
        store.append_many(log, numbers(30, 60))
        end = stored(reader.latestOffset(start, ReadMaxRows(20)))
        last = stored(reader.latestOffset(end, ReadMaxRows(20)))
        assert values(reader, reader.partitions(start, end)) == numbers(0, 20)
        assert values(reader, reader.partitions(end, last)) == numbers(20, 30)
        assert reader.latestOffset(last, ReadMaxRows(20)) is last


class TestDiscovery:
    @pytest.fixture(autouse=True)
    def lists_at_once(self, monkeypatch: pytest.MonkeyPatch):
        """However slow the machine is."""
        swap_value(monkeypatch, lambda: catalog.DISCOVER_EVERY_S, 0.0)
        swap_value(monkeypatch, lambda: catalog.DISCOVER_SHARE, 0)
        swap_value(monkeypatch, lambda: catalog.DISCOVER_WAIT_S, 30.0)

    def test_a_log_that_comes_is_read_whole(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(f"{log}/a", b"old")
        source = {"subscribePattern": f"{log}/.*", "startingOffsets": "latest"}
        reader = new_reader(**source)
        start = stored(reader.initialOffset())
        store.append_many(f"{log}/b", [b"new1", b"new2"])
        end = stored(reader.latestOffset(start, ALL))
        assert set(end["from"]) == {str(store.log(f"{log}/{name}").log_id) for name in "ab"}
        assert values(reader, reader.partitions(start, end)) == [b"new1", b"new2"]
        again = new_reader(**source)
        moved = stored(again.initialOffset())
        assert values(again, again.partitions(moved, end)) == [b"new1", b"new2"]

    def test_an_empty_log_is_no_news(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(f"{log}/a", b"old")
        source = {"subscribePattern": f"{log}/.*"}
        reader = new_reader(**source)
        start = stored(reader.initialOffset())
        store.create_log(f"{log}/b")
        assert reader.latestOffset(start, ALL) is start

    def test_a_list_that_takes_long_holds_no_batch_up(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        monkeypatch: pytest.MonkeyPatch,
    ):
        """It comes with a later batch; what is known is read meanwhile."""
        swap_value(monkeypatch, lambda: catalog.DISCOVER_WAIT_S, 0.0)
        store.append(f"{log}/a", b"1")
        reader = new_reader(subscribePattern=f"{log}/.*", startingOffsets="earliest")
        start = stored(reader.initialOffset())
        store.append(f"{log}/b", b"2")
        end = stored(reader.latestOffset(start, ALL))
        found = values(reader, reader.partitions(start, end))
        deadline = time.monotonic() + 30
        while found == [b"1"] and time.monotonic() < deadline:
            start, end = end, stored(reader.latestOffset(end, ALL))
            found += values(reader, reader.partitions(start, end))
        assert sorted(found) == [b"1", b"2"]

    def test_a_list_that_nobody_gives_fails_no_batch(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        store.append(f"{log}/a", b"1")
        reader = new_reader(subscribePattern=f"{log}/.*", startingOffsets="earliest")
        start = stored(reader.initialOffset())
        nobody: Future[dict[int, str]] = Future()
        nobody.set_exception(Unreachable("no node answered"))
        with monkeypatch.context() as patch:
            patch.setattr(BlockingStore, "log_names_soon", lambda _: nobody)
            end = stored(reader.latestOffset(start, ALL))
        assert values(reader, reader.partitions(start, end)) == [b"1"]
        assert "no node answered" in caplog.text
        store.append(f"{log}/b", b"2")
        last = stored(reader.latestOffset(end, ALL))
        assert values(reader, reader.partitions(end, last)) == [b"2"]

    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_a_log_that_is_deleted_between_a_plan_and_its_batch(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        fails: str,
    ):
        for name in "ab":
            store.append(f"{log}/{name}", name.encode())
        reader = new_reader(
            subscribePattern=f"{log}/.*", startingOffsets="earliest", failOnDataLoss=fails
        )
        start = stored(reader.initialOffset())
        reader.prepareForTriggerAvailableNow()
        reader.latestOffset(start, ALL)
        store.log_tree.delete(f"{log}/b")
        end = stored(reader.latestOffset(start, ALL))
        again = new_reader(subscribePattern=f"{log}/.*", failOnDataLoss=fails)
        if fails == "true":
            with pytest.raises(DataLoss, match="type=LOG_GONE"):
                again.partitions(start, end)
        else:
            assert values(again, again.partitions(start, end)) == [b"a"]

    @pytest.mark.parametrize("comes_back", [False, True])
    def test_a_log_that_is_gone_when_its_task_begins(
        self, cluster: LiveCluster, store: BlockingStore, log: str, comes_back: bool
    ):
        """Also where another log took its name: none of its records were planned."""
        store.append(log, b"planned")
        gone = Slice(store.log(log).log_id, log, OLDEST, store.tail(log) + 1)
        store.log_tree.delete(log)
        if comes_back:
            store.append(log, b"another")
        # As an executor does it, which never heard of the log.
        with connect(cluster.url) as task_store:
            with pytest.raises(DataLoss, match=f"log={gone.log_id} .*type=LOG_GONE"):
                list(read_slices(lambda: task_store, [gone], COLUMNS, fail_on_data_loss=True))
            assert (
                list(read_slices(lambda: task_store, [gone], COLUMNS, fail_on_data_loss=False))
                == []
            )


class TestNames:
    """A log's number is its identity: names that change under a stream."""

    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_a_log_that_is_renamed_is_read_on(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        fails: str,
    ):
        """It was LOG_GONE, or batches without rows, in tasks that had not read it before."""
        store.append(log, b"1")
        reader = new_reader(startingOffsets="earliest", failOnDataLoss=fails)
        start = stored(reader.initialOffset())
        middle = stored(reader.latestOffset(start, ALL))
        planned = reader.partitions(start, middle)
        store.log_tree.rename(log, f"{log}-new")
        store.append(log, b"a stranger's")
        slices = [each for partition in planned for each in partition.value]
        with connect(cluster.url) as task_store:
            batches = read_slices(
                lambda: task_store, slices, COLUMNS, fail_on_data_loss=fails == "true"
            )
            assert [v for batch in batches for v in batch["value"].to_pylist()] == [b"1"]
        store.append(f"{log}-new", b"2")
        end = stored(reader.latestOffset(middle, ALL))
        assert values(reader, reader.partitions(middle, end)) == [b"2"]

    def test_a_log_that_is_made_again_fails_or_is_read_from_its_beginning(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        """Tails of the new log were taken for the old one's, and its first records passed over."""
        store.append_many(log, numbers(0, 9))
        readers = [
            new_reader(startingOffsets="earliest", failOnDataLoss=fails)
            for fails in ("true", "false")
        ]
        starts = [stored(reader.initialOffset()) for reader in readers]
        ends = [
            stored(reader.latestOffset(start, ALL))
            for reader, start in zip(readers, starts, strict=True)
        ]
        number = store.log(log).log_id
        store.log_tree.delete(log)
        store.append_many(log, numbers(20, 23))
        # The node that sequenced it hears of the deletion; until then there is nothing new.
        with pytest.raises(DataLoss, match=f"log={number} .*type=LOG_GONE"):
            follow_for(readers[0], ends[0], 20.0)
        after = stored(readers[1].latestOffset(ends[1], ALL))
        got = values(readers[1], readers[1].partitions(ends[1], after))
        assert got == numbers(20, 23)

    def test_a_log_that_is_made_again_after_a_look_is_found(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        monkeypatch: pytest.MonkeyPatch,
    ):
        """The stream looked between the deletion and the new log: it never looked again."""
        swap_value(monkeypatch, lambda: catalog.DISCOVER_EVERY_S, 0.0)
        store.append_many(log, numbers(0, 9))
        reader = new_reader(startingOffsets="earliest", failOnDataLoss="false")
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
        end = delete_and_look(store, log, reader, end)
        store.append_many(log, numbers(20, 23))
        after = follow_until_new(reader, end, 20.0)
        assert values(reader, reader.partitions(end, after)) == numbers(20, 23)

    def test_a_log_that_is_renamed_is_read_on_after_another_was_deleted(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        """The logs were selected anew by their names then, and the renamed log was left out."""
        store.append(f"{log}/a", b"1")
        store.append(f"{log}/b", b"2")
        reader = new_reader(
            subscribe=f"{log}/a,{log}/b", startingOffsets="earliest", failOnDataLoss="false"
        )
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
        store.log_tree.rename(f"{log}/a", f"{log}/new")
        store.append(f"{log}/a", b"a stranger's")
        end = delete_and_look(store, f"{log}/b", reader, end)
        store.append(f"{log}/new", b"3")
        after = follow_until_new(reader, end, 20.0)
        assert values(reader, reader.partitions(end, after)) == [b"3"]

    @pytest.mark.slow
    @pytest.mark.parametrize("fails", ["true", "false"])
    def test_a_log_of_several_epochs_that_is_deleted_under_an_available_now_run(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        fails: str,
    ):
        """The ends of its epochs could not be asked any more: UnknownLog, whatever was chosen."""
        store.append_many(f"{log}/a", numbers(0, 5))
        store.fence(f"{log}/a", 1)
        store.append_many(f"{log}/a", numbers(5, 9))
        store.append_many(f"{log}/b", numbers(20, 25))
        reader = new_reader(
            subscribe=f"{log}/a,{log}/b",
            startingOffsets="earliest",
            failOnDataLoss=fails,
            maxBytesPerTrigger="1g",
        )
        start = stored(reader.initialOffset())
        reader.prepareForTriggerAvailableNow()
        number = store.log(f"{log}/a").log_id
        store.log_tree.delete(f"{log}/a")
        wait_until_gone(reader, number)
        if fails == "true":
            # Between the look whether it is there and the plan.
            with pytest.raises(DataLoss, match=f"log={number} .*type=LOG_GONE"):
                reader._catalog.runs(number, OLDEST, 9 << 32)
            return
        end = stored(reader.latestOffset(start, ReadMaxBytes(1 << 30)))
        assert values(reader, reader.partitions(start, end)) == numbers(20, 25)

    def test_a_cursor_follows_its_log_and_not_its_name(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        lsns = store.append_many(log, numbers(0, 9))
        store.save_cursors(f"{log[1:]}-group".replace("/", "-"), {log: lsns[4]})
        group = f"{log[1:]}-group".replace("/", "-")
        store.log_tree.rename(log, f"{log}-new")
        store.append_many(log, numbers(20, 23))
        for name, wanted in ((f"{log}-new", numbers(4, 9)), (log, numbers(20, 23))):
            reader = new_reader(subscribe=name, startingOffsets="cursor", groupId=group)
            start = stored(reader.initialOffset())
            end = stored(reader.latestOffset(start, ALL))
            assert values(reader, reader.partitions(start, end)) == wanted


def follow_for(reader: CordwoodStreamReader, offset: dict[str, Any], seconds: float) -> None:
    """Ask over and over for what is new; there is nothing."""
    give_up_s = time.monotonic() + seconds
    while time.monotonic() < give_up_s:
        assert reader.latestOffset(offset, ALL) is offset


class TestReport:
    def test_tells_the_ends_for_the_progress_of_the_query(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        last = store.append_many(log, numbers(0, 9))[-1]
        reader = new_reader(startingOffsets="earliest")
        assert reader.reportLatestOffset() is None
        start = stored(reader.initialOffset())
        reader.latestOffset(start, ReadMaxRows(2))
        number = str(store.log(log).log_id)
        assert reader.reportLatestOffset()["logs"] == {number: format_lsn(last + 1)}


class TestWrongPlaces:
    def test_a_log_that_is_not_there(
        self, new_reader: Callable[..., CordwoodStreamReader], log: str
    ):
        with pytest.raises(UnknownLog, match=f"no log {log}"):
            new_reader().initialOffset()

    def test_a_start_beyond_the_end(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        last = store.append(log, b"1")
        starts = json.dumps({log: str(Lsn(last + 2))})
        with pytest.raises(BadSetting, match="ends before"):
            new_reader(startingOffsets=starts).initialOffset()

    def test_a_checkpoint_of_another_cluster(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        reader = new_reader()
        start = {**reader.initialOffset(), "cluster": "f" * 32}
        with pytest.raises(BadSetting, match="belongs to cluster ffff"):
            reader.latestOffset(start, ALL)

    @pytest.mark.parametrize(("logs", "after"), [(1, 700), (1000, 50_000)])
    def test_of_many_logs_has_garbage_looked_for_less_often(self, logs: int, after: int):
        before = gc.get_threshold()
        try:
            gc.set_threshold(700, 10, 10)
            _collect_rarely(logs)
            assert gc.get_threshold() == (after, 10, 10)
            gc.set_threshold(0)  # somebody has switched it off
            _collect_rarely(logs)
            assert gc.get_threshold()[0] == 0
        finally:
            gc.set_threshold(*before)

    def test_a_log_of_the_checkpoint_that_is_gone(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        store.append(log, b"1")
        start = new_reader(startingOffsets="earliest").initialOffset()
        start = {**start, "logs": {**start["logs"], "987654": "e3n7"}}
        said = "CORDWOOD_DATA_LOSS log=987654 requested=e3n7 oldest=none type=LOG_GONE"
        with pytest.raises(DataLoss, match=said):
            new_reader().latestOffset(start, ALL)
        lenient = new_reader(failOnDataLoss="false")
        end = lenient.latestOffset(start, ALL)
        assert end["logs"]["987654"] == "e3n7"
        assert new_reader().latestOffset(end, ALL) is end, "it was passed over for good"
        assert values(lenient, lenient.partitions(start, end)) == [b"1"]

    def test_a_log_that_was_renamed_away_and_deleted_is_no_loss(
        self, store: BlockingStore, log: str, new_reader: Callable[..., CordwoodStreamReader]
    ):
        """Nothing of it was to be read: each start failed, and after one with
        failOnDataLoss=false too."""
        pattern = {"subscribePattern": f"{log}/.*", "startingOffsets": "earliest"}
        for name in "ab":
            store.append(f"{log}/{name}", name.encode())
        reader = new_reader(**pattern)
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
        store.log_tree.rename(f"{log}/b", f"{log}-old")
        reader = new_reader(**pattern)
        away = stored(reader.latestOffset(end, ALL))
        assert reader.partitions(end, away) == []
        store.log_tree.delete(f"{log}-old")
        reader = new_reader(**pattern)
        assert reader.latestOffset(away, ALL) is away
        store.append(f"{log}/a", b"more")
        after = stored(reader.latestOffset(away, ALL))
        assert values(reader, reader.partitions(away, after)) == [b"more"]

    def test_a_log_that_a_new_list_lacks_is_a_loss(
        self,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        monkeypatch: pytest.MonkeyPatch,
    ):
        """A running query with a pattern; whatever it hears of first, the list or an answer."""
        swap_value(monkeypatch, lambda: catalog.DISCOVER_EVERY_S, 0.0)
        for name in "ab":
            store.append(f"{log}/{name}", name.encode())
        reader = new_reader(subscribePattern=f"{log}/.*", startingOffsets="earliest")
        end = stored(reader.latestOffset(stored(reader.initialOffset()), ALL))
        number = store.log(f"{log}/b").log_id
        store.log_tree.delete(f"{log}/b")
        with pytest.raises(DataLoss, match=f"log={number} .*type=LOG_GONE"):
            follow_for(reader, end, 20.0)


class TestEpochs:
    """The sequencer's node dies, and the log goes on in another epoch."""

    def test_limits_and_cuts_count_records_and_not_lsns(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
    ):
        store.append_many(log, numbers(0, 70))
        first = store.tail(log)
        restart_sequencer(cluster, store, log)
        second = store.append_many(log, numbers(70, 100))[-1]
        assert second.epoch > first.epoch

        reader = new_reader(startingOffsets="earliest")
        batches = TestLimit().read_all(reader, 40)
        assert [value for batch in batches for value in batch] == numbers(0, 100)
        assert list(map(len, batches)) == [40, 40, 20]

        split = new_reader(startingOffsets="earliest", minPartitions="4")
        start = stored(split.initialOffset())
        partitions = split.partitions(start, stored(split.latestOffset(start, ALL)))
        assert [len(values(split, [each])) for each in partitions] == [25, 25, 25, 25]
        assert values(split, partitions) == numbers(0, 100)

    def test_the_end_of_an_epoch_is_passed_once_and_read_by_no_task(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
    ):
        """A log may be trimmed behind it before the next record comes: a stream that stood before
        it was told then that it had lost records."""
        store.append_many(log, numbers(0, 7))
        reader = new_reader(startingOffsets="earliest")
        start = stored(reader.initialOffset())
        end = stored(reader.latestOffset(start, ALL))
        restart_sequencer(cluster, store, log)
        number = str(store.log(log).log_id)
        passed = stored(reader.latestOffset(end, ALL))
        place = parse_lsn(passed["logs"][number])
        assert place.epoch > parse_lsn(end["logs"][number]).epoch
        assert reader.partitions(end, passed) == []
        gaps = new_reader(startingOffsets="earliest", includeGaps="true")
        assert len(gaps.partitions(end, passed)) == 1

        store.trim(log, place - 1)
        store.append_many(log, numbers(7, 9))
        again = new_reader()
        more = stored(again.latestOffset(passed, ALL))
        assert values(again, again.partitions(passed, more)) == numbers(7, 9)

    def test_an_epoch_with_a_lost_end_is_read_and_one_that_is_trimmed_is_not(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
        monkeypatch: pytest.MonkeyPatch,
    ):
        """Its bridge is lost, its records are there, and no record comes after it. The epoch
        counted as empty: a landing of all there is reported success, and had nothing."""
        store.append_many(log, numbers(0, 7))
        restart_sequencer(cluster, store, log)
        last = store.tail(log)

        monkeypatch.setattr(BlockingStore, "epoch_end", lambda *_: None)
        reader = new_reader(startingOffsets="earliest")
        start = stored(reader.initialOffset())
        reader.prepareForTriggerAvailableNow()
        end = stored(reader.latestOffset(start, ALL))
        assert values(reader, reader.partitions(start, end)) == numbers(0, 7)
        assert reader.latestOffset(end, ALL) is end
        store.trim(log, last)
        again = new_reader(startingOffsets="earliest")
        assert again.latestOffset(start, ALL) is start, "a false loss where nothing comes"

    def test_a_stream_that_may_not_read_is_told_so_by_ended_epochs_too(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        log: str,
        new_reader: Callable[..., CordwoodStreamReader],
    ):
        """No node told where the epoch ends, which looked like an epoch without records: a landing
        of all there is ended well, and had nothing."""
        store.append_many(log, numbers(0, 7))
        restart_sequencer(cluster, store, log)
        store.tail(log)
        attributes = LogAttributes(read_token=token_digest("sesame"))
        store.log_tree.set_attributes(log, attributes)
        for lossy in ("true", "false"):
            options = {"startingOffsets": "earliest", "failOnDataLoss": lossy}
            reader = new_reader(**options)
            start = stored(reader.initialOffset())
            with pytest.raises(
                AccessDenied, match=r"asks for a read token .* cordwood\.read\.tokens"
            ):
                wait_until_refused(reader, start)
            reader = new_reader(**options, **{READ_TOKENS: "sesame"})
            end = stored(reader.latestOffset(start, ALL))
            assert values(reader, reader.partitions(start, end)) == numbers(0, 7)


def delete_and_look(
    store: BlockingStore, log: str, reader: CordwoodStreamReader, offset: dict[str, Any]
) -> dict[str, Any]:
    """Delete a log, and have the stream notice that; the offset that says so."""
    number = store.log(log).log_id
    store.log_tree.delete(log)
    wait_until_gone(reader, number)
    ends = time.monotonic() + 20.0
    after = offset
    while number in reader._catalog.selected() and time.monotonic() < ends:
        after = stored(reader.latestOffset(offset, ALL))
    assert reader.partitions(offset, after) == []
    return after


def follow_until_new(
    reader: CordwoodStreamReader, offset: dict[str, Any], within_s: float
) -> dict[str, Any]:
    """The next offset of an idle stream."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        if (moved := reader.latestOffset(offset, ALL)) is not offset:
            return stored(moved)
    raise AssertionError(f"nothing new within {within_s:g} s")


def wait_until_refused(reader: CordwoodStreamReader, start: dict[str, Any]) -> None:
    """Nodes hear of a log's new right within a second."""
    ends = time.monotonic() + 20.0
    while time.monotonic() < ends:
        reader._catalog._epoch_end.cache_clear()
        reader.latestOffset(start, ALL)
        time.sleep(0.1)


def wait_until_gone(reader: CordwoodStreamReader, number: int) -> None:
    """Until the nodes that the reader's client asks have heard that a log was deleted."""
    ends = time.monotonic() + 20.0
    while time.monotonic() < ends:
        try:
            reader._catalog.store.epoch_end(number, 1)
        except UnknownLog:
            return
    pytest.fail("nobody hears of the deletion")


def restart_sequencer(cluster: LiveCluster, store: BlockingStore, log: str) -> None:
    """Kill the node that sequences `log` and start it again."""
    node = sequencer(store, log)
    cluster.kill(node)
    cluster.start(node)


def sequencer(store: BlockingStore, log: str):
    """The node that sequences `log` now."""
    number = store.log(log).log_id
    for node, status in store.status().items():
        if any(each.log == number and each.sequencing for each in status.logs):
            return node
    raise AssertionError(f"nobody sequences {log}")
