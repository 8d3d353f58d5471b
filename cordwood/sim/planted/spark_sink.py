"""Planted bugs of the Spark source and sink, which S29 must catch.

They are no part of `PLANTED_BUGS`, whose bugs a simulated cluster runs: these want a query, and the
tests of the sink run one with each of them.

Source: docs/sources/reliability.md §6 ("Spark batch re-read differs"); docs/sources/spark.md §2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from cordwood.errors import Misplaced, OutOfSequence
from cordwood.sim.planted.bug import PlantedBug, changed


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


def _no_word(right: Callable[..., Any]) -> Callable[..., Any]:
    """A check that passes everything."""

    def wrong(*_: Any, **__: Any) -> None:
        return None

    return wrong


def _forgets_the_plan(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(known: Any, batch: int, attempt: int, shares: Any, _: str = "") -> Any:
        return right(known, batch, attempt, shares)

    return wrong


def _sees_no_checkpoint(right: Any) -> Any:
    def wrong(self: Any, batch: int, written: Any) -> str:
        return ""

    return wrong


def _counts_the_time(right: Callable[..., Any]) -> Callable[..., Any]:
    """The fingerprint holds the time of planning, which another try of a batch does not share."""

    def wrong(self: Any, batch: int) -> str:
        text = (self.directory / "offsets" / str(batch)).read_bytes()
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    return wrong


def _nobodys(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any) -> str:
        return ""

    return wrong


def _what_is_out_of_sequence_is_stored(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, sent: Any) -> None:
        """A gap and another cut are taken for a repeat."""

    return wrong


def _a_gap_is_stored(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, sent: Any) -> None:
        try:
            right(self, sent)
        except OutOfSequence as error:
            if error.kind is not Misplaced.GAP:
                raise

    return wrong


def _as_it_is_spelled(right: Callable[[str], str]) -> Callable[[str], str]:
    def wrong(name: str) -> str:
        return name

    return wrong


def _for_all_logs(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, store: Any) -> Any:
        return self._query

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
"""Bugs that schedules of deaths show."""

CHECKPOINT_BUGS = (
    PlantedBug(
        "repeat-unchecked",
        "A batch whose number was published is taken for a repeat, whatever it holds.",
        changed({"client.publish.publishing:check_repeat": _no_word}),
    ),
    PlantedBug(
        "plan-not-noted",
        "The publication forgets which plan its batch had.",
        changed({"metadata.publications:commit": _forgets_the_plan}),
    ),
    PlantedBug(
        "plan-not-read",
        "The sink does not look at its checkpoint.",
        changed({"spark.sink:CordwoodStreamWriter._fingerprint": _sees_no_checkpoint}),
    ),
    PlantedBug(
        "appends-not-noted",
        "deliveryMode=idempotent counts rows within (batch, partition), whatever the batch reads.",
        changed({"spark.sink:CordwoodStreamWriter._note_plan": _no_word}),
    ),
    PlantedBug(
        "plan-not-synced",
        "A publication is durable before the plan of its batch is.",
        changed({"spark.checkpoint:Checkpoint.make_durable": _no_word}),
    ),
)
"""Bugs that a checkpoint shows which goes back, or loses in a power cut what was not synced."""

SCENE_BUGS = (
    PlantedBug(
        "time-in-plan",
        "A plan's digest holds the time of planning, so that a batch planned again is refused.",
        changed({"spark.checkpoint:Checkpoint.fingerprint": _counts_the_time}),
    ),
    PlantedBug(
        "plans-of-all-queries",
        "A plan's digest holds no query: of two with one txnAppId and source, one is skipped.",
        changed({"spark.checkpoint:Checkpoint.query": _nobodys}),
    ),
    PlantedBug(
        "any-misplaced-stored",
        "Whatever is out of sequence is taken for stored: rows of portions cut anew are lost.",
        changed({
            "spark.idempotent:OnceAppender._settle_alone": _what_is_out_of_sequence_is_stored
        }),
    ),
    PlantedBug(
        "gap-taken-as-stored",
        "Rows ahead of what the log has are taken for stored.",
        changed({"spark.idempotent:OnceAppender._settle_alone": _a_gap_is_stored}),
    ),
    PlantedBug(
        "spellings-apart",
        "Two spellings of a log are two sequences of one producer.",
        changed({"spark.sink_rows:normalise_name": _as_it_is_spelled}),
    ),
    PlantedBug(
        "version-for-all-logs",
        "txnVersion is counted by application alone: the second log of a version gets nothing.",
        changed({"spark.sink:CordwoodWriter._name": _for_all_logs}),
    ),
    PlantedBug(
        "other-logs-skipped",
        "A version that was written into one log is skipped for rows of another.",
        changed({"spark.sink:CordwoodWriter._check_logs": _no_word}),
    ),
)  # fmt: skip
"""Bugs that a scene of their own shows."""
