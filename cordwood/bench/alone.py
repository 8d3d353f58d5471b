"""Runs a measurement in a process of its own, whose memory no earlier measurement has grown."""

from __future__ import annotations

import asyncio
import gc
import resource
import shutil
import sys
import tempfile

from cordwood.bench.place import PREFIX
from cordwood.errors import Unreachable


async def run_alone(module: str, *numbers: int, directory: str, timeout_s: float) -> str:
    """Run `python -m MODULE DIR NUMBERS`.

    Args:
        directory: for the DIR of the process, which is removed at the end.
    Returns:
        What the process printed.
    Raises:
        Unreachable: it failed, or took too long; the text has the end of its errors.
    """
    below = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, below, *map(str, numbers),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            printed, problem = await process.communicate()
        if process.returncode != 0:
            raise Unreachable(f"LogsDB was not filled: {problem.decode(errors='replace')[-400:]}")
        return printed.decode()
    except TimeoutError:
        raise Unreachable(f"LogsDB was not filled within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        shutil.rmtree(below, ignore_errors=True)


def resident_bytes() -> int:
    """The memory of this process now, without what waits for the collector."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
