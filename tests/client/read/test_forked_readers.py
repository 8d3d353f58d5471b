"""A forked child gives out no records that its parent's readers hold: the parent gives them out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WAYS = {
    "reader": "read = store.read('log'); items = iter(read)",
    "reader of logs": "read = store.reader('log'); items = iter(read)",
    "consumer": "read = store.consumer('c', 'log').__enter__(); items = iter(read)",
    "blocks": "store.append_many('log', [b'y'] * 10); read = store.read('log'); "
    "items = read.blocks()",
}

FORKS = """
import os, sys, cordwood
store = cordwood.connect(sys.argv[1])
store.append_many("log", [b"x"] * 10)
{way}
next(items)
if child := os.fork():
    os.waitpid(child, 0)
    print("parent", next(items) is not None, flush=True)
    store.close()
else:
    given = 0
    try:
        while True:
            next(items)
            given += 1
    except cordwood.CordwoodError as error:
        print("child", given, type(error).__name__, flush=True)
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_is_told_that_it_has_no_client(tmp_path: Path, way: str) -> None:
    """It gave the rest of the block that its parent's reader had taken, and its parent gave that
    as well."""
    # Python 3.12 and later warn of each fork beside threads, which this is about.
    python = (sys.executable, "-W", "ignore::DeprecationWarning")
    told = subprocess.run(
        [*python, "-c", FORKS.format(way=WAYS[way]), str(tmp_path / "store")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert told.stdout.splitlines() == ["child 0 Closed", "parent True"]
    assert told.stderr == ""
