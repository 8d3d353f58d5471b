"""`groupId`: a consumer of the store whose cursors follow a query.

Spark commits no offsets to Kafka, so no tool outside Spark sees the progress of a query. Here the
store keeps cursors (`cordwood groups` tells the lag). The checkpoint still decides: a cursor never
moves a query that has a checkpoint. It moves after a batch is done, every few seconds, and never
back; a save that fails is tried again later, and fails no query.

With `startingOffsets=cursor` a new query, or a batch, starts where the consumer stands. A log
in which it has no cursor yet is read from its beginning: to skip it would be a loss.

Source: docs/sources/spark.md §6 ("identity"), §8 (`commit` is a hint).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Mapping

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import BadSetting, CordwoodError, UnknownLog
from cordwood.lsn import Lsn

logger = logging.getLogger(__name__)

SAVE_EVERY_S = 5.0
"""The time between two saves, as for a consumer. A save is one compare-and-set in the metadata
store for all logs."""


def cursors_of(store: BlockingStore, consumer: str) -> dict[int, Lsn]:
    """Where a consumer stands, by the numbers of logs.

    Raises:
        BadSetting: that names no consumer.
    """
    group = store.consumer_by_number(consumer)
    return {int(log): Lsn(lsn) for log, lsn in group.positions.items()}


def check_free(store: BlockingStore, consumer: str, logs: Mapping[int, str]) -> None:
    """Refuse a consumer with active members: they and Spark would move the same cursors.

    Raises:
        BadSetting: a member reads one of `logs` (names by number).
    """
    owners = store.consumer_by_number(consumer).owners
    if any(str(log) in owners for log in logs):
        # A save by no member, of nothing, gives up members that were killed.
        store.save_cursors(consumer, {})
        owners = store.consumer_by_number(consumer).owners
    for log, name in logs.items():
        if str(log) in owners:
            raise BadSetting(
                f"groupId is {consumer!r}, and {owners[str(log)]}, a member of that consumer, "
                f"reads {name}: a query has its logs for itself; give it another groupId"
            )


class CursorKeeper:
    """Moves a consumer's cursors along with a stream. Lives on the driver, as long as the query."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._due: dict[int, int] = {}
        self._saved: dict[int, int] = {}
        self._tried_at: float | None = None

    def done(self, logs: Container[int], places: Mapping[int, int]) -> None:
        """Note that all records before `places` (LSNs by number) have been dealt with, in
        `logs`."""
        for log, lsn in places.items():
            if log in logs and lsn > self._saved.get(log, 0):
                self._due[log] = max(lsn, self._due.get(log, 0))

    def save(self, store: BlockingStore, *, at_once: bool = False) -> None:
        """Save due positions; every SAVE_EVERY_S unless `at_once`."""
        now = time.monotonic()
        waits = self._tried_at is not None and now - self._tried_at < SAVE_EVERY_S
        if not self._due or (waits and not at_once):
            return
        self._tried_at = now
        try:
            self._save_due(store)
        except CordwoodError as error:
            logger.warning("the cursors of %s were not saved: %s", self._consumer, error)

    def _save_due(self, store: BlockingStore) -> None:
        # Another query, or a person, may have moved them further; a save is whole or not at all.
        self._saved = dict(cursors_of(store, self._consumer))
        ahead = {log: lsn for log, lsn in self._due.items() if lsn > self._saved.get(log, 0)}
        if ahead:
            try:
                store.save_cursors(self._consumer, ahead)
            except UnknownLog:
                # A log was deleted: it has no cursor to keep, and must not delay other cursors.
                there = {info.log_id for info in store.logs()}
                self._due = {log: lsn for log, lsn in self._due.items() if log in there}
                raise
            self._saved.update(ahead)
        self._due.clear()
