"""Real files through a log, the land job and a table, and back: byte for byte the same files."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from live_cluster import LiveCluster
from pyspark.sql import SparkSession

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.demo.flights import FLIGHTS, find_flights
from cordwood.errors import BadSetting
from cordwood.spark.jobs.land import land
from cordwood.spark.jobs.landing import Landing
from cordwood.spark.options import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.real]

LINES_AT_ONCE = 5_000
FLIGHTS_QUICKLY = 20_000


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def append_file(store: BlockingStore, log: str, content: bytes) -> int:
    """A record a line, with its ends; how many."""
    lines = content.splitlines(keepends=True)
    for at in range(0, len(lines), LINES_AT_ONCE):
        store.append_many(log, lines[at : at + LINES_AT_ONCE])
    return len(lines)


def rebuilt(table: Path) -> dict[str, bytes]:
    """What the table says that the files were, by log, read without Spark."""
    found = ds.dataset(table, format="parquet").to_table(["log", "lsn", "value"])
    found = found.sort_by([("log", "ascending"), ("lsn", "ascending")])
    files: dict[str, list[bytes]] = {}
    for log, value in zip(found["log"].to_pylist(), found["value"].to_pylist(), strict=True):
        files.setdefault(log, []).append(value)
    return {log: b"".join(values) for log, values in files.items()}


def flights() -> bytes:
    """The table of flights, or a skip."""
    try:
        path = find_flights().path
    except BadSetting as error:
        pytest.skip(str(error))
    with zipfile.ZipFile(path) as archive:
        return archive.read("flights.csv")


def check(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    table: Path,
    files: Mapping[str, bytes],
) -> None:
    """Append, land in micro-batches, rebuild, compare."""
    lines = sum(
        append_file(store, f"{log}/{name}", content) for name, content in sorted(files.items())
    )
    source = {SERVERS: cluster.url, "subscribePattern": f"{log}/.*", "maxBytesPerTrigger": "8m"}
    landed = land(spark, Landing(source, str(table)))
    assert landed.records == lines
    assert landed.batches >= (2 if sum(map(len, files.values())) > 16 << 20 else 1)
    back = rebuilt(table)
    assert {name: digest(back[f"{log}/{name}"]) for name in files} == {
        name: digest(content) for name, content in files.items()
    }


def test_loghub_and_flights_are_rebuilt_from_the_table(
    spark: SparkSession,
    cluster: LiveCluster,
    store: BlockingStore,
    log: str,
    loghub: Path,
    tmp_path: Path,
):
    files = {path.stem: path.read_bytes() for path in sorted(loghub.glob("*_2k.log"))}
    assert files
    lines = flights().splitlines(keepends=True)[:FLIGHTS_QUICKLY]
    files["flights"] = b"".join(lines)
    check(spark, cluster, store, log, tmp_path / "table", files)


@pytest.mark.slow
def test_all_flights(
    spark: SparkSession, cluster: LiveCluster, store: BlockingStore, log: str, tmp_path: Path
):
    content = flights()
    assert content.count(b"\n") == FLIGHTS + 1
    check(spark, cluster, store, log, tmp_path / "table", {"flights": content})
