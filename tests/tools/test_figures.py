"""The page of figures: what stands on it, and that an aim without a figure is not passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).resolve().parents[2] / "tools" / "figures.py"


@pytest.fixture
def told(tmp_path: Path):
    """A run with a stand-in for `cordwood` that tells of one figure, or fails."""

    def run(only: str, name: str = "simulated_seconds", *, fails: bool = False):
        figure = {
            "name": name, "value": 1234.5, "unit": "s/s", "reference": 2469.0, "ratio": 0.5,
            "reference_is": "twice as much", "p50_ms": None, "p99_ms": None,
        }  # fmt: skip
        script = tmp_path / "stand_in.py"
        script.write_text(
            "import json, sys\n"
            f"sys.exit('no disk') if {fails} else print(json.dumps([{figure!r}]))\n"
        )
        return subprocess.run(
            [sys.executable, str(FIGURES), "--only", only,
             "--command", f"'{sys.executable}' '{script}'"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def test_a_figure_stands_beside_its_reference_and_its_aim(told):
    done = told("simulator")
    assert done.returncode == 0, done.stderr
    row = "| simulated_seconds | 1,234 | s/s |  |  | 2,469 | 0.5 | 60 s/s |"
    assert row in done.stdout
    assert "Reference of simulated_seconds: twice as much." in done.stdout
    assert "`cordwood bench sim`" in done.stdout


def test_an_aim_without_a_figure_fails(told):
    done = told("simulator", "renamed")
    assert done.returncode == 1
    assert "**Not measured:** no figure simulated_seconds" in done.stdout


def test_a_command_that_fails_is_named_on_the_page(told):
    done = told("simulator", fails=True)
    assert done.returncode == 1
    assert "**Not measured:** no disk" in done.stdout


def test_the_aims_are_those_of_figures_that_there_are():
    from cordwood.bench import append, logsdb, node, read, wal_figures, wal_start

    text = FIGURES.read_text()
    for name in (
        *(profile.name for profile in append.STANDARD),
        *(profile.name for profile in (read.RECORDS, read.ARROW, read.BLOCKS)),
        node.BLOCKS.name,
        logsdb.STANDARD[0].name,
        *(f"{wal_figures.STANDARD[place].name}_at_the_device" for place in (0, 4, 5)),
        f"{wal_figures.STANDARD[2].name}_iops",
        f"{wal_figures.STANDARD[3].name}_mean",
        wal_start.figure_name(wal_start.RECORD_BYTES[0]),
    ):
        assert f'"{name}": ' in text, name
