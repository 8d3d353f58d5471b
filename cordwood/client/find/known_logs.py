"""The logs that a client remembers, and for how long it believes a name.

A log's number is its identity: facts that are stored under the number stay true, and only grow. A
name leads to a number until the log is renamed or deleted. Nodes count the changes of the log tree,
and tell the count with the members, every few seconds (`cluster.REFRESH_S`). An entry from before
the newest change is looked up again at its next use. If the node that made a change died before it
could count it, no count tells of the change. So old entries are looked up again too. A client that
was stopped has heard no count meanwhile: it looks up each name again. A number leads to its log
for good: nobody waits for it because it is old.

Source: docs/reading.md ("Names and numbers").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cordwood.client.find.log_info import AnyLog, LogInfo

BELIEVED_S = 60.0
"""How long a name is believed if no change is told. Nodes look at the log tree as often."""

ASK_EARLY_S = 45.0
"""The age at which a name in use is looked up in the background, so that nobody has to wait at
BELIEVED_S."""

UNHEARD_S = 10.0
"""How long the last count of changes holds: two of `cluster.REFRESH_S`. A client without a newer
count was stopped or cut off, or its loop had no turn."""

LOGS_MAX = 131_072
"""The number of remembered logs; past it, all are forgotten and looked up again."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The age of an answer: the counts of changes that were known when the question was sent.

    Attributes:
        changes: of the log tree, as counted then.
        at_s: on the loop's clock.
    """

    changes: int
    at_s: float


class KnownLogs:
    """See the module. Names are normalised; a log is found by its name or its number.

    Attributes:
        heard_until_s: until when, on the loop's clock, the last count of changes holds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._changes = -1
        self.heard_until_s = now_s() + UNHEARD_S
        self._names: dict[str, tuple[int, Mark]] = {}
        self._numbers: dict[int, tuple[LogInfo, Mark]] = {}

    def note_changes(self, count: int, asked_s: float) -> bool:
        """Take a node's count of changes; True if the count is new.

        Args:
            asked_s: when the node was asked. Trap: a client that was stopped meanwhile gets the
                answer late.
        """
        self.heard_until_s = max(self.heard_until_s, asked_s + UNHEARD_S)
        is_news = count > self._changes
        self._changes = max(count, self._changes)
        return is_news

    def mark(self) -> Mark:
        """Take it before a question to the log tree."""
        return Mark(self._changes, self._now_s())

    def get(self, log: AnyLog) -> LogInfo | None:
        """The remembered entry of a log."""
        if isinstance(log, str):
            leads = self._names.get(log)
            if leads is None:
                return None
            log = leads[0]
        found = self._numbers.get(log)
        return None if found is None else found[0]

    def together(self, logs: Iterable[AnyLog]) -> dict[AnyLog, LogInfo] | None:
        """The remembered entries of the logs of one call, if they tell of one moment; None if one
        is not remembered, or a change was counted between the questions for two of the names. They
        would leave out the log that had one of the names then and has another one now."""
        found: dict[AnyLog, LogInfo] = {}
        counts: set[int] = set()
        for log in logs:
            info = self.get(log)
            if info is None:
                return None
            found[log] = info
            if isinstance(log, str):
                counts.add(self._names[log][1].changes)
        return found if len(counts) < 2 else None

    def must_ask(self, log: AnyLog) -> bool:
        """Whether the name may belong to another log by now, or the tree changed since the log of
        this number was looked up."""
        if self.has_changed(log):
            return True
        return isinstance(log, str) and (self.is_unheard or self.is_old(log))

    @property
    def is_unheard(self) -> bool:
        """Whether changes may have been counted of which this client has not heard."""
        return self._now_s() >= self.heard_until_s

    def has_changed(self, log: AnyLog) -> bool:
        """Whether the tree changed since this entry was requested, so that the name may belong to
        another log."""
        mark = self._mark_of(log)
        return mark is None or mark.changes < self._changes

    def is_old(self, log: AnyLog, age_s: float = BELIEVED_S) -> bool:
        """Whether the entry was requested so long ago."""
        mark = self._mark_of(log)
        return mark is None or self._now_s() - mark.at_s >= age_s

    def _mark_of(self, log: AnyLog) -> Mark | None:
        found = self._names.get(log) if isinstance(log, str) else self._numbers.get(log)
        return None if found is None else found[1]

    def put(self, log: AnyLog, info: LogInfo, mark: Mark) -> LogInfo:
        """A node's answer to a question that was asked at `mark`.

        Returns:
            `info`, with all known epochs.
        """
        if len(self._numbers) >= LOGS_MAX:
            self._names.clear()
            self._numbers.clear()
        known = self._numbers.get(info.log_id)
        if known is not None and known[0].epoch > info.epoch:
            info = replace(info, history=known[0].history, epoch=known[0].epoch)
        # Race: a newer question may have been answered before this one.
        if known is None or known[1].at_s <= mark.at_s:
            self._numbers[info.log_id] = info, mark
        leads = self._names.get(log) if isinstance(log, str) else None
        if isinstance(log, str) and (leads is None or leads[1].at_s <= mark.at_s):
            self._names[log] = info.log_id, mark
        return info

    def put_epochs(self, info: LogInfo) -> None:
        """Epochs that a storage node told of a log that was known before."""
        known = self._numbers.get(info.log_id)
        if known is not None and known[0].epoch < info.epoch:
            newer = replace(known[0], history=info.history, epoch=info.epoch)
            self._numbers[info.log_id] = newer, known[1]

    def forget(self, log: AnyLog) -> None:
        """Ask anew when next this log is looked up; of a directory, all below it."""
        if isinstance(log, int):
            self._numbers.pop(log, None)
            return
        below = [name for name in self._names if name.startswith(log)] if log[-1:] == "/" else [log]
        for name in below:
            leads = self._names.pop(name, None)
            if leads is not None:
                self._numbers.pop(leads[0], None)
