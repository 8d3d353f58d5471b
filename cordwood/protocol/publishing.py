"""Publishing: the state of a query's batches, kept in one entry of the metadata store.

A query publishes its batches in order, each once, in five steps. The publisher

1. takes an *attempt*, which fences every earlier attempt;
2. pins the staged blocks under the attempt;
3. commits {batch, blocks}: from here on the batch will come into the logs in any case;
4. appends to each log one atomic group as the query's producer, or several groups if the blocks do
   not fit into one;
5. marks the commit as done.

Any client that finds a commit that is not done may repeat steps 4 and 5: the producer's epoch is
the number of the commit, so each log takes each record once.

A pin ends when its attempt can no longer commit, or when its commit is done.

Source: docs/design.md §9; docs/sources/spark.md §8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.errors import BadSetting, Fenced, Rejected, Retryable

COMMITS_MAX = (1 << 32) - 1
"""A producer's epoch has 32 bits: a batch a second for 136 years."""

APPENDED = "appended "
"""Before the plan of a batch with appending tasks: nothing is published under its number."""

NAMED = "named "
"""Before the digest of the name and the plan of a batch that is published under another name."""


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
    """The blocks of a batch for one log, in order."""

    log: int
    name: str
    blocks: tuple[StagedBlock, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """A query as the metadata store knows it.

    Attributes:
        producer: the query's producer id in every log; 0 before the first attempt.
        attempt: the last attempt taken.
        batch: the last batch committed, -1 for none.
        commits: the number of commits; also the producer's epoch of the last commit.
        committed_by: the attempt of the last commit.
        is_done: whether the last batch is in the logs.
        shares: the blocks of the last batch, by log; empty when it is done.
        spans: by the log's name, first and last LSN of the last batch, when it is done.
        fingerprint: the publisher's mark of the records in the last batch; "" for none.
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


def is_note(fingerprint: str) -> bool:
    """Whether this marks a note of a begun batch, which holds the number and publishes no rows."""
    return fingerprint.startswith((APPENDED, NAMED))


def check_repeat(query: str, known: tuple[int, str], given: tuple[int, str]) -> None:
    """Check that a batch with a published number has the published records.

    A source that lost its last plan makes a different batch with the same number. If that batch
    counted as a repeat, its additional records would be lost.

    A note of a begun batch is a repeat of the same note alone: it has no rows. If a batch without a
    fingerprint counted as its repeat, the batch would be lost. The other way round, the batch would
    be written twice.

    Args:
        known: the last batch committed, and its fingerprint.
        given: the batch to publish, and its fingerprint; without a fingerprint only a note of the
            batch is looked at.
    Raises:
        Rejected: the batches differ, or one is a note of a begun batch, or nothing is remembered of
            the given one.
    """
    (last, noted), (batch, fingerprint) = known, given
    if batch > last or (batch == last and noted == fingerprint):
        return
    if batch == last and not (noted and fingerprint) and is_note(noted or fingerprint):
        raise _begun_otherwise(query, batch, is_published=not noted)
    if not fingerprint or (batch == last and not noted):
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
        "records are in the log. Or the batch was begun with another deliveryMode, with another "
        "txnAppId or with none: give these as they were until the batch is done"
    )


def _begun_otherwise(query: str, batch: int, *, is_published: bool) -> Rejected:
    """The error for a batch of which the publisher sees no plan now, or saw none before."""
    why = (
        "it was published while no plan of it was seen, and would be written twice"
        if is_published
        else "none of its rows is published under this name, and taking it for a repeat would lose "
        "them"
    )
    return Rejected(
        f"batch {batch} of {query!r} was begun with another deliveryMode, with another txnAppId or "
        f"with none: {why}. Nothing is published. Start the query with deliveryMode and txnAppId "
        "as they were until the batch is done; then change them"
    )


def group_end(sizes: Sequence[int], at: int, limit: int) -> int:
    """The end of the group that begins with block `at`: at least one block, and at most `limit`
    bytes."""
    end, left = at + 1, limit - sizes[at]
    while end < len(sizes) and sizes[end] <= left:
        left -= sizes[end]
        end += 1
    return end


def begin(known: Publication, batch: int, producer: int) -> Publication:
    """Take an attempt at a batch; a committed batch needs no attempt.

    Args:
        producer: the id for a query that has none yet.
    Raises:
        Retryable: the batch before it is not done, and must be finished first.
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
    """Commit a batch once; a repeated commit has no effect.

    Raises:
        Fenced: a later attempt was made, by another publisher or by a clean-up.
        BadSetting: the query has used all its commits.
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
    """Mark the commit with this number as in the logs; a repeated call has no effect."""
    if known.commits != commits or known.is_done:
        return known
    return replace(known, is_done=True, shares=(), spans=dict(spans))


def fence(known: Publication, attempt: int) -> Publication:
    """Fence an attempt that has not committed, so that its pinned blocks may be dropped."""
    if known.attempt > attempt or known.committed_by == attempt:
        return known
    return replace(known, attempt=attempt + 1)


def is_over(known: Publication, attempt: int) -> bool:
    """Whether the blocks that an attempt pinned will never be needed again."""
    if attempt == known.committed_by:
        return known.is_done
    return attempt < known.attempt
