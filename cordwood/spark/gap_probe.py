"""Examines a query's ranges before tasks are planned, so that a loss is reported at once.

A task that meets a gap fails, and Spark runs it again, several times, to meet it again. So the
driver first reads the ranges, headers of blocks only and no payload. Trimmed records lie at the
beginning and show at the first block; lost records show at their places. For a long range that
takes too long, and the tasks look at the rest: they check every LSN they read anyway.

Source: docs/sources/spark.md §8 ("raise on the driver at planning where possible").
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from cordwood.block import Gap, GapKind
from cordwood.client.blocking.blocking_store import BlockingStore
from cordwood.errors import AccessDenied, CordwoodError, UnknownLog, Unreachable
from cordwood.spark.offsets import data_loss
from cordwood.spark.splitting import Slice

PROBE_S = 1.0
"""The time for all ranges of a batch together. It is enough for some hundred thousand blocks, which
is more than most micro-batches have. To read a larger batch takes far longer."""

HARMLESS = frozenset({GapKind.BRIDGE, GapKind.HOLE})
"""The kinds of gaps in which nothing was ever acknowledged."""


def may_not_read(name: str) -> AccessDenied:
    """The error for a log whose read token this query does not have."""
    return AccessDenied(
        f"{name} asks for a read token that this query does not have: give it as "
        "cordwood.read.tokens and start the query again. failOnDataLoss=false does not pass "
        "over records that are there"
    )


def unreadable(read: Slice, gap: Gap) -> CordwoodError:
    """The error for a gap in which records were.

    A missing right is no loss of records, so `failOnDataLoss=false` does not skip these records.
    Otherwise they would be missing for good when the right is given again.
    """
    if gap.kind is GapKind.ACCESS:
        return may_not_read(read.name)
    if gap.kind is GapKind.NOT_IN_CONFIG:
        # It was deleted while it was read; readers go by its number, so no rename looks like that.
        return data_loss(read.log_id, read.name, gap.first, None, "LOG_GONE")
    return data_loss(read.log_id, read.name, gap.first, gap.last + 1, gap.kind.name)


def check_whole(store: BlockingStore, slices: Iterable[Slice], within_s: float = PROBE_S) -> None:
    """Look over as many of the slices as time allows.

    Raises:
        DataLoss: records of a slice are gone. The error names the log, the first lost LSN, where to
            continue, and the reason.
        AccessDenied: this query may not read one.
    """
    deadline = time.monotonic() + within_s
    for each in slices:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        gap = next(gaps_of(store, each, left_s), None)
        if gap is not None:
            raise unreadable(each, gap)


def gaps_of(store: BlockingStore, read: Slice, within_s: float) -> Iterator[Gap]:
    """The gaps of a slice that held records, as far as found in time."""
    deadline = time.monotonic() + within_s
    try:
        with store.read(read.log_id, read.start, read.stop - 1, payloads=False) as reader:
            for run in reader.block_runs(timeout_s=within_s):
                yield from _losses(run)
                if time.monotonic() >= deadline:
                    return
    except (Unreachable, UnknownLog):
        return  # not a gap: the tasks wait longer, and report the error


def _losses(run: Sequence[object]) -> list[Gap]:
    return [each for each in run if isinstance(each, Gap) and each.kind not in HARMLESS]
