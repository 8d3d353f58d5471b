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
    "tests/spark/jobs/test_backfill.py::test_a_range_of_a_log_is_appended_to_it_again",
    "tests/spark/test_elsewhere.py::test_an_embedded_store_that_is_served_is_read_and_written_exactly_once",
    "tests/spark/jobs/test_audit.py::test_an_audit_that_is_stopped_goes_on",
    "tests/spark/jobs/test_land.py::TestRestart::test_a_lost_checkpoint_and_a_log_that_is_selected_again_later",
    "tests/spark/jobs/test_land.py::TestRestart::test_a_first_checkpoint_that_is_put_back_after_another_query_found_a_log",
    "tests/spark/jobs/test_land.py::TestRestart::test_go_on_after_a_log_that_they_name_was_deleted",
    "tests/spark/jobs/test_land.py::TestRestart::test_a_crash_before_publishing_leaves_nothing_behind",
    "tests/spark/jobs/test_land.py::TestOddRecords::test_a_partition_that_looks_hidden_is_landed",
    "tests/spark/test_secrets.py::test_a_verb_refuses_a_token_and_does_not_repeat_it",
    "tests/spark/test_ledger_source.py::TestSpark::test_as_a_stream_that_is_stopped_and_goes_on",
    "tests/spark/jobs/test_audit.py::test_findings_are_durable_before_their_step_is_noted",
    "tests/spark/jobs/test_land.py::TestOddRecords::test_values_that_name_no_directory_are_set_apart",
    "tests/spark/jobs/test_land.py::TestOddRecords::test_times_and_partitions_that_no_table_spells",
    "tests/spark/test_stream_reader.py::TestNames::test_a_log_of_several_epochs_that_is_deleted_under_an_available_now_run",
    "tests/spark/jobs/test_backfill.py::test_a_directory_of_a_number_is_a_key",
    "tests/spark/jobs/test_backfill.py::test_a_checkpoint_of_a_replay_into_another_cluster_is_refused",
    "tests/spark/jobs/test_backfill.py::test_a_log_is_landed_written_back_copied_and_counted",
    "tests/spark/jobs/test_stats.py::test_statistics_that_are_stopped_go_on",
    "tests/spark/test_sink_checkpoint.py::test_a_checkpoint_that_lost_its_newest_plan_is_refused",
    "tests/spark/test_sink_checkpoint.py::test_a_checkpoint_that_the_session_names_is_looked_at_too",
    "tests/spark/pipeline/test_pipeline.py::test_a_run_takes_each_sink_where_it_was",
    "tests/spark/jobs/test_backfill.py::test_a_checkpoint_of_a_replay_into_another_log_is_refused",
    "tests/spark/jobs/test_backfill.py::test_an_iceberg_table_is_written_back_with_what_came_later",
    "tests/spark/jobs/test_backfill.py::test_a_table_of_directories_of_times_is_written_back",
    "tests/spark/test_java.py::test_spark_boots_on_the_shim_where_the_machine_has_no_java",
    "tests/spark/jobs/test_backfill.py::test_a_replay_counts_and_tells_every_batch",
    "tests/spark/jobs/test_backfill.py::test_an_ordered_backfill_of_several_steps_keeps_the_order",
    "tests/spark/test_elsewhere.py::test_a_log_that_asks_for_a_write_token",
    "tests/spark/exactly_once/test_checkpoint_schedules.py::test_a_planted_bug_is_caught",
    "tests/spark/exactly_once/test_schedules.py::test_a_planted_bug_is_caught",
    "tests/spark/jobs/test_compact.py::test_small_objects_become_large_ones_on_executors",
    "tests/spark/jobs/test_land.py::TestFormats::test_hold_the_log_over_a_crash_and_new_columns",
    "tests/spark/jobs/test_land.py::TestRestart::test_a_lost_checkpoint_and_another_cluster_is_refused",
    "tests/spark/jobs/test_land.py::TestRestart::test_decoding_that_sets_other_records_apart_each_time_lands_nothing",
    "tests/spark/jobs/test_land.py::TestRestart::test_a_lost_checkpoint_and_logs_that_went_and_came",
    "tests/spark/jobs/test_land.py::TestRestart::test_a_lost_checkpoint_goes_on_where_the_table_ends",
    "tests/spark/jobs/test_land.py::TestOddRecords::test_a_field_is_named_as_the_directories_columns_are",
    "tests/spark/jobs/test_land.py::TestOddRecords::test_json_of_names_and_depths_that_tables_do_not_have",
    "tests/spark/test_scan.py::TestSeveralLogs::test_objects_of_several_logs_give_each_log_its_own",
    "tests/spark/test_scan.py::TestTheSameTable::test_ranges_cut_objects_at_the_record",
    "tests/spark/test_stream_reader.py::TestBatch0::test_crashes_after_it_was_planned_and_latest_moved",
)

ROOMS = ("tests/storage", "tests/tier")
"""Rooms with so many scenes that they run by themselves, each with the time limit."""

TIMEOUT_S = 1800.0
"""Time limit of each run. The longest run took 18 minutes of two cores beside other work."""


def run_scenes(workers: int, say: Callable[[str], None]) -> bool:
    """Run all scenes. Returns whether each passed."""
    left_out = [path for path in WORLDS if not path.startswith("tests/spark/")]
    left_out += ["tests/spark", *ROOMS]
    elsewhere = ["tests", *(f"--ignore={path}" for path in left_out)]
    runs = [[room] for room in ROOMS] + [elsewhere, list(SPARK_SCENES)]
    ran = [_pytest(workers, which, say) for which in runs]
    return all(ran)


def _pytest(workers: int, which: list[str], say: Callable[[str], None]) -> bool:
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
