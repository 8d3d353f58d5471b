"""Queries into a log that are killed, as real processes: each row is in the log once.

A schedule is a list of deaths: a point in a batch, the whole query by SIGKILL. Then other records
come, and the next run spreads its rows over other tasks. At the end both logs are compared.
"""

from __future__ import annotations

import hashlib
import os
import random
import uuid
from collections import Counter
from pathlib import Path

import pytest
from copy_process import DIED, run_copy
from dying_sink import POINTS
from live_cluster import LiveCluster
from tally import COPIES

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.nodes import NodeId
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]

SCHEDULES = int(os.environ.get("CORDWOOD_SCHEDULES", "20"))


def values(store: BlockingStore, log: str) -> list[bytes]:
    with store.read(log) as reader:
        return [item.value for item in reader if isinstance(item, Record)]


def digest(found: list[bytes]) -> str:
    """Of a log's records, whatever their order."""
    return hashlib.sha256(b"\n".join(sorted(found))).hexdigest()


class Case:
    """Two logs and a checkpoint; runs die and more is appended between them."""

    def __init__(
        self,
        cluster: LiveCluster,
        store: BlockingStore,
        directory: Path,
        *,
        batch_records: int = 60,
    ) -> None:
        self.store = store
        self.log = f"/k-{uuid.uuid4().hex[:8]}"
        self.checkpoint = str(directory / "checkpoint")
        self.source = {
            SERVERS: cluster.url, "subscribe": self.log, "startingOffsets": "earliest",
            "maxRecordsPerTrigger": str(batch_records),
        }  # fmt: skip
        self.sink = {SERVERS: cluster.url, "log": f"{self.log}-copy"}
        self.count = 0
        self.done: list[tuple] = []
        self.append(120)

    def append(self, records: int) -> None:
        if records:
            many = [b"%d" % number for number in range(self.count, self.count + records)]
            self.store.append_many(self.log, many)
            self.count += records

    def run(self, die_at: str = "", *, read: int = 2, write: int = 0) -> int:
        self.done.append((die_at, read, write, self.count))
        source = {**self.source, "minPartitions": str(read)}
        code = run_copy(source, self.sink, self.checkpoint, die_at=die_at, parts=write)
        COPIES.deaths += code == DIED
        return code

    def check(self) -> None:
        """0 lost, 0 twice: the copy holds what the log holds, by digest."""
        wanted, found = values(self.store, self.log), values(self.store, f"{self.log}-copy")
        COPIES.schedules.add(tuple(self.done))
        COPIES.compare(Counter(wanted), Counter(found), same_digest=digest(found) == digest(wanted))
        assert len(wanted) == self.count
        assert Counter(found) - Counter(wanted) == Counter(), "written twice"
        assert Counter(wanted) - Counter(found) == Counter(), "lost"
        assert digest(found) == digest(wanted)


@pytest.mark.slow
def test_a_sample(cluster: LiveCluster, store: BlockingStore, tmp_path: Path):
    """Batch 0 was published, the driver died before Spark noted it. Its tasks are others now."""
    case = Case(cluster, store, tmp_path, batch_records=200)
    assert case.run("after-publish:0") == DIED
    case.append(30)
    assert case.run(read=1, write=3) == 0
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_schedule(cluster: LiveCluster, store: BlockingStore, tmp_path: Path, seed):
    """Every point is met by some seed; batch 0 dies in every second one."""
    chance = random.Random(seed)
    case = Case(cluster, store, tmp_path)
    deaths = 0
    for number in range(chance.randint(1, 2)):
        point = POINTS[(seed + number) % (len(POINTS) - 1)]
        batch = number if seed % 2 else number + 1
        code = case.run(f"{point}:{batch}", read=chance.randint(1, 3), write=chance.randint(0, 3))
        deaths += code == DIED
        case.append(chance.randint(0, 60))
    assert deaths, "a schedule in which nothing dies shows nothing"
    assert case.run(read=chance.randint(1, 3), write=chance.randint(0, 3)) == 0
    case.check()


@pytest.mark.slow
def test_a_worker_is_killed_and_its_task_tried_again(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path
):
    case = Case(cluster, store, tmp_path)
    assert case.run("worker:0") == 0
    case.check()


@pytest.mark.slow
def test_a_node_is_killed_while_it_runs(cluster: LiveCluster, store: BlockingStore, tmp_path: Path):
    """Staging goes on with two of three copies only if the log asks for no more: it has two."""
    case = Case(cluster, store, tmp_path)
    store.create_log(f"{case.log}-copy", copies=2)
    number = store.log(case.log).log_id
    victim = next(
        NodeId(node)
        for node, status in store.status().items()
        if not any(each.log == number and each.sequencing for each in status.logs)
    )
    assert case.run("before-publish:0") == DIED
    cluster.kill(victim)
    try:
        assert case.run(write=2) == 0
    finally:
        cluster.start(victim)
    case.check()
