"""Planted bugs of the Spark source and sink, which S29 must catch.

They are not in `PLANTED_BUGS`, whose bugs run in a simulated cluster. These bugs need a query, and
the tests of the sink run a query with each of them.

Source: docs/sources/reliability.md §6 ("Spark batch re-read differs"); docs/sources/spark.md §2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from cordwood.block import GapKind
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.publish import publishing
from cordwood.client.values import StagedRef, Tiered
from cordwood.errors import BadSetting, Misplaced, OutOfSequence
from cordwood.layout.log_names import normalise_name
from cordwood.lsn import OLDEST, Lsn
from cordwood.metadata import publications
from cordwood.protocol.publishing import (
    APPENDED,
    LogShare,
    Publication,
    check_repeat,
    commit,
    is_note,
)
from cordwood.sim.planted.bug import PlantedBug, at
from cordwood.spark import catalog, sink, sink_rows, slice_reader, source, splitting
from cordwood.spark.checkpoint import Checkpoint, Plan
from cordwood.spark.idempotent import OnceAppender, _Sent
from cordwood.spark.jobs.land import Lander
from cordwood.spark.ledger_ends import LedgerEnds
from cordwood.spark.offsets import StreamOffset, move_on, ranges
from cordwood.spark.selecting import missing_of, passed_over
from cordwood.spark.sink import CordwoodStreamWriter, CordwoodWriter, Written
from cordwood.spark.sink_options import SinkOptions
from cordwood.spark.sink_rows import RowBlock
from cordwood.spark.splitting import Slice
from cordwood.spark.target_log import known_number


def _by_run(right: Any) -> tuple[str, int]:
    """A name that changes when a query restarts."""
    query, batch = right()
    return f"{query}-{_run_of()}", batch


def _run_of() -> str:
    from cordwood.spark import sink

    context: Any = vars(sink)["TaskContext"].get()
    return str(context.getLocalProperty("sql.streaming.runId"))


def _publishes_in_the_task(
    right: Any, store: BlockingStore, rows: Iterator[RowBlock], *more: Any, **named: Any
) -> Any:
    """Rows are in the log before it is known whether the task will run again."""
    from cordwood.spark.delivery import append_all

    told = right(store, iter(()), *more, **named)
    append_all(store, rows)
    return told


def _trusts_the_start(right: Any, start: StreamOffset, end: StreamOffset) -> Any:
    """Batch 0 is read from the present end of the logs, and not from its planned position."""
    found = right(start, end)
    if not start.is_initial:
        return found
    moved = {log: (start.logs.get(log, first), stop) for log, (first, stop) in found.items()}
    return {log: (first, stop) for log, (first, stop) in moved.items() if first < stop}


def _as_they_come(right: Any, messages: Sequence[WriterCommitMessage | None]) -> Any:
    """Staged blocks are published backwards: the blocks of each task are out of order."""
    return right(messages)[::-1]


def _no_word(right: Any, *_: Any, **__: Any) -> None:
    """A check that passes everything."""
    return None


def _any_name(
    right: Any, selection: Any, found: Mapping[int, str], there: Any, offset: StreamOffset
) -> dict[str, int]:
    return dict.fromkeys(missing_of(selection, found), 0)


def _counts_names(
    right: Any, selection: Any, found: Any, there: Any, offset: StreamOffset
) -> dict[str, int]:
    """As many names may lead nowhere as logs of the checkpoint are gone."""
    told: dict[str, int] = right(selection, found, there, replace(offset, names=None))
    return told


def _without_what_is_empty(
    right: Any,
    start: StreamOffset,
    stops: Mapping[int, int],
    away: frozenset[int] = frozenset(),
    names: Mapping[str, int] | None = None,
) -> StreamOffset:
    """A log that a name found is not noted before it has a record."""
    stops = {log: stop for log, stop in stops.items() if log in start.logs or stop > OLDEST}
    moved: StreamOffset = right(start, stops, away, names)
    return moved


def _drops_gone_logs(right: Any, self: Lander, source: Any, known: StreamOffset) -> dict[str, int]:
    """Only logs that are there are handed to the new query."""
    return {}


def _looks_at_no_note(
    right: Any, query: str, known: tuple[int, str], given: tuple[int, str]
) -> None:
    """A note of a begun batch counts as its publication where no plan is seen."""
    if given[1] and not (is_note(given[1]) and not known[1]):
        right(query, known, given)


def _forgets_the_plan(
    right: Any,
    known: Publication,
    batch: int,
    attempt: int,
    shares: tuple[LogShare, ...],
    fingerprint: str = "",
) -> Any:
    return right(known, batch, attempt, shares)


def _sees_no_checkpoint(
    right: Any, self: CordwoodStreamWriter, batch: int, written: Written
) -> str:
    return ""


def _compares_with_itself(
    right: Any, self: CordwoodStreamWriter, begun: Plan | None, found: Plan
) -> None:
    """The writer of the commit has read its plan just now."""
    right(self, self.begun, found)


def _needs_its_plan(right: Any, self: CordwoodStreamWriter, options: SinkOptions) -> None:
    right(self, options)
    if self._unread:
        raise BadSetting(self._unread)


def _notes_appends_elsewhere(
    right: Any,
    store: BlockingStore,
    query: str,
    batch: int,
    refs: Sequence[StagedRef],
    fingerprint: str = "",
    way_out: str = "",
) -> Any:
    name = f"{query} appends" if fingerprint.startswith(APPENDED) else query
    return right(store, name, batch, refs, fingerprint, way_out)


def _the_first_of_its_id(right: Any, location: str, query: str, name: str = "") -> Any:
    found = [path.parent for path in sorted(Path(location).glob("*/metadata"))]
    return next((Checkpoint(each) for each in found if Checkpoint(each).query() == query), None)


def _counts_the_time(right: Any, self: Checkpoint, batch: int) -> str:
    """The fingerprint contains the time of planning, which differs in another try of a batch."""
    text = (self.directory / "offsets" / str(batch)).read_bytes()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _nobodys(right: Any, self: Checkpoint) -> str:
    return ""


def _what_is_out_of_sequence_is_stored(right: Any, self: OnceAppender, sent: _Sent) -> None:
    """A gap and another cut count as a repeat."""


def _a_gap_is_stored(right: Any, self: OnceAppender, sent: _Sent) -> None:
    try:
        right(self, sent)
    except OutOfSequence as error:
        if error.kind is not Misplaced.GAP:
            raise


def _as_it_is_spelled(right: Any, text: object) -> str:
    return str(text)


def _for_all_logs(right: Any, self: CordwoodWriter, log: int) -> Any:
    return self._query


def _believes_a_repeat(
    right: Any, self: CordwoodWriter, name: str, refs: Sequence[StagedRef]
) -> None:
    sink._publish(self._store(), name, self._batch, refs)


def _by_the_name_now(
    right: Any, self: CordwoodWriter, messages: Sequence[WriterCommitMessage | None]
) -> Any:
    number = known_number(self._store(), self._options.log)
    return None if number is None else self.name_for(number)


def _by_name(
    right: Any, self: Any, store: BlockingStore, blocks: Iterator[RowBlock]
) -> Iterator[RowBlock]:
    return blocks


def _by_the_whole_ledger(right: Any, self: LedgerEnds, ledger: int, stop: int) -> Any:
    opened = self._open(ledger)
    if opened.is_closed:
        return opened.length / max(1, opened.last_add_confirmed + 1)
    return right(self, ledger, stop)


def _knows_no_trim(right: Any, whole: Slice, tiered: Tiered | None) -> Any:
    return right(whole, None if tiered is None else replace(tiered, trim=Lsn(0)))


def _keeps_all(taken: Any) -> bool:
    return True


def _keeps_trims(right: Any, taken: Any) -> bool:
    return right(taken) or taken.kind is GapKind.TRIM


BUGS = (
    PlantedBug(
        "sink-keyed-by-run",
        "The sink publishes under the id of the query's run, which a restart changes: a batch that "
        "was published before the driver died is published again.",
        at(sink.query_and_batch).around(_by_run),
    ),
    PlantedBug(
        "sink-publishes-in-the-task",
        "Tasks append instead of staging: a task that is run again writes its rows again.",
        at(sink.write_portions).around(_publishes_in_the_task),
    ),
    PlantedBug(
        "source-trusts-the-start",
        "Batch 0, run again after a crash, begins where Spark says that the stream starts now: "
        "with startingOffsets=latest the records in between are lost.",
        at(ranges, within=source).around(_trusts_the_start),
    ),
    PlantedBug(
        "sink-publishes-backwards",
        "What tasks staged is published in another order than they staged it.",
        at(sink.staged_refs).around(_as_they_come),
    ),
)
"""Bugs that show when processes die on a schedule."""

CHECKPOINT_BUGS = (
    PlantedBug(
        "repeat-unchecked",
        "A batch whose number was published is taken for a repeat, whatever it holds.",
        at(check_repeat, within=publishing).around(_no_word),
    ),
    PlantedBug(
        "plan-not-noted",
        "The publication forgets which plan its batch had.",
        at(commit, within=publications).around(_forgets_the_plan),
    ),
    PlantedBug(
        "plan-not-read",
        "The sink does not look at its checkpoint.",
        at(CordwoodStreamWriter.plan_fingerprint).around(_sees_no_checkpoint),
    ),
    PlantedBug(
        "appends-not-noted",
        "deliveryMode=idempotent counts rows within (batch, partition), whatever the batch reads.",
        at(CordwoodStreamWriter.note_plan).around(_no_word),
    ),
    PlantedBug(
        "plan-not-synced",
        "A publication is durable before the plan of its batch is.",
        at(Checkpoint.make_durable).around(_no_word),
    ),
)
"""Bugs that show when a checkpoint goes back, or loses unsynced files in a power cut."""

MODE_BUGS = (
    PlantedBug(
        "names-apart",
        "A query's txnAppId changes amid a batch: the batch is written under both names.",
        at(CordwoodStreamWriter.note_name).around(_no_word),
    ),
    PlantedBug(
        "modes-apart",
        "Each deliveryMode has notes of its own: a batch that was begun in one and runs again in "
        "the other is written twice.",
        at(sink._publish).around(_notes_appends_elsewhere),
    ),
)
"""Bugs that show when a query's deliveryMode or txnAppId changes."""

SCENE_BUGS = (
    PlantedBug(
        "time-in-plan",
        "A plan's digest holds the time of planning, so that a batch planned again is refused.",
        at(Checkpoint.fingerprint).around(_counts_the_time),
    ),
    PlantedBug(
        "plan-read-at-commit",
        "A batch is published with the plan that the checkpoint has at the commit: if another "
        "driver planned the batch anew meanwhile, its batch counts as a repeat, and is lost.",
        at(CordwoodStreamWriter.check_plan).around(_compares_with_itself),
    ),
    PlantedBug(
        "abort-needs-the-plan",
        "No writer is made while the checkpoint does not say what its newest batch reads, not even "
        "that of the abort: what the tasks staged stays until its time is up.",
        at(CordwoodStreamWriter.__init__).around(_needs_its_plan),
    ),
    PlantedBug(
        "tasks-of-any-batch",
        "Tasks append rows of a batch of which no plan was noted: another driver's batch of that "
        "number counts as a repeat, and is lost.",
        at(CordwoodStreamWriter.check_batch).around(_no_word),
    ),
    PlantedBug(
        "plans-of-all-queries",
        "A plan's digest holds no query: of two with one txnAppId and source, one is skipped.",
        at(Checkpoint.query).around(_nobodys),
    ),
    PlantedBug(
        "note-is-a-batch",
        "A note of a begun batch counts as its publication once the sink sees no checkpoint: the "
        "batch is skipped, and its rows are lost.",
        at(check_repeat, within=publishing).around(_looks_at_no_note),
    ),
    PlantedBug(
        "any-misplaced-stored",
        "Whatever is out of sequence is taken for stored: rows of portions cut anew are lost.",
        at(OnceAppender.settle_alone).around(_what_is_out_of_sequence_is_stored),
    ),
    PlantedBug(
        "gap-taken-as-stored",
        "Rows ahead of what the log has are taken for stored.",
        at(OnceAppender.settle_alone).around(_a_gap_is_stored),
    ),
    PlantedBug(
        "spellings-apart",
        "Two spellings of a log are two sequences of one producer.",
        at(normalise_name, within=sink_rows).around(_as_it_is_spelled),
    ),
    PlantedBug(
        "version-for-all-logs",
        "txnVersion is counted by application alone: the second log of a version gets nothing.",
        at(CordwoodWriter.name_for).around(_for_all_logs),
    ),
    PlantedBug(
        "version-by-name-at-commit",
        "A version belongs to the log that has the name at its commit: if the log was renamed since "
        "rows were staged for it, they are never published, and no error tells it.",
        at(CordwoodWriter.staged_name).around(_by_the_name_now),
    ),
    PlantedBug(
        "tasks-go-by-name",
        "Tasks look up the name of the log themselves: if it leads to another log than on the "
        "driver, rows go into that log, and the version counts as written into the driver's.",
        at(sink._Target.aimed).around(_by_name),
    ),
    PlantedBug(
        "other-logs-skipped",
        "A version that was written into one log is skipped for rows of another.",
        at(CordwoodWriter.check_logs).around(_no_word),
    ),
    PlantedBug(
        "undone-version-skipped",
        "A version that a dead driver committed, and that was not in its logs yet, is skipped for "
        "rows of other logs.",
        at(CordwoodWriter._publish_version).around(_believes_a_repeat),
    ),
    PlantedBug(
        "version-in-any-mode",
        "txnVersion is taken with a deliveryMode that notes no version: one that was written is "
        "written again.",
        at(SinkOptions._check_mode).around(_no_word),
    ),
    PlantedBug(
        "checkpoint-by-id-alone",
        "The sink takes the first checkpoint with the query's id in the session's directory: with "
        "a copy beside it a new batch counts as a repeat, and is lost.",
        at(Checkpoint.of_query).around(_the_first_of_its_id),
    ),
    PlantedBug(
        "any-name-passed-over",
        "A stream that starts passes over each name that leads to no log, also of a log that was "
        "renamed and has records for it.",
        at(passed_over, within=catalog).around(_any_name),
    ),
    PlantedBug(
        "names-counted",
        "As many names are passed over as logs of the checkpoint are gone: after a deletion that "
        "was passed over, a name that is wrong, or whose log was renamed, is passed over too.",
        at(passed_over, within=catalog).around(_counts_names),
    ),
    PlantedBug(
        "table-without-its-gone-logs",
        "A landing that lost its checkpoint forgets which logs of the table were passed over: their "
        "names lead nowhere, it cannot change them, and it never starts again.",
        at(Lander.passed_over).around(_drops_gone_logs),
    ),
    PlantedBug(
        "found-log-forgotten",
        "A log that was made again under its name is not in the checkpoint before a batch has "
        "records of it: if it is deleted while the query is down, no error tells the loss.",
        at(move_on, within=source).around(_without_what_is_empty),
    ),
    PlantedBug(
        "ledger-cut-by-its-end",
        "A batch of a ledger is cut by the size of all its entries once it is closed: run again, "
        "its tasks have other rows than in the first try, and some are lost and some doubled.",
        at(LedgerEnds._entry_bytes).around(_by_the_whole_ledger),
    ),
)  # fmt: skip
"""Bugs that show in special scenes."""

OBJECT_BUGS = (
    PlantedBug(
        "loss-of-objects-believed",
        "A task that reads objects passes over what main storage lost, though a node has it.",
        at(slice_reader._is_kept).instead(_keeps_all),
    ),
    PlantedBug(
        "trimmed-read-from-objects",
        "A task reads records from objects that were trimmed, and that objects still have.",
        at(splitting._marked).around(_knows_no_trim),
    ),
    PlantedBug(
        "start-of-manifest-believed",
        "A task that reads objects takes what lies before the manifest's start for trimmed, though "
        "no node tells a trim and one has the records.",
        at(slice_reader._is_kept).around(_keeps_trims),
    ),
)
"""Bugs that show when an object of main storage is lost, or has what was trimmed, or a manifest
begins too late."""
