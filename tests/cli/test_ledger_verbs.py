"""The verbs on ledgers, on an embedded store that is served, and in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from swaps import swap
from verbs_at_hand import run_verb

import cordwood
from cordwood.client.blocking.blocking_ledgers import BlockingLedgers
from cordwood.client.ledgers.ledgers import Ledgers
from cordwood.errors import AccessDenied, Malformed
from cordwood.ledger import LedgerMetadata

ONE = ("-E", "1", "-w", "1", "-a", "1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """Runs a verb on an embedded store that is served; what it printed."""
    with cordwood.connect(str(tmp_path_factory.mktemp("ledgers") / "store")) as store:
        address = store.serve()

        def invoke(
            *arguments: str, exit_code: int = 0, password: str = "", stderr: bool = False
        ) -> str:
            env = {"CORDWOOD_LEDGER_PASSWORD": password}
            outcome = run_verb(["ledgers", *arguments, "--cluster", address], env=env)
            assert outcome.exit_code == exit_code, outcome.output
            return outcome.stderr if stderr else outcome.stdout or outcome.stderr

        yield invoke


def test_a_ledger_is_appended_to_read_and_shown(run):
    told = json.loads(run("append", "one", "two", *ONE, "--custom", "who=me", "--json"))
    assert (told["state"], told["last"], told["stored"]) == ("closed", 1, 2)
    ledger = str(told["ledger"])
    assert run("read", ledger).split() == ["one", "two"]
    assert run("read", ledger, "--from", "1", "--to", "1").split() == ["two"]
    assert "is not known to be confirmed" in run("read", ledger, "--to", "9", exit_code=1)
    lines = [json.loads(line) for line in run("tail", ledger, "--json").splitlines()]
    assert [(each["entry"], each["value"]) for each in lines] == [(0, "one"), (1, "two")]
    shown = json.loads(run("show", ledger, "--json"))
    assert shown["custom"] == {"who": {"value": "me"}}
    assert shown["fragments"] == [{"first": 0, "nodes": [1]}]
    text = run("show", ledger)
    assert "E/Qw/Qa 1/1/1" in text
    assert "who = me" in text


def test_an_append_that_fails_tells_of_the_ledger_that_it_leaves_open(tmp_path):
    """No output named it, so no script could recover it."""
    with cordwood.connect(str(tmp_path / "store")) as store:
        arguments = ["ledgers", "append", *ONE, "--json", "--cluster", store.serve()]
        outcome = run_verb(arguments, stdin="one\n" + "x" * (5 << 20))
        assert outcome.exit_code == 1
        told = json.loads(outcome.stdout)
        assert (told["state"], told["stored"]) == ("open", 0)
        assert [*store.ledgers.list()] == [told["ledger"]]


def test_an_open_ledger_is_read_up_to_a_given_entry(tmp_path):
    """No entry of it was known to be confirmed where the last one was given."""
    with cordwood.connect(str(tmp_path / "store")) as store:
        address = store.serve()
        ledger = store.ledgers.create(ensemble=1, write=1, ack=1)
        ledger.append(b"one")
        ledger.append(b"two")  # tells that the first one is confirmed
        arguments = ["ledgers", "read", str(ledger.ledger_id), "--to", "0", "--cluster", address]
        outcome = run_verb(arguments, env={})
        assert (outcome.exit_code, outcome.stdout) == (0, "one\n"), outcome.output
        ledger.close()


def test_a_tail_prints_what_was_confirmed_before_the_last_nodes_went(tmp_path):
    """It waited for nodes that are down to tell a LAC, and printed nothing."""
    with cordwood.connect(str(tmp_path / "store")) as store:
        address, ledgers = store.serve(), store.ledgers
        made = ledgers.create(ensemble=1, write=1, ack=1)
        made.append_many([b"one", b"two"])
        made.abandon()
        held = ledgers._call(ledgers._inner._calls.get(made.ledger_id))
        changed = held.metadata.with_ensemble(2, (99,))
        assert ledgers._call(ledgers._inner._calls.set(held.version, changed))[1]
        arguments = ["ledgers", "tail", str(made.ledger_id), "--cluster", address]
        command = [sys.executable, "-m", "cordwood", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            late = threading.Timer(20, running.kill)
            late.start()
            assert [running.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
            late.cancel()
            running.kill()


def test_entries_are_printed_once_they_are_forced(run):
    text = run("append", "a", "b", *ONE, "--defer-sync", "--id", "60")
    assert text.split() == ["ledger", "60", "0", "1"]
    assert run("read", "60").split() == ["a", "b"]


def test_an_open_ledger_is_fenced_and_recovered(run):
    text = run("append", "a", "b", "c", *ONE, "--leave-open", "--id", "77")
    assert text.split() == ["ledger", "77", "0", "1", "2"]
    assert json.loads(run("show", "77", "--json"))["state"] == "open"
    assert json.loads(run("fence", "77", "--json")) == {"ledger": 77, "fenced": {"1": True}}
    assert json.loads(run("recover", "77", "--json"))["last"] == 2
    assert "ends at entry 2" in run("recover", "77")
    assert "closed already" in run("fence", "77", exit_code=1)
    made = json.loads(run("create", *ONE, "--id", "78", "--json"))
    assert made["state"] == "open"
    assert run("read", "78", "--recovery") == ""


def test_ledgers_are_listed_and_deleted(run):
    run("append", "x", *ONE, "--id", "500", "-q")
    listed = json.loads(run("list", "--after", "499", "--json"))
    assert [each["ledger"] for each in listed] == [500]
    assert "1/1/1" in run("list")
    listed = json.loads(run("list", "--after", "499", "--node", "1", "--json"))
    assert [each["ledger"] for each in listed] == [500]
    assert run("list", "--node", "2") == "No ledger names node 2.\n"
    assert json.loads(run("delete", "500", "--yes", "--json")) == {"ledger": 500, "deleted": True}
    assert "There are no ledgers." in run("list", "--after", "499")
    assert "there is no ledger 500" in run("show", "500", exit_code=1)


def test_without_lost_nodes_there_is_nothing_to_repair(run):
    run("append", "x", *ONE, "--id", "700", "-q")
    assert json.loads(run("repair", "700", "--json")) == []
    assert "no ledger has a lost node" in run("repair")
    assert "can take a ledger's entries" in run("repair", "700", "--node", "1", exit_code=1)


def test_a_ledger_that_cannot_be_repaired_ends_no_repair_of_others(
    run, monkeypatch: pytest.MonkeyPatch
):
    """One with another password, or one that was deleted meanwhile, kept those after it without
    their copies, whoever repaired all."""
    for number, password in ((710, "secret"), (711, "")):
        run("append", "x", *ONE, "--id", str(number), "-q", password=password)
    run("append", "x", *ONE, "--id", "712", "-q", "--leave-open")
    looked_at: list[int] = []

    async def repair(self: object, ledger: int, password: bytes, **_: object) -> dict[int, int]:
        looked_at.append(ledger)
        if ledger == 711:
            return {3: 4}
        raise AccessDenied(f"ledger {ledger} has another password")

    swap(monkeypatch, BlockingLedgers.list, lambda self, after=-1: iter((12345, 710, 711, 712)))
    swap(monkeypatch, Ledgers.repair, repair)
    told = json.loads(run("repair", "--node", "3", "--json", exit_code=1))
    assert told == [
        {"ledger": 711, "moved": {"3": 4}},
        {"ledger": 710, "trouble": "ledger 710 has another password"},
    ]
    assert looked_at == [710, 711]
    assert run("repair", "--node", "3", exit_code=1) == "ledger 711: node 4 for node 3\n"
    assert [each["ledger"] for each in json.loads(run("list", "--json"))] == [710, 711, 712]


def test_a_ledger_that_cannot_be_read_ends_no_work_on_others(run, monkeypatch: pytest.MonkeyPatch):
    right = Ledgers.metadata

    async def metadata(self: Ledgers, ledger: int) -> LedgerMetadata:
        if ledger == 720:
            raise Malformed("ledger 720: the metadata of a ledger has layout 9")
        return await right(self, ledger)

    for number in (720, 721):
        run("append", "x", *ONE, "--id", str(number), "-q")
    swap(monkeypatch, Ledgers.metadata, metadata)
    swap(monkeypatch, BlockingLedgers.list, lambda self, after=-1: iter((720, 721)))
    told = json.loads(run("list", "--json", exit_code=1))
    assert (told[0]["ledger"], told[0]["state"]) == (721, "closed")
    assert told[1] == {
        "ledger": 720,
        "trouble": "ledger 720: the metadata of a ledger has layout 9",
    }
    assert "721" in run("list", exit_code=1)
    for verb in (("repair",), ("tier", "--all")):
        told = json.loads(run(*verb, "--json", exit_code=1))
        assert told[-1]["ledger"] == 720
        assert "layout 9" in told[-1]["trouble"]


def test_auto_recovery_is_switched_and_told(run):
    assert json.loads(run("autorecovery", "--json"))["on"]
    assert not json.loads(run("autorecovery", "off", "--json"))["on"]
    assert "auto-recovery is off" in run("autorecovery")
    assert "Auto-recovery is off: no node looks" in run("under-replicated", stderr=True)
    assert json.loads(run("under-replicated", "--json")) == []
    assert "repaired by themselves" in run("autorecovery", "on")
    assert run("under-replicated", stderr=True) == ""
    assert "`on` or `off`" in run("autorecovery", "maybe", exit_code=1)
    assert json.loads(run("under-replicated", "--json")) == []
    assert "No ledger is known" in run("under-replicated")


def test_what_cannot_be_is_said_in_a_line(run):
    assert "wanted is" in run("append", "x", "-E", "1", "-w", "2", "-a", "2", exit_code=1)
    assert "3 are wanted" in run("append", "x", exit_code=1)
    assert "no digest" in run("append", "x", *ONE, "--digest", "md5", exit_code=1)
    assert "NAME=VALUE" in run("append", "x", *ONE, "--custom", "who", exit_code=1)
    run("append", "secret", *ONE, "--id", "600", password="sesame")
    assert "another password" in run("read", "600", exit_code=1)
    assert run("read", "600", password="sesame").split() == ["secret"]


def test_ledgers_are_checked(run):
    run("append", "one", "two", *ONE, "--id", "900", "-q")
    run("append", "three", *ONE, "--id", "901", "-q", password="secret")
    (told,) = json.loads(run("check", "900", "--json"))
    assert (told["whole"], told["entries"], told["copies"], told["wanted"]) == (True, 2, 2, 1)
    assert (told["lost"], told["lacking"], told["silent"], told["narrow"]) == (0, {}, [], [])
    assert "whole" in run("check", "900", "--sample", "0", "--fill")
    both = json.loads(run("check", "900", "901", "--json", exit_code=1))
    assert both[1] == {"ledger": 901, "trouble": "ledger 901 has another password"}
    assert json.loads(run("check", "901", "--json", password="secret"))[0]["whole"]
    assert "there is no ledger 12345" in run("check", "12345", exit_code=1)


def test_a_ledger_that_is_deleted_after_it_was_listed_ends_no_check(
    run, monkeypatch: pytest.MonkeyPatch
):
    run("append", "one", *ONE, "--id", "950", "-q")
    swap(monkeypatch, BlockingLedgers.list, lambda self, after=-1: iter((12345, 950)))
    assert [each["ledger"] for each in json.loads(run("check", "--json"))] == [950]


def test_closed_ledgers_go_to_main_storage(run):
    # A node uploads a ledger that asks for it by itself, perhaps before the command.
    run("append", "five", *ONE, "--id", "983", "-q", "--tier")
    assert json.loads(run("show", "983", "--json"))["tier"]
    run("append", "one", "two", *ONE, "--id", "980", "-q")
    run("append", "three", *ONE, "--id", "981", "-q", password="secret")
    run("append", "four", *ONE, "--id", "982", "-q", "--leave-open")
    (told,) = json.loads(run("tier", "980", "--json"))
    assert (told["ledger"], told["objects"]) == (980, 1)
    assert "is in main storage" in run("tier", "980")
    assert "in main storage since" in run("show", "980")
    assert json.loads(run("show", "980", "--json"))["tiered_us"] > 0
    assert run("read", "980").split() == ["one", "two"]
    assert "not closed" in run("tier", "982", exit_code=1)
    assert "--all" in run("tier", exit_code=1)
    # Those of other passwords are told, and end no others.
    everything = json.loads(run("tier", "--all", "--json", exit_code=1))
    by_ledger = {each["ledger"]: each for each in everything}
    assert "another password" in by_ledger[981]["trouble"]
    assert by_ledger[980]["objects"] == 0
    assert 982 not in by_ledger
    assert "1 objects" in run("tier", "981", password="secret")
    assert run("read", "981", password="secret").split() == ["three"]
    assert "another password" in run("read", "981", exit_code=1)
