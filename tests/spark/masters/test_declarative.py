"""Source and sink inside Spark Declarative Pipelines: a log to a table, and on to another log."""

from __future__ import annotations

import json
import subprocess
import textwrap
import uuid
from pathlib import Path

import pytest
from live_cluster import LiveCluster
from spark_servers import ROOT, environment

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow]

RECORDS = 100
RUN_TIMEOUT_S = 500

FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
source, sink = {source!r}, {sink!r}

@dp.table
def landed():
    return spark.readStream.format("cordwood").options(**source).load()

dp.create_sink(name="copy", format="cordwood", options=sink)

@dp.append_flow(target="copy")
def copied():
    return spark.readStream.format("cordwood").options(**source).load().select("value")
"""


def test_source_and_sink_in_a_pipeline(
    cluster: LiveCluster, store: BlockingStore, tmp_path: Path, connect_python: str
):
    log = f"/d-{uuid.uuid4().hex[:8]}"
    store.append_many(log, [b"%d" % number for number in range(RECORDS)])
    source = {SERVERS: cluster.url, "subscribe": log, "startingOffsets": "earliest"}
    sink = {SERVERS: cluster.url, "log": f"{log}-copy"}
    (tmp_path / "transformations").mkdir()
    flow = FLOW.format(source=source, sink=sink)
    (tmp_path / "transformations" / "flow.py").write_text(textwrap.dedent(flow))
    spec = {
        "name": "cordwood", "storage": (tmp_path / "storage").as_uri(),
        "libraries": [{"glob": {"include": "transformations/**"}}],
        "configuration": {"spark.sql.shuffle.partitions": "2"},
    }  # fmt: skip
    (tmp_path / "spark-pipeline.yml").write_text(json.dumps(spec))
    env = environment(connect_python)
    script = Path(env["SPARK_HOME"]) / "bin" / "spark-pipelines"
    done = subprocess.run(
        [str(script), "--remote", "local[2]", "run"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert (ROOT / "pyspark_cordwood.py").exists(), "it is what Spark found the source by"
    with store.read(f"{log}-copy") as reader:
        copied = [item.value for item in reader if isinstance(item, Record)]
    assert sorted(copied, key=int) == [b"%d" % number for number in range(RECORDS)]
    assert list((tmp_path / "spark-warehouse").rglob("*.parquet"))
