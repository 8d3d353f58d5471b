"""The part of a proof that runs scenes: tests marked `slow`, which `make test` leaves out.

Most start real nodes, a Spark session or a long simulation, and repeat on those the checks of
quicker tests. Others plant a bug and show that a scene finds it. The worlds of the models are a
separate part (`prove.py`), and so are Spark's long schedules (`prove_spark.py`). A proof of any
length has the Spark tests of SPARK_SCENES.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORLDS = ("tests/protocol/test_small_scope.py", "tests/spark/jobs/test_table_crash_states.py")
"""The slow tests that `prove.py` runs as `worlds`."""

SPARK_SCENES = (
    "tests/spark/crash/test_sink_crashes.py::test_a_sample",
    "tests/spark/crash/test_crash_matrix.py::test_a_sample",
    "tests/spark/crash/test_checkpoint_matrix.py::test_a_sink_log_that_is_renamed_and_made_again",
    "tests/spark/jobs/test_backfill.py::test_a_log_is_landed_written_back_copied_and_counted",
    "tests/spark/jobs/test_stats.py::test_statistics_that_are_stopped_go_on",
    "tests/spark/test_sink_checkpoint.py::test_a_checkpoint_that_lost_its_newest_plan_is_refused",
    "tests/spark/test_sink_checkpoint.py::test_a_checkpoint_that_the_session_names_is_looked_at_too",
    "tests/spark/pipeline/test_pipeline.py::test_a_run_takes_each_sink_where_it_was",
    "tests/spark/jobs/test_backfill.py::test_a_checkpoint_of_a_replay_into_another_log_is_refused",
    "tests/spark/jobs/test_backfill.py::test_an_iceberg_table_is_written_back_with_what_came_later",
    "tests/spark/jobs/test_backfill.py::test_a_table_of_directories_of_times_is_written_back",
    "tests/spark/test_java.py::test_spark_boots_on_the_shim_where_the_machine_has_no_java",
)

TIMEOUT_S = 1800.0
"""Time limit, with a wide margin: the scenes take some ten minutes of two cores."""


def run_scenes(workers: int, say: Callable[[str], None]) -> bool:
    """Run all scenes. Returns whether each passed."""
    left_out = [f"--ignore={path}" for path in WORLDS if not path.startswith("tests/spark/")]
    everywhere = ["tests", "--ignore=tests/spark", *left_out]
    ran = [_pytest(workers, which, say) for which in (everywhere, SPARK_SCENES)]
    return all(ran)


def _pytest(workers: int, which: list[str] | tuple[str, ...], say: Callable[[str], None]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-m", "slow", *which]
    say(f"\nscenes: {shlex.join(command)}")
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        say("scenes: FAILED (no end)")
        return False
    if done.returncode:
        say(f"scenes: FAILED (exit {done.returncode})")
    return done.returncode == 0
