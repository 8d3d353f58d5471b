"""The demo's side of its Spark process: starts it, talks to it, and stops it with all its children.

The process leads a separate session. Spark's JVM and its Python workers always stay in that
session. (The workers' daemon makes a separate process group, so a signal to one group would miss
it.) So the session is the way to find all of them.

Without the demo they end too: the process ends when its standard input ends, the JVM ends after the
process that started it, and the workers end with the JVM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from cordwood.demo.checks import CheckFailed
from cordwood.demo.spark_messages import Event, Failed, Job, pack, read_event

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 8.0
"""Time before a kill: a JVM takes a second to remove its temporary files. A kill only leaves these
files behind."""

POLL_S = 0.05
"""Pause between two looks at the session while it ends."""

LINE_BYTES_MAX = 64 << 20
"""Most bytes of one message: the rows of a query over as many files as a command line holds."""

LAST_WORDS_BYTES = 4096

EventKind = TypeVar("EventKind", bound=Event)


class SparkProcess:
    """See the module. Made by `spark_process`.

    Attributes:
        session: its session's number, which is also its own.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.session = process.pid
        self._process = process
        self._log = log

    def submit(self, job: Job) -> None:
        """Send the job. If the process is gone, `wait_for` says so."""
        assert self._process.stdin is not None, "its standard input is a pipe"
        # A transport that saw the end of the process raises at once; its output matters more.
        if not self._process.stdin.is_closing():
            self._process.stdin.write(pack(job))

    async def wait_for(self, kind: type[EventKind], timeout_s: float) -> EventKind:
        """The next message.

        Raises:
            CheckFailed: it is of another kind, or none comes in time; the text quotes Spark's
                output.
        """
        assert self._process.stdout is not None, "its standard output is a pipe"
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise CheckFailed(f"Spark said nothing for {timeout_s:g} s ({self._log})") from None
        if not line:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                raise CheckFailed(f"the Spark process ended ({await self._ending()})")
        try:
            event = read_event(line)
        except msgspec.DecodeError as error:
            raise CheckFailed(f"the Spark process said {line[:200]!r} ({error})") from None
        if isinstance(event, kind):
            return event
        said = event.text if isinstance(event, Failed) else repr(event)
        raise CheckFailed(f"in Spark: {said}")

    async def stop(self) -> None:
        """End the process and everything that it started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        # All at once, because a worker would wait long for a JVM that is gone.
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._wait_all_gone()
        except TimeoutError:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                self._send(signal.SIGKILL)
                await self._wait_all_gone()

    async def _wait_all_gone(self) -> None:
        await self._process.wait()
        # These are grandchildren: the kernel does not report their end to this process.
        while session_members(self.session):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def _send(self, what: signal.Signals) -> None:
        left = session_members(self.session)
        logger.debug("Spark's processes %s get %s", left, what.name)
        if self._process.returncode is None and self.session not in left:
            left.append(self.session)
        for pid in left:
            try:
                os.kill(pid, what)
            except ProcessLookupError:
                logger.debug("process %d was gone already", pid)

    async def _ending(self) -> str:
        """The exit of the process, and its last output."""
        code = await self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{how}; the last words in {self._log}: {self._last_words()}"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace")[-LAST_WORDS_BYTES:].strip().splitlines()
        return lines[-1] if lines else "none"


@asynccontextmanager
async def spark_process(directory: Path) -> AsyncIterator[SparkProcess]:
    """A Spark process that boots at once, for the length of the block.

    Args:
        directory: for its log and for Spark's own files.
    """
    scratch = directory / "scratch"
    scratch.mkdir(parents=True)
    log = directory / "log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cordwood.demo.spark_job", str(scratch),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            start_new_session=True, limit=LINE_BYTES_MAX,
        )  # fmt: skip
    spark = SparkProcess(process, log)
    try:
        yield spark
    finally:
        await spark.stop()


def session_members(session: int) -> list[int]:
    """Living processes of a session, by number; none if there is no /proc."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_bytes()
        except OSError:
            continue
        # After the name, which may hold anything, come: state, parent, group, session.
        fields = stat[stat.rindex(b")") + 2 :].split()
        if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
            members.append(int(entry.name))
    return sorted(members)
