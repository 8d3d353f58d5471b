"""The three ways in which a task's rows get into logs, and how each treats repeats.

*Exactly once*: tasks stage rows, which no reader sees. The driver publishes all staged rows in one
step that notes (query, batch). If the batch was published before, the staged rows are not used. So
repeats do not matter, even if a repeat divides the rows differently. Blocks that are never
published expire.

*Idempotent* (`spark.idempotent`): tasks append as producers. If a task runs again with the same
rows in the same order, the log answers with the LSNs that they already have. This needs no staging,
and readers see a batch grow. A task that runs again with other rows, as after a repartition or an
unordered shuffle, may lose or double rows.

*At least once*: tasks append. A task that runs twice writes its rows twice.

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
"""The most portions of a task that wait for answers. They are enough to hide the round trip, and at
1 MiB each well inside the client's window."""

PUBLISH_TIMEOUT_S = 180.0
"""How long a publish is repeated before the batch fails; the next run then publishes it. It is as
long as a restart of all nodes one after another takes."""

PUBLISH_PAUSE_S = 0.5
"""Pause between two tries of a publish, for a cluster that refuses at once."""


def append_all(store: BlockingStore, row_blocks: Iterable[RowBlock]) -> tuple[int, int]:
    """Append; records and bytes, once all are on stable storage.

    Raises:
        CordwoodError: as `Store.append_many`; some rows may be stored.
    """

    def send(block: RowBlock) -> Future[list[Lsn]]:
        return store.append_many_soon(
            block.target,
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
            block.target,
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
    """Send row blocks, a few ahead of the oldest answer. Returns their numbers of records and
    bytes."""
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
    """Release staged blocks, and ignore errors: the blocks expire anyway.

    Args:
        store: gives the client, and may fail: the cause that ended the batch may affect it too.
    """
    try:
        store().unstage(refs)
    except CordwoodError as error:
        logger.info("staged blocks were not released: %s", error)
