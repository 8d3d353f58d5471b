"""What a log's retention lets a storage node trim: a rule, by time and by size.

By time: all that a log has in a partition goes once the newest of it is older than the log
keeps its records. So a record is kept for at least `backlog_s`, and at most as much longer as
a partition lasts. By size: the oldest partitions' parts go while all nodes together still have
as many bytes above them as the log keeps, each block counted once. So at least `backlog_bytes`
of records as stored are left; at most as much more as two partitions bring, what no flush has
taken yet, and blocks that came by later waves. While nodes that hold copies cannot be asked, a
block counts for the part of its first copyset that can be: up to `copies` times the bound stay.

Both go by whole partitions: that is what gives space back.

Source: docs/sources/logdevice.md 1 ("backlog"), 2.13; docs/design.md §2 (append time alone drives
retention).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CANDIDATES_MAX = 32
"""Trim points that all nodes are asked about at once."""


class Part(NamedTuple):
    """What a log has in one partition: its highest LSN, bytes, and latest append time (µs)."""

    last: int
    bytes: int
    last_us: int


def expiry_us(part: Part, backlog_s: float) -> int | None:
    """When a part may go, µs; None for never."""
    return part.last_us + round(backlog_s * 1e6) if backlog_s > 0 else None


def trim_candidates(lasts: Sequence[int]) -> list[int]:
    """LSNs that a log may be trimmed at by size, ascending: ends of parts, all but the newest.

    Of more than CANDIDATES_MAX they are spread over all of them; the next pass goes on
    between two.
    """
    ends = sorted(set(lasts))[:-1]
    step = -(-len(ends) // CANDIDATES_MAX) or 1
    return ends[::step]


def fitting_trim(lsns: Sequence[int], kept: Sequence[int], bytes_max: int) -> int:
    """The highest of some LSNs above which a log still has as much as it keeps, 0 for none.

    Args:
        kept: what the whole log has above each, at least.
        bytes_max: as much must be left; 0 keeps all.
    """
    fits = [lsn for lsn, left in zip(lsns, kept, strict=True) if bytes_max and left >= bytes_max]
    return max(fits, default=0)


def even_share(bytes_max: int, copies: int, nodes: int) -> int:
    """Of a log's `bytes_max`, every copy counted once, what one of its nodes holds on average.

    Nothing is trimmed for having more: copies are seldom spread evenly.
    """
    return max(1, bytes_max * min(copies, nodes) // max(1, nodes)) if bytes_max else 0
