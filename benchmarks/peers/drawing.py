"""The environment that draws charts: pinned matplotlib, and no package of the clone.

It is `.peers/venv`, made once for each content of the lock file. If it cannot be made, the page has
no chart, and the run says why.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from benchmarks.peers.java_driver import KEPT, ROOT
from benchmarks.peers.processes import run_tool

LOCK = Path(__file__).resolve().parent / "requirements.lock"
VENV = KEPT / "venv"
INSTALL_TIMEOUT_S = 600.0
DRAW_TIMEOUT_S = 120.0


async def draw_charts(results: Path, out: Path) -> None:
    """Draw the charts of saved results into a directory; both paths are absolute.

    Raises:
        Unreachable: matplotlib could not be installed, or failed; the text quotes the reason.
    """
    python = str(VENV / "bin" / "python")
    stamp = VENV / "installed"
    wanted = LOCK.read_text() + sys.version
    if not stamp.exists() or stamp.read_text() != wanted:
        await asyncio.to_thread(shutil.rmtree, VENV, ignore_errors=True)
        await run_tool([sys.executable, "-m", "venv", str(VENV)], INSTALL_TIMEOUT_S)
        await run_tool(
            [python, "-m", "pip", "install", "-q", "--require-hashes", "-r", str(LOCK)],
            INSTALL_TIMEOUT_S,
        )
        stamp.write_text(wanted)
    await run_tool(
        [python, "-m", "benchmarks.peers.chart", str(results), str(out)],
        DRAW_TIMEOUT_S, {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
