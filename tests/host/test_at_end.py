"""Calls at the end of the interpreter, in programs of their own."""

from __future__ import annotations

import subprocess
import sys


def run_program(text: str) -> list[str]:
    """The lines that a program writes, on either output."""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    return (done.stdout + done.stderr).splitlines()


def test_all_calls_share_one_time_and_the_last_comes_first() -> None:
    """Each of several clients waited for its own time, and once more by `atexit`."""
    told = run_program("""
import time
from cordwood.host import at_end
at_end.END_S = 0.3
def wait(name):
    def call(left_s):
        print(name, left_s() > 0.25, left_s() == 0.0, flush=True)
        time.sleep(left_s())
    return call
at_end.at_end(wait("first"))
at_end.at_end(wait("second"))
at_end.at_end(wait("cancelled"))()
""")
    assert told == [
        "second True False", "first False True",  # while threads can be given work
        "second False True", "first False True",  # by `atexit`
    ]  # fmt: skip


def test_a_call_that_fails_keeps_no_other_and_no_thread() -> None:
    told = run_program("""
import threading, time
from cordwood.host import at_end
def fail(left_s):
    at_end._calls.clear()
    raise ValueError("planted")
at_end.at_end(lambda left_s: print("called", flush=True))
at_end.at_end(fail)
threading.Thread(target=lambda: (time.sleep(0.3), print("joined", flush=True))).start()
""")
    assert told == [
        "called", "joined",
        "the program ended, and a store in it was not closed: ValueError('planted')",
    ]  # fmt: skip


def test_a_forked_child_calls_nothing_of_its_parent() -> None:
    told = run_program("""
import os, sys
from cordwood.host import at_end
pid = os.getpid()
at_end.at_end(lambda left_s: print("called by the parent", os.getpid() == pid, flush=True))
if child := os.fork():
    os.waitpid(child, 0)
    sys.stdout.flush()
    at_end.atexit.unregister(at_end._call_all)
""")
    assert told == ["called by the parent True"]
