"""Ledgers in Spark, on a real cluster: closed and open ones as tables and as streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cluster import LiveCluster
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from cordwood.client.blocking.blocking_ledgers import BlockingWritableLedger
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import AccessDenied, BadSetting, UnknownLedger
from cordwood.spark.ledger_ends import LedgerEnds
from cordwood.spark.ledger_options import PASSWORD, parse_ledger_options
from cordwood.spark.ledger_source import LedgerReader, LedgerStreamReader
from cordwood.spark.offsets import DataLoss
from cordwood.spark.options import SERVERS
from cordwood.spark.source import CordwoodSource, spark_schema
from cordwood.spark.splitting import Slice

pytestmark = pytest.mark.real

ALL = ReadAllAvailable()
QUERY_TIMEOUT_S = 120


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


@pytest.fixture
def made(store: BlockingStore) -> Iterator[BlockingWritableLedger]:
    ledger = store.ledgers.create(ensemble=3, write=3, ack=2)
    yield ledger
    ledger.abandon()


@pytest.fixture
def source(cluster: LiveCluster):
    """A source as Spark makes it; options by name."""

    def make(ledgers: Any, **options: str) -> CordwoodSource:
        return CordwoodSource({SERVERS: cluster.url, "ledgers": str(ledgers), **options})

    return make


def batch(source: CordwoodSource) -> LedgerReader:
    reader = source.reader(source.schema())
    assert isinstance(reader, LedgerReader)
    return reader


def stream(source: CordwoodSource) -> LedgerStreamReader:
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LedgerStreamReader)
    return reader


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from a checkpoint."""
    return json.loads(json.dumps(offset))


def values(reader, partitions) -> list[bytes]:
    """Read partitions as tasks do."""
    return [
        value
        for partition in partitions
        for batch in reader.read(partition)
        for value in batch["value"].to_pylist()
    ]


class TestBatch:
    def test_a_closed_ledger_is_read_whole(
        self, store: BlockingStore, made: BlockingWritableLedger, source
    ):
        made.append_many(numbers(0, 500))
        made.close()
        reader = batch(source(made.ledger_id))
        assert values(reader, reader.partitions()) == numbers(0, 500)

    def test_an_open_ledger_is_read_as_far_as_it_is_confirmed(
        self, made: BlockingWritableLedger, source
    ):
        made.append_many(numbers(0, 20))
        made.append_many(numbers(20, 21))  # tells that those before are confirmed
        reader = batch(source(made.ledger_id))
        planned = reader.partitions()
        made.append_many(numbers(21, 40))
        found = values(reader, planned)
        assert found in (numbers(0, 20), numbers(0, 21))

    def test_it_is_cut_by_size_and_by_wish(self, made: BlockingWritableLedger, source):
        made.append_many([b"x" * 1000] * 300)
        made.close()
        for options in ({"minPartitions": "6"}, {"targetPartitionBytes": "50k"}):
            reader = batch(source(made.ledger_id, **options))
            planned = reader.partitions()
            assert len(planned) >= 5
            assert len(values(reader, planned)) == 300

    def test_places_and_columns(self, store: BlockingStore, made: BlockingWritableLedger, source):
        made.append_many(numbers(0, 9))
        made.close()
        other = store.ledgers.create(ensemble=3, write=2, ack=2)
        other.append_many(numbers(100, 104))
        other.close()
        ids = made.ledger_id, other.ledger_id
        starts = json.dumps({str(made.ledger_id): 2})
        ends = json.dumps({str(made.ledger_id): 5})
        made_source = source(
            f"{ids[0]},{ids[1]}", startingOffsets=starts, endingOffsets=ends, includePayload="true"
        )
        reader = batch(made_source)
        planned = reader.partitions()
        assert values(reader, planned) == numbers(2, 5) + numbers(100, 104)
        (first, *_) = reader.read(planned[0])
        assert first.schema == to_arrow_schema(made_source.schema(), timezone="UTC")
        assert first.to_pylist()[0] == {
            "key": None, "value": b"2", "log": f"ledger/{ids[0]}", "log_id": ids[0], "lsn": 2,
            "epoch": 1, "offset": 2, "timestamp": None,
        }  # fmt: skip

    def test_what_is_wrong_is_said(
        self, store: BlockingStore, made: BlockingWritableLedger, source
    ):
        with pytest.raises(UnknownLedger):
            batch(source(999_999_999)).partitions()
        locked = store.ledgers.create(ensemble=3, write=3, ack=2, password=b"sesame")
        locked.append(b"secret")
        locked.close()
        with pytest.raises(AccessDenied):
            batch(source(locked.ledger_id)).partitions()
        reader = batch(source(locked.ledger_id, **{PASSWORD: "sesame"}))
        assert values(reader, reader.partitions()) == [b"secret"]
        with pytest.raises(BadSetting, match="columns of Cordwood are fixed"):
            source(made.ledger_id).reader(StructType())
        with pytest.raises(BadSetting, match="exclude one another"):
            source(made.ledger_id, subscribe="orders").schema()

    def test_nothing_is_confirmed(self, made: BlockingWritableLedger, source):
        assert batch(source(made.ledger_id)).partitions() == []


class TestStream:
    def test_it_follows_an_open_ledger_to_its_end(self, made: BlockingWritableLedger, source):
        reader = stream(source(made.ledger_id))
        place = stored(reader.initialOffset())
        found: list[bytes] = []
        for first in range(0, 50, 10):
            made.append_many(numbers(first, first + 10))
            if first == 40:
                made.close()
            while len(found) < first + 9:
                after = stored(reader.latestOffset(place, ALL))
                found += values(reader, reader.partitions(place, after))
                place = after
        while place != (after := stored(reader.latestOffset(place, ALL))):
            found += values(reader, reader.partitions(place, after))
            place = after
        assert found == numbers(0, 50)
        assert reader.reportLatestOffset() == place

    def test_a_batch_that_is_run_again_is_the_same(self, made: BlockingWritableLedger, source):
        made.append_many(numbers(0, 30))
        made.append(b"30")
        first = stream(source(made.ledger_id))
        start = stored(first.initialOffset())
        end = stored(first.latestOffset(start, ReadMaxRows(12)))
        made.append_many(numbers(31, 60))
        again = stream(source(made.ledger_id))
        assert stored(again.initialOffset()) == start
        assert values(again, again.partitions(start, end)) == numbers(0, 12)
        assert again.partitions(end, end) == []

    def test_a_batch_is_cut_the_same_once_its_ledger_is_closed(
        self, made: BlockingWritableLedger, source
    ):
        # A task's rows are what `deliveryMode=idempotent` counts: cut otherwise, rows of the first
        # attempt would be taken for other ones.
        made.append_many([b"x" * 100] * 400)
        made.append(b"tells that those before are confirmed")
        options = {"targetPartitionBytes": "10k"}
        first = stream(source(made.ledger_id, **options))
        start = stored(first.initialOffset())
        end = start
        while end == start:
            end = stored(first.latestOffset(start, ReadMaxRows(400)))
        planned = [each.value for each in first.partitions(start, end)]
        assert len(planned) > 3
        made.append_many([b"y" * 100_000] * 20)
        for is_closed in (False, True):
            again = stream(source(made.ledger_id, **options))
            if is_closed:
                made.close()
            assert [each.value for each in again.partitions(start, end)] == planned

    def test_a_ledger_that_ends_before_its_batch_is_a_loss(
        self, made: BlockingWritableLedger, source
    ):
        """Nodes lost what was confirmed, and it was recovered without; or a wrong checkpoint."""
        made.append_many(numbers(0, 500))
        first = stream(source(made.ledger_id))
        start = stored(first.initialOffset())
        end = {**start, "ledgers": {str(made.ledger_id): "600"}}
        del end["init"]
        made.close()
        reader = stream(source(made.ledger_id))
        with pytest.raises(DataLoss, match=r"requested=500 stop=600 type=LEDGER_END"):
            reader.partitions(start, end)
        task = Slice(made.ledger_id, f"ledger/{made.ledger_id}", 490, 600)
        with pytest.raises(DataLoss, match=r"requested=500 stop=600"):
            values(reader, [InputPartition((task,))])

    def test_available_now_ends_where_it_began(self, made: BlockingWritableLedger, source):
        made.append_many(numbers(0, 5))
        made.append(b"5")
        reader = stream(source(made.ledger_id))
        reader.prepareForTriggerAvailableNow()
        made.append_many(numbers(6, 20))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert len(values(reader, reader.partitions(start, end))) in (5, 6)
        assert reader.latestOffset(end, ALL) is end

    def test_what_was_confirmed_before_the_last_nodes_went_is_read(
        self, store: BlockingStore, source
    ):
        """The stream waited for nodes that are down to tell a LAC, and read nothing."""
        ledgers = store.ledgers
        ledger = ledgers.create(ensemble=1, write=1, ack=1)
        early = stream(source(ledger.ledger_id))
        start = stored(early.initialOffset())
        assert early.latestOffset(start, ALL) == start
        ledger.append_many(numbers(0, 30))
        ledger.abandon()
        held = ledgers._call(ledgers._inner._calls.get(ledger.ledger_id))
        changed = held.metadata.with_ensemble(30, (99,))
        assert ledgers._call(ledgers._inner._calls.set(held.version, changed))[1]
        for reader in (early, stream(source(ledger.ledger_id))):
            end = stored(reader.latestOffset(start, ALL))
            assert values(reader, reader.partitions(start, end)) == numbers(0, 30)
        options = parse_ledger_options({SERVERS: "h:1", "ledgers": str(ledger.ledger_id)})
        assert LedgerEnds(store, options).heard() == {ledger.ledger_id: 30}

    def test_the_checkpoint_of_another_cluster_is_refused(
        self, made: BlockingWritableLedger, source
    ):
        reader = stream(source(made.ledger_id))
        place = {**reader.initialOffset(), "cluster": "another"}
        with pytest.raises(BadSetting, match="cluster"):
            reader.latestOffset(place, ALL)


@pytest.mark.spark
class TestSpark:
    """Once through Spark itself: its processes, its pickles, its checkpoint."""

    def options(self, cluster: LiveCluster, *ledgers: int) -> dict[str, str]:
        return {SERVERS: cluster.url, "ledgers": ",".join(map(str, ledgers))}

    def test_as_a_table(
        self, spark: SparkSession, cluster: LiveCluster, made: BlockingWritableLedger
    ):
        made.append_many(numbers(0, 1000))
        made.close()
        frame = spark.read.format("cordwood").options(**self.options(cluster, made.ledger_id))
        table = frame.option("minPartitions", "4").load()
        assert table.schema == spark_schema(("key", "value", "log", "log_id", "lsn", "epoch",
                                             "offset", "timestamp"))  # fmt: skip
        rows = table.where("lsn >= 990").orderBy("lsn").select("lsn", "value").collect()
        assert [(row.lsn, bytes(row.value)) for row in rows] == [
            (number, b"%d" % number) for number in range(990, 1000)
        ]
        assert table.count() == 1000

    @pytest.mark.slow
    def test_as_a_stream_that_is_stopped_and_goes_on(
        self,
        spark: SparkSession,
        cluster: LiveCluster,
        made: BlockingWritableLedger,
        tmp_path: Path,
    ):
        def run() -> None:
            query = (
                spark.readStream.format("cordwood")
                .options(**self.options(cluster, made.ledger_id), maxRecordsPerTrigger="100")
                .load()
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "table"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(QUERY_TIMEOUT_S)
            assert query.exception() is None

        made.append_many(numbers(0, 250))
        run()
        made.append_many(numbers(250, 400))
        made.close()
        run()
        rows = spark.read.parquet(str(tmp_path / "table")).orderBy("lsn").collect()
        assert [bytes(row.value) for row in rows] == numbers(0, 400)
