"""The same script on every master that is tested: `local`, a standalone cluster, Spark Connect."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pyspark
import pytest
from live_cluster import LiveCluster
from spark_servers import ROOT, connect_server, environment, standalone

from cordwood.block import Record
from cordwood.client.blocking.blocking_store import BlockingStore

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow]

RECORDS = 250
RUN_TIMEOUT_S = 400


@pytest.fixture
def logs(store: BlockingStore) -> tuple[str, str]:
    """A log with records, and the name of one that they are copied to."""
    name = f"/m-{uuid.uuid4().hex[:8]}"
    store.append_many(name, numbers())
    return name, f"{name}-copy"


def numbers() -> list[bytes]:
    return [b"%d" % number for number in range(RECORDS)]


def run(
    cluster: LiveCluster,
    logs,
    scratch: Path,
    master: str,
    python: str = sys.executable,
    workers: str = "",
) -> dict:
    """Run the script; what it printed.

    Args:
        workers: their Python, if it is another than the driver's.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    order = {
        "master": master, "servers": cluster.url, "log": logs[0], "copy": logs[1],
        # A source that Spark finds by itself is run by the driver's Python.
        "scratch": str(scratch), "register": bool(workers),
    }  # fmt: skip
    script = Path(__file__).with_name("any_master.py")
    env = environment(python) | ({"PYSPARK_PYTHON": workers} if workers else {})
    if workers:
        env.pop("PYTHONPATH")  # what is installed counts
    done = subprocess.run(
        [python, str(script), json.dumps(order)],
        cwd=scratch if workers else ROOT,  # where they stand they import from, too
        env=env, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{done.stdout[-1500:]}\n{done.stderr[-6000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def check(store: BlockingStore, logs, told: dict) -> None:
    """All was read in order, cut into tasks, and copied twice: by a stream and by a batch."""
    assert [value.encode() for value in told["values"]] == numbers()
    assert told["partitions"] == 4
    assert told["batches"] == 3
    with store.read(logs[1]) as reader:
        copied = Counter(item.value for item in reader if isinstance(item, Record))
    assert copied == dict.fromkeys(numbers(), 2)


def test_local(cluster: LiveCluster, store: BlockingStore, logs: tuple[str, str], tmp_path: Path):
    check(store, logs, run(cluster, logs, tmp_path, "local[2]"))


def test_a_standalone_cluster_with_two_workers(
    cluster: LiveCluster, store: BlockingStore, logs: tuple[str, str], tmp_path: Path
):
    with standalone(tmp_path / "spark") as master:
        told = run(cluster, logs, tmp_path / "scratch", master)
    check(store, logs, told)
    executors = list((tmp_path / "spark").glob("worker*/*/app-*/*/stderr"))
    assert len({each.parts[-5] for each in executors}) == 2, "one of the workers did nothing"


def test_spark_connect(
    cluster: LiveCluster,
    store: BlockingStore,
    logs: tuple[str, str],
    tmp_path: Path,
    connect_python: str,
):
    with connect_server(tmp_path / "spark", python=connect_python) as master:
        told = run(cluster, logs, tmp_path / "scratch", master, connect_python)
    check(store, logs, told)


def test_workers_of_another_environment_of_the_same_python(
    cluster: LiveCluster,
    store: BlockingStore,
    logs: tuple[str, str],
    tmp_path: Path,
    connect_python: str,
):
    check(store, logs, run(cluster, logs, tmp_path, "local[2]", workers=connect_python))


def test_workers_without_the_package_say_so(
    cluster: LiveCluster, store: BlockingStore, logs: tuple[str, str], tmp_path: Path
):
    with pytest.raises(AssertionError, match="No module named 'cordwood'"):
        run(cluster, logs, tmp_path / "scratch", "local[2]", workers=bare_python(tmp_path / "bare"))


def bare_python(place: Path) -> str:
    """A Python with PySpark and what that wants, and without Cordwood: an image that lacks it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (own,) = (place / "lib").glob("python3*/site-packages")
    behind = Path(pyspark.__file__).parent.parent
    for found in behind.iterdir():
        if "cordwood" not in found.name and found.suffix != ".pth":
            (own / found.name).symlink_to(found)
    return str(place / "bin" / "python")
