"""`cordwood demo`: set up a directory, run, report the result, leave nothing running.

Exit codes: 0 if every check held, 1 if one did not or something failed, and as shells
have it, 128 and the signal's number after Ctrl-C or SIGTERM.

The Parquet files stay. The cluster's data, which is large, is removed unless `--keep` is given or a
check failed. After Ctrl-C everything is removed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from rich.console import Console

from cordwood.demo.board import Board
from cordwood.demo.files import open_files
from cordwood.demo.flights import find_flights
from cordwood.demo.input import Source
from cordwood.demo.report import Report
from cordwood.demo.run import Demo, Plan, step_titles
from cordwood.demo.screen import screen
from cordwood.demo.summary import print_summary
from cordwood.errors import BadSetting, CordwoodError

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""HUP too: a closed terminal must not leave nodes and a JVM behind."""

PLAIN_WIDTH = 100
"""Width without a terminal."""

LARGE = ("cluster", "spark", "rebuilt", "input")
"""Other entries of the demo's directory, beside the Parquet files."""


def demo(inputs: list[str], directory: str | None, keep: bool, seed: int) -> int:
    """Run the demo.

    Args:
        inputs: files, `-` for standard input; none takes the flights.
        directory: the working directory, empty or new; None makes one.
        keep: whether the cluster's data stays too.
        seed: decides which storage node is killed.
    Returns:
        The exit code.
    Raises:
        BadSetting: an input or the directory cannot be used.
    """
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=PLAIN_WIDTH)
    where = _make_directory(directory)
    try:
        with _signals_interrupt():
            source = _open_source(inputs, where)
        report = Report(source.title, source.log, where, keep)
        stopped_by = _run(Plan(source, where, seed), report, console)
    except BaseException:
        _clear(where, directory is None)
        raise
    if stopped_by is not None:
        _clear(where, directory is None)
        console.print(f"Stopped by {stopped_by.name}. Nothing is left running.")
        return 128 + stopped_by
    if report.held and not keep:
        _remove(where, LARGE)
    print_summary(console, report)
    return 0 if report.held else 1


def _run(plan: Plan, report: Report, console: Console) -> signal.Signals | None:
    """Run to the end, to a failure, or to a signal, which is returned."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(plan, report, console))


async def _until_stopped(plan: Plan, report: Report, console: Console) -> signal.Signals | None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None, "a runner runs this in a task"
    signals: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        # The first signal stops everything in order; further signals must not interrupt that.
        if not signals:
            task.cancel()
        signals.append(number)

    for number in STOPPING:
        loop.add_signal_handler(number, on_signal, number)
    began = loop.time()
    board = Board(step_titles(plan.source), loop.time)
    try:
        async with screen(board, console):
            await Demo(plan, board, report).run()
    except asyncio.CancelledError:
        if not signals:
            raise
        task.uncancel()
    except (CordwoodError, OSError, BaseExceptionGroup) as error:
        if not signals:
            report.failure = _failure(error)
    report.seconds = loop.time() - began
    return signals[0] if signals else None


def _failure(error: BaseException) -> str:
    """The error, in a sentence.

    Raises:
        BaseException: `error` itself, if it is not an expected error: a bug shows its traceback.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_failure(each) for each in error.exceptions)
    if not isinstance(error, CordwoodError | OSError):
        raise error
    return str(error) or type(error).__name__


def _open_source(inputs: list[str], where: Path) -> Source:
    return open_files(inputs, where / "input") if inputs else find_flights()


def _make_directory(directory: str | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="cordwood-demo-"))
    where = Path(os.path.abspath(directory))
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(where.iterdir()):
        raise BadSetting(f"{where} is not empty: give another --dir, or clear it")
    return where


def _clear(where: Path, is_ours: bool) -> None:
    """Remove everything; the directory too, if it was made here."""
    _remove(where, (*LARGE, "parquet"))
    if is_ours:
        where.rmdir()


def _remove(where: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (where / name).exists():
            shutil.rmtree(where / name)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let every signal that stops the demo interrupt as Ctrl-C does, before a loop runs."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
