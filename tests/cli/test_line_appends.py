"""`cordwood append` of standard input: each line once, and a way to go on after an error."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from swaps import swap_value

import cordwood
from cordwood.cli import line_appends
from cordwood.cli.line_appends import LineAppends
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, OutcomeUnknown, TokenFenced, UnknownLog, Unreachable

LINES = [b"%d" % number for number in range(10)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockingStore]:
    with cordwood.connect(tmp_path / "store") as opened:
        yield opened


def lines_of(store: BlockingStore, told=None, resume=None):
    return LineAppends(store, "log", None, resume, [].append if told is None else told.append)


def values(store: BlockingStore, log: str = "log"):
    return [item.value for item in store.read(log, until="tail") if hasattr(item, "value")]


class Faulty:
    """A store whose appends end with an error although they were stored, or before they were."""

    def __init__(self, store: BlockingStore, *, errors, is_stored):
        self._store = store
        self._errors = errors
        self._is_stored = is_stored

    def __getattr__(self, name):
        return getattr(self._store, name)

    def append_many(self, *arguments, **columns):
        if not self._errors:
            return self._store.append_many(*arguments, **columns)
        if self._is_stored:
            self._store.append_many(*arguments, **columns)
        raise self._errors.pop()


class Waits:
    """A clock on which the first pause uses up all patience."""

    def __init__(self):
        self._now = 0.0

    def monotonic(self):
        return self._now

    def sleep(self, _):
        self._now += line_appends.PATIENCE_S


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_portion_of_unknown_outcome_is_stored_once(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, is_stored: bool
):
    swap_value(monkeypatch, lambda: line_appends.PAUSE_S, 0.0)
    told = []
    faulty = Faulty(store, errors=[], is_stored=is_stored)
    appends = lines_of(faulty, told)
    assert len(appends.append(LINES[:4])) == 4
    faulty._errors += [OutcomeUnknown("cut off"), Unreachable("gone")]
    lsns = appends.append(LINES[4:])
    assert [str(lsn) for lsn in lsns] == [f"e1n{number}" for number in range(5, 11)]
    assert values(store) == LINES
    assert appends.stored == 10
    assert told == ["log does not answer, trying again: gone", "log answers again"]


def test_a_run_that_failed_is_resumed_behind_what_it_stored(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch
):
    swap_value(monkeypatch, lambda: line_appends.PATIENCE_S, 0.0)
    faulty = Faulty(store, errors=[], is_stored=True)
    first = lines_of(faulty)
    first.append(LINES[:3])
    faulty._errors.append(OutcomeUnknown("the connection was lost"))
    with pytest.raises(OutcomeUnknown) as caught:
        first.append(LINES[3:5])
    said = first.how_far(caught.value)
    assert said.startswith("the first 3 lines are stored, lines behind them may be stored too")
    assert f"--resume {first.producer}" in said

    second = lines_of(store, resume=first.producer)
    second.find_place()
    assert second.skipped == 5
    # The same input again, in portions that end elsewhere.
    assert second.append(LINES[:2]) == []
    assert len(second.append(LINES[2:9])) == 4
    assert len(second.append(LINES[9:])) == 1
    assert values(store) == LINES


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_run_stays_with_its_log_whatever_the_name_leads_to(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
):
    """A repeat by name ended with an error, and said that what the first try stored was not."""
    swap_value(monkeypatch, lambda: line_appends.PAUSE_S, 0.0)

    class Renaming(Faulty):
        def append_many(self, *arguments, **columns):
            try:
                return super().append_many(*arguments, **columns)
            except OutcomeUnknown:
                self._store.log_tree.rename("log", "old")
                if is_made_again:
                    self._store.append("log", b"another")
                raise

    renaming = Renaming(store, errors=[], is_stored=True)
    appends = lines_of(renaming)
    appends.append(LINES[:3])
    renaming._errors.append(OutcomeUnknown("the connection was lost"))
    appends.append(LINES[3:6])
    appends.append(LINES[6:])
    assert values(store, "old") == LINES
    if is_made_again:
        assert values(store) == [b"another"]


def test_a_run_that_made_its_log_stays_with_it(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch
):
    """The first portion went by name: a repeat was stored again, in the log that had the name."""
    swap_value(monkeypatch, lambda: line_appends.PAUSE_S, 0.0)

    class Renaming(Faulty):
        def append_many(self, log, values, **columns):
            if not values:
                return self._store.append_many(log, values, **columns)
            try:
                return super().append_many(log, values, **columns)
            except OutcomeUnknown:
                self._store.log_tree.rename("log", "old")
                self._store.append("log", b"another")
                raise

    appends = lines_of(Renaming(store, errors=[OutcomeUnknown("cut off")], is_stored=True))
    assert len(appends.append(LINES)) == len(LINES) == appends.stored
    assert values(store, "old") == LINES
    assert values(store) == [b"another"]


def test_a_log_that_may_not_be_made_is_refused_as_by_an_append(store: BlockingStore):
    class Strict:
        """A store of a cluster in which appends make no logs."""

        def __getattr__(self, name):
            return getattr(store, name)

        def append_many(self, log, values, **columns):
            store.log(log)
            return store.append_many(log, values, **columns)

    with pytest.raises(UnknownLog, match="log"):
        lines_of(Strict()).append(LINES)
    assert store.logs() == []


def test_what_an_earlier_try_may_have_stored_is_told_though_the_log_is_gone(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch
):
    swap_value(monkeypatch, lambda: line_appends.PAUSE_S, 0.0)

    class Deleting(Faulty):
        def append_many(self, *arguments, **columns):
            try:
                return super().append_many(*arguments, **columns)
            except OutcomeUnknown:
                self._store.log_tree.delete("log")
                raise

    deleting = Deleting(store, errors=[], is_stored=True)
    appends = lines_of(deleting)
    appends.append(LINES[:3])
    deleting._errors.append(OutcomeUnknown("the connection was lost"))
    with pytest.raises(OutcomeUnknown, match="earlier try may have stored") as caught:
        appends.append(LINES[3:6])
    assert "lines behind them may be stored too" in appends.how_far(caught.value)


@pytest.mark.parametrize("last", [Unreachable("no node is up"), TokenFenced("a higher token")])
def test_a_portion_that_may_be_stored_is_told_so_whatever_a_later_try_ends_with(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, last
):
    """The first try was stored, and its answer lost. Then no node was up, which is an error that
    stored nothing: the command said that no line behind the acknowledged ones is stored."""
    monkeypatch.setattr(line_appends, "time", Waits())
    faulty = Faulty(store, errors=[], is_stored=True)
    appends = lines_of(faulty)
    appends.append(LINES[:3])
    faulty._errors += [last, OutcomeUnknown("the connection was lost")]
    appends._tell = lambda _: setattr(faulty, "_is_stored", False)
    with pytest.raises(OutcomeUnknown) as caught:
        appends.append(LINES[3:5])
    assert str(last) in str(caught.value)
    said = appends.how_far(caught.value)
    assert said.startswith("the first 3 lines are stored, lines behind them may be stored too")
    assert values(store) == LINES[:5]


def test_lines_of_an_earlier_run_that_come_late_are_told_of(store: BlockingStore):
    """The second run cut other portions, and said that no line behind the first three is stored."""
    first = lines_of(store)
    first.append(LINES[:3])
    second = lines_of(store, resume=first.producer)
    second.find_place()
    first.append(LINES[3:7])
    second.append(LINES[:3])
    with pytest.raises(OutcomeUnknown, match="given out before, up to 6") as caught:
        second.append(LINES[3:5])
    assert "lines behind them may be stored too" in second.how_far(caught.value)
    third = lines_of(store, resume=first.producer)
    third.find_place()
    third.append(LINES)
    assert values(store) == LINES


def test_a_run_that_the_log_does_not_know_is_not_resumed(store: BlockingStore):
    store.append("log", b"of another writer")
    with pytest.raises(BadSetting, match="does not remember this run"):
        lines_of(store, resume=7).find_place()
    assert values(store) == [b"of another writer"]


def test_a_run_on_a_log_that_is_not_there_is_not_resumed(store: BlockingStore):
    with pytest.raises(UnknownLog):
        lines_of(store, resume=7).find_place()


def test_large_portions_are_cut(store: BlockingStore):
    lines = [b""] * (line_appends.PORTION_LINES * 2 + 1)
    appends = lines_of(store)
    assert len(appends.append(lines)) == len(lines)
    assert len(values(store)) == len(lines)


def test_the_command_says_how_far_it_came(tmp_path: Path):
    command = [sys.executable, "-m", "cordwood", "append", "log", "--json", "-c", str(tmp_path)]
    with cordwood.connect(tmp_path):
        pass
    done = subprocess.run(command, input=b"a\nb\n" + b"c" * (2 << 20), capture_output=True)
    assert done.returncode == 1
    assert b"the first 2 lines are stored, no line behind them is" in done.stderr
    assert b"--resume" in done.stderr
    assert b'"stored": 2, "first": "e1n1", "last": "e1n2"' in done.stdout


@pytest.mark.parametrize("how", ["terminated", "nobody reads"])
def test_the_command_says_how_far_it_came_when_it_is_stopped(tmp_path: Path, how: str):
    """It ended without a word, and nobody could resume it: its lines were stored again."""
    command = [sys.executable, "-m", "cordwood", "append", "log", "-c", str(tmp_path)]
    with cordwood.connect(tmp_path):
        pass
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdin.write(b"a\nb\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"e1n1\n"
        assert running.stdout.readline() == b"e1n2\n"
        if how == "terminated":
            running.terminate()
        else:
            running.stdout.close()
            running.stdin.write(b"c\n")
            running.stdin.close()
        said = running.stderr.read()
    stored = 2 if how == "terminated" else 3
    assert b"the first %d lines are stored" % stored in said
    assert b"--resume" in said
    number = signal.SIGTERM if how == "terminated" else signal.SIGPIPE
    assert running.returncode == 128 + number


def test_the_command_says_how_far_it_came_when_its_output_has_no_space(tmp_path: Path):
    """It ended without the number for `--resume`."""
    command = [sys.executable, "-m", "cordwood", "append", "log", "-c", str(tmp_path)]
    with cordwood.connect(tmp_path):
        pass
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, input=b"a\nb\n", stdout=full, stderr=subprocess.PIPE)
    said = done.stderr.decode()
    assert "the first 2 lines are stored, no line behind them is" in said
    assert "--resume" in said
    assert "No space left" in said
    assert done.returncode == 1
    with cordwood.connect(tmp_path) as store:
        assert values(store) == [b"a", b"b"]


def test_a_signal_after_the_last_line_is_stored_leaves_a_success(tmp_path: Path):
    """It killed the command during the client's close: all lines were stored, and the command ended
    without the number for `--resume`."""
    command = [sys.executable, "-m", "cordwood", "append", "log", "--json", "-c", str(tmp_path)]
    with cordwood.connect(tmp_path):
        pass
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        running.stdin.write(b"a\nb\n")
        running.stdin.close()
        assert b'"stored": 2' in running.stdout.readline()
        running.terminate()
    assert running.returncode == 0
