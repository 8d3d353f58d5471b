"""Pythons in which Spark is another; see `tools/spark_environments.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from spark_servers import ROOT

BUILD_TIMEOUT_S = 1800


@pytest.fixture(scope="session")
def connect_python() -> str:
    """One with what Spark Connect and Declarative Pipelines want."""
    return environment_python("connect")


def environment_python(name: str) -> str:
    """The Python of an environment that is built if need be, or a skip that says why not."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "spark_environments.py"), name],
        capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"no environment with {name}: {done.stderr.strip()[-500:]}")
    return done.stdout.splitlines()[-1]
