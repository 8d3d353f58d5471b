"""The three ways in which a task's rows get into logs, and what makes them once.

*Exactly once*: tasks stage, where no reader looks, and the driver publishes all that they staged
in one step that notes (query, batch); of a batch that was published before nothing is used. So
repeats do not matter, nor the cuts of a repeat. Blocks that are never published expire.

*Idempotent* (`spark.idempotent`): tasks append as producers, and what runs again with the same rows
in the same order is answered with the places it has. It costs no staging, and readers see a
batch grow; a task that runs again with other rows, as after a repartition or an unordered
shuffle, may lose or double some.

*At least once*: tasks append. What runs twice is written twice.

Source: docs/sources/spark.md §8 ("Exactly-once sink"); docs/design.md §9.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.client.values import Published, StagedRef
from cordwood.errors import (
    CordwoodError,
    OutcomeUnknown,
    RecordTooLarge,
    Retryable,
)
from cordwood.lsn import Lsn
from cordwood.spark.sink_rows import RowBlock

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

IN_FLIGHT_MAX = 8
"""Portions of a task that wait for their answers: enough to hide the round trip, and at 1 MiB
each well inside the client's window."""

PUBLISH_TIMEOUT_S = 180.0
"""How long a publish is tried again before the batch fails, to be published by the next run: as
long as nodes of a cluster take to restart one after another."""

PUBLISH_PAUSE_S = 0.5


def append_all(store: BlockingStore, row_blocks: Iterable[RowBlock]) -> tuple[int, int]:
    """Append; records and bytes, once all are on stable storage.

    Raises:
        CordwoodError: as `Store.append_many`; some rows may be stored.
    """

    def send(block: RowBlock) -> Future[list[Lsn]]:
        return store.append_many_soon(
            block.log,
            block.values,
            keys=block.keys,
            timestamps=block.timestamps,
            headers=block.headers,
        )

    return _each(row_blocks, send, IN_FLIGHT_MAX, lambda future: future.result())


def stage_all(
    store: BlockingStore, row_blocks: Iterable[RowBlock], ttl_s: float
) -> tuple[list[StagedRef], int, int]:
    """Stage; references in order, records and bytes, once all are on stable storage.

    Args:
        ttl_s: seconds after which unpublished blocks expire.
    Raises:
        CordwoodError: as `Store.stage`; staged blocks expire.
    """
    refs: list[StagedRef] = []

    def send(block: RowBlock) -> Future[StagedRef]:
        return store.stage_soon(
            block.log,
            block.values,
            keys=block.keys,
            timestamps=block.timestamps,
            headers=block.headers,
            ttl_s=ttl_s,
        )

    records, size = _each(
        row_blocks, send, IN_FLIGHT_MAX, lambda future: refs.append(future.result())
    )
    return refs, records, size


def _each(
    row_blocks: Iterable[RowBlock],
    send: Callable[[RowBlock], Future[Result]],
    in_flight_max: int,
    settle: Callable[[Future[Result]], object],
) -> tuple[int, int]:
    """Send row_blocks, a few ahead of the oldest answer; how many records and bytes they had."""
    in_flight: deque[Future[Result]] = deque()
    records = size = 0
    for block in row_blocks:
        while len(in_flight) >= in_flight_max:
            settle(in_flight.popleft())
        in_flight.append(send(block))
        records += len(block.values)
        size += block.bytes
    for future in in_flight:
        settle(future)
    return records, size


def publish(
    store: BlockingStore,
    query: str,
    batch: int,
    refs: Sequence[StagedRef],
    timeout_s: float = PUBLISH_TIMEOUT_S,
    fingerprint: str = "",
) -> Published:
    """Publish a batch; asked again for as long as the outcome is not known.

    A share beyond one atomic group comes in several groups. A refusal would stop a stream for good,
    because Spark repeats the same plan.

    Raises:
        Rejected: a batch of this number was published, with another `fingerprint`.
        StageExpired: staged blocks are gone; nothing of the batch is published.
        RecordTooLarge: it has more blocks than one commit names; likewise.
        Fenced: another run of this query publishes.
        Retryable, OutcomeUnknown: the cluster did not settle it in time. It may be published;
            to publish the batch again is safe.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return store.publish(query, batch, refs, fingerprint, whole=False)
        except (Retryable, OutcomeUnknown) as error:
            if time.monotonic() + PUBLISH_PAUSE_S >= deadline:
                raise
            logger.warning("batch %d of %s is published again: %s", batch, query, error)
            time.sleep(PUBLISH_PAUSE_S)


def publish_in_parts(store: BlockingStore, query: str, refs: Sequence[StagedRef]) -> None:
    """Publish a write that will not be repeated: in one step, or in several if it has more blocks
    than one commit names. Order is kept.

    Raises:
        CordwoodError: as `publish`; the parts before the failed part are published.
    """
    waiting: list[Sequence[StagedRef]] = [refs]
    part = 0
    while waiting:
        these = waiting.pop()
        try:
            publish(store, query, part, these)
        except RecordTooLarge:
            if len(these) < 2:
                raise
            middle = len(these) // 2
            waiting += [these[middle:], these[:middle]]
        else:
            part += 1


def unstage(store: Callable[[], BlockingStore], refs: Sequence[StagedRef]) -> None:
    """Release staged blocks if that is easy; they expire anyway.

    Args:
        store: gives the client, and may fail: the cause that ended the batch may affect it too.
    """
    try:
        store().unstage(refs)
    except CordwoodError as error:
        logger.info("staged blocks were not released: %s", error)
