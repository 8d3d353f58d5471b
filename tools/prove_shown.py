"""Keep the output of a proof, so that its last lines can show the failures.

A proof prints for a quarter of an hour, and a build server may show only the end of it. So the last
lines of each failed part are repeated behind all parts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LAST_LINES = 40
"""Number of lines kept of a failed part: a broken promise with its evidence and the command that
repeats it."""

LEFT_S = 10.0
"""A child that outlives its part keeps the pipe open; this is the longest wait for its output."""


@contextlib.contextmanager
def kept(lines: list[str]) -> Iterator[None]:
    """Pass on what this process and its children print, and put the last of it into `lines`.

    A terminal is left alone: its owner can scroll, and progress bars are drawn on terminals only.
    """
    tee = shutil.which("tee")
    if tee is None or sys.stdout.isatty():
        yield
        return
    with tempfile.NamedTemporaryFile(prefix="cordwood-prove-") as file:
        sys.stdout.flush()
        sys.stderr.flush()
        before = os.dup(1), os.dup(2)
        passing = subprocess.Popen([tee, file.name], stdin=subprocess.PIPE)
        assert passing.stdin is not None, "asked for"
        os.dup2(passing.stdin.fileno(), 1)
        os.dup2(passing.stdin.fileno(), 2)
        passing.stdin.close()
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, kept_as in zip((1, 2), before, strict=True):
                os.dup2(kept_as, number)
                os.close(kept_as)
            with contextlib.suppress(subprocess.TimeoutExpired):
                passing.wait(LEFT_S)
            shown = Path(file.name).read_text(errors="replace")
            lines[:] = shown.splitlines()[-LAST_LINES:]
