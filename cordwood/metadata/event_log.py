"""The event log: which nodes are lost, drained, rebuilt and back. Every node reads it.

`EventLog` is what roles see of it. `StoredEventLog` keeps it in the metadata store, as one
versioned value: the rebuilding set, which is the snapshot of all events so far. An event is applied
to the present set and written by compare-and-set. So all events have one order, and an event that
changes nothing is not written.

This is for now. Kept so, nothing can be said while the metadata store is away, and each event
costs a write of the whole set. An internal log, of deltas and snapshots, is to take its place
behind the same interface; the LSNs of a log of epoch 1 and above are higher than any counted here,
so that log may begin with this value as its first snapshot.

Source: docs/sources/logdevice.md 2.9; `protocol.event_log`.
"""

from __future__ import annotations

from typing import Protocol

from cordwood.layout.rebuild_events import pack_set, read_set
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.protocol.event_log import Outcome, Verdict, apply
from cordwood.rebuilding import RebuildEvent, RebuildingSet

_PREFIX = "rebuilding/"
_KEY = "rebuilding/set"

LSN_BELOW = 1 << 32
"""LSNs counted here stay below that of the first record of any log."""


class EventLog(Protocol):
    """What roles see of the event log.

    Every call may raise Unreachable or Overloaded (ask again), and Corrupt (the stored set cannot
    be read, or a newer version wrote it).
    """

    async def read(self) -> RebuildingSet:
        """The present set, with all events from before the call."""

    async def say(self, event: RebuildEvent) -> Outcome:
        """Say that something happened; the set with it, and what became of the event.

        An event may be said again. After an answer that was lost it is found done already:
        UNCHANGED, STALE, or UNKNOWN_NODE for an event that ends an entry.
        """

    async def news(self, known: RebuildingSet | None, timeout_s: float) -> RebuildingSet:
        """Wait until the set is another than `known`; `known` itself if it is not in time."""


class StoredEventLog:
    """The event log in a metadata store; see `EventLog` and the module."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._mark: int | None = None

    async def read(self) -> RebuildingSet:
        """See `EventLog`. One round trip."""
        found = await self._store.get(_KEY)
        return _decode(found.value if found is not None else None)

    async def say(self, event: RebuildEvent) -> Outcome:
        """See `EventLog`. Two round trips without a race.

        Raises:
            BadSetting: the set has outgrown the metadata store's bound.
        """
        last: Outcome | None = None

        def decide(found: bytes | None) -> bytes | None:
            nonlocal last
            before = _decode(found)
            lsn = before.through + 1
            assert lsn < LSN_BELOW, "events are some thousand a day"
            last = apply(before, lsn, event)
            if last.verdict is not Verdict.TAKEN:
                last = Outcome(before, last.verdict)
                return None
            return pack_set(last.after)

        await change_repeatably(self._store, _KEY, decide)
        assert last is not None, "it was decided at least once"
        return last

    async def news(self, known: RebuildingSet | None, timeout_s: float) -> RebuildingSet:
        """See `EventLog`."""
        # The mark is asked for before the value is read: a change in between is told next time.
        if self._mark is None:
            self._mark = await self._store.changed(_PREFIX, None, timeout_s)
        found = await self.read()
        if known is None or found != known:
            return found
        self._mark = await self._store.changed(_PREFIX, self._mark, timeout_s)
        found = await self.read()
        return known if found == known else found


def _decode(value: bytes | None) -> RebuildingSet:
    return RebuildingSet() if value is None else read_set(value)
