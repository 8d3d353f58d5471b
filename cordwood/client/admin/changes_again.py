"""Deletions and renames without an answer, to recognise them when they are made again.

Such a change may be done, and another log may have the name by then. So a store remembers which log
each of these calls meant: an equal call means that log, once for each call without an answer. A
store cannot tell its callers apart: with several tasks, the repeat of one may come before the first
call of another, which is refused then. None of them changes a log that nobody meant.

Source: docs/api.md ("logs").
"""

from __future__ import annotations

from cordwood.errors import Overloaded

UNANSWERED_MAX = 256
"""Changes without an answer, of one store, past which it takes no further change by name alone."""

Change = tuple[str, ...]
"""The verb, the log's name, and for a rename the new name."""


class UnansweredChanges:
    """See the module. Names are normalised."""

    def __init__(self) -> None:
        # An entry for each call, the oldest first.
        self._numbers: dict[Change, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values()))

    def take(self, change: Change) -> int | None:
        """The number of the log that an equal call without an answer meant, for one repeat of it;
        None if none is left.

        Raises:
            Overloaded: this is a new change, and too many had no answer: it could not be remembered
                either.
        """
        numbers = self._numbers.get(change)
        if numbers is None:
            # No old entry makes room: its repeat would change another log.
            if len(self) >= UNANSWERED_MAX:
                raise Overloaded(
                    f"{len(self)} deletions and renames of this store had no answer: make them "
                    "again, or name the log by its number, log_id"
                )
            return None
        number = numbers.pop(0)
        if not numbers:
            del self._numbers[change]
        return number

    def put(self, change: Change, number: int) -> None:
        """A call had no answer; it meant the log of this number."""
        self._numbers.setdefault(change, []).append(number)
