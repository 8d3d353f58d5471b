"""Spark's micro-batch engine in small: it plans, runs tasks, commits, dies and starts again.

It calls the source and the sink as Spark does (offsets as JSON, the initial offset asked at each
start, objects pickled for tasks, the newest planned batch run again if it was not committed), and
lets a test decide where it dies and how rows are spread over tasks. So hundreds of schedules run
in the time in which Spark itself starts once; that Spark does what this does, the crash matrix
shows with real processes.

Source: Spark's MicroBatchExecution; docs/sources/spark.md §2, §8.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import BinaryType, StructField, StructType

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.sim.checkers.spark_sink import BatchTry, SinkRow
from cordwood.spark.offsets import parse_offset
from cordwood.spark.source import CordwoodSource

VALUE = StructType([StructField("value", BinaryType())])

POINTS = ("planned", "in a task", "before publish", "after publish", "committed")
"""Where a driver may die, in the order that a batch comes by."""

ROWS_A_BATCH_OF_ARROW = 7
"""Few, so that a task has several batches of Arrow and row blocks are gathered."""


class Died(Exception):
    """The driver was killed."""


@dataclass
class Checkpoint:
    """What outlives a driver.

    Attributes:
        directory: where plans are files too, as the sink looks at them; None for nowhere.
        synced: names of plans that the sink has put on stable storage.
    """

    query: str = field(default_factory=lambda: str(uuid.uuid4()))
    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    directory: Path | None = None
    synced: set[str] = field(default_factory=set)

    def plan(self, batch: int, end: dict[str, Any]) -> None:
        """Note what a batch reads, as Spark does: with the time of planning, and unsynced."""
        self.offsets[batch] = json.dumps(end)
        if self.directory is not None:
            place = self.directory / "offsets" / str(batch)
            place.parent.mkdir(parents=True, exist_ok=True)
            (self.directory / "metadata").write_text(json.dumps({"id": self.query}))
            text = f'v1\n{{"batchTimestampMs":{time.time_ns()}}}\n{self.offsets[batch]}'
            place.write_text(text)

    def go_back(self, steps: int) -> None:
        """It is an older copy: the newest batches are unknown."""
        for batch in sorted(self.offsets)[-steps:]:
            self._lose(batch)

    def power_cut(self) -> None:
        """What nobody synced is gone: all commits, and the plans that the sink did not see to."""
        self.commits.clear()
        for batch in [each for each in self.offsets if str(each) not in self.synced]:
            self._lose(batch)
        # Spark looks at the newest commit alone, and takes what is before a plan for done.
        self.commits.update(range(max(self.offsets, default=0)))

    def _lose(self, batch: int) -> None:
        del self.offsets[batch]
        self.commits.discard(batch)
        if self.directory is not None:
            (self.directory / "offsets" / str(batch)).unlink()


class Context:
    """A task's, as far as the sink looks at it."""

    now: Context | None = None

    def __init__(self, partition: int, properties: dict[str, str]) -> None:
        self._partition = partition
        self._properties = properties

    @classmethod
    def get(cls) -> Context | None:
        return cls.now

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)


@dataclass
class Engine:
    """One start of a query.

    Attributes:
        dies: asked at each point with the batch; raises Died.
        begun: called when the query knows where it starts, and has planned nothing yet.
        spread: gives the rows of the source's partitions to the tasks of the sink.
        fails: whether the first attempt of a task fails when it is done.
        history: grows by a try for each batch that is run.
    """

    source: dict[str, str]
    sink: dict[str, str]
    checkpoint: Checkpoint
    history: list[BatchTry]
    dies: Callable[[str, int], None]
    spread: Callable[[list[list[SinkRow]]], list[list[SinkRow]]]
    fails: Callable[[], bool]
    begun: Callable[[], None]
    limit: ReadLimit = field(default_factory=ReadAllAvailable)
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def run(self) -> None:
        """Run until there is nothing new."""
        made = CordwoodSource(dict(self.source))
        self._reader = made.streamReader(schema=made.schema())
        # What Spark sends to tasks is another instance than the one that plans.
        self._sent = pickle.dumps(made.streamReader(schema=made.schema()))
        initial = stored(self._reader.initialOffset())
        self.begun()
        self._reader.prepareForTriggerAvailableNow()
        offsets = self.checkpoint.offsets
        batch = max(offsets, default=-1)
        if batch >= 0 and batch not in self.checkpoint.commits:
            start = json.loads(offsets[batch - 1]) if batch else initial
            self._run_batch(batch, start, json.loads(offsets[batch]))
        while True:
            start = json.loads(offsets[batch]) if batch >= 0 else initial
            end = stored(self._reader.latestOffset(start, self.limit))
            if end == start:
                return
            batch += 1
            self.checkpoint.plan(batch, end)
            self._run_batch(batch, start, end)

    def _run_batch(self, batch: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        planned = self._reader.partitions(start, end)
        ranges = planned_ranges(start, end)
        # What tasks get is made on the driver for each batch, as Spark makes it.
        self._writer = self._made_writer()
        try:
            self.dies("planned", batch)
            reader = pickle.loads(self._sent)
            parts = self.spread([list(rows_of(reader.read(each))) for each in planned])
            messages = [
                self._task(batch, number, rows) for number, rows in enumerate(parts or [[]])
            ]
        except Died:
            self.history.append(BatchTry(batch, ranges))
            raise
        self.history.append(BatchTry(batch, ranges, tuple(map(tuple, parts))))
        self.dies("before publish", batch)
        try:
            self._made_writer().commit(messages, batch)
        except Exception:
            # Spark raises what the commit did, whatever comes of the abort.
            with contextlib.suppress(Exception):
                self._made_writer().abort(messages, batch)
            raise
        self.dies("after publish", batch)
        self.checkpoint.commits.add(batch)
        self.dies("committed", batch)

    def _made_writer(self) -> Any:
        """A writer of its own for the tasks, for the commit and for the abort.

        Spark keeps none: each time it makes one of the source, in a process of its own
        (pyspark/sql/worker/python_streaming_sink_runner.py).
        """
        return CordwoodSource(dict(self.sink)).streamWriter(VALUE, False)

    def _task(self, batch: int, number: int, rows: list[SinkRow]) -> Any:
        """Run a task, again if its first attempt fails; the message of the last."""
        properties = {
            "sql.streaming.queryId": self.checkpoint.query,
            "streaming.sql.batchId": str(batch),
            "sql.streaming.runId": self.run_id,
        }
        while True:
            Context.now = Context(number, properties)
            writer = pickle.loads(pickle.dumps(self._writer))
            message = writer.write(arrow(rows))
            Context.now = None
            self.dies("in a task", batch)
            if not self.fails():
                return pickle.loads(pickle.dumps(message))


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from a checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def planned_ranges(start: dict[str, Any], end: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """What a batch is to read, by what is in the checkpoint alone."""
    before, after = parse_offset(start), parse_offset(end)
    found = {}
    for log, stop in after.logs.items():
        first = after.started.get(log)
        if first is None:
            first = before.logs[log]
        if first < stop and not after.is_initial:
            found[log] = (first, stop)
    return found


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[SinkRow]:
    """Rows of the source by where they are."""
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("log_id", "lsn", "value"))
        for log, lsn, value in zip(*columns, strict=True):
            yield SinkRow(log, lsn, digest(value))


def digest(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=6).hexdigest()


def arrow(rows: list[SinkRow]) -> Iterator[pa.RecordBatch]:
    """Rows as Spark hands them to a task: what they are stands in their value."""
    for at in range(0, len(rows), ROWS_A_BATCH_OF_ARROW):
        part = rows[at : at + ROWS_A_BATCH_OF_ARROW]
        values = [f"{row.log} {row.lsn} {row.digest}".encode() for row in part]
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


def at_the_sink(store: BlockingStore, log: str) -> list[SinkRow]:
    """What was written, in the log's order."""
    found = []
    with store.read(log) as reader:
        for item in reader:
            if isinstance(item, Record):
                number, lsn, told = item.value.decode().split()
                found.append(SinkRow(int(number), int(lsn), told))
    return found


def in_the_source(store: BlockingStore, logs: list[str]) -> list[SinkRow]:
    """All that was ever appended to the logs that are read."""
    found = []
    for log in logs:
        number = store.log(log).log_id
        with store.read(log) as reader:
            found += [
                SinkRow(number, int(item.lsn), digest(item.value))
                for item in reader
                if isinstance(item, Record)
            ]
    return found


def by_chance(chance: random.Random, parts_max: int = 4) -> Callable[..., list[list[SinkRow]]]:
    """Rows spread anew over another number of tasks, each time it is asked."""

    def spread(parts: list[list[SinkRow]]) -> list[list[SinkRow]]:
        rows = [row for part in parts for row in part]
        tasks = chance.randint(1, parts_max)
        if chance.random() < 0.3:
            return parts
        return [rows[number::tasks] for number in range(tasks)]

    return spread
