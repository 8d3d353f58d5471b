"""Jobs whose driver dies between two durable steps: started again, they come to the same end."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compaction import collect_all, digest, made_store, objects
from job_process import run_job
from live_cluster import LiveCluster
from test_sink_crashes import values

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow]

SEEDS = 2

FILES = 3


def until_done(job: str, chance: random.Random, steps_max: int, **how):
    """Die once or twice, and come through; what the last run told, and how many died."""
    deaths = 0
    for _ in range(2):
        deaths += run_job(job, step=chance.randint(1, steps_max), **how) is None
    return run_job(job, **how), deaths


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_backfill_writes_every_row(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path, seed
):
    """At least once: the files of the step that died come again, and no others."""
    log, table = f"/b-{uuid.uuid4().hex[:8]}", tmp_path / "table"
    table.mkdir()
    for number in range(FILES):
        rows = pa.table({"value": [b"%d/%d" % (number, at) for at in range(20)]})
        pq.write_table(rows, table / f"part-{number}.parquet")
    wanted = Counter(b"%d/%d" % (file, at) for file in range(FILES) for at in range(20))
    _, deaths = until_done(
        "backfill", random.Random(seed), 14, table=str(table),
        sink={SERVERS: cluster.url, "log": log}, notes=str(tmp_path / "notes"),
    )  # fmt: skip
    found = Counter(values(store, log))
    assert not wanted - found
    assert max(found.values()) <= 1 + deaths
    again = run_job(
        "backfill", table=str(table), sink={SERVERS: cluster.url, "log": log},
        notes=str(tmp_path / "notes"),
    )  # fmt: skip
    assert (again["records"], again["skipped"]) == (0, FILES)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_compaction_loses_no_record_and_repeats_none(tmp_path: Path, seed):
    """Each put and each replaced head of the driver's is a step; its tasks live on for a while."""
    history = tmp_path / "history"
    made_store(history)
    before = digest(history)
    _, deaths = until_done("compact", random.Random(seed), 7, store=str(history))
    assert deaths
    assert digest(history) == before
    assert run_job("compact", store=str(history)) == {"merged": 0, "records": 0, "left": []}
    collect_all(history)
    assert digest(history) == before
    assert objects(history) == 2, "one of each log, and no orphan"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("job", ["stats", "audit"])
def test_a_count_and_an_audit_tell_the_same(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path, job: str, seed
):
    logs = [f"/{job}-{uuid.uuid4().hex[:8]}" for _ in range(FILES)]
    for log in logs:
        store.append_many(log, [b"%d" % number for number in range(30)])
    source = {SERVERS: cluster.url, "subscribe": ",".join(logs)}
    wanted = run_job(job, source=source, notes=str(tmp_path / "whole"))
    chance = random.Random(seed)
    found, _ = until_done(job, chance, 20, source=source, notes=str(tmp_path / "notes"))
    assert found == wanted
    if job == "stats":
        assert found["records"] == 30 * len(logs)
