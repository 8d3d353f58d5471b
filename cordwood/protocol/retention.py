"""The rule by which a storage node trims a log for its retention, by time and by size.

By time: a log's part of a partition goes when its newest record is older than `backlog_s`. So a
record is kept for at least `backlog_s`, and at most for the length of a partition longer.

By size: the log's parts of the oldest partitions go while all nodes together still have
`backlog_bytes` above them, each block counted once. So at least `backlog_bytes` of records as
stored are left. At most these may stay besides: the bytes of two partitions, blocks that no flush
has taken yet, and blocks of later waves. While some nodes that hold copies do not answer, a block
counts only for the part of its first copyset that answers: up to `copies` times the bound stay.

Both trim whole partitions, because only a whole partition frees disk space.

Source: docs/sources/logdevice.md 1 ("backlog"), 2.13; docs/design.md §2 (append time alone drives
retention).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CANDIDATES_MAX = 32
"""The most trim points in one question to all nodes."""


class Part(NamedTuple):
    """A log's part of one partition: its highest LSN, bytes, and latest append time (µs)."""

    last: int
    bytes: int
    last_us: int


def expiry_us(part: Part, backlog_s: float) -> int | None:
    """When a part may go, µs; None for never."""
    return part.last_us + round(backlog_s * 1e6) if backlog_s > 0 else None


def trim_candidates(lasts: Sequence[int]) -> list[int]:
    """The LSNs at which a log may be trimmed by size, ascending: ends of all parts but the newest.

    If there are more than CANDIDATES_MAX, a sample spread over all of them; the next pass goes on
    between two of the sample.
    """
    ends = sorted(set(lasts))[:-1]
    step = -(-len(ends) // CANDIDATES_MAX) or 1
    return ends[::step]


def fitting_trim(lsns: Sequence[int], kept: Sequence[int], bytes_max: int) -> int:
    """The highest LSN above which a log still has `bytes_max` bytes; 0 for none.

    Args:
        kept: the least bytes that the whole log has above each LSN.
        bytes_max: the bytes that must be left; 0 keeps all.
    """
    fits = [lsn for lsn, left in zip(lsns, kept, strict=True) if bytes_max and left >= bytes_max]
    return max(fits, default=0)


def even_share(bytes_max: int, copies: int, nodes: int) -> int:
    """The average part of a log's `bytes_max` on one of its nodes, all copies counted.

    A node that holds more is no reason to trim: copies are seldom spread evenly.
    """
    return max(1, bytes_max * min(copies, nodes) // max(1, nodes)) if bytes_max else 0
