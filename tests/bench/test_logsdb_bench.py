"""`cordwood bench logsdb` and `cold`: what is read is what was written, and latencies are told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from scenarios import run_on_uvloop
from swaps import swap_value
from verbs_at_hand import run_verb

from cordwood.bench import logsdb
from cordwood.bench.cold_reader import ColdProfile, bench_cold_reader
from cordwood.bench.logsdb import LogsDbProfile, bench_logsdb

MIB = 1 << 20


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize("block_bytes", [100, 70_000])
def test_all_of_it_is_read_back(tmp_path: Path, block_bytes: int):
    profile = LogsDbProfile("few", block_bytes, 3 * MIB if block_bytes > 1000 else MIB // 4)
    figure = run_on_uvloop(
        bench_logsdb(profile, None, directory=str(tmp_path), repeats=2, say=quiet)
    )
    assert (figure.unit, figure.reference, figure.repeats) == ("MB/s", None, 2)
    assert figure.value > 0
    assert figure.parameters["blocks"] == profile.blocks
    assert os.listdir(tmp_path) == []


def test_the_verb_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    swap_value(monkeypatch, lambda: logsdb.STANDARD, (LogsDbProfile("few", 1000, MIB // 8),))
    outcome = run_verb(["bench", "logsdb", "--repeat", "1", "--dir", str(tmp_path), "--json"])
    assert outcome.exit_code == 0, outcome.output
    (figure,) = json.loads(outcome.stdout)
    assert figure["name"] == "few"
    assert "sequential" in figure["reference_is"] or "reading" in figure["reference_is"]


@pytest.mark.slow
def test_latencies_with_and_without_a_cold_reader(tmp_path: Path):
    profile = ColdProfile(cold_bytes=40 * MIB, seconds=0.3)
    work = bench_cold_reader(profile, directory=str(tmp_path), repeats=1, say=quiet)
    figures = {figure.name: figure for figure in run_on_uvloop(work)}
    assert set(figures) == {
        f"{of}_{end}_beside_cold_reader" for of in ("append", "tail_lag") for end in ("p50", "p99")
    } | {"cold_reader"}
    for figure in figures.values():
        assert figure.value > 0
        assert (figure.unit == "ms") == (figure.reference is not None)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.real
def test_latencies_with_and_without_a_reader_of_main_storage(tmp_path: Path) -> None:
    profile = ColdProfile(cold_bytes=40 * MIB, seconds=0.3, is_tiered=True)
    work = bench_cold_reader(profile, directory=str(tmp_path), repeats=1, say=quiet)
    figures = {figure.name: figure for figure in run_on_uvloop(work)}
    assert figures.keys() == {
        f"{of}_{end}_beside_tier_reader" for of in ("append", "tail_lag") for end in ("p50", "p99")
    } | {"tier_reader"}
    assert figures["tier_reader"].value > 0
    assert list(tmp_path.iterdir()) == []
