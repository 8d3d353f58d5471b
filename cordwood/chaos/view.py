"""A chaos run as it goes on: redrawn on a terminal, a line a minute anywhere else; then its table.

Source: docs/reliability.md, "Real processes" (the report at the end).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from cordwood.chaos.chaos_run import Progress, Ran
from cordwood.chaos.plan import KINDS

DRAWS_PER_S = 4
PLAIN_EVERY_S = 60.0

BAR_WIDTH = 32


@asynccontextmanager
async def shown(progress: Progress, console: Console) -> AsyncIterator[None]:
    """Show the progress for the length of the block."""
    show = _drawing(progress, console) if console.is_terminal else _telling(progress, console)
    showing = asyncio.get_running_loop().create_task(show)
    try:
        # Not in a task group, so that an error of the block is raised as it is.
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _drawing(progress: Progress, console: Console) -> None:
    with Live(console=console, auto_refresh=False, redirect_stderr=False) as live:
        try:
            while True:
                live.update(picture(progress), refresh=True)
                await asyncio.sleep(1 / DRAWS_PER_S)
        finally:
            live.update(picture(progress), refresh=True)


async def _telling(progress: Progress, console: Console) -> None:
    while True:
        await asyncio.sleep(PLAIN_EVERY_S)
        console.print(line(progress), highlight=False, soft_wrap=True)


def line(progress: Progress) -> str:
    """The progress, in one line."""
    now = ", ".join(progress.running.values()) or "nothing"
    return (
        f"{_so_far_s(progress):4.0f} s of {progress.seconds:g} s, {progress.stage}: "
        f"{progress.acked:,} records acknowledged, "
        f"{progress.played.total()} faults over, now {now}"
    )


def picture(progress: Progress) -> RenderableType:
    """The progress, for a terminal."""
    top = Table.grid(padding=(0, 2))
    done_s = min(_so_far_s(progress), progress.seconds)
    bar = ProgressBar(total=progress.seconds, completed=done_s, width=BAR_WIDTH)
    top.add_row(bar, f"{done_s:.0f} of {progress.seconds:g} s", progress.stage)
    figures = Table.grid(padding=(0, 2))
    since_s = time.monotonic() - progress.last_ack_s if progress.last_ack_s else 0.0
    figures.add_row("acknowledged", f"{progress.acked:,} records, the last {since_s:.1f} s ago")
    figures.add_row("struck now", ", ".join(progress.running.values()) or "no process")
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(progress.played.items()))
    figures.add_row("faults", f"{progress.played.total()} of {progress.planned}: {kinds}")
    return Group(top, figures)


def _so_far_s(progress: Progress) -> float:
    return time.monotonic() - progress.began_s


def table(ran: Ran) -> RenderableType:
    """The faults by kind, and the cost of each."""
    shown_table = Table(box=None, padding=(0, 2), header_style="bold")
    for title, justify in (("faults", "right"), ("kind", "left"), ("what", "left")):
        shown_table.add_column(title, justify="right" if justify == "right" else "left")
    shown_table.add_column("longest stall of appends", justify="right")
    for each in ran.outcome.kinds:
        words = KINDS[each.kind].words if each.kind in KINDS else ""
        shown_table.add_row(str(each.faults), each.kind, words, f"{each.stall_s:.2f} s")
    return shown_table


def figures(ran: Ran) -> Iterable[str]:
    """The figures and the verdict, line by line."""
    outcome, verdict = ran.outcome, ran.outcome.verdict
    faults = sum(each.faults for each in outcome.kinds)
    yield (
        f"{faults} faults of {len(outcome.kinds)} kinds in {ran.seconds:g} s (seed {ran.seed}); "
        f"{ran.left} of the plan had no time"
    )
    yield f"appends stood still for {outcome.append_stall_s:.2f} s at the longest"
    yield (
        f"an acknowledged record waited for its first reader for {outcome.read_stall_s:.2f} s at "
        "the longest"
    )
    for harm, told in sorted(ran.proxied.items()):
        refused = f", {told.refused} connections refused for it" if told.refused else ""
        yield f"proxy, {harm}: {told.harmed:,} of {told.frames:,} frames{refused}"
    if ran.members:
        counts = ", ".join(f"{what} {n} times" for what, n in sorted(ran.members.items()))
        yield f"the consumer's members: {counts}"
    yield (
        f"{verdict.acked:,} records acknowledged, {verdict.delivered:,} given to readers: "
        f"{len(outcome.lost)} lost, {outcome.false_losses} false losses"
    )
    broken = ", ".join(verdict.broken) or "nothing"
    yield f"checked {len(verdict.checked)} promises: {broken} broken"
