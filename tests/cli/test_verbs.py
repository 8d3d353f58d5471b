"""The command line itself: what verbs there are, how they fail, where they look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from verbs_at_hand import run_verb

import cordwood
from cordwood.cli.target import Target, cluster_option, dir_option, find_target
from cordwood.cli.up import ending_words, shape_for
from cordwood.errors import BadSetting, Unreachable
from cordwood.local_cluster import ClusterShape

HELP_RATIO_MAX = 2.8
"""Times what any command line costs that Typer draws: 0.25 s here on a slow day.
Ours takes 1.9 to 2.3 times that: all verbs, and asyncio."""

HELP_TRIES = 5
"""The best of several: a busy machine only ever makes it slower."""

HEAVY = {"pyarrow", "pyspark", "pandas", "numpy", "uvloop", "msgspec", "cordwood.client.store"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Run a command line in an empty directory; its outcome."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORDWOOD_CLUSTER", raising=False)
    monkeypatch.delenv("CORDWOOD_DEBUG", raising=False)
    return lambda *arguments: run_verb(arguments)


def cpu_seconds(code: str) -> tuple[float, str]:
    """What a fresh Python works for some code, and what that prints.

    Its own work, not the time that others on the machine took meanwhile.
    """
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(cordwood.__file__).parent.parent,
    )  # fmt: skip
    after = os.times()
    worked = after.children_user - before.children_user
    return worked + after.children_system - before.children_system, done.stdout


@pytest.mark.parametrize(
    "verb",
    [
        (),
        ("logs",),
        ("nodes",),
        ("sim",),
        ("bench",),
        ("wal",),
        ("spark",),
        ("pipeline",),
        ("tier",),
    ],
)
def test_a_group_without_a_verb_shows_its_help_and_ends_with_0(run, verb) -> None:
    """It ended with 2, as if something were wrong with what was asked."""
    done = run(*verb)
    assert done.exit_code == 0
    assert "Usage" in done.output
    assert run(*verb, "no-such-verb").exit_code == 2


def test_rebuild_without_a_verb_does_its_own_work(run) -> None:
    """A group with work of its own does not show its help: here it looks for a cluster."""
    outcome = run("rebuild")
    assert outcome.exit_code == 1
    assert "no cluster runs on" in outcome.output
    assert "Usage" not in outcome.output


class TestHelp:
    @pytest.mark.parametrize(
        "verb",
        ["", "up", "append", "tail", "logs create", "logs list", "logs show", "readers",
         "groups", "status", "demo", "sim run", "bench append", "bench read", "bench import",
         "bench node", "bench idle", "tier upload", "tier status", "tier verify", "tier repair",
          "tier export", "tier collect", "nodes scrub", "nodes status", "nodes if-lost",
         "bench sim", "version"],
    )  # fmt: skip
    def test_every_verb_explains_itself(self, run, verb: str):
        outcome = run(*verb.split(), "--help")
        assert outcome.exit_code == 0
        assert "Usage" in outcome.stdout

    @pytest.mark.slow
    def test_it_is_quick_and_loads_nothing_heavy(self):
        code = (
            "import sys; sys.argv = ['cordwood', '--help']; from cordwood.cli import main; "
            "main(); print(*sorted(sys.modules))"
        )
        work_s, usual_s = [], []
        for _ in range(HELP_TRIES):
            seconds, told = cpu_seconds(code)
            work_s.append(seconds)
            usual_s.append(cpu_seconds("import typer.rich_utils")[0])
        assert HEAVY.isdisjoint(told.split())
        assert min(work_s) < HELP_RATIO_MAX * min(usual_s)

    def test_the_version(self, run):
        assert run("version").stdout.startswith(f"cordwood {cordwood.__version__} ")
        assert run("--version").stdout == run("version").stdout

    def test_it_runs_as_a_module_too(self, run):
        """`python -m cordwood`, where a virtual environment is not on PATH."""
        done = subprocess.run(
            [sys.executable, "-m", "cordwood", "version"],
            capture_output=True, text=True, check=True,
            cwd=Path(cordwood.__file__).parent.parent,
        )  # fmt: skip
        assert done.stdout == run("version").stdout


class TestFailures:
    @pytest.mark.parametrize(
        "command",
        [("append", "demo", "hello"), ("tail", "demo"), ("logs", "list"), ("status",)],
    )
    def test_no_cluster_is_one_line_that_says_how_to_start_one(self, run, command):
        outcome = run(*command)
        assert outcome.exit_code == 1
        assert outcome.stdout == ""
        assert outcome.stderr.count("\n") == 1
        assert "`cordwood up`" in outcome.stderr

    def test_an_address_where_nobody_listens(self, run):
        outcome = run("status", "--cluster", "cordwood://127.0.0.1:1")
        assert outcome.exit_code == 1
        assert outcome.stderr.count("\n") == 1
        assert "127.0.0.1:1" in outcome.stderr

    def test_an_address_file_that_nobody_answers_at(self, run, tmp_path: Path):
        (tmp_path / ".cordwood").mkdir()
        (tmp_path / ".cordwood" / "address").write_text("cordwood://127.0.0.1:1\n")
        outcome = run("status")
        assert outcome.exit_code == 1
        assert "does not answer any more: start it again with `cordwood up`" in outcome.stderr

    def test_debug_shows_the_traceback_too(self, run):
        outcome = run("--debug", "status")
        assert outcome.exit_code == 1
        assert "Traceback" in outcome.stderr
        assert outcome.stderr.endswith("--cluster cordwood://host:port\n")

    def test_a_wrong_command_line_is_another_code(self, run):
        assert run("tail").exit_code == 2
        assert run("up", "--nodes", "0").exit_code == 2
        assert run("nonsense").exit_code == 2

    def test_a_shape_that_cannot_be_leaves_nothing_behind(self, run, tmp_path: Path):
        outcome = run("up", "--nodes", "2", "--copies", "3")
        assert outcome.exit_code == 1
        assert "do not fit" in outcome.stderr
        assert list(tmp_path.iterdir()) == []


class TestTarget:
    def test_an_address_is_taken_with_and_without_the_scheme(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        assert find_target("cordwood://h:1") == Target("cordwood://h:1")
        assert find_target("h:1,i:2") == Target("cordwood://h:1,i:2")

    def test_the_directory_of_a_cluster(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "cluster.json").write_text("{}")
        with pytest.raises(Unreachable, match="no cluster runs on c"):
            find_target("c")
        (tmp_path / "c" / "address").write_text("cordwood://h:1\n")
        assert find_target("c") == Target("cordwood://h:1", "c")

    def test_the_directory_of_an_embedded_store(self, tmp_path: Path):
        (tmp_path / "node-1").mkdir()
        (tmp_path / "node-1" / "identity").write_text("")
        assert find_target(str(tmp_path)) == Target(str(tmp_path))

    def test_a_name_that_holds_nothing_makes_nothing(self, tmp_path: Path):
        with pytest.raises(BadSetting, match="holds no store"):
            find_target(str(tmp_path / "typo"))
        assert list(tmp_path.iterdir()) == []

    def test_hints_name_a_directory_only_where_it_is_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        assert dir_option(".cordwood") == cluster_option(str(tmp_path / ".cordwood")) == ""
        assert dir_option("other") == " --dir other"
        assert cluster_option("other") == " --cluster other"


class TestShape:
    def shape(self, directory, nodes=None, racks=None, copies=None, copy_racks=None, wal=None):
        return shape_for(str(directory), nodes, racks, copies, copy_racks, wal)

    def test_no_options_leave_it_to_what_is_there(self, tmp_path: Path):
        assert self.shape(tmp_path) is None

    @pytest.mark.parametrize(
        ("nodes", "expected"),
        [(1, (1, 1, 1, 1)), (2, (2, 2, 2, 2)), (3, (3, 3, 3, 2)), (9, (9, 3, 3, 2))],
    )
    def test_what_is_left_open_is_made_to_fit(self, tmp_path: Path, nodes: int, expected):
        made = self.shape(tmp_path, nodes)
        assert (made.nodes, made.racks, made.copies, made.copy_racks) == expected

    def test_what_is_asked_for_is_not_bent(self, tmp_path: Path):
        with pytest.raises(BadSetting):
            self.shape(tmp_path, nodes=2, copies=3)

    def test_a_cluster_that_is_there_fills_the_rest(self, tmp_path: Path):
        (tmp_path / "cluster.json").write_text(
            '{"nodes":1,"racks":1,"copies":1,"copy_racks":1,"wal_bytes":16777216,"ports":[7]}'
        )
        assert self.shape(tmp_path, nodes=1) == ClusterShape(1, 1, 1, 1, 16 << 20, (7,))

    def test_how_a_process_ended(self):
        assert ending_words(-9) == "SIGKILL"
        assert ending_words(3) == "exit code 3"


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (("tail", "log"), {"CORDWOOD_READ_TOKENS": "\udcff"}, "a token is text in UTF-8"),
        (("tail", "log"), {"CORDWOOD_WRITE_TOKENS": "a,\udcff"}, "a token is text in UTF-8"),
        (("tail", "log"), {"CORDWOOD_LOG": "bogus"}, "CORDWOOD_LOG is 'bogus': it takes CRITICAL,"),
        (("groups", "\udcff"), {}, "AskConsumers cannot ask with text that is not UTF-8"),
        (("ledgers", "show", "9" * 23), {}, "Invalid value for 'LEDGER'"),
    ],
)
def test_a_value_that_nothing_can_take_is_refused_in_one_line(tmp_path, arguments, env, words):
    """Some ended with a traceback, and some with the words of an encoder."""
    with cordwood.connect(tmp_path) as store:
        outcome = run_verb([*arguments, "--cluster", store.serve()], env=env)
    assert outcome.exit_code in (1, 2)
    assert words in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_level_of_the_log_is_taken_in_any_case(tmp_path):
    with cordwood.connect(tmp_path) as store:
        store.append("log", b"x")
        env = {"CORDWOOD_LOG": "error"}
        outcome = run_verb(["tail", "log", "--cluster", store.serve()], env=env)
    assert (outcome.exit_code, outcome.stdout) == (0, "x\n")
