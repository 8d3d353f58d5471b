"""What of a proof runs Spark: killed queries, other masters, and the oldest PySpark.

`tools/prove.py` calls this. Sessions take seconds to start, and a schedule of the crash matrix is
two or three of them, so how many schedules are run follows from the minutes; from
SPARK_MINUTES_MIN on, where SCHEDULES_MAX take about what the rest of the proof takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SPARK_MINUTES_MIN = 5.0
"""A proof of less is a quick look, and Spark is no part of it."""

SCHEDULES_MAX = 20
"""Of killed landings, and as many of killed writes into a log."""

MINUTES_FOR_ALL = 15.0

TIMEOUT_S = 5400.0

UNAVAILABLE = 3
"""What `spark_environments.py` exits with where an environment cannot be had."""


def schedules(minutes: float) -> int:
    """How many schedules of each crash matrix a proof of so many minutes runs."""
    return max(1, min(SCHEDULES_MAX, round(SCHEDULES_MAX * minutes / MINUTES_FOR_ALL)))


def run_spark(minutes: float, say: Callable[[str], None]) -> bool:
    """Run what is too slow for `make test`; whether all of it passed."""
    if minutes < SPARK_MINUTES_MIN:
        say(f"\nspark: left out of a proof of less than {SPARK_MINUTES_MIN:g} min")
        return True
    return _pytest("spark", sys.executable, ["-m", "slow"], schedules(minutes), say)


def run_spark42(minutes: float, say: Callable[[str], None]) -> bool:
    """Run the tests of Spark on PySpark 4.2; True too where that cannot be had."""
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
    return _pytest("spark42", python, ["-m", "spark and not slow"], 1, say)


def _pytest(
    name: str, python: str, which: Sequence[str], count: int, say: Callable[[str], None]
) -> bool:
    command = ["-m", "pytest", "-q", "-n", "0", *which, "tests/spark"]
    say(f"\n{name}: CORDWOOD_SCHEDULES={count} python {' '.join(command)}")
    try:
        done = subprocess.run(
            [python, *command],
            cwd=ROOT,
            env={**os.environ, "CORDWOOD_SCHEDULES": str(count)},
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
