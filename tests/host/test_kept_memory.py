"""Memory that is freed stays with the process, so that taking it again costs nothing."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
from cordwood.host.kept_memory import keep_memory, keep_some_memory

kept = {keep}
for _ in range(8):
    blocks = [bytearray(4 << 20) for _ in range(8)]
    for block in blocks:
        for at in range(0, len(block), 4096):
            block[at] = 1
    del block, blocks
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def _faults(keep: str) -> tuple[bool, int]:
    command = [sys.executable, "-c", COUNT.format(keep=keep)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    kept, faults = ended.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.parametrize("keep", ["keep_memory()", "keep_memory() and not keep_some_memory()"])
def test_kept_memory_is_not_asked_for_again(keep: str) -> None:
    kept, with_it = _faults(keep)
    if not kept:
        pytest.skip("this C library has no mallopt")
    _, without = _faults("False")
    assert with_it * 2 < without  # 8,192 pages once, or eight times


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a rule of glibc")
def test_a_client_keeps_what_it_takes_again() -> None:
    _, with_it = _faults("keep_some_memory()")
    _, without = _faults("False")
    assert with_it * 2 < without  # 8,192 pages once, or eight times
