"""One node alone: tiny runs of the verbs, all of whose waves are answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verbs_at_hand import run_verb

from cordwood.bench.node import BLOCKS, MANY_LOGS


@pytest.mark.slow
def test_a_tiny_run_has_a_figure_for_each_profile(tmp_path: Path) -> None:
    done = run_verb(
        ["bench", "node", "--waves", "40", "--repeat", "1", "--dir", str(tmp_path), "--json"]
    )
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [each["name"] for each in figures] == [BLOCKS.name, MANY_LOGS.name]
    assert all(each["value"] > 0 and each["p99_ms"] >= each["p50_ms"] > 0 for each in figures)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_is_idle_is_measured_apart_and_together(tmp_path: Path) -> None:
    command = ["bench", "idle", "--logs", "300", "--partitions", "3", "--dir", str(tmp_path)]
    done = run_verb([*command, "--json"])
    assert done.exit_code == 0, done.output
    assert [each["name"] for each in json.loads(done.stdout)] == [
        "idle_log_bytes", "idle_log_us_to_make",
        "idle_partition_bytes", "idle_partition_us_to_make",
        "idle_logs_and_partitions_bytes", "idle_logs_and_partitions_us_to_flush",
        "idle_logs_and_partitions_ms_to_open",
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())
