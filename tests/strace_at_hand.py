"""Programs under strace: the kernel itself fails, delays or kills chosen system calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import cordwood

ROOT = Path(cordwood.__file__).parent.parent
TIMEOUT_S = 60


class Traced(NamedTuple):
    """The end of a traced Python program.

    Attributes:
        status: its exit code.
        lines: of its standard output.
        errors: its standard error.
        calls: strace's own report: a line for each traced call.
    """

    status: int
    lines: list[str]
    errors: str
    calls: str


def find_strace(require: Callable[[str, str], None]) -> str:
    """The path of strace. Skips the test if strace is missing or may not trace here.

    Args:
        require: the fixture of this name.
    """
    strace = shutil.which("strace")
    if strace is None:
        require("strace", "strace is not installed")
    probe = subprocess.run(
        [str(strace), "-f", "-qq", "-o", os.devnull, "true"], check=False, capture_output=True
    )
    if probe.returncode:
        require("strace", "strace may not trace here")
    return str(strace)


def run_traced(
    strace: str,
    program: Sequence[str],
    report: Path,
    *,
    trace: str,
    inject: Sequence[str],
    only_path: Path | None = None,
) -> Traced:
    """Run a Python program, all its threads included, with injected failures.

    Args:
        strace: see `find_strace`.
        program: the arguments of Python.
        report: where strace writes the traced calls.
        trace: the system calls to trace, separated by commas.
        inject: strace's expressions, such as `pread64:error=EIO`.
        only_path: trace and inject only calls on this file.
    """
    command = [strace, "-f", "-qq", "-o", str(report)]
    if only_path is not None:
        command += ["-P", str(only_path)]
    command += ["-e", f"trace={trace}"]
    for each in inject:
        command += ["-e", f"inject={each}"]
    done = subprocess.run(
        [*command, sys.executable, *program],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return Traced(done.returncode, done.stdout.splitlines(), done.stderr, report.read_text())
