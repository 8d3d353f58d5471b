"""The sweep over seeds: how long, which ones, and what a failure shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROVE = Path(__file__).resolve().parents[2] / "tools" / "prove.py"


@pytest.fixture
def simulator(tmp_path):
    """A stand-in for `cordwood sim run` that notes its seeds and fails on seed 12."""
    script = tmp_path / "sim.py"
    script.write_text(
        "import sys\n"
        "seed = sys.argv[sys.argv.index('--seed') + 1]\n"
        f"open({str(tmp_path / 'seeds')!r}, 'a').write(seed + '\\n')\n"
        "if seed == '12':\n"
        "    sys.exit('S3 broken: lsn e1n5 was acknowledged twice')\n"
    )
    return script


def prove(simulator: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = f"'{sys.executable}' '{simulator}'"
    return subprocess.run(
        [sys.executable, str(PROVE), "--command", command, "--workers", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_seeds_that_pass_are_counted(simulator):
    done = prove(simulator, "--minutes", "0", "--first-seed", "1")
    assert done.returncode == 0
    assert "prove: 2 seeds, 0 of them failed" in done.stdout
    assert sorted((simulator.parent / "seeds").read_text().split()) == ["1", "2"]


def test_it_goes_on_until_its_time_is_up(simulator):
    prove(simulator, "--minutes", "0.01", "--first-seed", "100")
    seeds = sorted(int(seed) for seed in (simulator.parent / "seeds").read_text().split())
    assert seeds == list(range(100, 100 + len(seeds)))
    assert len(seeds) > 2


def test_a_seed_that_fails_is_shown_with_the_command_that_runs_it_again(simulator):
    done = prove(simulator, "--minutes", "0", "--first-seed", "11")
    assert done.returncode == 1
    assert "S3 broken: lsn e1n5 was acknowledged twice" in done.stdout
    assert "again: cordwood sim run --demo --seed 12 --minutes 1" in done.stdout


def test_the_first_seed_follows_from_the_commit(simulator):
    told = {prove(simulator, "--minutes", "0").stdout.splitlines()[0] for _ in range(2)}
    assert len(told) == 1
