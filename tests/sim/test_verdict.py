"""The verdict on a whole history: what it counts, what it says was not looked at."""

from __future__ import annotations

import pytest
from history_script import play

from cordwood.errors import Malformed
from cordwood.sim.checkers import CHECKERS
from cordwood.sim.history import NodeDumped, RecordDelivered, to_jsonl
from cordwood.sim.verdict import (
    EVIDENCE,
    event_words,
    judge,
    promise_words,
    violation_words,
)

GOOD = """
run copies=1
take e1
w1 put a b @ e1n1 e1n2
fault crash
fault pause
w1 send c
w1 lose c
heal
r1 from e1n1
r1 e1n1=a e1n2=b
r1 end tail
"""

BAD = """
run copies=1
w1 put a b c d e f @ e1n1 e1n2 e1n3 e1n4 e1n5 e1n6
r1 from e1n1
r1 e1n1=a e1n3=c
r1 end stopped
n1@rack1 e1n1-e1n6=a,b,c,d,e,f
"""


class TestCounts:
    def test_what_happened(self):
        verdict = judge(play(GOOD))
        assert verdict.violations == ()
        assert (verdict.acked, verdict.delivered) == (2, 2)
        assert verdict.faults == {"crash": 1, "pause": 1}
        assert verdict.counts["append-unknown"] == 1
        assert verdict.length_s == pytest.approx(0.012, abs=0.003)

    def test_what_is_broken_is_named_once(self):
        verdict = judge(play(BAD))
        assert verdict.broken == ("S2", "S6")

    def test_a_history_that_contradicts_itself_is_no_verdict(self):
        with pytest.raises(Malformed, match=r"^event 1: "):
            judge(play("r1 e1n1=a"))


class TestWhatWasNotLookedAt:
    def test_every_promise_needs_evidence_that_is_known(self):
        needed = {each for e in EVIDENCE.values() for each in (*e.all_of, *e.part_of)}
        assert needed == set(CHECKERS)

    def test_a_history_without_dumps_proves_nothing_of_copies(self):
        verdict = judge(play(GOOD))
        assert "dumps of the nodes" in verdict.missing
        assert "S15" not in verdict.checked
        assert "S15" in judge(play(BAD)).checked

    def test_an_empty_run_proves_nothing_that_clients_see(self):
        verdict = judge(play("run copies=1"))
        assert len(verdict.missing) == len(EVIDENCE)
        assert set(verdict.checked) == {"S1", "S3", "S8", "S13", "E1"}


class TestWords:
    def test_a_violation_shows_its_events_and_their_lines(self):
        history = play(BAD)
        lines = {id(event): number for number, event in enumerate(history, start=1)}
        violation = judge(history).violations[0]
        told = violation_words(violation, lines).splitlines()
        assert told[0] == "  S2 log 1 e1n2: reader r1 passed without delivering w/b, acknowledged"
        assert told[1].split()[:2] == ["line", "3"]
        assert told[1].endswith("append-ok op=1 lsns=e1n1,e1n2,e1n3,…,e1n6 (6)")
        assert "line" not in violation_words(violation)

    def test_marks_and_places_are_said_as_people_write_them(self):
        history = play(BAD)
        record = next(e for e in history if isinstance(e, RecordDelivered))
        assert event_words(record).endswith("s  record reader=r1 lsn=e1n1 payload=w/a append_us=0")
        dump = next(e for e in history if isinstance(e, NodeDumped))
        assert event_words(dump).endswith(
            "node=1 rack=rack1 log=1 slots=1 blocks trim=e0n0 tier=e0n0"
        )

    def test_a_promise_is_said_in_one_line(self):
        for invariant in CHECKERS:
            assert promise_words(invariant).startswith(f"{invariant}: ")

    def test_lines_are_those_of_the_file(self):
        history = play(BAD)
        assert to_jsonl(history).count(b"\n") == len(history)
