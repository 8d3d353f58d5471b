"""The verbs on logs, epochs and nodes, on an embedded store and in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from verbs_at_hand import run_verb

import cordwood
from cordwood.block import Record
from cordwood.blocking import BlockingStore
from cordwood.cli import logs, records
from cordwood.cli.epochs import epoch_rows
from cordwood.layout.message_logs import EpochNodes, EpochsReply
from cordwood.lsn import make_lsn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """Runs a verb on a store with two logs; what it printed."""
    tmp_path = tmp_path_factory.mktemp("verbs")
    with cordwood.connect(str(tmp_path / "store")) as store:
        store.append("orders/eu", b"1")
        store.append("other", b"1")
        for value in (b"1", b"2", b"3"):
            store.append("trimmed", value)

    def invoke(*arguments: str, exit_code: int = 0) -> str:
        where = ["--cluster", str(tmp_path / "store")]
        outcome = run_verb([*arguments, *where])
        assert outcome.exit_code == exit_code, outcome.output
        return outcome.stdout or outcome.stderr

    return invoke


def test_attributes_are_set_shown_and_inherited_again(run):
    run("logs", "set", "orders/", "backlog_s=7d", "scd_enabled=off")
    run("logs", "set", "orders/eu", "backlog_s=12h")
    shown = json.loads(run("logs", "show", "orders/eu", "--json"))
    assert shown["own"] == {"backlog_s": 43_200.0}
    assert (shown["attributes"]["scd_enabled"], shown["attributes"]["nodeset_size"]) == (False, 0)
    run("logs", "set", "orders/eu", "--unset", "backlog_s")
    text = run("logs", "show", "orders/eu")
    assert [line.split()[-1] for line in text.splitlines() if "backlog_s" in line] == ["above"]
    assert "7 d" in text
    directory = json.loads(run("logs", "show", "orders/", "--json"))
    assert directory["own"] == {"backlog_s": 604_800.0, "scd_enabled": False}
    made = json.loads(run("logs", "create", "orders/us", "nodeset_size=0", "--json"))
    assert made["attributes"]["backlog_s"] == 604_800.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["orders/eu"], "nothing to set"),
        (["orders/eu", "colour=red"], "no attribute 'colour'"),
        (["orders/eu", "backlog_s=soon"], "90min"),
        (["nowhere", "backlog_s=1d"], "no log"),
        (["orders/eu", "replicate_across=node:9"], "wants 9 copies; this cluster has 1 nodes"),
        (["orders/", "replicate_across=node:9"], "wants 9 copies; this cluster has 1 nodes"),
        (["/", "nodeset_size=1000"], "goes from 0"),
    ],
)
def test_what_cannot_be_set_is_said_in_a_line(run, words, said: str):
    assert said in run("logs", "set", *words, exit_code=1)


def test_a_log_is_renamed_and_deleted(run):
    run("logs", "create", "young")
    run("logs", "rename", "young", "orders/old")
    assert "orders/old" in run("logs", "list")
    run("logs", "delete", "orders/old", "--yes")
    assert "old" not in run("logs", "list")
    assert "no log" in run("logs", "delete", "orders/old", "--yes", exit_code=1)
    run("logs", "create", "brief")
    told = json.loads(run("logs", "delete", "brief", "--yes", "--json"))
    assert (told["name"], told["deleted"]) == ("/brief", True)


def test_a_log_that_gets_the_name_during_the_question_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cordwood.connect(str(tmp_path / "store")) as store:
        store.append("asked", b"1")
        store.append("other", b"2")

        def moves_the_name(text: str, *, abort: bool) -> None:
            store.log_tree.rename("asked", "old")
            store.log_tree.rename("other", "asked")

        monkeypatch.setattr(logs, "open_store", opens(store))
        monkeypatch.setattr(logs.typer, "confirm", moves_the_name)
        outcome = run_verb(["logs", "delete", "asked"])
        assert (outcome.exit_code, "nothing was deleted" in outcome.output) == (1, True)
        assert [each.name for each in store.logs()] == ["/asked", "/old"]


def test_a_log_that_gets_the_name_during_the_question_is_not_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cordwood.connect(str(tmp_path / "store")) as store:
        store.append_many("asked", [b"1", b"2"])
        store.append_many("other", [b"3", b"4"])

        def moves_the_name(text: str, *, abort: bool) -> None:
            assert text == "Delete the records of /asked up to e1n1?"
            store.log_tree.rename("asked", "old")
            store.log_tree.rename("other", "asked")

        monkeypatch.setattr(logs, "open_store", opens(store))
        monkeypatch.setattr(logs.typer, "confirm", moves_the_name)
        assert run_verb(["logs", "trim", "asked", "e1n1"]).exit_code == 0
        assert values_of(store, "old") == [b"2"]
        assert values_of(store, "asked") == [b"3", b"4"]


@pytest.mark.parametrize("words", [["--from", "90min"], ["--until", "e1n9"]])
def test_a_tail_stays_with_the_log_that_had_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Its name moves once the first place in the log was asked for."""
    with cordwood.connect(str(tmp_path / "store")) as store:
        store.append_many("asked", [b"one", b"two"])
        store.append_many("other", [b"three", b"four"])

        def after(ask: Callable[..., Any]) -> Callable[..., Any]:
            def asked(*arguments: Any) -> Any:
                found = ask(*arguments)
                store.log_tree.rename("asked", "old")
                store.log_tree.rename("other", "asked")
                return found

            return asked

        verb = "find_time" if words[0] == "--from" else "tail"
        monkeypatch.setattr(store, verb, after(getattr(store, verb)))
        monkeypatch.setattr(records, "open_store", opens(store))
        outcome = run_verb(["tail", "asked", *words])
        assert outcome.output.split() == ["one", "two"]


def opens(store: BlockingStore) -> Callable[[str | None], AbstractContextManager[BlockingStore]]:
    """Opens a store that is open already."""
    return lambda _: nullcontext(store)


def values_of(store: BlockingStore, log: str) -> list[bytes]:
    with store.read(log) as reader:
        return [each.value for each in reader if isinstance(each, Record)]


def test_epochs_and_sequencer(run):
    found = json.loads(run("epochs", "orders/eu", "--json"))
    assert found["next_epoch"] == 2
    assert found["owner"] == 1
    assert found["nodesets"] == [
        {
            "first_epoch": 1,
            "last_epoch": None,
            "nodes": [1],
            "copies": 1,
            "racks": 1,
            "replicate_across": {"node": 1, "rack": 1},
        }
    ]
    assert "is in epoch 1, which node 1 took" in run("epochs", "orders/eu")
    who = json.loads(run("sequencer", "orders/eu", "--json"))
    # Opened anew for each verb, so nobody has asked for a sequencer yet.
    assert (who["node"], who["last_epoch"], who["last_owner"]) == (None, 1, 1)
    assert "its next append" in run("sequencer", "orders/eu")
    assert "no log" in run("epochs", "nowhere", exit_code=1)


def test_nodes(run):
    (node,) = json.loads(run("nodes", "list", "--json"))
    assert (node["node"], node["up"]) == (1, True)
    shown = json.loads(run("nodes", "show", "1", "--json"))
    assert [log["log"] for log in shown["logs"]] == ["/orders/eu", "/other", "/trimmed"]
    assert "/orders/eu" in run("nodes", "show", "1")
    assert "there are 1" in run("nodes", "show", "9", exit_code=1)
    (scrubbed,) = json.loads(run("nodes", "scrub", "--json"))
    assert (scrubbed["node"], scrubbed["bytes_s"], scrubbed["damaged"]) == (1, 1 << 20, 0)
    assert "1.0 MiB/s" in run("nodes", "scrub", "1")
    assert "there are 1" in run("nodes", "scrub", "9", exit_code=1)


def test_what_would_be_lost_without_a_node(run):
    """The store has one node, and so one copy of everything."""
    found = json.loads(run("nodes", "if-lost", "1", "--json", exit_code=1))
    (row,) = found["nodes"]
    assert row["node"] == 1
    assert row["gone"] == found["total"]["gone"] > 0
    assert (row["blocks"], row["stuck"], row["last"], row["unknown"]) == (0, 0, 0, 0)
    said = run("nodes", "if-lost", "1", exit_code=1)
    assert f"{row['gone']} blocks would be lost." in said
    assert "there is no node 9; there are 1" in run("nodes", "if-lost", "9", exit_code=1)


def test_what_is_said_of_a_nodes_data(run):
    assert json.loads(run("nodes", "status", "1", "--json")) == {
        "node": 1, "status": "fully-authoritative",
    }  # fmt: skip
    assert "there are 1" in run("nodes", "status", "9", exit_code=1)
    assert "node 1 is up" in run("nodes", "status", "1", "under-replicated", "--yes", exit_code=1)
    assert "unavailable" in run("nodes", "status", "1", "unavailable", "--yes")


def test_a_node_is_not_called_empty_while_blocks_count_on_it(run):
    said = run("nodes", "status", "1", "authoritative-empty", "--yes", exit_code=1)
    assert "blocks count on node 1" in said
    assert "--unchecked" in said
    unchecked = ("authoritative-empty", "--yes", "--unchecked")
    assert "node 1 is up" in run("nodes", "status", "1", *unchecked, exit_code=1)


def test_a_node_may_be_called_empty_once_no_block_counts_on_it(tmp_path: Path):
    with cordwood.connect(str(tmp_path / "store")):
        pass
    words = ["nodes", "status", "1", "authoritative-empty", "--yes"]
    outcome = run_verb([*words, "--cluster", str(tmp_path / "store")])
    assert "node 1 is up" in outcome.stderr, "nothing else speaks against it"


def test_nodesets_tile_the_epochs():
    history = [EpochNodes(1, [1, 2, 3], 3, 1), EpochNodes(4, [1, 2], 2, 1)]
    rows = epoch_rows(EpochsReply(9, 7, 5, 0, 1, 0, history))
    assert [(row["first_epoch"], row["last_epoch"]) for row in rows] == [(1, 3), (4, None)]


def test_a_log_is_trimmed_and_read_on_from_there(run):
    told = json.loads(run("logs", "trim", "trimmed", "e1n2", "--yes", "--json"))
    assert told == {"lsn": "e1n2", "nodes": [1], "missing": {}}
    lines = run("tail", "trimmed", "--format", "json", "--gaps").splitlines()
    told = [json.loads(line) for line in lines]
    assert next(each["gap"] for each in told if "gap" in each) == "trim"
    assert [each["value"] for each in told if "value" in each] == ["3"]
    assert "past that" in run("logs", "trim", "trimmed", "e99n1", "--yes", exit_code=1)
    assert "no log" in run("logs", "trim", "nowhere", "e1n9", "--yes", exit_code=1)


def test_where_a_time_lies_and_where_a_log_begins_and_ends(run):
    ends = json.loads(run("logs", "extent", "orders/eu", "--json"))
    assert (ends["first"], ends["trim"]) == (ends["last"], None)
    assert ends["first"]["lsn"] == "e1n1"
    assert ends["bytes"] > 0
    assert "first record e1n1" in run("logs", "extent", "orders/eu")
    assert run("logs", "find", "orders/eu", "--time", "1d").split() == ["e1n1"]
    found = json.loads(run("logs", "find", "orders/eu", "--time", "2200-01-01", "--json"))
    assert found["lsn"] > ends["last"]["lsn"]
    assert not found["is_partial"]
    assert "say what to find" in run("logs", "find", "orders/eu", exit_code=1)
    assert "is no time" in run("logs", "find", "orders/eu", "--time", "2200-13-01", exit_code=1)
    assert run("tail", "orders/eu", "--from", "1d").split() == ["1"]
    assert run("tail", "orders/eu", "--from", "2200-01-01") == ""


def test_who_sent_what_is_a_table_at_the_end(tmp_path: Path):
    where = str(tmp_path / "store")
    with cordwood.connect(where) as store:
        for value in (b"1", b"2", b"3"):
            store.append("log", value)
    outcome = run_verb(["tail", "log", "--stats", "--cluster", where])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.split() == ["1", "2", "3"]
    head, row, rewinds = outcome.stderr.splitlines()[-3:]
    assert head.split() == ["node", "blocks", "window", "state"]
    assert row.split()[:2] == ["1", "3"]
    assert row.split()[-1] == "sending"
    assert rewinds == "asked anew 0 times"


def test_a_fenced_log_takes_appends_under_the_token_only(run):
    run("append", "other", "before")
    told = json.loads(run("fence", "other", "7", "--holder", "the leader", "--json"))
    assert (told["token"], told["holder"]) == (7, "the leader")
    assert "which the leader holds" in run("append", "other", "without", exit_code=1)
    assert "which the leader holds" in run("fence", "other", "6", exit_code=1)
    assert run("append", "other", "with", "--token", "7")
    assert "fencing token 7, which the leader holds" in run("epochs", "other")
    assert run("tail", "other").split() == ["1", "before", "with"]


def test_one_log_that_was_deleted_is_one_line_of_the_groups(tmp_path: Path) -> None:
    """All of them failed with it, or its name was taken by an empty log."""
    where = str(tmp_path / "store")
    with cordwood.connect(where) as store:
        for log in ("gone", "here"):
            store.append(log, b"1")
            store.save_cursors("billing", {log: make_lsn(1, 1)})
        store.log_tree.delete("gone")
    outcome = run_verb(["groups", "--json", "--cluster", where])
    assert outcome.exit_code == 0, outcome.output
    here, gone = sorted(json.loads(outcome.stdout), key=lambda row: row["log"])
    assert (gone["log"], gone["next"], gone["tail"], gone["lag"]) == ("log 1", "e1n1", "", "")
    assert "log number 1 was deleted" in gone["error"]
    assert (here["log"], here["next"], here["error"]) == ("/here", "e1n1", "")
    assert "log 1: log number 1 was deleted" in outcome.stderr
    shown = run_verb(["groups", "--cluster", where]).stdout
    assert "log 1" in shown
    assert "/here" in shown
    with cordwood.connect(where) as store:
        assert [log.name for log in store.logs()] == ["/here"]


def test_a_logs_tokens_are_set_and_not_shown(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("CORDWOOD_WRITE_TOKENS", "x,to write")
    (tmp_path / "token").write_text("to write\n")
    monkeypatch.setenv("TO_READ", "to read")
    run("logs", "set", "shut/", "read_token=env:TO_READ", f"write_token=file:{tmp_path}/token")
    run("append", "shut/log", "value")
    text = run("logs", "show", "shut/log")
    lines = [line.split() for line in text.splitlines() if "_token" in line]
    assert [line[1:3] for line in lines] == [["asked", "for"]] * 2
    assert "to read" not in text
    told = run("tail", "shut/log", "--gaps", exit_code=1)
    assert "asks for a read token that this command does not have" in told
    assert "CORDWOOD_READ_TOKENS" in told
    assert "CORDWOOD_READ_TOKENS" in run("logs", "set", "shut/", "--unset=read_token", exit_code=1)
    monkeypatch.setenv("CORDWOOD_READ_TOKENS", "to read")
    assert "value" in run("tail", "shut/log")
    run("logs", "set", "shut/", "--unset=read_token", "--unset", "write_token")
    monkeypatch.delenv("CORDWOOD_WRITE_TOKENS")
    run("append", "shut/log", "another")


def test_a_log_with_a_write_token_is_changed_by_who_has_it(run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TO_WRITE", "to write")
    run("logs", "create", "owned", "write_token=env:TO_WRITE")
    for words in (
        ["set", "owned", "--unset", "write_token"],
        ["rename", "owned", "taken"],
        ["delete", "owned", "--yes"],
    ):
        assert "CORDWOOD_WRITE_TOKENS" in run("logs", *words, exit_code=1)
    assert "CORDWOOD_WRITE_TOKENS" in run("append", "owned", "value", exit_code=1)
    monkeypatch.setenv("CORDWOOD_WRITE_TOKENS", "to write")
    run("logs", "rename", "owned", "still-owned")
    run("logs", "delete", "still-owned", "--yes")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("topsecret", "env:NAME of a variable or file:PATH"),
        ("env:NO_SUCH_VARIABLE", "the variable NO_SUCH_VARIABLE holds no token"),
        ("env:SEVERAL", "a log asks for one token"),
    ],
)
def test_a_token_does_not_stand_on_the_command_line(
    run, monkeypatch: pytest.MonkeyPatch, value: str, said: str
):
    """Everybody on the machine sees it there."""
    monkeypatch.setenv("SEVERAL", "one,two")
    told = run("logs", "set", "other", f"read_token={value}", exit_code=1)
    assert said in told
    assert "topsecret" not in told
