"""fio's word on a disk: the same writes, made by a program that does nothing else.

Source: seed "How to implement high-performance WAL based on raw devices" (its note on
fio); hotpath digest §1.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from typing import Any

from cordwood.errors import Unreachable

START_TIMEOUT_S = 30.0
"""On top of its run time: fio starts in a second, on a busy machine in a few."""


@dataclass(frozen=True, slots=True)
class FioJob:
    """What fio is asked to do: write once round `length` bytes at `offset`, and again.

    Attributes:
        path: a file that is there, or a device. What it holds there is written over.
        block_bytes: of one write.
        depth: writes in flight.
        seconds: how long.
    """

    path: str
    offset: int
    length: int
    block_bytes: int
    depth: int
    seconds: float

    def arguments(self) -> list[str]:
        """Its command line: direct writes, each durable when it is done, one after the other."""
        return [
            "--name=reference", f"--filename={self.path}", "--allow_file_create=0",
            "--rw=write", "--ioengine=libaio", "--direct=1", "--sync=dsync",
            f"--bs={self.block_bytes}", f"--iodepth={self.depth}",
            f"--offset={self.offset}", f"--size={self.length - self.length % self.block_bytes}",
            "--time_based", f"--runtime={max(1, round(self.seconds * 1000))}ms",
            "--output-format=json",
        ]  # fmt: skip

    def describe(self) -> str:
        """One sentence for a report."""
        return (
            f"fio: libaio, direct=1, sync=dsync, {self.block_bytes} B blocks, "
            f"iodepth {self.depth}, on the same path"
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
        Unreachable: fio did not run to its end; the text has what it said.
    """
    process = await asyncio.create_subprocess_exec(
        program, *job.arguments(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(job.seconds + START_TIMEOUT_S):
            printed, problem = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Unreachable(f"fio did not end {START_TIMEOUT_S:g} s after its time") from None
    if process.returncode != 0:
        text = (problem or printed).decode(errors="replace").strip()
        raise Unreachable(f"fio failed: {text[-400:]}")
    return read_result(printed)


def read_result(printed: bytes) -> FioResult:
    """What a run printed; warnings may stand before the JSON.

    Raises:
        Unreachable: it is not what fio prints, or fio wrote nothing.
    """
    try:
        written: dict[str, Any] = json.loads(printed[printed.index(b"{") :])["jobs"][0]["write"]
        percentiles = written["clat_ns"]["percentile"]
        result = FioResult(
            written["iops"],
            written["bw_bytes"],
            written["lat_ns"]["mean"] / 1e3,
            percentiles["50.000000"] / 1e3,
            percentiles["99.000000"] / 1e3,
            written["lat_ns"]["max"] / 1e3,
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Unreachable(f"fio printed something else: {printed[:200]!r}") from error
    if result.operations_per_s <= 0:
        raise Unreachable("fio wrote nothing")
    return result
