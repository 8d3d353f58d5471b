"""Follows the records of the event log: which of them make the set, and when the set is whole.

The log has deltas (events) and snapshots (sets). Every writer appends only directly after the
record that it saw last, so a snapshot is the set of all records below it. That gives three rules:

- A delta changes the set once, at its own LSN. A second reading of it has no effect.
- A snapshot changes nothing in a set that is whole: the two are compared. If they differ, two nodes
  have made different sets of the same events, and neither set may be used.
- Where records are missing (trimmed, or lost) the set is *not whole*: deltas are left out until the
  next snapshot, which includes the missing events. While the set is not whole, the last set stays
  known, as it does while nothing is heard.

If no node has the missing records, and no snapshot follows, nodes agree on the furthest set that
any of them has, and one node appends it as a *restated* set (`event_log_restating`). Every follower
begins anew with that, also a follower that is whole: its set may have events that the others lack.

Source: docs/protocol/event-log.md; docs/sources/logdevice.md 1 ("Identifiers"), 2.9.
"""

from __future__ import annotations

import enum

from cordwood.block import GapKind
from cordwood.errors import Corrupt
from cordwood.lsn import OLDEST, format_lsn
from cordwood.protocol.event_log import Outcome, Verdict, apply, begin_anew
from cordwood.rebuilding import RebuildEvent, RebuildingSet, Restated

SNAPSHOT_EVERY = 64
"""Deltas between two snapshots. A node that begins reads some dozens of records, and one record in
64 is no delta. LogDevice takes one by size and time; events here come some at a time."""

_MISSING = frozenset({GapKind.TRIM, GapKind.DATA_LOSS, GapKind.ACCESS})


class Taken(enum.Enum):
    """What became of a record."""

    APPLIED = "a delta that was looked at"
    SEEN = "it was seen before"
    SAME = "a snapshot of the set that is there"
    BEGUN = "a snapshot that the set begins with"
    RESTATED = "a set that all begin anew with, because records are lost"
    LEFT_OUT = "a delta before the snapshot that is waited for"


class EventFollower:
    """See the module.

    Attributes:
        set: the set, as of the last record that made it.
        record: LSN of the log's last record that was seen; OLDEST - 1 before the first.
        reached: all records up to this LSN were seen.
        is_whole: whether `set` is the result of all records up to `reached`.
        deltas: the number of deltas since the last snapshot.
    """

    def __init__(self, base: RebuildingSet) -> None:
        """
        Args:
            base: the set from before the log's first record, or a later set of the log.
        """
        self.set = base
        self.record = max(base.through, OLDEST - 1)
        self.reached = self.record
        self.is_whole = True
        self.deltas = 0

    def on_record(self, lsn: int, found: RebuildEvent | RebuildingSet | Restated) -> Taken:
        """Take the record at `lsn`. Records come in the order of their LSNs; some come again.

        Raises:
            Corrupt: a snapshot differs from the sum of the records below it.
        """
        if lsn <= self.reached:
            return Taken.SEEN
        self.reached = self.record = lsn
        if isinstance(found, Restated):
            return self._on_restated(lsn, found)
        if isinstance(found, RebuildingSet):
            return self._on_snapshot(lsn, found)
        self.deltas += 1
        if not self.is_whole:
            return Taken.LEFT_OUT
        self.set = apply(self.set, lsn, found).after
        return Taken.APPLIED

    def _on_snapshot(self, lsn: int, found: RebuildingSet) -> Taken:
        if found.through >= lsn:
            self.is_whole = False
            raise Corrupt(
                f"the snapshot of the event log at {format_lsn(lsn)} is of {found.through}"
            )
        self.deltas = 0
        if not self.is_whole:
            self.set, self.is_whole = found, True
            return Taken.BEGUN
        if found != self.set:
            self.is_whole = False  # the set proves nothing any more
            raise Corrupt(
                f"the snapshot of the event log at {format_lsn(lsn)} is another set than this "
                "node has made of the same events"
            )
        return Taken.SAME

    def _on_restated(self, lsn: int, found: Restated) -> Taken:
        if lsn <= self.set.through:
            return Taken.SEEN  # the set came from a node that has applied this record
        if found.set.through >= lsn or found.number <= self.set.restated:
            self.is_whole = False
            raise Corrupt(f"the set restated at {format_lsn(lsn)} has no place in the event log")
        self.set, self.is_whole, self.deltas = begin_anew(found, lsn), True, 0
        return Taken.RESTATED

    def adopt(self, found: RebuildingSet, reached: int) -> bool:
        """Take the set of a follower that is whole up to `reached`. False: it helps nothing."""
        if self.is_whole or reached < self.reached or found.through < self.set.through:
            return False
        self.set, self.is_whole = found, True
        return True

    def on_gap(self, last: int, kind: GapKind) -> None:
        """Take a gap up to `last`."""
        if last <= self.reached:
            return
        self.reached = last
        if kind in _MISSING:
            self.is_whole = False

    @property
    def wants_snapshot(self) -> bool:
        """Whether the next append should be followed by a snapshot."""
        return self.is_whole and self.deltas >= SNAPSHOT_EVERY

    def has_read(self, tail: int) -> bool:
        """Whether all records up to a tail were seen; (E, 0) is the tail of an empty epoch E."""
        return self.reached >= (tail if tail & 0xFFFF_FFFF else tail - 1)

    def decide(self, event: RebuildEvent) -> Outcome:
        """The outcome of an event that is appended after `record`.

        If the event changes nothing, the set is returned as it is, and no node appends the event.
        """
        outcome = apply(self.set, max(self.record, self.set.through) + 1, event)
        return outcome if outcome.verdict is Verdict.TAKEN else Outcome(self.set, outcome.verdict)
