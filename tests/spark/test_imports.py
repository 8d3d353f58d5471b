"""What a Python process of Spark's loads before it does anything: most of a query's do little."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "numpy",
    "pandas",
    "pyarrow",
    "uvloop",
    "msgspec",
    "cordwood.client.blocking.blocking_store",
)
"""What the client needs, 0.4 s of a core; PySpark's own part takes 0.3."""

CHECKS_OPTIONS = """
import sys
from pyspark_cordwood import DefaultSource
source = DefaultSource({"cordwood.bootstrap.servers": "h:1", "subscribe": "a"})
source.streamReader(source.schema())
sink = DefaultSource({"cordwood.bootstrap.servers": "h:1", "log": "a"})
sink.streamWriter(source.schema(), False)
print(*sys.modules)
"""


def test_options_are_checked_without_the_client():
    command = [sys.executable, "-c", CHECKS_OPTIONS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "cordwood.spark.sink" in loaded
    assert loaded.isdisjoint(HEAVY), loaded.intersection(HEAVY)
