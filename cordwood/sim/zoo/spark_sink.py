"""Planted bugs of the Spark source and sink, which S29 must catch.

They are no part of `ZOO`, whose bugs a simulated cluster runs: these want a query, and the tests
of the sink run one with each of them.

Source: reliability digest §6 ("Spark batch re-read differs"); research digest on PySpark 4.3, §2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cordwood.sim.zoo.bug import PlantedBug, changed


def _by_run(right: Callable[[], tuple[str, int]]) -> Callable[[], tuple[str, int]]:
    """A name that a restarted query does not have again."""

    def wrong() -> tuple[str, int]:
        query, batch = right()
        return f"{query}-{_run_of()}", batch

    return wrong


def _run_of() -> str:
    from cordwood.spark import sink

    context: Any = vars(sink)["TaskContext"].get()
    return str(context.getLocalProperty("sql.streaming.runId"))


def _publishes_in_the_task(right: Callable[..., Any]) -> Callable[..., Any]:
    """Rows get into the log before anybody knows whether the task will be run again."""

    def wrong(store: Any, rows: Any, *more: Any) -> Any:
        from cordwood.spark.delivery import append_all

        told = right(store, iter(()), *more)
        append_all(store, rows)
        return told

    return wrong


def _trusts_the_start(right: Callable[..., Any]) -> Callable[..., Any]:
    """Batch 0 is read from where the logs end by now, and not from where it was planned."""

    def wrong(start: Any, end: Any) -> Any:
        found = right(start, end)
        if not start.is_initial:
            return found
        moved = {log: (start.logs.get(log, first), stop) for log, (first, stop) in found.items()}
        return {log: (first, stop) for log, (first, stop) in moved.items() if first < stop}

    return wrong


def _as_they_come(right: Callable[..., Any]) -> Callable[..., Any]:
    """What tasks staged is published backwards: each task's portions out of their order."""

    def wrong(messages: Any) -> Any:
        return right(messages)[::-1]

    return wrong


BUGS = (
    PlantedBug(
        "sink-keyed-by-run",
        "The sink publishes under the id of the query's run, which a restart changes: a batch that "
        "was published before the driver died is published again.",
        changed({"spark.sink:_query_and_batch": _by_run}),
    ),
    PlantedBug(
        "sink-publishes-in-the-task",
        "Tasks append instead of staging: a task that is run again writes its rows again.",
        changed({"spark.sink:write_portions": _publishes_in_the_task}),
    ),
    PlantedBug(
        "source-trusts-the-start",
        "Batch 0, run again after a crash, begins where Spark says that the stream starts now: "
        "with startingOffsets=latest the records in between are lost.",
        changed({"spark.source:ranges": _trusts_the_start}),
    ),
    PlantedBug(
        "sink-publishes-backwards",
        "What tasks staged is published in another order than they staged it.",
        changed({"spark.sink:_refs": _as_they_come}),
    ),
)
"""Bugs of this file."""
