"""Rounds against real processes; `make prove` plays many more of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cordwood.chaos.failover import (
    Round,
    _longest_gap_s,
    _missed_bounds,
    median_and_p99,
    run_failover,
)
from cordwood.chaos.namespaces import why_not
from cordwood.chaos.node_faults import CUT_STORAGE, KILL, KILL_STORAGE, SLOW_DISK, STOP
from cordwood.chaos.syscalls import why_no_strace
from cordwood.sim.history import HistoryRecorder


def test_the_longest_gap_counts_from_the_fault():
    clock = iter((100, 500_000, 600_000, 900_000))
    recorder = HistoryRecorder(lambda: next(clock))
    recorder.append_invoked("a", 1, [b"1"])
    for op in (0, 0):
        recorder.append_ok(op, [1])
    assert _longest_gap_s(recorder.events, 200_000) == pytest.approx(0.4)
    assert _longest_gap_s((), 200_000) == 0


def test_bounds_are_of_the_median_and_of_the_worst():
    quick, slow = Round(KILL, 1, 0.2), Round(KILL, 1, 2.5)
    assert median_and_p99([0.1, 0.2, 0.3]) == (0.2, 0.3)
    assert not _missed_bounds([quick] * 5)
    assert "kill" in _missed_bounds([quick] * 5 + [slow])[0]
    assert "stop" in _missed_bounds([Round(STOP, 1, 11.0)])[0]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(KILL, KILL_STORAGE), (STOP,)])
def test_a_killed_and_a_stopped_sequencer_break_no_promise(tmp_path: Path, kinds):
    report = asyncio.run(run_failover(str(tmp_path), seed=1, rounds=len(kinds), kinds=kinds))
    assert report.problems == ()
    assert report.acked > 50


@pytest.mark.real
@pytest.mark.slow
def test_a_node_that_is_cut_off_and_one_with_a_slow_disk_break_no_promise(tmp_path: Path, require):
    if reason := why_not():
        require("namespaces", reason)
    if reason := why_no_strace():
        require("strace", reason)
    for kind in (CUT_STORAGE, SLOW_DISK):
        report = asyncio.run(run_failover(str(tmp_path / kind), seed=1, rounds=1, kinds=(kind,)))
        assert report.problems == ()
        assert report.acked > 50
