"""A Spark session for one machine, small and quick to start.

For the demo, the tests and a first try. Its settings and their reasons:

- Loopback only (`spark.driver.bindAddress`, `spark.driver.host`): no other machine should reach the
  driver's ports, and the host's name need not resolve.
- No web UI and no progress bar, and only errors logged: the caller prints its own output.
- Two shuffle partitions: the default of 200 makes a toy query take seconds.
- Unix sockets between the JVM and its Python workers, which are one user's on one machine: on two
  busy cores a Python source gave 1.4 M rows/s of 256 B over these, and 0.5 M over TCP.
- Arrow on, and UTC as the session's time zone, so that timestamps come out the
  same on every machine.
- C1 only and the serial collector: measured 3.9 s + 1.9 s to the first answer
  instead of 4.7 s + 2.3 s (two cores). A job of many minutes wants C2: `quick_start=False`.
- An archive of Spark's classes, if it was made (`class_archive.py`).
- Workers import the installed, compiled PySpark instead of Spark's zip (`worker_python.sh`), unless
  PYSPARK_PYTHON names another Python. That Python is checked for this package before Spark starts:
  without the package every query fails, some without a reason.

Any other Spark master works too: build that session as you always do;
`format("cordwood")` needs nothing from here.

Source: docs/sources/spark.md §1.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cordwood.errors import BadSetting
from cordwood.spark.class_archive import archive_flags
from cordwood.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES_DEFAULT = 2

JAVA_FLAGS = "spark.driver.extraJavaOptions"
"""Spark's setting for the options of the driver's JVM."""

QUICK_START_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Of Spark 4.1 and later; was measured on `local[2]` only."""

LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    UNIX_SOCKETS: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

WORKER_PYTHON = Path(__file__).with_name("worker_python.sh")

PROBE_TIMEOUT_S = 60.0
"""A Python imports this package in half a second; a cold disk on a busy machine takes many."""

_LOOPBACK = ("spark.driver.bindAddress", "spark.driver.host")


def local_session(
    app_name: str,
    cores: int = CORES_DEFAULT,
    *,
    quick_start: bool = True,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or join) this process's Spark session on `local[cores]`.

    The first call starts a JVM, which takes seconds; while it runs, a later call gets the same
    session, and only the call's SQL options count.

    Args:
        cores: tasks at once, at least 1.
        quick_start: trade the JVM's best speed for a quick start.
        options: Spark settings that go over the ones above.
    Raises:
        JavaMissing: no Java 17 or newer; the text says how to get one.
        BadSetting: `cores` is below 1, or PYSPARK_PYTHON does not have this package.
    """
    if cores < 1:
        raise BadSetting(f"cores is {cores}; a Spark session needs at least 1")
    _prepare_environment(is_local=True)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in local_settings(quick_start=quick_start, options=options).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def open_session(
    app_name: str, master: str = "local[*]", *, options: Mapping[str, str] | None = None
) -> SparkSession:
    """Start (or join) a session on any Spark master, for the jobs.

    Args:
        master: `local[2]`, `spark://host:7077`, or `sc://host:15002` for Spark Connect. YARN and
            Kubernetes take theirs too; they were not tested.
        options: Spark settings that go over ours.
    Raises:
        JavaMissing: no Java 17 or newer, and the master needs one here.
        BadSetting: workers are of this machine, and PYSPARK_PYTHON does not have this package.
    """
    if master.startswith("sc://"):
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote(master).appName(app_name).getOrCreate()
    _prepare_environment(is_local=master.startswith("local"))
    from pyspark.sql import SparkSession

    settings = local_settings(quick_start=False)
    if not master.startswith("local"):
        # Executors are elsewhere: they must reach the driver, and shuffle as that cluster does.
        for name in (*_LOOPBACK, "spark.sql.shuffle.partitions", UNIX_SOCKETS):
            settings.pop(name)
        settings["spark.executorEnv.LC_ALL"] = "C.UTF-8"  # see `_prepare_environment`
        os.environ.pop("SPARK_LOCAL_IP", None)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (settings | dict(options or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def local_settings(
    *, quick_start: bool = True, options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The settings of `local_session`, for programs that build a session themselves."""
    logging = Path(__file__).with_name("log4j2.properties").as_uri()
    quick = QUICK_START_FLAGS if quick_start else ()
    flags = [f"-Dlog4j2.configurationFile={logging}", *quick, *archive_flags()]
    settings = {**LOCAL_SETTINGS, JAVA_FLAGS: " ".join(flags)}
    return settings | dict(options or {})


def check_worker_python(python: str) -> None:
    """Check that the Python of workers on this machine finds this package.

    Raises:
        BadSetting: it does not, or does not run, with the way out.
    """
    if python in (sys.executable, str(WORKER_PYTHON)):
        return
    try:
        done = subprocess.run(
            [python, "-c", "import cordwood.spark, pyspark"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        if done.returncode == 0:
            return
        why = (done.stderr.strip().splitlines() or [f"it ends with {done.returncode}"])[-1]
    raise BadSetting(
        f"Spark's workers run on {python}, and format('cordwood') does not work there: {why}. Set "
        f"PYSPARK_PYTHON={sys.executable} before Spark starts, or install cordwood[spark] there"
    )


def take_interrupts() -> None:
    """Let Ctrl-C end this program as it ends any other, without Spark's tracebacks.

    PySpark's own handler asks the JVM to cancel all jobs, through the connection on which the
    interrupted call waits: that fails with two tracebacks before KeyboardInterrupt comes.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Py4J logs the interrupt of a call, with a traceback, and raises it as well.
        for name in ("", "py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(name).addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is None


def _prepare_environment(*, is_local: bool) -> None:
    """Set what Spark's launcher reads from the environment, before the JVM starts.

    Args:
        is_local: workers are processes of this machine.
    Raises:
        BadSetting: workers are, and PYSPARK_PYTHON names a Python that does not have this package.
    """
    ensure_java()
    if is_local and (given := os.environ.get("PYSPARK_PYTHON")):
        check_worker_python(given)
    # The workers must be this interpreter: `python3` on PATH may be another, without us.
    if is_local and os.access(WORKER_PYTHON, os.X_OK) and _has_pyspark():
        os.environ.setdefault("PYSPARK_PYTHON", str(WORKER_PYTHON))
        os.environ.setdefault("CORDWOOD_SPARK_PYTHON", sys.executable)
    elif os.environ.get("PYSPARK_PYTHON") == str(WORKER_PYTHON):
        # An earlier session of this process was local; other machines do not have the file.
        del os.environ["PYSPARK_PYTHON"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not _is_utf8(os.environ):
        # A JVM names files in its locale, so that a partition `k=é` would stop a job there.
        os.environ["LC_ALL"] = "C.UTF-8"
    # Else a host name that resolves to 127.0.1.1 costs a warning at every start.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _is_utf8(environment: Mapping[str, str]) -> bool:
    """Whether the locale for characters is one of UTF-8, as glibc settles which counts."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    locale = next((found for name in names if (found := environment.get(name))), "")
    return locale.lower().endswith(("utf-8", "utf8"))


def _has_pyspark() -> bool:
    """Whether PySpark is installed as files, where every process of this interpreter finds it."""
    found = importlib.util.find_spec("pyspark")
    return found is not None and found.origin is not None and "site-packages" in found.origin
