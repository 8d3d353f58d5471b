"""In which order the nodes of an entry are asked for it.

Healthy ones first, then slow ones, then those that an operator has set read-only, which are about
to go, then those that have no connection, and then those that are taken for dead or are no members
any more.

Source: docs/sources/bookkeeper.md (e).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence


class Rank(enum.IntEnum):
    """What is known of a node, best first."""

    HEALTHY = 0
    SLOW = 1
    READ_ONLY = 2
    AWAY = 3
    GONE = 4


def read_order(nodes: Sequence[int], rank: Callable[[int], tuple[Rank, int]]) -> list[int]:
    """These nodes by rank, and among equals by failures; else in the order given.

    Args:
        rank: of a node, and how often it failed or was slow since it answered.
    """
    return sorted(nodes, key=rank)
