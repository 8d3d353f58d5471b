"""The longest pauses: the figure that a person asks for after a failure."""

from __future__ import annotations


class Pauses:
    """Times between beats, on any clock that counts seconds.

    Attributes:
        since_marks_s: for each `mark`, the longest pause that ended after it and before the next.
    """

    def __init__(self, now: float) -> None:
        self.since_marks_s: list[float] = []
        self._last = now

    def beat(self, now: float) -> None:
        """Something happened."""
        pause = now - self._last
        self._last = now
        if self.since_marks_s:
            self.since_marks_s[-1] = max(self.since_marks_s[-1], pause)

    def mark(self, now: float) -> None:
        """From here on, pauses count for this mark, and only from this moment on."""
        self._last = now
        self.since_marks_s.append(0.0)
