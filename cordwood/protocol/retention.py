"""What a log's retention lets a storage node trim: a rule, by time and by size.

By time: all that a log has in a partition goes once the newest of it is older than the log
keeps its records. So a record is kept for at least `backlog_s`, and at most as much longer as
a partition lasts. By size: the oldest partitions' parts go while the newer ones alone still
have as many bytes as the log keeps.

Both go by whole partitions: that is what gives space back.

Source: LogDevice digest 1 ("backlog"), 2.13; design.md §2 (append time alone drives retention).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """What a log has in one partition: its highest LSN, bytes, and latest append time (µs)."""

    last: int
    bytes: int
    last_us: int


def expiry_us(part: Part, backlog_s: float) -> int | None:
    """When a part may go, µs; None for never."""
    return part.last_us + round(backlog_s * 1e6) if backlog_s > 0 else None


def fitting_trim(parts: Sequence[Part], bytes_max: int) -> int:
    """The LSN up to which the oldest parts may go, 0 for none.

    Args:
        parts: in LSN order.
        bytes_max: what the newest parts must still have, this node's share of it; 0 keeps all.
    """
    kept = 0
    for at in range(len(parts) - 1, 0, -1):
        kept += parts[at].bytes
        if bytes_max and kept >= bytes_max:
            return max(part.last for part in parts[:at])
    return 0


def share_bytes(bytes_max: int, copies: int, nodes: int) -> int:
    """Of a log's `bytes_max`, every copy counted once, what one of its nodes holds on average."""
    return max(1, bytes_max * min(copies, nodes) // max(1, nodes)) if bytes_max else 0
