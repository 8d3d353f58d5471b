"""Measures the time that stores of foreground work take on this node. Background work slows down by
it.

Source: docs/protocol/rebuilding.md (pace).
"""

from __future__ import annotations


class StoreWaits:
    """The waits of foreground stores since the last question."""

    __slots__ = ("_seconds", "_stores")

    def __init__(self) -> None:
        self._stores, self._seconds = 0, 0.0

    @property
    def stores(self) -> int:
        """The number of stores since the last `take`."""
        return self._stores

    def add(self, seconds: float) -> None:
        """Note a store that became durable, and its wait."""
        self._stores += 1
        self._seconds += seconds

    def take(self) -> tuple[int, float]:
        """The number of stores, and the average wait in seconds. It counts anew from now on."""
        stores, mean_s = self._stores, self._seconds / max(1, self._stores)
        self._stores, self._seconds = 0, 0.0
        return stores, mean_s
