"""The whole demo on small files: a cluster, a kill, Spark, the files again, nothing left.

Each run is a process of its own with a mark in its environment, which everything it starts
inherits: whatever still carries the mark afterwards was left behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cordwood.demo.pieces import PIECE_BYTES_MAX

ROOT = Path(__file__).resolve().parent.parent.parent
MARK = "CORDWOOD_TEST_MARK"
RUN_TIMEOUT_S = 240
"""A run takes 15 s on an idle machine; this bounds one that hangs."""

pytestmark = [
    pytest.mark.real,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc"),
]

DEMO = """
import sys
from cordwood.demo.command import demo
sys.exit(demo({inputs!r}, {where!r}, {keep!r}, 1))
"""


@dataclass
class Run:
    """One run of the demo, and the mark of what it starts."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, inputs: list[str], temporary: Path, where: Path | None) -> subprocess.Popen:
        """Start it; with its cluster kept where a place is given for it."""
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
        code = DEMO.format(inputs=inputs, where=where and str(where), keep=where is not None)
        temporary.mkdir()
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary), MARK: self.mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def left(self) -> dict[int, str]:
        """Processes that carry the mark: number and command line."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
        return found


@pytest.fixture
def run() -> Iterator[Run]:
    """A run; what it leaves behind is ended, so that one failure does not make others."""
    one = Run()
    yield one
    for pid in one.left():
        os.kill(pid, signal.SIGKILL)


HEADLESS_MS_MAX = 20_000
"""Some hundred milliseconds on an idle machine; this one also runs Spark and other tests."""

CONTENTS = {
    "plain.log": b"".join(b"line %d of many\n" % number for number in range(3_000)),
    "no end.log": b"first\r\n\r\n\n\xff\xfe not UTF-8 \x00\nlast without LF",
    "long.log": b"short\n" + b"x" * (2 * PIECE_BYTES_MAX + 5) + b"\nshort\n",
    "empty.log": b"",
    "b\u00fccher [bold].log": b"\xc3\xbc\n",
}


PIPED = b"from a pipe\nwithout an end"
RECORDS = 3_000 + 5 + 5 + 1 + 1 + 2
"""The long line is three pieces, and an empty file is a record too."""


@pytest.mark.slow
def test_a_run_on_files_holds_every_check_and_leaves_nothing_running(run: Run, tmp_path: Path):
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    where = tmp_path / "demo"
    names = [str(tmp_path / name) for name in CONTENTS]
    process = run.start([*names, "-"], tmp_path / "tmp", where)
    out, errors = process.communicate(PIPED, timeout=RUN_TIMEOUT_S)
    told = out.decode() + errors.decode()
    assert process.returncode == 0, told
    assert run.left() == {}
    assert "every check held" in told
    assert "got SIGKILL after" in told
    assert "Traceback" not in told
    assert "WARN" not in told
    line = " ".join(told.split())
    headless = re.search(r"the log was ([\d,]+) ms without a sequencer", line)
    assert headless is not None, told
    assert 0 < int(headless[1].replace(",", "")) < HEADLESS_MS_MAX
    # The killed sequencer's epoch, the bridge that readers were given, and who went on.
    epochs = re.findall(r"^ +(\d+) +node (\d) +(e\d+n\d+)? +(e\d+n\d+)? +([\d,]+)(.*)$", told, re.M)
    assert len(epochs) >= 2, told
    assert epochs[0][1] != epochs[-1][1], "another node went on"
    assert re.fullmatch(r" +bridge e1n\d+ to e2n0 *", epochs[0][5]), told
    assert sum(int(row[4].replace(",", "")) for row in epochs) == RECORDS
    assert re.search(r"no record is lost: every gap is a bridge or a hole", line)
    assert re.search(r"Both nodes were started again, and had caught up after [\d.]+ s", line)
    back = re.findall(r"^ +(\d) +rack\d .*killed, back: .*readable up to (e\d+n\d+) *$", told, re.M)
    assert {lsn for _, lsn in back} == {epochs[-1][3]}, told
    assert len(back) == 2, told
    rebuilt = {path.name.split("-", 1)[1]: path.read_bytes() for path in where.glob("rebuilt/*")}
    assert rebuilt == {**CONTENTS, "-": PIPED}
    assert list(where.glob("parquet/*.parquet"))


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("Start a cluster", signal.SIGTERM),
        pytest.param("Append, and follow", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("Stream the log", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_everything_and_removes_what_was_made(
    run: Run, tmp_path: Path, step: str, number
):
    log = tmp_path / "a.log"
    log.write_bytes(b"".join(b"line %d of many\n" % line for line in range(200_000)))
    process = run.start([str(log)], tmp_path / "tmp", None)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(step.encode()):
            assert len(run.left()) > 1, "what it starts carries the mark"
            process.send_signal(number)
            break
    out, errors = process.communicate(timeout=RUN_TIMEOUT_S)
    told = out.decode() + errors.decode()
    assert process.returncode == 128 + number, told
    assert run.left() == {}
    assert f"Stopped by {number.name}" in told
    assert "Traceback" not in told
    assert list((tmp_path / "tmp").glob("cordwood-demo-*")) == []
