"""`cordwood wal dump` and `verify`, on what a store has written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from verbs_at_hand import Outcome, run_verb

import cordwood

RING_START = 8192


def run(*arguments: str) -> Outcome:
    return run_verb(["wal", *arguments])


def objects(*arguments: str) -> list[dict[str, Any]]:
    outcome = run(*arguments, "--json")
    return [json.loads(line) for line in outcome.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed embedded store with records in two logs."""
    with cordwood.connect(str(tmp_path / "store")) as opened:
        for number in range(3):
            opened.append("orders/eu", b"order %d" % number)
        opened.append_many("clicks", [b"x" * 100] * 50)
    return tmp_path / "store" / "node-1"


def test_a_dump_shows_slots_and_every_record_with_what_it_holds(store: Path) -> None:
    lines = run("dump", str(store)).stdout.splitlines()
    assert lines[0].startswith("slot 0: sequence 2, owner node 1,")
    assert "slot 1 (counts): sequence 3" in lines[1]
    assert lines[1].endswith("closed")
    assert [line.split("data  ")[1] for line in lines[2:8]] == [
        "log 1 is spread over nodes [1] as of epoch 1",
        "store of log 1 [e1n1, e1n1] wave 1",
        "store of log 1 [e1n2, e1n2] wave 1",
        "store of log 1 [e1n3, e1n3] wave 1",
        "log 2 is spread over nodes [1] as of epoch 1",
        "store of log 2 [e1n1, e1n50] wave 1",
    ]
    assert lines[8].startswith("6 records, ")


def test_a_dump_for_programs_is_one_object_a_line(store: Path) -> None:
    shown = objects("dump", str(store / "wal"))
    assert [each.get("slot") for each in shown[:2]] == [0, 1]
    assert "salt" not in shown[0]
    last = shown[-2]
    (block,) = last["store"]
    assert (block["log"], block["first"], block["last"]) == (2, "e1n1", "e1n50")
    assert block["copyset"] == [1]
    assert last["position"] == RING_START + last["offset"]
    assert (last["kind"], last["live"], last["body"]) == ("data", True, "ok")
    assert shown[-1]["records"] == 6
    (nodesets,) = [e["nodesets"] for e in shown if e.get("nodesets", {}).get("log") == 2]
    assert nodesets == {"log": 2, "epoch": 1, "history": [{"since": 1, "nodes": [1]}]}


def test_a_dump_from_an_offset(store: Path) -> None:
    records = [each for each in objects("dump", str(store)) if "offset" in each]
    later = objects("dump", str(store), "--from", str(records[2]["offset"]))
    assert [each["offset"] for each in later if "offset" in each] == [
        each["offset"] for each in records[2:]
    ]


def test_a_wal_in_use_can_be_looked_at(tmp_path: Path) -> None:
    with cordwood.connect(str(tmp_path / "store")) as opened:
        opened.append("log", b"x")
        node = str(tmp_path / "store" / "node-1")
        outcome = run("verify", node)
        assert outcome.exit_code == 0
        assert "not closed: in use, or cut off" in outcome.stdout
        assert "2 live records" in outcome.stdout
        opened.append("log", b"y")
        assert objects("dump", node)[-1]["records"] == 3


def test_verify_tells_damage_by_its_exit_code_and_changes_nothing(store: Path) -> None:
    wal = store / "wal"
    assert run("verify", str(store)).exit_code == 0
    second = [each for each in objects("dump", str(store)) if "offset" in each][1]
    with wal.open("r+b") as file:
        file.seek(second["position"] + 60)
        file.write(b"rot")
    before, stat = wal.read_bytes(), os.stat(wal)
    outcome = run("verify", str(store))
    assert outcome.exit_code == 1
    start = second["offset"]
    assert f"DAMAGED [{start}, {start + 4096})" in outcome.stdout
    assert "NOT well" in outcome.stdout
    (verdict,) = objects("verify", str(store))
    assert verdict["is_well"] is False
    assert verdict["damage"] == [[start, start + 4096]]
    assert verdict["records"] == 5
    assert "DAMAGED" in run("dump", str(store)).stdout
    assert (wal.read_bytes(), os.stat(wal).st_mtime_ns) == (before, stat.st_mtime_ns)


def test_what_is_no_wal_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n" * 1000)
    (tmp_path / "blank").write_bytes(bytes(1 << 20))
    for name, words in (
        ("text", "neither header"),
        ("blank", "is blank"),
        ("absent", "No such file"),
        (".", "Is a directory"),
    ):
        for verb in ("dump", "verify"):
            outcome = run(verb, str(tmp_path / name))
            assert outcome.exit_code == 1
            assert words in outcome.stderr
            assert outcome.stderr.count("\n") == 1
            assert outcome.stdout == ""
