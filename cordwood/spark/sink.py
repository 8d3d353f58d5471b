"""Writing with `format("cordwood")`: the classes and methods that Spark calls.

A task hands its rows to the store in one of the three modes of `delivery`, and reports its work in
its message; the driver's commit publishes. Rows of one partition stay in their order, in each log
that they go to, and partitions follow one another in theirs.

Spark tells `write` nothing about the batch, but the task's context has it, under two names of
Spark's internals; without them exactly once cannot be kept, and is refused.

`abort` releases staged blocks and never touches published records: Spark calls it also when
`commit` failed after its publish (docs/sources/spark.md §2 trap 12).

Source: docs/sources/spark.md §2 (traps 9, 10, 12), §8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from cordwood.errors import BadSetting, RecordTooLarge, Rejected, StageExpired, UnknownLog
from cordwood.spark.checkpoint import Checkpoint, Plan
from cordwood.spark.shared_store import shared_store
from cordwood.spark.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, IDEMPOTENT, SinkOptions
from cordwood.spark.sink_rows import RowBlock, row_blocks
from cordwood.spark.target_log import known_number, number_to_append

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.client.blocking.blocking_store import BlockingStore
    from cordwood.client.values import Published, StagedRef

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
CHECKPOINTS_PROPERTY = "spark.sql.streaming.checkpointLocation"
"""What Spark's engine calls them, in 4.2 and 4.3; without them a stream into a log is refused."""

SMALLER_BATCHES = (
    "Start the query again with deliveryMode=idempotent or atLeastOnce until this batch is "
    "through, or with fewer tasks (coalesce) if its rows are for many logs, which makes fewer "
    "blocks of the same rows; and make later batches smaller (maxBytesPerTrigger or "
    "maxRecordsPerTrigger at the source)"
)
"""What to do about a stream's batch that is too large."""

SEVERAL_VERSIONS = (
    "Write it in several versions; or with fewer tasks (coalesce) if its rows are for many logs, "
    "which makes fewer blocks of the same rows"
)
"""What to do about a batch write that is too large."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's report.

    Attributes:
        query, batch: the batch that it worked for.
        partition: its place among the tasks.
        refs: its staged blocks, in order; empty if it appended.
        records, bytes: the values that it handed over.
        logs: logs of rows that it skipped, because their version was written before.
        target: the number of the log of the option `log`, if it had rows for that log.
        query_id: of a stream, from Spark.
        checkpoints: the session's directory for checkpoints, "" if unset.
        begun: the plan that it worked for, as it was when Spark made its writer. None where no plan
            was read; a task of an earlier version, which has no such field, counts as one.
    """

    query: str
    batch: int
    partition: int
    refs: tuple[StagedRef, ...]
    records: int
    bytes: int
    logs: frozenset[str] = frozenset()
    query_id: str = ""
    checkpoints: str = ""
    target: int | None = None
    begun: Plan | None = None


class _Writer:
    """What both writers share.

    It is made on the driver, once for a write or a micro-batch, and goes to all of its tasks.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._number = options.log_id

    def _store(self) -> BlockingStore:
        from cordwood.settings import ClientSettings

        options = self._options
        settings = ClientSettings(
            timeout_s=options.request_timeout_s,
            codec=options.codec,
            write_tokens=options.write_tokens,
            rare_collections=True,
        )
        return shared_store(options.servers, options.request_timeout_s, settings)

    def _write(self, rows: Iterator[pa.RecordBatch], query: str, batch: int) -> Written:
        """Hand over a task's rows; return once all of them are durable."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        store, found = self._store(), _Target(self._options.log, self._number)
        blocks = found.aimed(store, row_blocks(rows, self._options.log))
        written = write_portions(store, blocks, self._options, query, batch, partition)
        return replace(written, target=found.number if found.has_rows else None)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from cordwood.spark.delivery import unstage

        refs = staged_refs(messages)
        if refs:
            unstage(self._store, refs)


class _Target:
    """The log of the option `log` in a task.

    Attributes:
        number: None until a row goes to a log that the driver did not find, or did not look up.
        has_rows: whether rows went there.
    """

    def __init__(self, log: str, number: int | None) -> None:
        self._log = log
        self.number = number
        self.has_rows = False

    def aimed(self, store: BlockingStore, blocks: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """Let the rows of that log go by its number."""
        for block in blocks:
            if block.log == self._log:
                if self.number is None:
                    self.number = number_to_append(store, self._log)
                block.number, self.has_rows = self.number, True
            yield block


def write_portions(
    store: BlockingStore,
    rows: Iterator[RowBlock],
    options: SinkOptions,
    query: str,
    batch: int,
    partition: int,
) -> Written:
    """Hand over a task's rows as `options.delivery` says.

    Raises:
        BadSetting: a value is null, or a row has no log.
        CordwoodError: it failed; Spark may run the task again.
    """
    from cordwood.spark.delivery import append_all, stage_all
    from cordwood.spark.idempotent import OnceAppender

    refs: list[StagedRef] = []
    if options.delivery == AT_LEAST_ONCE:
        records, size = append_all(store, rows)
    elif options.delivery == IDEMPOTENT:
        records, size = OnceAppender(store, query, batch, partition, options.log).append(rows)
    else:
        refs, records, size = stage_all(store, rows, options.stage_ttl_s)
    return Written(query, batch, partition, tuple(refs), records, size)


class CordwoodWriter(_Writer, DataSourceArrowWriter):
    """A batch.

    Without `txnAppId` a write has an identity of its own: what Spark runs again inside it is
    written once, and the same write started again is another.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        if self._number is None and options.log:
            self._number = known_number(self._store(), options.log)
        self._query = options.app or f"write-{uuid4().hex}"
        self._batch = options.version or 0
        self._done = self._published() if options.app else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage or append what comes; return once all of it is durable."""
        if self._done is not None:
            logs = frozenset(each.log for each in row_blocks(iterator, self._options.log))
            return Written(self._query, self._batch, 0, (), 0, 0, logs)
        return self._write(iterator, self._query, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what tasks staged.

        Raises:
            BadSetting: see `check_logs`.
            Rejected, UnknownLog: see `staged_name`.
            CordwoodError: as `delivery.publish`.
        """
        if self._options.delivery != EXACTLY_ONCE:
            return
        if self._done is not None:
            logs = {log for each in messages if isinstance(each, Written) for log in each.logs}
            self.check_logs(self._done, logs)
            return
        refs = staged_refs(messages)
        if self._options.app:
            name = self.staged_name(messages)
            if name is not None:
                self._publish_version(name, refs)
        elif refs:
            from cordwood.spark.delivery import publish_in_parts

            publish_in_parts(self._store(), self._query, refs)

    def _publish_version(self, name: str, refs: Sequence[StagedRef]) -> None:
        told = _publish(self._store(), name, self._batch, refs, way_out=SEVERAL_VERSIONS)
        if not told.is_repeat:
            return
        # Trap: the version was committed when this write began, and not yet in its logs: the
        # driver that committed it died in its publish. So it was not known then. A lower version
        # has no spans.
        done = told if told.spans else self._published_in(name)
        if done is not None:
            self.check_logs(done, {ref.log for ref in refs})

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Release the blocks that tasks staged; appended records stay."""
        self._abort(messages)

    def name_for(self, log: int) -> str:
        """The application's name for a log, which has its own sequence of versions.

        As in Delta, where a version is a table's. It contains the log's number: a log that was
        deleted and created again holds no earlier records.
        """
        return f"{self._query} into log {log}"

    def staged_name(self, messages: Sequence[WriterCommitMessage | None]) -> str | None:
        """The name to publish under; None if there is nothing to publish.

        Race: the log of the option was not there on the driver. Each task with rows for it found it
        or made it, and these may be two logs, or one that has versions.

        Raises:
            Rejected: tasks found two logs, or one that has this version; nothing is published.
            UnknownLog: all rows name other logs themselves, and the log of the option does not
                exist; nothing is published.
        """
        log = self._options.log
        if not log:
            return self._query
        if self._number is not None:
            return self.name_for(self._number)
        written = [each for each in messages if isinstance(each, Written)]
        found = sorted({each.target for each in written if each.target is not None})
        if len(found) > 1:
            raise Rejected(
                f"{log} led to log {' and to log '.join(map(str, found))} while version "
                f"{self._batch} of {self._options.app!r} was staged: nothing of it was written. "
                "Write it again: it goes into one of them as a whole"
            )
        if found:
            name = self.name_for(found[0])
            if self._published_in(name) is not None:
                raise Rejected(
                    f"{log} was not there when version {self._batch} of {self._options.app!r} was "
                    f"begun, and is log {found[0]} now, which has this version or a later one: "
                    "nothing was written. Write it again to be told whether it is in that log"
                )
            return name
        if any(each.refs for each in written):
            raise UnknownLog(
                f"there is no log {log}, and versions of {self._options.app!r} are counted by the "
                "log of the option log: nothing was written. Make that log, or leave the option "
                "out if all rows name their logs"
            )
        return None

    def _published(self) -> Published | None:
        """This version, or a later version, of the application, if the store has it already."""
        if self._options.delivery != EXACTLY_ONCE:
            return None
        if not self._options.log:
            return self._published_in(self._query)
        return None if self._number is None else self._published_in(self.name_for(self._number))

    def _published_in(self, name: str) -> Published | None:
        last = self._store().published(name)
        return last if last is not None and last.batch >= self._batch else None

    def check_logs(self, done: Published, logs: Iterable[str]) -> None:
        """Refuse a version with rows for logs that it was not written to before.

        Args:
            done: the last version that was written.
            logs: the logs of the rows that come now, by name.
        Raises:
            BadSetting: nothing was written.
        """
        others = sorted({*logs} - set(done.spans)) if done.batch == self._batch else []
        if others:
            raise BadSetting(
                f"version {self._batch} of {self._options.app!r} was written into "
                f"{', '.join(sorted(done.spans)) or 'no log'}, and these rows are for "
                f"{', '.join(others[:5])}: give each set of logs a txnAppId of its own. If a log "
                "was only renamed since, this version is in it: do not write it again"
            )


class CordwoodStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A stream.

    Spark makes a writer on the driver for each micro-batch, and sends it to the tasks. It does not
    connect there, which would cost each micro-batch more than all of its look-ups: each task looks
    the log's name up.

    Trap: Spark commits and aborts with a writer that it makes anew, in another process, when the
    tasks are done. What a commit is to know of the time before them, their messages tell
    (docs/sources/spark.md §2 trap 14).

    Attributes:
        begun: the checkpoint's newest plan when this writer was made; None where none is seen.
    """

    def __init__(self, options: SinkOptions) -> None:
        """
        Raises:
            Rejected: with deliveryMode=idempotent, the batch reads other ranges than the batch
                written under its number.
            BadSetting: with deliveryMode=idempotent, the checkpoint does not say what its newest
                batch reads. With exactlyOnce `write` raises it: the writer of an abort must be
                made whatever the checkpoint has by then, or staged blocks stay until `stageTtl`.
        """
        super().__init__(options)
        # Race: an older copy of the checkpoint is put back while this driver is slow, and another
        # driver plans a batch of that number. So the plan is read now, and not at the commit.
        self.begun: Plan | None = None
        self._unread = ""
        try:
            checkpoint = Checkpoint.at(options.checkpoint)
            if checkpoint is not None and options.delivery != AT_LEAST_ONCE:
                self.begun = checkpoint.newest_plan()
        except (BadSetting, OSError) as error:
            if options.delivery != EXACTLY_ONCE:
                raise
            self._unread = str(error)
        if options.delivery == IDEMPOTENT:
            self.note_plan()

    def note_plan(self) -> None:
        """Record the ranges of the planned batch, before a task appends any of it.

        A task's rows are counted within (query, batch, partition). Another plan of that number
        gives a task other rows: some would be taken for written rows, and be lost. The note takes
        the batch's place among published batches: from here on exactlyOnce refuses the batch, just
        as this mode refuses a published batch.

        The writer of the commit does this again: the same plan is a repeat, and another one is
        refused.
        """
        from cordwood.client.values import APPENDED

        checkpoint = Checkpoint.at(self._options.checkpoint)
        if checkpoint is None or self.begun is None:
            return
        query = self._options.app or checkpoint.query()
        batch, found = self.begun.batch, self.begun.digest
        checkpoint.make_durable(batch)
        self.note_name(checkpoint, batch, found)
        # Under the name that exactlyOnce publishes under, and with a mark: a batch that was begun
        # in one mode and runs again in the other would be written twice.
        _publish(self._store(), query, batch, (), APPENDED + found)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage or append what comes; return once all of it is durable.

        Raises:
            Rejected: see `check_batch`.
            BadSetting: the checkpoint did not say what the batch reads.
        """
        if self._unread:
            raise BadSetting(self._unread)
        query, batch = "", 0
        if self._options.delivery != AT_LEAST_ONCE:
            query, batch = query_and_batch()
            self.check_batch(batch)
        written = self._write(iterator, self._options.app or query, batch)
        context = TaskContext.get()
        found = context.getLocalProperty(CHECKPOINTS_PROPERTY) if context is not None else None
        return replace(written, query_id=query, checkpoints=found or "", begun=self.begun)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what tasks staged, unless this batch was published before.

        Raises:
            Rejected: see `check_plan`; or a batch of this number was published with another plan.
            CordwoodError: as `delivery.publish`.
        """
        if self._options.delivery != EXACTLY_ONCE:
            return
        written = [each for each in messages if isinstance(each, Written)]
        named = {(each.query, each.batch) for each in written}
        if not named:
            return
        query = min(named)[0]
        assert named == {(query, batchId)}, f"tasks of batch {batchId} worked for {sorted(named)}"
        if len({each.begun for each in written}) > 1:
            raise self._two_runs(batchId, "had several plans for the tasks of one batch")
        found = self.plan_fingerprint(batchId, written[0])
        _publish(self._store(), query, batchId, staged_refs(messages), found)

    def plan_fingerprint(self, batch: int, written: Written) -> str:
        """The digest of the ranges of a batch, from its checkpoint. The checkpoint is on stable
        storage when this returns.

        Spark does not sync its checkpoint. If a power cut took the newest plan and left the
        publication, another batch with the same number would count as a repeat.

        Args:
            written: the message of any of its tasks.
        Raises:
            Rejected: see `check_plan`.
            BadSetting: the checkpoint does not say what the batch reads.
        """
        # Spark hands the sink the query's option, but not the session's setting.
        checkpoint = (
            Checkpoint.at(self._options.checkpoint)
            if self._options.checkpoint
            else Checkpoint.of_query(
                written.checkpoints, written.query_id, self._options.query_name
            )
        )
        found = "" if checkpoint is None else checkpoint.fingerprint(batch)
        self.check_plan(written.begun, Plan(batch, found))
        if checkpoint is None:
            return ""
        checkpoint.make_durable(batch)
        self.note_name(checkpoint, batch, found)
        return found

    def check_batch(self, batch: int) -> None:
        """Check that the plan that was read when this writer was made is of the batch that runs.

        Args:
            batch: as Spark tells it to the task.
        Raises:
            Rejected: another run of the query has the checkpoint; nothing more is written.
        """
        if self.begun is not None and self.begun.batch != batch:
            raise self._two_runs(
                batch,
                f"had batch {self.begun.batch} as its newest one when this run began {batch}",
            )

    def check_plan(self, begun: Plan | None, found: Plan) -> None:
        """Check that the checkpoint still has the plan that the tasks of this batch worked for.

        The rows of one plan must never be published with the digest of another: the batch of the
        other plan would count as a repeat, and be lost. Where the checkpoint is only known from the
        session's setting, no plan was read before.

        Args:
            begun: what the tasks worked for, by their messages; None where no plan was read.
            found: what the checkpoint says at the commit; the digest is "" where none is seen.
        Raises:
            Rejected: it has another plan, or none; nothing is published.
        """
        if not self._options.checkpoint:
            return
        if found != (begun or Plan(found.batch, "")):
            raise self._two_runs(
                found.batch, f"has another plan of batch {found.batch} than when this run began it"
            )

    def _two_runs(self, batch: int, how: str) -> Rejected:
        return Rejected(
            f"the checkpoint {self._options.checkpoint} {how}: another run of this query uses it, "
            f"or an older copy was put back meanwhile. This run writes nothing of batch {batch}. "
            "Stop all runs of the query, and start one: it goes on with what the checkpoint says"
        )

    def note_name(self, checkpoint: Checkpoint, batch: int, found: str) -> None:
        """Note the query's `txnAppId` for a batch, before anything of it is visible.

        The note is under the id in the checkpoint, where a query without `txnAppId` publishes. A
        batch that was begun under one name and runs again under another one, or under none, would
        be written twice.

        Raises:
            Rejected: the batch was begun under another name.
        """
        if app := self._options.app:
            from cordwood.client.values import NAMED

            digest = hashlib.blake2b(f"{app}\n{found}".encode(), digest_size=16).hexdigest()
            _publish(self._store(), checkpoint.query(), batch, (), NAMED + digest)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Release the blocks that tasks staged; published or appended records stay."""
        self._abort(messages)


def query_and_batch() -> tuple[str, int]:
    """Of the task that this runs in.

    Raises:
        BadSetting: Spark does not tell.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
    batch = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
    if not query or batch is None:
        raise BadSetting(
            f"this Spark does not tell its tasks which query and batch they work for "
            f"({QUERY_PROPERTY} and {BATCH_PROPERTY} are not set), so nothing can be written once. "
            "With deliveryMode=atLeastOnce it is written all the same"
        )
    return query, int(batch)


def staged_refs(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRef]:
    """What tasks staged, in the order of their partitions."""
    written = [each for each in messages if isinstance(each, Written)]
    return [ref for each in sorted(written, key=lambda each: each.partition) for ref in each.refs]


def _publish(
    store: BlockingStore,
    query: str,
    batch: int,
    refs: Sequence[StagedRef],
    fingerprint: str = "",
    way_out: str = SMALLER_BATCHES,
) -> Published:
    """As `delivery.publish`, with error texts for the user of the query."""
    from cordwood.spark.delivery import publish

    try:
        return publish(store, query, batch, refs, fingerprint=fingerprint)
    except RecordTooLarge as error:
        raise RecordTooLarge(
            f"batch {batch} is more than can be published in one step: {error}. Nothing of it was "
            f"written. {way_out}"
        ) from error
    except StageExpired as error:
        raise StageExpired(
            f"batch {batch} was staged too long ago to be published: {error}. Nothing of it was "
            "written; running it again stages it anew. If batches take so long, give a longer "
            "stageTtl"
        ) from error
