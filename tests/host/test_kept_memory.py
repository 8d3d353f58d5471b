"""Memory that is freed stays with the process, so that taking it again costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource
from cordwood.host.kept_memory import keep_memory

kept = {keep} and keep_memory()
for _ in range(8):
    blocks = [bytearray(4 << 20) for _ in range(8)]
    for block in blocks:
        for at in range(0, len(block), 4096):
            block[at] = 1
    del block, blocks
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def _faults(*, keep: bool) -> tuple[bool, int]:
    command = [sys.executable, "-c", COUNT.format(keep=keep)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kept, faults = ended.stdout.split()
    return kept == "True", int(faults)


def test_kept_memory_is_not_asked_for_again() -> None:
    kept, with_it = _faults(keep=True)
    if not kept:
        pytest.skip("this C library has no mallopt")
    _, without = _faults(keep=False)
    assert with_it * 2 < without  # 8,192 pages once, or eight times
