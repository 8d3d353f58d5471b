"""Publishing: what becomes of a query's batches, decided at one entry of the metadata store.

A query publishes its batches in order, each once. A publisher first takes an *attempt*, which
shuts out every earlier one; pins the staged blocks under it; commits {batch, blocks}, which
is the point from which on the batch will be in the logs whatever happens; appends, per log,
one atomic group as the query's producer, or several where one does not hold it; and says that it
is done. Whoever finds a
commit that is not done may do the last two again: the producer's epoch is the number of the
commit, so each log takes each record once.

A pin is over once its attempt can commit no more, or what it committed is done.

Source: docs/design.md §9; docs/sources/spark.md §8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.errors import BadSetting, Fenced, Rejected, Retryable

COMMITS_MAX = (1 << 32) - 1
"""A producer's epoch has 32 bits: a batch a second for 136 years."""


@dataclass(frozen=True, slots=True)
class StagedBlock:
    """A block that a batch is made of.

    Attributes:
        stage: its id.
        nodes: where its copies are.
        records: how many LSNs it takes.
    """

    stage: bytes
    nodes: tuple[int, ...]
    records: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class LogShare:
    """What a batch brings one log, in order."""

    log: int
    name: str
    blocks: tuple[StagedBlock, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """A query as the metadata store knows it.

    Attributes:
        producer: its id in every log; 0 before the first attempt.
        attempt: the last one taken.
        batch: the last one committed, -1 for none.
        commits: how many were: the producer's epoch of the last one.
        committed_by: its attempt.
        is_done: whether it is in the logs.
        shares: what it is made of; empty once it is done.
        spans: by the log's name, first and last LSN, once it is done.
        fingerprint: which records the last batch holds, by its publisher's word; "" for none.
    """

    producer: int = 0
    attempt: int = 0
    batch: int = -1
    commits: int = 0
    committed_by: int = 0
    is_done: bool = True
    shares: tuple[LogShare, ...] = ()
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    fingerprint: str = ""


def check_repeat(query: str, known: tuple[int, str], given: tuple[int, str]) -> None:
    """Check that a batch whose number was published is the batch that was published.

    A number says nothing about records: a source that lost its last plan makes another batch of
    the same number, and to take that for a repeat would lose what it has beyond the first one.

    Args:
        known: the last batch committed, and its fingerprint.
        given: the batch to be published, and its fingerprint; without one nothing is checked.
    Raises:
        Rejected: the batches differ, or nothing is remembered of the given one.
    """
    (last, noted), (batch, fingerprint) = known, given
    if not fingerprint or batch > last or (batch == last and noted in ("", fingerprint)):
        return
    why = (
        f"batch {batch} of {query!r} was published with other records than it has now"
        if batch == last
        else f"batch {batch} of {query!r} comes after batch {last} was published, and nothing is "
        "remembered of what the earlier one held"
    )
    raise Rejected(
        f"{why}: nothing is published, because taking it for a repeat would lose records. The "
        "checkpoint of the query is an older copy, lost its newest files, or is a new one under "
        "an old name, or another query has this name. Put the newest checkpoint back; or start the "
        "query with a new checkpoint and a new name (txnAppId), from the place up to which its "
        "records are in the log"
    )


def group_end(sizes: Sequence[int], at: int, limit: int) -> int:
    """Where a group of blocks ends that begins with block `at`: one block at least, and no more
    bytes than the limit."""
    end, left = at + 1, limit - sizes[at]
    while end < len(sizes) and sizes[end] <= left:
        left -= sizes[end]
        end += 1
    return end


def begin(known: Publication, batch: int, producer: int) -> Publication:
    """Take an attempt at a batch; of one that is committed already nothing is to be tried.

    Args:
        producer: for a query that has none yet.
    Raises:
        Retryable: the batch before it is not done: it comes first.
    """
    if batch <= known.batch:
        return known
    if not known.is_done:
        raise Retryable(
            f"batch {known.batch} is committed and not in the logs yet: finish it first"
        )
    return replace(known, attempt=known.attempt + 1, producer=known.producer or producer)


def commit(
    known: Publication,
    batch: int,
    attempt: int,
    shares: tuple[LogShare, ...],
    fingerprint: str = "",
) -> Publication:
    """Commit a batch, once; the same again changes nothing.

    Raises:
        Fenced: a later attempt was made, by another publisher or to clean up.
        BadSetting: the query has committed all that it may.
    """
    if batch == known.batch and attempt == known.committed_by:
        return known
    if attempt != known.attempt or batch <= known.batch or not known.is_done:
        raise Fenced(
            f"batch {batch}: attempt {attempt} was overtaken by attempt {known.attempt}; batch "
            f"{known.batch} is the last one committed"
        )
    if known.commits >= COMMITS_MAX:
        raise BadSetting(f"this query has published {COMMITS_MAX} batches: take another name")
    return replace(
        known,
        batch=batch,
        commits=known.commits + 1,
        committed_by=attempt,
        is_done=not shares,
        shares=shares,
        spans={},
        fingerprint=fingerprint,
    )


def finish(known: Publication, commits: int, spans: Mapping[str, tuple[int, int]]) -> Publication:
    """The commit of this number is in the logs; whoever says so again changes nothing."""
    if known.commits != commits or known.is_done:
        return known
    return replace(known, is_done=True, shares=(), spans=dict(spans))


def fence(known: Publication, attempt: int) -> Publication:
    """Shut out an attempt that has not committed, so that what it pinned may go."""
    if known.attempt > attempt or known.committed_by == attempt:
        return known
    return replace(known, attempt=attempt + 1)


def is_over(known: Publication, attempt: int) -> bool:
    """Whether what an attempt pinned is needed no more, and never will be."""
    if attempt == known.committed_by:
        return known.is_done
    return attempt < known.attempt
