"""Deletions and renames without an answer, to recognise them when they are made again.

Such a change may be done, and another log may have the name by then. So a store remembers which log
each of these calls meant: an equal call means that log, once for each call without an answer. A
store cannot tell its callers apart: with several tasks, the first call of one may come before the
repeat of another, and is taken for it. If it has no answer either, both callers wait for one, or
the call was a repeat. So both calls are remembered then: a repeat too many is refused, and one too
few would change another log. With more callers one after another, give the number of the log.

No call without an answer is forgotten to make room: its repeat would change another log. Past
UNANSWERED_MAX of them no new one is remembered, and its caller is told the number of the log.

Source: docs/api.md ("logs").
"""

from __future__ import annotations

from dataclasses import dataclass

UNANSWERED_MAX = 4096
"""Changes without an answer that one store remembers. They are as many as the calls that may be
under way to one node (`connection.CALLS_MAX`), so one cut of the network does not fill the
memory."""

CALLERS = 2
"""Callers that equal calls without an answer, one after another, are taken to be of. With more, one
caller that tries many times would find as many of its later changes refused."""

Change = tuple[str, ...]
"""The verb, the log's name, and for a rename the new name."""


@dataclass(slots=True)
class _Meant:
    """Equal calls that meant one log.

    Attributes:
        number: of the log.
        waiting: calls without an answer that were not made again yet.
        doubtful: of these, how many there are not if a repeat without an answer was one.
        under_way: repeats that are under way.
    """

    number: int
    waiting: int = 0
    doubtful: int = 0
    under_way: int = 0


class UnansweredChanges:
    """See the module. Names are normalised."""

    def __init__(self) -> None:
        # By change, the logs that equal calls meant, the oldest first.
        self._numbers: dict[Change, list[_Meant]] = {}

    def __len__(self) -> int:
        each_log = (each for logs in self._numbers.values() for each in logs)
        return sum(each.waiting + each.under_way for each in each_log)

    def has_room(self) -> bool:
        """Whether a new call is remembered. Calls of which it is not known that there are any make
        room for it."""
        if len(self) >= UNANSWERED_MAX:
            each_log = [(change, each) for change, logs in self._numbers.items() for each in logs]
            for change, each in each_log:
                if each.waiting == each.doubtful and not each.under_way:
                    self._drop(change, each)
                    break
        return len(self) < UNANSWERED_MAX

    def take(self, change: Change) -> int | None:
        """The number of the log that an equal call without an answer meant, for one repeat of it;
        None if there is none. When the repeat has ended, tell it by `answered` or `put_back`."""
        logs = self._numbers.get(change)
        if not logs:
            return None
        # Race: the call that is under way may be another caller's first one, and this the repeat.
        meant = next((each for each in logs if each.waiting), logs[0])
        meant.waiting = max(0, meant.waiting - 1)
        meant.doubtful = min(meant.doubtful, meant.waiting)
        meant.under_way += 1
        return meant.number

    def answered(self, change: Change, number: int) -> None:
        """The repeat of a call that meant the log of this number was answered."""
        meant = self._meant(change, number)
        meant.under_way -= 1
        if not (meant.waiting or meant.under_way):
            self._drop(change, meant)

    def put(self, change: Change, number: int) -> None:
        """A new call had no answer; it meant the log of this number."""
        self._meant(change, number).waiting += 1

    def put_back(self, change: Change, number: int) -> None:
        """The repeat of a call that meant the log of this number had no answer either."""
        meant = self._meant(change, number)
        meant.under_way -= 1
        meant.waiting += 1
        # It may have been the first call of another caller: then both will make theirs again.
        if meant.waiting + meant.under_way < CALLERS:
            meant.waiting += 1
            meant.doubtful += 1

    def _drop(self, change: Change, meant: _Meant) -> None:
        self._numbers[change].remove(meant)
        if not self._numbers[change]:
            del self._numbers[change]

    def _meant(self, change: Change, number: int) -> _Meant:
        logs = self._numbers.setdefault(change, [])
        for each in logs:
            if each.number == number:
                return each
        logs.append(_Meant(number))
        return logs[-1]
