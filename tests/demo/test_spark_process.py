"""The demo's side of its Spark process, against small processes that behave badly."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from cordwood.demo.checks import CheckFailed
from cordwood.demo.spark_messages import Booted, Failed, Job, Landed, pack, read_job
from cordwood.demo.spark_process import SparkProcess, session_members

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

BOOTED = Booted(1.5, "4.3.0", "17")
JOB = Job("127.0.0.1:1", "flights", "/parquet", "flights")

Work = Callable[[SparkProcess], Awaitable[None]]


def says(*lines: bytes) -> str:
    """A program that says these lines and ends."""
    return f"import sys; sys.stdout.buffer.write({b''.join(lines)!r})"


def with_process(program: str, log: Path, work: Work) -> int:
    """Do `work` on a process that runs `program`, then stop it; its exit status."""

    async def main() -> int:
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        spark = SparkProcess(process, log)
        try:
            await work(spark)
        finally:
            await spark.stop()
        assert session_members(spark.session) == []
        assert process.returncode is not None
        return process.returncode

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def failure(program: str, log: Path, timeout_s: float = 30.0) -> str:
    """What waiting for Booted says of a process that runs `program`."""
    said: list[str] = []

    async def work(spark: SparkProcess) -> None:
        with pytest.raises(CheckFailed) as raised:
            await spark.wait_for(Booted, timeout_s)
        said.append(str(raised.value))

    with_process(program, log, work)
    return said[0]


class TestWhatItSays:
    def test_the_message_that_is_due(self, tmp_path: Path):
        async def work(spark: SparkProcess) -> None:
            assert await spark.wait_for(Booted, 30.0) == BOOTED

        with_process(says(pack(BOOTED)), tmp_path / "log", work)

    def test_another_message(self, tmp_path: Path):
        landed = pack(Landed(1.0, 2, 3))
        assert "Landed(seconds=1.0" in failure(says(landed), tmp_path / "log")

    def test_a_failure_in_its_own_words(self, tmp_path: Path):
        text = failure(says(pack(Failed("no Java here"))), tmp_path / "log")
        assert text == "in Spark: no Java here"

    def test_something_else(self, tmp_path: Path):
        assert "said b'Hello" in failure(says(b"Hello\n"), tmp_path / "log")

    def test_nothing(self, tmp_path: Path):
        text = failure("import time; time.sleep(600)", tmp_path / "log", 0.05)
        assert "said nothing for 0.05 s" in text

    def test_an_end_with_the_last_words(self, tmp_path: Path):
        program = "import sys; print('first', 'last', sep=chr(10), file=sys.stderr); sys.exit(3)"
        text = failure(program, tmp_path / "log")
        assert text.startswith("the Spark process ended (exit code 3;")
        assert text.endswith(": last)")

    def test_an_end_by_a_signal(self, tmp_path: Path):
        text = failure("import os; os.kill(os.getpid(), 9)", tmp_path / "log")
        assert "ended (SIGKILL;" in text


def test_the_job_arrives_and_a_process_that_is_gone_is_told_of(tmp_path: Path):
    program = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.readline())"

    async def work(spark: SparkProcess) -> None:
        spark.submit(JOB)
        with pytest.raises(CheckFailed, match="said b'"):
            await spark.wait_for(Booted, 30.0)
        spark.submit(JOB)
        with pytest.raises(CheckFailed, match="the Spark process ended"):
            await spark.wait_for(Booted, 30.0)

    with_process(program, tmp_path / "log", work)
    assert read_job(pack(JOB)) == JOB


def test_what_it_started_ends_with_it_in_whatever_process_group(tmp_path: Path):
    program = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setpgid(0, 0)\n"
        f"    sys.stdout.buffer.write({pack(BOOTED)!r}); sys.stdout.flush()\n"
        "    time.sleep(600)\n"
        "os.wait()\n"
    )
    groups: set[int] = set()

    async def work(spark: SparkProcess) -> None:
        await spark.wait_for(Booted, 30.0)
        groups.update(os.getpgid(pid) for pid in session_members(spark.session))

    assert with_process(program, tmp_path / "log", work) == -signal.SIGTERM
    assert len(groups) == 2
