"""How long stores of foreground work take on this node, for work that gives way to it.

Source: docs/protocol/rebuilding.md (pace).
"""

from __future__ import annotations


class StoreWaits:
    """What stores of foreground work waited since it was asked last."""

    __slots__ = ("_seconds", "_stores")

    def __init__(self) -> None:
        self._stores, self._seconds = 0, 0.0

    @property
    def stores(self) -> int:
        """How many since then."""
        return self._stores

    def add(self, seconds: float) -> None:
        """One is durable, so long after it came."""
        self._stores += 1
        self._seconds += seconds

    def take(self) -> tuple[int, float]:
        """How many, and the average in seconds; from now on others count."""
        stores, mean_s = self._stores, self._seconds / max(1, self._stores)
        self._stores, self._seconds = 0, 0.0
        return stores, mean_s
