"""The part of a proof that runs Spark: killed queries, other masters, and the oldest PySpark.

`tools/prove.py` calls this. Sessions take seconds to start, and a schedule of the crash matrix
needs two or three of them: all schedules take an hour of two cores. So only a proof of
SPARK_MINUTES_MIN or more runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SPARK_MINUTES_MIN = 15.0
"""The minutes of a proof before a release; a shorter proof is a quick look."""

SCHEDULES = 20
"""Number of schedules of killed landings, and of killed writes into a log."""

TIMEOUT_S = 5400.0

TEST_TIMEOUT_S = 1200
"""Time limit of one schedule, which starts up to five sessions: each takes half a minute on a quiet
machine, and a test of the suite has five minutes for all."""

UNAVAILABLE = 3
"""The exit code of `spark_environments.py` if an environment is not available."""


def run_spark(minutes: float, say: Callable[[str], None]) -> bool:
    """Run the tests that are too slow for `make test`. Returns whether all passed."""
    if minutes < SPARK_MINUTES_MIN:
        say(f"\nspark: left out of a proof of less than {SPARK_MINUTES_MIN:g} min")
        return True
    return _pytest("spark", sys.executable, ["-m", "slow"], say)


def run_spark42(minutes: float, say: Callable[[str], None]) -> bool:
    """Run the tests of Spark on PySpark 4.2. Returns True also if that is not available."""
    if minutes < SPARK_MINUTES_MIN:
        say(f"\nspark42: left out of a proof of less than {SPARK_MINUTES_MIN:g} min")
        return True
    command = [sys.executable, str(ROOT / "tools" / "spark_environments.py"), "4.2"]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode == UNAVAILABLE:
        say("\nspark42: skipped, PySpark 4.2 cannot be had here (see above)")
        return True
    if made.returncode:
        say("\nspark42: FAILED (no environment)")
        return False
    python = made.stdout.splitlines()[-1]
    return _pytest("spark42", python, ["-m", "spark and not slow"], say)


def _pytest(name: str, python: str, which: Sequence[str], say: Callable[[str], None]) -> bool:
    command = ["-m", "pytest", "-q", "-n", "0", *which, "tests/spark"]
    command += ["-o", f"faulthandler_timeout={TEST_TIMEOUT_S}"]
    say(f"\n{name}: CORDWOOD_SCHEDULES={SCHEDULES} python {' '.join(command)}")
    try:
        done = subprocess.run(
            [python, *command],
            cwd=ROOT,
            env={**os.environ, "CORDWOOD_SCHEDULES": str(SCHEDULES)},
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"{name}: FAILED (no end)")
        return False
    if done.returncode:
        say(f"{name}: FAILED (exit {done.returncode})")
    return done.returncode == 0
