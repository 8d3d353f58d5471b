"""Stories: what became of one record, of one epoch, and of the cluster, in words."""

from __future__ import annotations

import random

import pytest

from cordwood.block import GapKind
from cordwood.decisions import RunAcknowledged, SealRaised, Story
from cordwood.errors import BadSetting
from cordwood.lsn import make_lsn
from cordwood.sim.history import (
    DumpedSlots,
    EndReason,
    HistoryRecorder,
    SlotKind,
    make_payload,
    mark_payload,
)
from cordwood.sim.story import Trace, parse_trace, tell, timeline


@pytest.fixture
def history():
    """A record that was acknowledged in epoch 1, whose sequencer then died."""
    clock = iter(range(0, 10**9, 1_000_000))
    recorder = HistoryRecorder(lambda: next(clock))
    payload = make_payload("p", 0, 64, random.Random(0))
    lsn = make_lsn(1, 1)
    recorder.epoch_taken(4, 1, 2)
    op = recorder.append_invoked("p", 4, [payload])
    recorder.fault_struck("pause", (3,))
    recorder.append_ok(op, [lsn])
    recorder.fault_eased("pause", (3,))
    recorder.read_started("r", 4, lsn)
    recorder.record_delivered("r", lsn, payload)
    recorder.fault_struck("crash", (2,))
    recorder.epoch_taken(4, 2, 3)
    recorder.clean_epoch_set(4, 1, lsn)
    recorder.gap_delivered("r", make_lsn(1, 2), make_lsn(2, 0), GapKind.BRIDGE)
    recorder.read_ended("r", EndReason.STOPPED)
    recorder.faults_healed()
    copy = DumpedSlots(lsn, lsn, SlotKind.DATA, (mark_payload(payload),))
    bridge = DumpedSlots(make_lsn(1, 2), make_lsn(1, 2), SlotKind.BRIDGE, seal_epoch=2)
    recorder.node_dumped(1, "rack1", 4, [copy, bridge])
    return recorder.events


def test_the_story_of_a_record_names_who_wrote_it_who_read_it_and_who_holds_it(history):
    lines = tell(history, Trace(1, make_lsn(1, 1)))
    text = "\n".join(lines)
    assert lines[0] == "e1n1 of log 4"
    assert "p appends p/0 (64 bytes; call 1)" in text
    assert "p is told that it is stored, 2000.0 ms later" in text
    assert "FAULT pause node 3" in text
    assert "r is given p/0" in text
    assert "at the end node 1 (rack1) holds a copy, e1n1 to e1n1, wave 1" in text


def test_the_story_of_an_epoch_has_its_end(history):
    text = "\n".join(tell(history, Trace(1)))
    assert "node 2 takes epoch 1" in text
    assert "epoch 1 is recovered: its last record is e1n1" in text
    assert "the last is: 1 in all, up to e1n1" in text
    assert "r is given a bridge, e1n2 to e2n0" in text
    assert "holds a bridge, e1n2 to e1n2, by recovery with seal 2" in text


def test_the_timeline_stops_where_it_is_told_to(history):
    whole, half = timeline(history), timeline(history, until_us=6_000_000)
    assert half == whole[: len(half)]
    assert any("every fault is taken back" in line for line in whole)
    assert not any("crash" in line for line in half)


def test_what_nobody_saw_has_no_story(history):
    assert tell(history, Trace(9)) == ["nothing in this history is about epoch 9"]


def test_traces_are_epochs_or_records():
    assert parse_trace("e7") == Trace(7)
    assert parse_trace("e7n123") == Trace(7, make_lsn(7, 123))
    assert parse_trace(str(int(make_lsn(2, 5)))) == Trace(2, make_lsn(2, 5))
    for wrong in ("seven", "e", "e7m1"):
        with pytest.raises(BadSetting):
            parse_trace(wrong)


def test_the_story_of_a_record_has_what_was_decided_about_it(history):
    decided = Story(lambda: 1_500_000, lambda: "node-2")
    decided.on_decision(RunAcknowledged(4, make_lsn(1, 1), make_lsn(1, 3)))
    decided.on_decision(RunAcknowledged(4, make_lsn(1, 2), make_lsn(1, 3)))
    decided.on_decision(SealRaised(4, 2))
    lines = tell(history, Trace(1, make_lsn(1, 1)), decided=decided)
    told = [line for line in lines if "node-2" in line]
    assert told == [
        "   1.500000 s  node-2 run acknowledged: log 4, first e1n1, last e1n3",
    ]
    assert lines == [lines[0], *sorted(lines[1:])]
    of_epoch = "\n".join(tell(history, Trace(2), decided=decided))
    assert "node-2 seal raised: log 4, epoch 2" in of_epoch
    assert "acknowledged" not in of_epoch
