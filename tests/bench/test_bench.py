"""Tiny runs on a real cluster: every verb gives figures that a program can read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scenarios import run_on_uvloop
from swaps import swap_value
from verbs_at_hand import run_verb

import cordwood
from cordwood.bench import read_tail as read_tail_module
from cordwood.bench.disk_reference import disk_reference
from cordwood.bench.loopback import Sink, loopback_bytes_per_second
from cordwood.bench.many_ledgers import bench_many_ledgers
from cordwood.bench.read_tail import TailProfile
from cordwood.errors import Unreachable

ROOT = Path(cordwood.__file__).parent.parent

FIELDS = {"name", "value", "unit", "reference", "ratio", "reference_is", "p50_ms", "p99_ms",
          "repeats", "parameters"}  # fmt: skip


def figures(*arguments: str) -> list[dict[str, object]]:
    outcome = run_verb(["bench", *arguments, "--json"])
    assert outcome.exit_code == 0, outcome.output
    made = json.loads(outcome.stdout)
    for figure in made:
        assert set(figure) == FIELDS
        assert figure["value"] > 0
        assert figure["reference"] > 0
        assert figure["ratio"] == pytest.approx(figure["value"] / figure["reference"], rel=0.01)
    return made


@pytest.mark.real
class TestVerbs:
    @pytest.mark.slow
    def test_append_one_by_one(self, tmp_path: Path):
        (figure,) = figures(
            "append", "--size", "100", "--in-flight", "64", "--records", "1000",
            "--nodes", "3", "--repeat", "1", "--dir", str(tmp_path),
        )  # fmt: skip
        assert (figure["unit"], figure["parameters"]["copies"]) == ("records/s", 3)
        assert 0 < figure["p50_ms"] <= figure["p99_ms"]
        assert list(tmp_path.iterdir()) == []

    def test_append_in_batches_for_some_time(self, tmp_path: Path):
        (figure,) = figures(
            "append", "--size", "64", "--batch", "16", "--in-flight", "2", "--seconds", "0.05",
            "--nodes", "1", "--repeat", "1", "--dir", str(tmp_path),
        )  # fmt: skip
        assert (figure["unit"], figure["parameters"]["copies"]) == ("MB/s", 1)

    def test_read(self, tmp_path: Path):
        (figure,) = figures(
            "read", "--size", "100", "--batch", "50", "--records", "1000",
            "--nodes", "1", "--repeat", "1", "--dir", str(tmp_path),
        )  # fmt: skip
        assert figure["unit"] == "records/s"
        assert figure["parameters"]["records"] == 1000

    @pytest.mark.slow
    def test_read_at_the_tail(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        small = TailProfile(seconds=0.2, rate=400, records=128, readers=3)
        swap_value(monkeypatch, lambda: read_tail_module.TAIL, small)
        lag, beside = figures(
            "read", "--tail", "--nodes", "1", "--repeat", "1", "--dir", str(tmp_path),
        )  # fmt: skip
        assert 0 < lag["p50_ms"] <= lag["p99_ms"]
        assert lag["reference"] == 400
        assert beside["name"] == "append_beside_3_readers"

    def test_import_loads_nothing_heavy(self):
        package, connect = figures("import", "--repeat", "1")
        assert package["parameters"]["heavy_modules_loaded"] == ""
        assert connect["parameters"]["heavy_modules_loaded"] == ""

    def test_told_to_stop_it_leaves_nothing(self, tmp_path: Path):
        process = subprocess.Popen(
            [sys.executable, "-m", "cordwood", "bench", "append", "--nodes", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert process.stderr.readline() == "append_256B_singles: starting\n"
        process.send_signal(signal.SIGTERM)
        said, problems = process.communicate(timeout=30)
        assert (process.returncode, said, problems) == (130, "", "")
        assert list(tmp_path.iterdir()) == []

    def test_a_cluster_that_is_not_there(self, tmp_path: Path):
        outcome = run_verb(
            ["bench", "append", "--cluster", "cordwood://127.0.0.1:1", "--dir", str(tmp_path)]
        )
        assert outcome.exit_code == 1
        assert "127.0.0.1:1" in outcome.stderr
        assert list(tmp_path.iterdir()) == []


class TestSimulation:
    def test_simulated_seconds(self):
        (figure,) = figures("sim", "--minutes", "0.05", "--repeat", "1")
        assert figure["unit"] == "s/s"
        assert figure["parameters"]["acked_records"] > 0


class TestReferences:
    def test_the_disk_writes_to_each_file_and_leaves_nothing(self, tmp_path: Path):
        def files() -> int:
            return len(list(tmp_path.iterdir()))

        async def measure() -> float:
            async with disk_reference(
                str(tmp_path), copies=2, write_bytes=5000, lanes=3
            ) as reference:
                assert files() == 2
                return await reference.bytes_per_second(0.02)

        assert run_on_uvloop(measure()) > 0
        assert list(tmp_path.iterdir()) == []

    def test_loopback_carries_what_it_is_told_to(self):
        assert run_on_uvloop(loopback_bytes_per_second(1_000_000)) > 0

    def test_a_sender_that_ends_early_is_told_of(self):
        async def receive() -> float:
            sink = Sink(10)
            sink.data_received(b"12345")
            sink.connection_lost(None)
            return await sink.seconds

        with pytest.raises(Unreachable, match="ended early"):
            run_on_uvloop(receive())


def test_many_ledgers_are_listed_and_more_are_made(tmp_path: Path) -> None:
    work = bench_many_ledgers(2_500, directory=str(tmp_path), repeats=1, say=lambda text: None)
    pages, made = run_on_uvloop(work)
    assert (pages.name, made.name) == ("ledger_pages_of_many", "ledger_create_beside_many")
    assert pages.value > 0
    assert made.value > 0
    assert pages.parameters["ledgers"] == 2_500
    assert 0 < int(pages.parameters["peak_kib"]) < 2_000
    assert list(tmp_path.iterdir()) == []
