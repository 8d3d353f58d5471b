"""`cordwood verify`: readable verdicts, exit codes, files that are no history."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from verbs_at_hand import run_verb

from cordwood.block import GapKind
from cordwood.sim.checkers import NOT_YET
from cordwood.sim.history import EndReason, HistoryRecorder, make_payload, to_jsonl
from cordwood.sim.streams import stream


def recorder(*, skip: int | None = None) -> HistoryRecorder:
    """Five records appended and read; the reader leaves one out if told to."""
    clock = iter(range(0, 10**9, 1000))
    made = HistoryRecorder(lambda: next(clock), copies=1)
    payloads = [make_payload("w", n, 64, stream(1, "payload")) for n in range(5)]
    op = made.append_invoked("w", 1, payloads)
    lsns = [(1 << 32) + 1 + n for n in range(5)]
    made.append_ok(op, lsns)
    made.read_started("r", 1, lsns[0])
    for n, lsn in enumerate(lsns):
        if n != skip:
            made.record_delivered("r", lsn, payloads[n])
    made.gap_delivered("r", lsns[-1] + 1, lsns[-1] + 1, GapKind.HOLE)
    made.read_ended("r", EndReason.STOPPED)
    return made


@pytest.fixture
def verify(tmp_path: Path):
    """Write bytes to a file and verify it; the outcome, and the file's path."""

    def run(data: bytes, *options: str):
        path = tmp_path / "history.jsonl"
        path.write_bytes(data)
        return run_verb(["verify", str(path), *options]), str(path)

    return run


class TestVerdicts:
    def test_a_good_history(self, verify):
        outcome, path = verify(to_jsonl(recorder()))
        assert outcome.exit_code == 0
        assert re.match(rf"{re.escape(str(path))}: 11 events in \d+\.\d s\n", outcome.stdout)
        assert "5 records acknowledged in 1 calls" in outcome.stdout
        assert "No promise was broken. Checked: S1, S2" in outcome.stdout

    def test_a_skipped_record_is_shown_with_its_lines(self, verify):
        outcome, _ = verify(to_jsonl(recorder(skip=2)))
        assert outcome.exit_code == 1
        assert "BROKEN: S2, S6 (2 violations)" in outcome.stdout
        assert "S2: a reader that passes an acknowledged record delivers it." in outcome.stdout
        assert "reader r passed without delivering w/2, acknowledged" in outcome.stdout
        assert "line 3" in outcome.stdout

    def test_what_is_not_proved_is_said(self, verify):
        outcome, _ = verify(to_jsonl(recorder()))
        assert "no dumps of the nodes: nothing of S15, only a part of S1" in outcome.stdout
        assert "5 records were acknowledged, 1000 are wanted" in outcome.stdout
        for invariant in NOT_YET:
            assert invariant in outcome.stdout.split("Cannot be checked yet:")[1]

    def test_many_violations_are_cut_short_for_people_only(self, verify):
        made = recorder()
        for n in range(30):
            made.read_started("r", 1, 1 << 32)
            made.record_delivered("r", (1 << 32) + 5 + n, b"nobody's")
            made.read_ended("r", EndReason.STOPPED)
        outcome, _ = verify(to_jsonl(made))
        assert "more; --json has all of them" in outcome.stdout
        told = json.loads(verify(to_jsonl(made), "--json")[0].stdout)
        assert len(told["violations"]) > 30

    def test_json(self, verify):
        outcome, _ = verify(to_jsonl(recorder(skip=2)), "--json")
        told = json.loads(outcome.stdout)
        assert outcome.exit_code == 1
        assert told["broken"] == ["S2", "S6"]
        assert [each["line"] for each in told["violations"][0]["evidence"]] == [3, 4]
        assert told["violations"][0]["evidence"][0]["event"] == "append-ok"
        assert "S15" not in told["checked"]
        assert told["not_yet"].keys() == NOT_YET.keys()

    def test_standard_input(self):
        outcome = run_verb(["verify", "-"], stdin=to_jsonl(recorder()))
        assert outcome.exit_code == 0
        assert outcome.stdout.startswith("-: 11 events")


class TestFilesThatAreNoHistory:
    @pytest.mark.parametrize(
        ("tail", "line", "words"),
        [
            (b'{"event":"append-lost","time_us":9}\n', 12, "append-lost"),
            (b'{"event":"append-ok","time_us":1000000,"op":77,"lsns":[]}\n', 12, "is not open"),
            (b'{"event":"healed","time_us":0}\n', 12, "its time is before"),
            (b'{"event":"healed"', 12, "ends inside a line"),
            (b"\n", 12, "truncated"),
        ],
    )
    def test_the_line_is_named(self, verify, tail: bytes, line: int, words: str):
        outcome, path = verify(to_jsonl(recorder()) + tail)
        assert outcome.exit_code == 1
        assert outcome.stdout == ""
        assert outcome.stderr.startswith(f"cordwood: {path}: line {line}: ")
        assert words in outcome.stderr
        assert outcome.stderr.count("\n") == 1

    def test_something_else(self, verify):
        outcome, path = verify(b"# Notes\n")
        assert outcome.exit_code == 1
        assert outcome.stderr.startswith(f"cordwood: {path}: line 1: ")

    def test_no_file(self, tmp_path: Path):
        outcome = run_verb(["verify", str(tmp_path / "none")])
        assert outcome.exit_code == 1
        assert "No such file" in outcome.stderr
