"""What is said of a history of real processes, and that a bad one is not called good."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest

from cordwood.block import GapKind
from cordwood.chaos.outcome import outcome_of
from cordwood.sim.history import (
    AppendOk,
    EndReason,
    Event,
    HistoryRecorder,
    RecordDelivered,
    make_payload,
)

LSNS = tuple((1 << 32) + esn for esn in range(1, 5))


def _history() -> tuple[Event, ...]:
    """Four appends a second apart, but for a kill that cost two; one reader, to the tail."""
    now = [0]
    recorder = HistoryRecorder(lambda: now[0], copies=3, racks=2, seed=1)
    payloads = [make_payload("w", number, 64, random.Random(number)) for number in range(4)]
    recorder.read_started("r", 1, LSNS[0])
    for number, (lsn, payload) in enumerate(zip(LSNS, payloads, strict=True)):
        if number == 2:
            recorder.fault_struck("kill", [3])
            now[0] += 2_000_000
        op = recorder.append_invoked("w", 1, [payload])
        recorder.append_ok(op, [lsn])
        now[0] += 250_000
        recorder.record_delivered("r", lsn, payload, 7)
        if number == 2:
            recorder.fault_eased("kill", [3])
        now[0] += 750_000
    recorder.faults_healed()
    recorder.read_ended("r", EndReason.TAIL)
    return recorder.events


def test_a_good_history_is_called_good_and_measured() -> None:
    outcome = outcome_of(_history())
    assert outcome.problems() == []
    assert outcome.missed(stall_max_s=30) == []
    assert outcome.append_stall_s == pytest.approx(3.0)
    assert outcome.read_stall_s == pytest.approx(0.25)
    assert [dataclasses.astuple(each) for each in outcome.kinds] == [("kill", 1, 3.0)]
    assert outcome.verdict.acked == 4


@pytest.mark.parametrize("lsn", LSNS[:-1])
def test_an_acknowledged_record_that_nobody_read_is_told(lsn: int) -> None:
    """The bug that must not slip through: the store forgot what it acknowledged."""
    kept = [e for e in _history() if not (isinstance(e, RecordDelivered) and e.lsn == lsn)]
    outcome = outcome_of(kept)
    assert outcome.lost == ((1, lsn),)
    problems = "\n".join(outcome.problems())
    assert "S2" in problems
    assert "1 acknowledged records reached no reader" in problems


def test_a_record_that_was_acknowledged_twice_is_told() -> None:
    again = [
        msgspec.structs.replace(event, lsns=LSNS[:1])
        if isinstance(event, AppendOk) and event.lsns == LSNS[1:2]
        else event
        for event in _history()
    ]
    assert "S1" in "\n".join(outcome_of(again).problems())


def test_a_loss_that_is_told_of_a_record_that_was_there_is_told() -> None:
    now = [0]
    recorder = HistoryRecorder(lambda: now[0], copies=3, racks=2, seed=1)
    payload = make_payload("w", 1, 64, random.Random(1))
    op = recorder.append_invoked("w", 1, [payload])
    recorder.append_ok(op, [LSNS[0]])
    recorder.read_started("r", 1, LSNS[0])
    recorder.gap_delivered("r", LSNS[0], LSNS[0], GapKind.DATA_LOSS)
    outcome = outcome_of(recorder.events)
    assert outcome.false_losses == 1
    assert "1 losses were told, and nothing was lost" in outcome.problems()


def test_appends_that_stood_still_for_too_long_are_told() -> None:
    assert "stood still for 3.0 s" in outcome_of(_history()).missed(stall_max_s=2.9)[0]
