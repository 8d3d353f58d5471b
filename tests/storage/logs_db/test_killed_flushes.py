"""The real RocksDB, and a process killed between any two steps of a flush: nothing is lost.

What the simulator's twin promises of a crash is tried there with every state of a disk; here
with the real tables, at the steps that `logs_store` names. A kill leaves what the system
has been given, so that the order of the steps is what is on trial, and not their syncs.

All kills go into one directory: each start finds what all before it left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "killed_at_step.py"

STEPS = (
    ("create a partition", "during", 2),
    ("write a partition", "after", 2),
    ("flush a partition", "before", 2),
    ("flush a partition", "during", 3),
    ("write metadata", "after", 2),
    ("flush metadata", "during", 2),
    ("flush metadata", "after", 3),
    ("trim the WAL", "before", 2),
    ("trim the WAL", "during", 2),
    ("drop a partition", "during", 2),
    ("drop a partition", "after", 1),
)
"""What is killed when: a step, where in it, and at which of its calls."""


@dataclass
class Told:
    """What the processes said so far, but for the last: its words count from the next on."""

    acked: int = -1
    trimmed: int = -1
    found: list[int] = field(default_factory=list)


def run(directory: Path, first: int, step: str, when: str, nth: int) -> tuple[list[list[str]], int]:
    """What a process that appends from `first` said in whole lines, and how it ended."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), str(first), step, when, str(nth)],
        stdout=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines(keepends=True)
    return [line.split() for line in lines if line.endswith("\n")], done.returncode


def judge(told: Told, lines: list[list[str]]) -> None:
    """See that a start found what was acknowledged, each once and in order; note what it said."""
    assert lines, "it did not open"
    assert lines[0][0] == "found"
    told.found = found = [int(each) for each in lines[0][1:]]
    if told.acked > told.trimmed:
        assert found, "acknowledged records are gone"
        assert (found[0] <= told.trimmed + 1, found[-1] >= told.acked) == (True, True)
    if found:
        assert found == list(range(found[0], found[-1] + 1)), "each once, none left out"
    for word, *numbers in lines[1:]:
        if word == "acked":
            told.acked = int(numbers[-1])
        else:
            told.trimmed = int(numbers[-1])


@pytest.mark.slow
def test_a_kill_at_any_step_of_a_flush_loses_nothing(tmp_path: Path) -> None:
    told = Told()
    for step, when, nth in STEPS:
        lines, ended = run(tmp_path / "store", told.acked + 1, step, when, nth)
        judge(told, lines)
        assert ended == -signal.SIGKILL, f"{when} {step}: it was never killed"
    lines, ended = run(tmp_path / "store", 0, "found", "-", 0)
    judge(told, lines)
    assert ended == 0
    assert told.acked > 300, "the lives were long enough to mean something"
    assert told.trimmed > 0
