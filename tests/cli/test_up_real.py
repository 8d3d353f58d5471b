"""`cordwood up` as a person runs it: real processes, real signals, the other verbs beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from verbs_at_hand import run_verb

import cordwood
from cordwood.cli.target import open_store

pytestmark = pytest.mark.real

READY_IMPORTS_MAX = 16
"""It is ready in a second where it has two cores to itself. A test shares them, so it counts
work in place of time: in bare starts of an interpreter that imports a node, of which three
nodes and their parent take four to six."""

ROOT = Path(cordwood.__file__).parent.parent


class Shell:
    """Runs `cordwood` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.environment.pop("CORDWOOD_CLUSTER", None)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cordwood", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.directory, env=self.environment, preexec_fn=_take_interrupts,
        )  # fmt: skip

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "cordwood", *arguments],
            input=stdin, capture_output=True, timeout=30, check=False,
            cwd=self.directory, env=self.environment,
        )  # fmt: skip

    def printed(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _take_interrupts() -> None:
    # A test run in the background hands down an ignored SIGINT; a person's shell does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read_until(process: subprocess.Popen[str], end: str) -> str:
    """What it prints up to a line that holds `end`."""
    text = ""
    for line in process.stdout:
        text += line
        if end in line:
            return text
    raise AssertionError(f"it ended without {end!r}: {text}{process.stderr.read()}")


def cpu_seconds(pid: int) -> float:
    """What a process and the children it waited for have had of a core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def import_cpu_s() -> float:
    """What a node's imports take of a core, on this machine at this time."""
    code = "import time, cordwood.node_process; print(time.process_time())"
    return float(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def shell(tmp_path: Path):
    return Shell(tmp_path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a verb in this process, which saves its start; what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORDWOOD_CLUSTER", raising=False)

    def run(*arguments: str, exit_code: int = 0) -> bytes:
        outcome = run_verb(arguments)
        assert outcome.exit_code == exit_code, outcome.output
        return outcome.stderr_bytes if exit_code else outcome.stdout_bytes

    return run


@pytest.fixture
def cluster(shell):
    """`cordwood up` with three nodes; the process, and the pids of its nodes."""
    process = shell.start("up", "--nodes", "3", "--wal-mib", "16")
    try:
        text = read_until(process, "Ready in")
        assert text.count("127.0.0.1:") == 3
        text += read_until(process, "Ctrl-C stops it")
        pids = [int(pid) for pid in re.findall(r"rack\d  pid (\d+)", text)]
        spent_s = sum(map(cpu_seconds, [process.pid, *pids]))
        assert spent_s < READY_IMPORTS_MAX * import_cpu_s()
        yield process, pids
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


class TestUp:
    @pytest.mark.slow
    def test_the_verbs_work_beside_it_and_nothing_is_left(self, shell, here, cluster):
        process, pids = cluster
        assert len(pids) == 3
        assert shell.printed("append", "demo", "hello") == b"e1n1\n"
        assert shell.printed("tail", "demo") == b"hello\n"
        assert shell.printed("append", "demo", "-q", stdin=b"a\r\n\n\xff") == b"3\n"

        assert here("tail", "demo", "--from", "e1n2") == b"a\r\n\n\xff\n"
        assert here("tail", "demo", "--until", "e1n2", "-n", "9") == b"hello\na\r\n"
        (log,) = json.loads(here("logs", "list", "--json"))
        assert (log["name"], log["released"], log["copies"]) == ("/demo", "e1n4", 3)
        assert json.loads(here("logs", "show", "demo", "--json"))["history"]
        assert json.loads(here("logs", "create", "a/b", "--json"))["name"] == "/a/b"
        status = json.loads(here("status", "--json"))
        assert [node["up"] for node in status["nodes"]] == [True] * 3
        assert [each["name"] for each in status["logs"]] == ["/a/b", "/demo"]
        for verb in (("logs", "list"), ("logs", "show", "demo"), ("status",)):
            assert b"/demo" in here(*verb)
        assert b"cordwood logs create" in here("tail", "typo", exit_code=1)
        assert here("tail", "demo", "--format", "hex", "-n", "1") == b"e1n1 68656c6c6f\n"
        assert b"No consumer has a position" in here("groups")
        assert b"Nobody reads" in here("readers")
        with open_store(None) as store, store.read("demo", until=None) as reader:
            assert next(iter(reader)).value == b"hello"
            with store.consumer("billing", "demo", member="m1") as consumer:
                assert consumer.read().records
                (group,) = json.loads(here("groups", "--json"))
            live = json.loads(here("readers", "--json"))
        assert (group["log"], group["member"], group["lag"]) == ("/demo", "m1", "4")
        assert {each["node"] for each in live} == {1, 2, 3}
        assert {each["log"] for each in live} == {"/demo"}
        assert b"billing" in here("groups", "billing")

        second = shell.run("up")
        assert (second.returncode, second.stdout) == (1, b"")
        assert second.stderr.count(b"\n") == 1
        assert b"runs on it already" in second.stderr

        process.send_signal(signal.SIGINT)
        assert "every node is gone" in read_until(process, "Stopped")
        assert process.wait(timeout=10) == 0
        assert [pid for pid in pids if is_alive(pid)] == []
        assert b"start one with `cordwood up`" in here("tail", "demo", exit_code=1)

    @pytest.mark.slow
    def test_a_killed_node_comes_back_and_a_restart_has_the_records(self, shell, here, cluster):
        process, pids = cluster
        here("append", "demo", "one")
        follower = shell.start("tail", "demo", "--follow")
        assert read_until(follower, "one") == "one\n"
        os.kill(pids[0], signal.SIGKILL)
        read_until(process, "node 1 ended (SIGKILL)")
        read_until(process, "node 1 is back")
        here("append", "demo", "two")
        assert read_until(follower, "two") == "two\n"
        follower.send_signal(signal.SIGINT)
        said, problems = follower.communicate(timeout=10)
        assert (follower.returncode, said) == (130, "")
        assert "Traceback" not in problems

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        again = shell.start("up")
        read_until(again, "Ready in")
        assert here("tail", "demo") == b"one\ntwo\n"
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=10)
        assert again.returncode == 0

    @pytest.mark.slow
    def test_a_cluster_with_a_lost_disk_starts_again_and_has_its_data_made_anew(self, shell, here):
        """It ended with the error of the node, and all nodes with it: so no cluster ran that could
        be told that the disk is gone."""
        first = shell.start("up", "--nodes", "5", "--wal-mib", "8")
        read_until(first, "Ctrl-C stops it")
        here("append", "demo", "one")
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=20)
        assert first.returncode == 0
        shutil.rmtree(shell.directory / ".cordwood" / "node-2")
        again = shell.start("up")
        try:
            text = read_until(again, "it is tried again")
            assert "rack2  does not run" in text
            assert "node 2 did not start" in text
            if "node 2 is in the cluster" not in text:
                # The event log did not tell yet what became of its data.
                read_until(again, "node 2 is in the cluster")
            # It ended some seconds ago at most, so the others do not take it for dead yet.
            here("rebuild", "start", "2")
            assert here("tail", "demo") == b"one\n"
            read_until(again, "node 2 is back")
            here("append", "demo", "two")
            assert here("tail", "demo") == b"one\ntwo\n"
        finally:
            again.send_signal(signal.SIGTERM)
            again.communicate(timeout=20)
        assert again.returncode == 0

    @pytest.mark.slow
    def test_the_reader_of_its_output_may_go(self, shell):
        """`up | tee log` and Ctrl-C, which ends tee first, never stopped; and with the reader gone
        one killed node took the whole cluster down."""
        up = shell.start("up", "--nodes", "3", "--wal-mib", "2", "--port", "15640")
        try:
            text = read_until(up, "Ctrl-C stops it.")
            pids = [int(found) for found in re.findall(r"node \d+ .* pid (\d+)", text)]
            assert len(pids) == 3
            up.stdout.close()
            os.kill(pids[0], signal.SIGKILL)
            with pytest.raises(subprocess.TimeoutExpired):
                up.wait(4)  # it says twice that the node ended, and is back
            assert all(is_alive(pid) for pid in pids[1:])
            up.send_signal(signal.SIGINT)
            assert up.wait(20) == 0
            assert "Traceback" not in up.stderr.read()
            assert not any(is_alive(pid) for pid in pids)
        finally:
            up.kill()
            up.wait()
            up.stderr.close()
