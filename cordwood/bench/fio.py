"""fio's figures of a disk: the same writes, made by a program that does nothing else.

Source: docs/sources/s3stream.md (e); docs/sources/hotpath.md §1.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.errors import Unreachable

START_TIMEOUT_S = 30.0
"""Time limit beyond its run time: fio starts in a second, on a busy machine in a few."""

ONCE_TIMEOUT_S = 600.0
"""Time limit of one pass through a WAL of 64 GiB on a disk of 100 MB/s."""


@dataclass(frozen=True, slots=True)
class FioJob:
    """The job of fio: go through `length` bytes at `offset`, again and again.

    Attributes:
        path: an existing file, or a device. Its content there is overwritten.
        block_bytes: of one operation.
        depth: operations in flight.
        seconds: the length; None for one pass.
        bytes_per_s: an even pace to keep; None for full speed.
        reads: whether to read instead, which changes nothing.
    """

    path: str
    offset: int
    length: int
    block_bytes: int
    depth: int
    seconds: float | None
    bytes_per_s: float | None = None
    reads: bool = False

    def arguments(self) -> list[str]:
        """fio's command line: past the page cache, each write durable when it is done."""
        size = self.length - self.length % self.block_bytes
        return [
            "--name=reference", f"--filename={self.path}", "--allow_file_create=0",
            f"--rw={'read' if self.reads else 'write'}", "--ioengine=libaio", "--direct=1",
            *(() if self.reads else ("--sync=dsync",)),
            f"--bs={self.block_bytes}", f"--iodepth={self.depth}",
            f"--offset={self.offset}", f"--size={size}",
            *self._time_arguments(),
            *(() if self.bytes_per_s is None else (f"--rate={max(1, round(self.bytes_per_s))}",)),
            "--output-format=json",
        ]  # fmt: skip

    def _time_arguments(self) -> Sequence[str]:
        if self.seconds is None:
            return ()
        return ("--time_based", f"--runtime={max(1, round(self.seconds * 1000))}ms")

    def describe(self) -> str:
        """One sentence for a report."""
        pace = "" if self.bytes_per_s is None else f", {self.bytes_per_s / 1e6:g} MB/s asked for"
        return (
            f"fio: libaio, direct=1, {'reading' if self.reads else 'sync=dsync'}, "
            f"{self.block_bytes} B blocks, iodepth {self.depth}{pace}, on the same path"
        )


@dataclass(frozen=True, slots=True)
class FioResult:
    """What fio measured; latencies in microseconds, submission included in the mean."""

    operations_per_s: float
    bytes_per_s: float
    mean_us: float
    p50_us: float
    p99_us: float
    max_us: float


def find_fio() -> str | None:
    """Where fio is, None if it is not installed."""
    return shutil.which("fio")


async def run_fio(program: str, job: FioJob) -> FioResult:
    """Run one job.

    Raises:
        Unreachable: fio did not run to its end; the text has its output.
    """
    process = await asyncio.create_subprocess_exec(
        program, *job.arguments(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    limit_s = START_TIMEOUT_S + (ONCE_TIMEOUT_S if job.seconds is None else job.seconds)
    try:
        async with asyncio.timeout(limit_s):
            printed, problem = await process.communicate()
    except TimeoutError:
        raise Unreachable(f"fio did not end within {limit_s:g} s") from None
    finally:
        await _reap(process)
    if process.returncode != 0:
        text = (problem or printed).decode(errors="replace").strip()
        raise Unreachable(f"fio failed: {text[-400:]}")
    return read_result(printed, reads=job.reads)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Stop fio, so that an interrupted benchmark leaves no fio that goes on writing."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def read_result(printed: bytes, *, reads: bool = False) -> FioResult:
    """Parse the output of a run; warnings may come before the JSON.

    Args:
        reads: whether the job was to read.

    Raises:
        Unreachable: the output is not fio's, or fio wrote nothing.
    """
    try:
        job: dict[str, Any] = json.loads(printed[printed.index(b"{") :])["jobs"][0]
        done = job["read" if reads else "write"]
        percentiles = done["clat_ns"]["percentile"]
        result = FioResult(
            done["iops"],
            done["bw_bytes"],
            done["lat_ns"]["mean"] / 1e3,
            percentiles["50.000000"] / 1e3,
            percentiles["99.000000"] / 1e3,
            done["lat_ns"]["max"] / 1e3,
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Unreachable(f"fio printed something else: {printed[:200]!r}") from error
    if result.operations_per_s <= 0:
        raise Unreachable("fio got nothing done")
    return result
