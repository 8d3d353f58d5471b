"""The order in which a reader asks the nodes of an entry.

Healthy nodes come first, then slow nodes, then read-only nodes, which an operator may soon remove,
then nodes without a connection, and last nodes that count as dead or are no members any more.

Source: docs/sources/bookkeeper.md (e).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence


class Rank(enum.IntEnum):
    """The state of a node, best first."""

    HEALTHY = 0
    SLOW = 1
    READ_ONLY = 2
    AWAY = 3
    GONE = 4


def read_order(nodes: Sequence[int], rank: Callable[[int], tuple[Rank, int]]) -> list[int]:
    """These nodes by rank, and among equals by failures; else in the order given.

    Args:
        rank: a node's state, and how often it failed or was slow since its last answer.
    """
    return sorted(nodes, key=rank)
