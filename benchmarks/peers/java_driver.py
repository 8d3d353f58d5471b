"""Peers that run on Java: their jars by Maven, our driver compiled against them, and its session.

Jars and classes lie in `.peers/` of the clone and are made once for each content of `java/`.
"""

from __future__ import annotations

import asyncio
import glob
import hashlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from benchmarks.peers.peer import Session
from benchmarks.peers.processes import first_line, last_words, open_log, run_tool
from benchmarks.peers.workload import AppendLoad, AppendRun, Lag, TailLoad
from cordwood.bench.pace import TICK_S
from cordwood.errors import Malformed, Unreachable

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = Path(__file__).resolve().parent / "java"
KEPT = ROOT / ".peers"

JARS_TIMEOUT_S = 600.0
COMPILE_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 240.0
"""A deadline for a call. The driver's own deadlines are shorter, and their errors say more."""

STOP_TIMEOUT_S = 20.0

DRIVER_HEAP = ("-Xms1g", "-Xmx1g")
"""The driver's heap: 128 MiB in flight, and the latencies of a run."""

BROKER_HEAP = ("-Xms384m", "-Xmx384m")
"""A broker's heap: three of them and the driver leave memory to the page cache."""


def missing_java(pom: str) -> str | None:
    """The reason why peers on Java cannot run here; None if they can."""
    for tool, packages in (("java", "a JDK, 17 or newer"), ("javac", "a JDK"), ("mvn", "maven")):
        if shutil.which(tool) is None and not (tool == "mvn" and _is_kept(pom)):
            return f"{tool} is not installed ({packages}); its jars come by Maven"
    return None


def java_version() -> str:
    """The version of the machine's Java."""
    found = re.search(r'"([^"]+)"', first_line("java", "-version"))
    return found[1] if found else "?"


def pinned_version(pom: str) -> str:
    """The version of the first dependency that a pom names."""
    found = re.search(r"<version>([^<]+)</version>\s*</dependency>", _pom(pom).read_text())
    if found is None:
        raise Malformed(f"{_pom(pom)} names no version")
    return found[1]


def classpath(pom: str) -> str:
    """The class path of servers and driver."""
    place = KEPT / pom
    return f"{place / 'classes'}:{place / 'lib'}/*"


async def prepare_java(pom: str) -> None:
    """Fetch the jars and compile the driver, unless they are there.

    Raises:
        Unreachable: Maven or javac failed.
    """
    place = KEPT / pom
    if not _is_kept(pom):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        await run_tool(
            ["mvn", "-q", "-B", "-f", str(_pom(pom)), "dependency:copy-dependencies",
             f"-DoutputDirectory={place / 'lib'}"],
            JARS_TIMEOUT_S,
        )  # fmt: skip
        (place / "pom").write_text(_pom(pom).read_text())
    if not (place / "sources").exists() or (place / "sources").read_text() != _digest(pom):
        shutil.rmtree(place / "classes", ignore_errors=True)
        (place / "classes").mkdir()
        await run_tool(
            ["javac", "-nowarn", "-d", str(place / "classes"), "-cp", f"{place / 'lib'}/*",
             *_sources(pom)],
            COMPILE_TIMEOUT_S,
        )  # fmt: skip
        (place / "sources").write_text(_digest(pom))


def _pom(pom: str) -> Path:
    return SOURCES / pom / "pom.xml"


def _sources(pom: str) -> list[str]:
    return [str(SOURCES / "Driver.java"), *sorted(glob.glob(str(SOURCES / pom / "*.java")))]


def _digest(pom: str) -> str:
    return hashlib.sha256(b"".join(Path(path).read_bytes() for path in _sources(pom))).hexdigest()


def _is_kept(pom: str) -> bool:
    kept = KEPT / pom / "pom"
    return kept.exists() and kept.read_text() == _pom(pom).read_text()


@asynccontextmanager
async def java_session(
    pom: str, main: str, arguments: Sequence[str], directory: str
) -> AsyncIterator[Session]:
    """A driver for the length of the block, with a fresh log.

    Raises:
        Unreachable: the driver did not start; the text quotes its output.
    """
    log = os.path.join(directory, f"{main}-{'-'.join(arguments[1:])}.log")
    errors = open_log(log)
    try:
        process = await asyncio.create_subprocess_exec(
            "java", *DRIVER_HEAP, "-cp", classpath(pom), main, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(errors)
    session = JavaSession(main, process, log)
    try:
        await session.answer()
        await session.fresh()
        yield session
    finally:
        await session.close()


class JavaSession(Session):
    """A driver's commands; see `java/Driver.java`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: str) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._numbers = count()

    async def fresh(self) -> None:
        await self._tell(f"fresh log-{os.getpid()}-{id(self) & 0xFFFF}-{next(self._numbers)}")

    async def append(self, load: AppendLoad) -> AppendRun:
        records, *times = await self._tell(
            f"append {load.size} {load.in_flight} {load.seconds} {load.records_max}"
        )
        seconds, p50_ms, p99_ms = map(float, times)
        return AppendRun(int(records), seconds, p50_ms, p99_ms)

    async def read(self, size: int, count: int) -> float:
        (seconds,) = await self._tell(f"read {count}")
        return float(seconds)

    async def tail(self, load: TailLoad) -> Lag:
        p50_ms, p99_ms = await self._tell(
            f"tail {load.size} {load.batch} {TICK_S} {load.ticks} {load.ticks_not_counted}"
        )
        return Lag(float(p50_ms), float(p99_ms))

    async def _tell(self, command: str) -> list[str]:
        assert self._process.stdin is not None, "its standard input is a pipe"
        self._process.stdin.write(command.encode() + b"\n")
        return await self.answer()

    async def answer(self) -> list[str]:
        """Read the next line. Returns its words after "ok".

        Raises:
            Unreachable: the driver failed, ended, or did not answer in time.
        """
        assert self._process.stdout is not None, "its standard output is a pipe"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = (await self._process.stdout.readline()).decode(errors="replace")
        except TimeoutError:
            raise Unreachable(f"{self._name} said nothing for {ANSWER_TIMEOUT_S:g} s") from None
        if not line.startswith("ok"):
            said = line.strip() or last_words(self._log)
            raise Unreachable(f"{self._name}: {said}")
        return line.split()[1:]

    async def close(self) -> None:
        """End the driver."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
