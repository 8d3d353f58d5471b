"""Slow or failing system calls of a node, made by strace, which is attached to the running node.

Slow writes and fsyncs imitate a failing disk. Slow reads imitate a slow disk under readers of
flushed records. A failed fsync imitates a disk that lost its data. A traced node is slower in all
its other work too, because each of its calls stops twice.

Source: strace(1), "Tampering"; docs/sources/reliability.md §5.1; Rebello et al., ATC 2020.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from contextlib import suppress

from cordwood.errors import Unreachable

DELAY_S = 0.05
"""Ten times as long as a call on a busy disk: a failing disk, or a disk with too many users."""

FSYNCS = "fsync,fdatasync,sync_file_range"
DURABLE_WRITES = "pwritev,pwritev2,io_submit"
"""The system call with which the WAL writes. RocksDB and SQLite use others."""

WRITES = f"pwrite64,{DURABLE_WRITES},fdatasync"
READS = "pread64,preadv,preadv2,io_uring_enter"

END_TIMEOUT_S = 10.0
"""strace lets go within a call's time."""

SLOW_WRITES = f"{WRITES}:delay_enter={round(DELAY_S * 1e6)}"
SLOW_READS = f"{READS}:delay_enter={round(DELAY_S * 1e6)}"
FSYNC_EIO = f"{FSYNCS}:error=EIO"
WRITE_EIO = f"{DURABLE_WRITES}:error=EIO"


def why_no_strace() -> str:
    """Why system calls cannot be tampered with here; "" if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "true"],
        check=False, capture_output=True, timeout=END_TIMEOUT_S,
    )  # fmt: skip
    return "strace may not trace here" if probe.returncode else ""


async def tamper(process: int, injection: str) -> asyncio.subprocess.Process:
    """Attach to a process and change its calls in this way, until `let_go`.

    Args:
        injection: the text after strace's `inject=`.
    Raises:
        Unreachable: strace did not start.
    """
    calls = injection.partition(":")[0]
    try:
        return await asyncio.create_subprocess_exec(
            "strace", "-f", "-qq", "-o", os.devnull, "-p", str(process),
            "-e", f"trace={calls}", "-e", f"inject={injection}",
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise Unreachable(f"strace did not start: {error}") from error


async def let_go(tracer: asyncio.subprocess.Process) -> None:
    """End strace; the traced process goes on."""
    with suppress(ProcessLookupError):
        tracer.terminate()
    async with asyncio.timeout(END_TIMEOUT_S):
        await tracer.wait()
