"""Shared by all measuring verbs: stop on request, report progress, show figures."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from cordwood.cli.tables import show_table

if TYPE_CHECKING:
    from cordwood.bench.figure import Figure

Result = TypeVar("Result")


def run_measurement(work: Coroutine[object, object, Result]) -> Result:
    """Run a measurement; on a stop signal it first removes its files.

    The collector is set as nodes set it: with 2,048 futures in flight, young collections
    every 700 objects took a fifth of a client's time.
    """
    import uvloop

    from cordwood.host.collector import rare_collections

    try:
        with (
            rare_collections(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_stoppable(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _stoppable(work: Coroutine[object, object, Result]) -> Result:
    """Let SIGTERM and a closed terminal stop the measurement, as Ctrl-C does through the runner."""
    task = asyncio.current_task()
    assert task is not None, "a runner runs this in a task"
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await work


def say(text: str) -> None:
    """Report progress on standard error; standard output is for figures."""
    typer.echo(text, err=True)


def show_figures(figures: Sequence[Figure], as_json: bool) -> None:
    """Print figures: a table with references beside them, or one JSON list."""
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(figure) for figure in figures]))
        return
    with_latencies = any(figure.p50_ms is not None for figure in figures)
    columns = ["figure", "median>", "unit", "reference>", "ratio>"]
    show_table(
        [*columns, "p50 ms>", "p99 ms>"] if with_latencies else columns,
        [_row(figure, with_latencies) for figure in figures],
    )
    for text in dict.fromkeys(figure.reference_is for figure in figures):
        names = ", ".join(figure.name for figure in figures if figure.reference_is == text)
        typer.echo(f"reference of {names}: {text}")


def _row(figure: Figure, with_latencies: bool) -> list[str]:
    row = [
        figure.name, number_words(figure.value), figure.unit,
        number_words(figure.reference), number_words(figure.ratio),
    ]  # fmt: skip
    return (
        [*row, number_words(figure.p50_ms), number_words(figure.p99_ms)] if with_latencies else row
    )


def number_words(value: float | None) -> str:
    """A figure's number for a person; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
