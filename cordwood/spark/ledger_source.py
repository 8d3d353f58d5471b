"""`format("cordwood")` over ledgers: all of a closed ledger, the confirmed part of an open ledger.

Confirmed entries never change and are the same for every reader. So a planned range holds the same
entries for ever, and a batch or a task may be run again. The driver tells executors the end of the
confirmed entries: they do not ask for it.

Source: docs/spark.md ("Ledgers"); docs/sources/spark.md §2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cordwood.spark.ledger_offsets import (
    LedgerOffset,
    entries_gone,
    ledger_ranges,
    move_ledgers_on,
    parse_ledger_offset,
)
from cordwood.spark.ledger_options import LedgerOptions, batch_of
from cordwood.spark.shared_store import shared_store
from cordwood.spark.splitting import plan

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.client.blocking.blocking_store import BlockingStore
    from cordwood.spark.ledger_ends import LedgerEnds

POLL_S = 0.3
"""An idle stream waits so long for each ledger that is still open before it asks how far they are,
as a stream of logs does for each call."""

POLL_MAX_S = 5.0
"""The longest wait: a stream of many ledgers is then late by seconds at most."""


def _store(options: LedgerOptions) -> BlockingStore:
    return shared_store(options.servers, options.request_timeout_s, options.client_settings())


class _EntryReader:
    """The part that both readers share: reading on executors, and planning."""

    _options: LedgerOptions

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._known: LedgerEnds | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition.

        Raises:
            UnknownLedger: a ledger was deleted after it was planned.
            DataLoss: its entries end before the partition does.
            Unreachable: an entry's nodes did not answer in time.
        """
        options = self._options
        # Spark makes a partition of its own, without a value, when none was planned.
        for each in partition.value or ():
            opened = _store(options).ledgers.open(each.log_id, options.password)
            entry = each.start
            for batch in opened.arrow(options.columns, start=entry, until=each.stop - 1):
                entry += batch.num_rows
                yield batch
            if entry != each.stop:
                raise entries_gone(each.log_id, entry, each.stop)

    @property
    def _ends(self) -> LedgerEnds:
        """Made on first use: the pickled reader of a task must not hold it."""
        if self._known is None:
            from cordwood.spark.ledger_ends import LedgerEnds

            self._known = LedgerEnds(_store(self._options), self._options)
        return self._known

    def _partitions(self, ranges: Mapping[int, tuple[int, int]]) -> list[InputPartition]:
        planned = plan(
            self._ends.spans(ranges),
            target_bytes=self._options.target_partition_bytes,
            min_partitions=self._options.min_partitions,
        )
        return [InputPartition(each) for each in planned]


class LedgerReader(_EntryReader, DataSourceReader):
    """A batch: the entries that are confirmed when it is planned."""

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks.

        Raises:
            UnknownLedger: no ledger has a given id.
            AccessDenied: a ledger has another password.
            BadSetting: a start or end lies after the confirmed entries, or a start after its end.
            Unreachable: too few nodes said how far an open ledger is confirmed.
        """
        return self._partitions(batch_of(self._ends.confirmed(), self._options))


class LedgerStreamReader(_EntryReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. It goes on when all its ledgers are closed, and finds nothing new then."""

    def __init__(self, options: LedgerOptions) -> None:
        super().__init__(options)
        self._frozen: Mapping[int, int] | None = None
        self._latest: Mapping[int, int] | None = None
        self._asked_at = 0.0
        self._is_idle = False
        self._turn = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new stream starts; Spark asks again after a crash in batch 0."""
        options = self._options
        starts = {ledger: options.starts.get(ledger, 0) for ledger in options.ledgers}
        return LedgerOffset(self._ends.cluster, starts, is_initial=True).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRecordsPerTrigger`, if it was given."""
        limit = self._options.max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Up to where the next batch reads; `start` itself if there is nothing new.

        Raises:
            BadSetting: the checkpoint is another cluster's.
            UnknownLedger: a ledger was deleted.
            Retryable: the cluster did not answer in time.
        """
        offset = parse_ledger_offset(start, self._ends.cluster)
        ends = self._ask() if self._frozen is None else self._frozen
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        moved = move_ledgers_on(offset, self._options.starts, ends, rows, self._turn)
        self._is_idle = moved is offset
        if self._is_idle:
            return start
        self._turn += 1
        return moved.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the entries that are confirmed now, and no later entries."""
        self._frozen = self._ends.confirmed()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the ledgers were when last asked, so that a query's progress shows its lag."""
        if self._latest is None:
            return None
        return LedgerOffset(self._ends.cluster, self._latest).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of one batch, the same tasks whenever it is run.

        Raises:
            BadSetting: the checkpoint is another cluster's, or its offsets are no pair.
            DataLoss: a ledger was closed at an entry before its confirmed entries.
        """
        ends = self._ends
        first, last = (parse_ledger_offset(each, ends.cluster) for each in (start, end))
        return self._partitions(ledger_ranges(first, last, self._options.starts))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is the truth."""

    def _ask(self) -> Mapping[int, int]:
        """Ask how far the ledgers are; an idle stream waits for its turn first."""
        if self._is_idle:
            pause_s = min(POLL_MAX_S, POLL_S * max(1, self._ends.open_ledgers))
            due_s = self._asked_at + pause_s - time.monotonic()
            if due_s > 0:
                time.sleep(due_s)
        self._latest = self._ends.heard()
        self._asked_at = time.monotonic()
        return self._latest
