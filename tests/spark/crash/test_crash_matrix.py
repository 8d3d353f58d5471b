"""Landings that are killed, as real processes: whatever dies when, each record is there once.

A schedule is a list of deaths: a point in a batch, the driver by SIGKILL; then other records come,
and the next run has another number of tasks. At the end the table is compared with the log.
"""

from __future__ import annotations

import hashlib
import os
import random
import uuid
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from landing_process import DIED, POINTS, Order, run_landing
from live_cluster import LiveCluster
from tally import LANDINGS

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.nodes import NodeId
from cordwood.spark.jobs.iceberg_table import IcebergTable
from cordwood.spark.jobs.table import FORMATS
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]

SCHEDULES = int(os.environ.get("CORDWOOD_SCHEDULES", "20"))


def appended(store: BlockingStore, log: str) -> dict[int, bytes]:
    with store.read(log) as reader:
        return {int(item.lsn): item.value for item in reader if isinstance(item, Record)}


def landed(table: Path, format_: str) -> list[tuple[int, bytes]]:
    """Rows of a table, read by what is not Spark."""
    if format_ == "parquet":
        found = ds.dataset(table, format="parquet").to_table(["lsn", "value"])
    elif format_ == "delta":
        found = DeltaTable(str(table)).to_pyarrow_table(columns=["lsn", "value"])
    else:
        opened = IcebergTable(table, ())._open()
        assert opened is not None
        found = opened.scan(selected_fields=("lsn", "value")).to_arrow()
    return sorted(zip(found["lsn"].to_pylist(), found["value"].to_pylist(), strict=True))


def digest(rows: list[tuple[int, bytes]]) -> str:
    """Of LSNs and values in their order."""
    whole = hashlib.sha256()
    for lsn, value in rows:
        whole.update(b"%d %d " % (lsn, len(value)) + value)
    return whole.hexdigest()


class Case:
    """A log and a table; runs die and more is appended between them."""

    def __init__(
        self, cluster: LiveCluster, store: BlockingStore, table: Path, format_: str
    ) -> None:
        self.store = store
        self.table = table
        self.format = format_
        self.log = f"/c-{uuid.uuid4().hex[:8]}"
        self.source = {SERVERS: cluster.url, "subscribe": self.log}
        self.count = 0
        self.done: list[tuple] = []
        self.append(120)

    def append(self, records: int) -> None:
        values = [b"%d" % number for number in range(self.count, self.count + records)]
        self.store.append_many(self.log, values)
        self.count += records

    def run(self, point: str, batch: int = 0, parts: int = 1, **more) -> int:
        self.done.append((point, batch, parts, self.count, *more))
        source = {**self.source, "minPartitions": str(parts), "maxRecordsPerTrigger": "50"}
        order = Order(source, str(self.table), self.format, point=point, batch=batch, **more)
        code = run_landing(order)
        LANDINGS.deaths += code == DIED
        return code

    def check(self) -> None:
        """0 lost, 0 twice: the table is the log."""
        wanted = sorted(appended(self.store, self.log).items())
        found = landed(self.table, self.format)
        LANDINGS.schedules.add((self.format, *self.done))
        LANDINGS.compare(
            Counter(wanted), Counter(found), same_digest=digest(found) == digest(wanted)
        )
        assert found == wanted
        assert digest(found) == digest(wanted)
        assert self.count == len(wanted)


@pytest.mark.slow
def test_a_sample(cluster: LiveCluster, store: BlockingStore, tmp_path: Path):
    """Batch 0 dies between two renames; then more comes, and the tasks are others."""
    case = Case(cluster, store, tmp_path / "table", "parquet")
    assert case.run("in-publish", 0, parts=2) == DIED
    case.append(30)
    assert case.run("never") == 0
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_schedule(cluster: LiveCluster, store: BlockingStore, tmp_path: Path, seed):
    chance = random.Random(seed)
    case = Case(cluster, store, tmp_path / "table", FORMATS[seed % len(FORMATS)])
    deaths = 0
    for batch in range(chance.randint(1, 3)):
        point = chance.choice(POINTS[:-1])
        deaths += case.run(point, batch, parts=chance.randint(1, 4)) == DIED
        case.append(chance.randint(0, 60))
    assert deaths, "a schedule in which nothing dies shows nothing"
    assert case.run("never", parts=chance.randint(1, 4)) == 0
    case.check()


STEPS_MAX = 90
"""About the durable steps of three batches; a seed that draws more dies nowhere, and compares."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_driver_that_dies_between_any_two_steps(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path, seed
):
    """Twice: before any rename, sync or commit of all that a landing does to the disk."""
    chance = random.Random(1000 + seed)
    format_ = FORMATS[seed % len(FORMATS)]
    case = Case(cluster, store, tmp_path / "table", format_)
    compact = format_ != "iceberg" and chance.random() < 0.5
    for _ in range(2):
        case.run("never", step=chance.randint(1, STEPS_MAX), compact=compact)
        case.append(chance.randint(0, 60))
    assert case.run("never", parts=chance.randint(1, 4), compact=compact) == 0
    case.check()


@pytest.mark.slow
def test_a_worker_is_killed_and_its_task_tried_again(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    case = Case(cluster, store, tmp_path / "table", "parquet")
    assert case.run("never", parts=2, master="local[2,4]", workers_die=True) == 0
    case.check()


@pytest.mark.slow
def test_a_node_is_killed_while_it_lands(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    case = Case(cluster, store, tmp_path / "table", "parquet")
    number = store.log(case.log).log_id
    victim = next(
        NodeId(node)
        for node, status in store.status().items()
        if not any(each.log == number and each.sequencing for each in status.logs)
    )
    assert case.run("before-publish", 1) == DIED
    cluster.kill(victim)
    try:
        assert case.run("never", parts=2) == 0
    finally:
        cluster.start(victim)
    case.check()
