"""Servers of Spark, started for a test: a standalone cluster, and Spark Connect's."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cordwood.spark.java import ensure_java

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(python: str = sys.executable) -> dict[str, str]:
    """As a user's shell whose Spark and Python are those of `python`."""
    ensure_java()
    home = subprocess.run(
        [python, "-c", "import os, pyspark; print(os.path.dirname(pyspark.__file__))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    ours = {
        "SPARK_HOME": home, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "SPARK_LOG_DIR": "logs",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }  # fmt: skip
    return {**os.environ, **ours}


@contextlib.contextmanager
def server(
    command: Sequence[str], home: Path, said: str, python: str, *, conf: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Spark's servers until the block ends; waits until it said `said`."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "output"
    env = environment(python)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [f"{env['SPARK_HOME']}/bin/{command[0]}", *command[1:]],
            cwd=home, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while said not in log.read_text(errors="replace"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{command} did not start: {log.read_text()[-3000:]}")
                time.sleep(0.2)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def standalone(home: Path, *, workers: int = 2, python: str = sys.executable) -> Iterator[str]:
    """A standalone cluster on loopback; its address. Executors are processes of its workers."""
    package = "org.apache.spark.deploy"
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    master = ["spark-class", f"{package}.master.Master", "--host", "127.0.0.1"]
    master += ["--port", str(port), "--webui-port", "0"]
    worker = ["spark-class", f"{package}.worker.Worker", "--host", "127.0.0.1"]
    worker += ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(server(master, home / "master", "I have been elected", python))
        for number in range(workers):
            place = home / f"worker{number}"
            command = [*worker, "--work-dir", str(place / "work"), address]
            stack.enter_context(
                server(command, place, "Successfully registered with master", python)
            )
        yield address


@contextlib.contextmanager
def connect_server(home: Path, *, python: str) -> Iterator[str]:
    """Spark Connect's server on loopback, with `local[2]`; its address."""
    port = free_port()
    command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in (
        "spark.master=local[2]", "spark.ui.enabled=false", "spark.driver.bindAddress=127.0.0.1",
        f"spark.driver.extraJavaOptions={QUICK}", "spark.sql.shuffle.partitions=2",
        f"spark.connect.grpc.binding.port={port}",
        "spark.connect.grpc.binding.address=127.0.0.1", "spark.driver.host=127.0.0.1",
        "spark.sql.session.timeZone=UTC",
    ):  # fmt: skip
        command += ["--conf", setting]
    command.append("spark-internal")
    with server(command, home, "Spark Connect server started", python):
        yield f"sc://127.0.0.1:{port}"
