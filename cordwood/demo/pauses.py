"""How long nothing happened: the figure that a person asks for after a failure."""

from __future__ import annotations


class Pauses:
    """Times between beats, on any clock that counts seconds.

    Attributes:
        longest_s: the longest of all.
        longest_since_mark_s: the longest that ended after `mark`, 0 before it.
    """

    def __init__(self, now: float) -> None:
        self.longest_s = 0.0
        self.longest_since_mark_s = 0.0
        self._last = now
        self._marked = False

    def beat(self, now: float) -> None:
        """Something happened."""
        pause = now - self._last
        self._last = now
        self.longest_s = max(self.longest_s, pause)
        if self._marked:
            self.longest_since_mark_s = max(self.longest_since_mark_s, pause)

    def mark(self) -> None:
        """From here on, pauses count as since the mark too."""
        self._marked = True
