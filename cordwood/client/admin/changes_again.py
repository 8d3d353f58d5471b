"""Deletions and renames without an answer, to recognise them when they are made again.

Such a change may be done, and another log may have the name by then. So a store remembers which log
each of these calls meant: an equal call means that log, once for each call without an answer. A
store cannot tell its callers apart: with several tasks, the repeat of one may come before the first
call of another, which is refused then. None of them changes a log that nobody meant.

No entry is forgotten to make room: its repeat would change another log. Past UNANSWERED_MAX of them
no new one is remembered, and its caller is told the number of the log.

Source: docs/api.md ("logs").
"""

from __future__ import annotations

UNANSWERED_MAX = 4096
"""Changes without an answer that one store remembers. They are as many as the calls that may be
under way to one node (`connection.CALLS_MAX`), so one cut of the network does not fill the
memory."""

Change = tuple[str, ...]
"""The verb, the log's name, and for a rename the new name."""


class UnansweredChanges:
    """See the module. Names are normalised."""

    def __init__(self) -> None:
        # An entry for each call, the oldest first.
        self._numbers: dict[Change, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values()))

    def has_room(self) -> bool:
        """Whether a new call is remembered."""
        return len(self) < UNANSWERED_MAX

    def take(self, change: Change) -> int | None:
        """The number of the log that an equal call without an answer meant, for one repeat of it;
        None if none is left."""
        numbers = self._numbers.get(change)
        if numbers is None:
            return None
        number = numbers.pop(0)
        if not numbers:
            del self._numbers[change]
        return number

    def put(self, change: Change, number: int) -> None:
        """A call had no answer; it meant the log of this number."""
        self._numbers.setdefault(change, []).append(number)
