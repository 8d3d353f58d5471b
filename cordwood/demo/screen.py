"""The board on a terminal, redrawn several times a second; plain lines on other outputs.

rich would redraw from a separate thread. Here a task of the demo's loop does it, because only
`host` may have threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cordwood.demo.board import Board, Moving, Step, StepState

DRAWS_PER_S = 10
PLAIN_EVERY_S = 2.0
"""Pause between two lines of figures without a terminal."""

BAR_WIDTH = 32

MARKS = {
    StepState.WAITING: Text("·", "dim"),
    StepState.DONE: Text("✓", "bold green"),
    StepState.FAILED: Text("✗", "bold red"),
}


@asynccontextmanager
async def screen(board: Board, console: Console) -> AsyncIterator[None]:
    """Show the board for the length of the block."""
    draw = _drawing(board, console) if console.is_terminal else _telling(board, console)
    async with asyncio.TaskGroup() as tasks:
        drawing = tasks.create_task(draw)
        try:
            # The first draw comes before the first step.
            await asyncio.sleep(0)
            yield
        finally:
            drawing.cancel()


async def _drawing(board: Board, console: Console) -> None:
    spinner = Spinner("dots", style="cyan")
    with Live(console=console, auto_refresh=False, redirect_stderr=False) as live:
        try:
            while True:
                live.update(picture(board, spinner), refresh=True)
                await asyncio.sleep(1 / DRAWS_PER_S)
        finally:
            live.update(picture(board, spinner, moving=False), refresh=True)


async def _telling(board: Board, console: Console) -> None:
    board.tell(lambda step: _tell(console, step))
    while True:
        await asyncio.sleep(PLAIN_EVERY_S)
        figures = board.moving()
        if figures.ingest_s and figures.done < figures.wanted:
            console.print(f"  {_ingested(figures)}; {_lag(figures)}", highlight=False)


def _tell(console: Console, step: Step) -> None:
    match step.state:
        case StepState.RUNNING:
            console.print(f"{step.title} …", highlight=False)
        case StepState.DONE:
            console.print(f"  done in {step.seconds:.1f} s: {step.note}", highlight=False)
        case _:
            console.print(f"  failed after {step.seconds:.1f} s", highlight=False)


def picture(board: Board, spinner: RenderableType, *, moving: bool = True) -> RenderableType:
    """The present board.

    Args:
        spinner: the sign before the running step.
        moving: whether to show the changing figures and the nodes.
    """
    steps = Table.grid(padding=(0, 1))
    steps.add_column(width=1)
    steps.add_column(no_wrap=True)
    steps.add_column(justify="right", no_wrap=True)
    steps.add_column(style="dim")
    for step in board.steps:
        waiting = step.state is StepState.WAITING
        mark: RenderableType = MARKS.get(step.state, spinner)
        steps.add_row(
            mark,
            Text(step.title, "dim" if waiting else ""),
            "" if waiting else f"{board.so_far(step):.1f} s",
            step.note,
        )
    figures = board.moving()
    if not (moving and figures.nodes):
        return steps
    return Group(steps, Text(), _figures(figures))


def _figures(figures: Moving) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    if figures.wanted and figures.done < figures.wanted:
        bar = ProgressBar(total=figures.wanted, completed=figures.done, width=BAR_WIDTH)
        line.add_row(bar, _ingested(figures), _lag(figures))
    nodes = Text("nodes ")
    for node, is_up in figures.nodes.items():
        nodes.append(f"● {node} " if is_up else f"✗ {node} ", "green" if is_up else "bold red")
    return Group(line, nodes)


def _ingested(figures: Moving) -> str:
    seconds = max(figures.ingest_s, 0.001)
    return (
        f"{figures.records:,} records, {figures.records / seconds:,.0f}/s, "
        f"{figures.bytes / seconds / 1e6:.1f} MB/s"
    )


def _lag(figures: Moving) -> str:
    return f"tail {figures.lag:,} behind" if figures.lag else "tail at the end"
