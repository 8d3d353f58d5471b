"""Output while a seed is run again: nothing, or every node's log in virtual time.

Source: docs/simulator.md, "Running, replaying, shrinking".
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cordwood.decisions import Story, listening
from cordwood.sim.process import CURRENT_PROCESS
from cordwood.sim.task_pool import quiet_leftovers


@contextmanager
def quiet_run() -> Iterator[None]:
    """Nodes log nothing, and dead nodes report nothing when their objects are collected."""
    before, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable(logging.CRITICAL)
    quiet_leftovers()
    try:
        yield
    finally:
        gc.collect()
        logging.disable(before)
        sys.unraisablehook = hook


@contextmanager
def listened() -> Iterator[Story]:
    """Keep decisions of nodes and clients for a story, with virtual times and the deciding
    process."""
    story = Story(_now_us, _who)
    with listening(story.on_decision):
        yield story


def _now_us() -> int:
    return round(asyncio.get_running_loop().time() * 1e6)


def _who() -> str:
    process = CURRENT_PROCESS.get(None)
    return process.name if process is not None else "director"


@contextmanager
def telling(say: Callable[[str], None], until_s: float | None) -> Iterator[None]:
    """Show log lines of nodes and clients, with virtual times and the logging process."""
    root, handler, hook = logging.getLogger("cordwood"), _Teller(say, until_s), sys.unraisablehook
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    propagates, root.propagate = root.propagate, False
    quiet_leftovers()
    try:
        yield
    finally:
        gc.collect()
        root.removeHandler(handler)
        root.setLevel(level)
        root.propagate = propagates
        sys.unraisablehook = hook


class _Teller(logging.Handler):
    def __init__(self, say: Callable[[str], None], until_s: float | None) -> None:
        super().__init__()
        self._say = say
        self._until_s = until_s

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now_s = asyncio.get_running_loop().time()
        except RuntimeError:
            return
        if self._until_s is not None and now_s > self._until_s:
            return
        room = record.name.removeprefix("cordwood.")
        self._say(f"{now_s:11.6f} s  {_who():14} {room}: {record.getMessage()}")
