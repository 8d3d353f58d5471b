"""A Spark session for one machine, small and quick to start.

For the demo, the tests and a first try. What it sets, and why:

- Loopback only (`spark.driver.bindAddress`, `spark.driver.host`): the driver's
  ports are nobody else's business, and the host's name need not resolve.
- No web UI and no progress bar, and only errors logged: the caller has a screen
  of its own.
- Two shuffle partitions: the default of 200 makes a toy query take seconds.
- Arrow on, and UTC as the session's time zone, so that timestamps come out the
  same on every machine.
- C1 only and the serial collector: measured 3.9 s + 1.9 s to the first answer
  instead of 4.7 s + 2.3 s (two cores). A job of many minutes wants C2: `quick_start=False`.
- An archive of Spark's classes, where somebody made one (`class_archive.py`).
- Workers take PySpark from where it is installed and compiled, and not out of Spark's zip
  (`worker_python.sh`), unless PYSPARK_PYTHON says what they are.

Any other Spark master works too: build that session as you always do;
`format("cordwood")` needs nothing from here.

Source: research digest on PySpark 4.3, §1.
"""

from __future__ import annotations

import importlib.util
import os
import sys
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
"""Spark's setting of what the driver's JVM is told."""

QUICK_START_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

WORKER_PYTHON = Path(__file__).with_name("worker_python.sh")

_LOOPBACK = ("spark.driver.bindAddress", "spark.driver.host")


def local_session(
    app_name: str,
    cores: int = CORES_DEFAULT,
    *,
    quick_start: bool = True,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or join) this process's Spark session on `local[cores]`.

    The first call starts a JVM, which takes seconds; while one is running, a later
    call gets the same session and only its SQL options still count.

    Args:
        cores: tasks at once, at least 1.
        quick_start: trade the JVM's best speed for a quick start.
        options: Spark settings that go over the ones above.
    Raises:
        JavaMissing: no Java 17 or newer; the text says how to get one.
        BadSetting: `cores` is below 1.
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
    """Start (or join) a session on any Spark master: what the jobs run in.

    Args:
        master: `local[2]`, `spark://host:7077`, or `sc://host:15002` for Spark Connect. YARN and
            Kubernetes take theirs too; they were not tested.
        options: Spark settings that go over ours.
    Raises:
        JavaMissing: no Java 17 or newer, and the master needs one here.
    """
    if master.startswith("sc://"):
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote(master).appName(app_name).getOrCreate()
    _prepare_environment(is_local=master.startswith("local"))
    from pyspark.sql import SparkSession

    settings = local_settings(quick_start=False)
    if not master.startswith("local"):
        # Executors are elsewhere: they must reach the driver, and shuffle as that cluster does.
        for name in (*_LOOPBACK, "spark.sql.shuffle.partitions"):
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
    """The settings of `local_session`, for those who build a session themselves."""
    logging = Path(__file__).with_name("log4j2.properties").as_uri()
    quick = QUICK_START_FLAGS if quick_start else ()
    flags = [f"-Dlog4j2.configurationFile={logging}", *quick, *archive_flags()]
    settings = {**LOCAL_SETTINGS, JAVA_FLAGS: " ".join(flags)}
    return settings | dict(options or {})


def _prepare_environment(*, is_local: bool) -> None:
    """Set what Spark's launcher reads from the environment, before the JVM starts.

    Args:
        is_local: workers are processes of this machine.
    """
    ensure_java()
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
