"""The event log: which nodes are lost, drained, rebuilt and back. Every node reads it.

Roles use it through `EventLog`. There are two implementations:

- `StoredEventLog`, here, has it in the metadata store as one versioned value: the rebuilding set,
  which is the snapshot of all events so far. An event is applied to the present set and written by
  compare-and-set. So all events have one order. An event that changes nothing is not written, with
  one exception: the end of a drain or rebuilding that is not there. It makes an earlier order to
  begin the drain or rebuilding late.
  While the metadata store is away no event can be written.
- The *replicated* event log is an internal log (`admin.replicated_events`). The metadata store has
  only its *base*: a set that the log goes on from, for nodes that begin. The first base is the
  set as it was when the events moved into the log. LSNs counted here are below those of any log.

Source: docs/protocol/event-log.md; docs/sources/logdevice.md 2.9; `protocol.event_log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple, Protocol

import msgspec

from cordwood.errors import Corrupt, Retryable
from cordwood.layout.json_text import read_json
from cordwood.layout.rebuild_events import Base, is_base, pack_base, pack_set, read_base, read_set
from cordwood.metadata.change import change_repeatably
from cordwood.metadata.store import MetadataStore
from cordwood.nodes import Member, NodeId
from cordwood.protocol.event_log import Outcome, Verdict, apply, ends_in_vain
from cordwood.rebuilding import RebuildEvent, RebuildingSet

_PREFIX = "rebuilding/"
_KEY = "rebuilding/set"
_FOLLOWERS = "event-log-followers/"

LSN_BELOW = 1 << 32
"""LSNs counted here stay below that of the first record of any log."""


Holds = Callable[[RebuildingSet], bool]
"""A condition of an event, judged by the set to which the event is added."""


class EventsMoved(Retryable):
    """The events are in the event log, and no more in the metadata store."""


class AtStart(NamedTuple):
    """The rebuilding set, as far as a node that starts knows it.

    Attributes:
        is_sure: whether the set has all events from before the start. Otherwise some may be
            missing.
    """

    set: RebuildingSet
    is_sure: bool


class _Follower(msgspec.Struct, frozen=True):
    """`event-log-followers/<node>`; a later version may add fields."""

    incarnation: Annotated[int, msgspec.Meta(ge=1)]


class EventLog(Protocol):
    """The event log, as roles use it.

    Every call may raise Unreachable or Overloaded (ask again), and Corrupt (the stored set cannot
    be read, or a newer version wrote it).
    """

    async def read(self) -> RebuildingSet:
        """The present set, with all events from before the call."""

    async def known(self) -> RebuildingSet:
        """The set as far as this node has heard, without a question to the event log's nodes."""

    async def say(self, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        """Add an event. Returns the set with it, and what became of the event.

        An event may be added again. If the first answer was lost, the second answer is UNCHANGED or
        STALE, or UNKNOWN_NODE for an event that ends an entry.

        Args:
            holds: the event is STALE if this does not hold for the very set to which it would be
                added. So an event needs no field of its own for it, which earlier versions could
                not read. May be called more than once.
        """

    async def at_start(self) -> AtStart:
        """The set for a node that is about to start and takes no connections yet."""

    async def keep(self) -> None:
        """Store the present set as the base. A start uses the base, and the events go on from it if
        the event log loses records.

        A node calls it before other nodes count on it. At other times the set is stored sooner or
        later without a call.

        Raises:
            Retryable: records are missing, or the event log is being restated: the set of this node
                may not be what the others go on with.
        """


class StoredEventLog:
    """The event log in a metadata store; see `EventLog` and the module."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._mark: int | None = None

    async def read(self) -> RebuildingSet:
        """See `EventLog`. One round trip."""
        found = await self._store.get(_KEY)
        return _decode(found.value if found is not None else None)

    async def known(self) -> RebuildingSet:
        """See `EventLog`. It reads the metadata store, because there is no other source of
        events."""
        return await self.read()

    async def at_start(self) -> AtStart:
        """See `EventLog`."""
        return AtStart(await self.read(), is_sure=True)

    async def keep(self) -> None:
        """See `EventLog`. It does nothing, because a start reads the set itself."""

    async def say(self, event: RebuildEvent, holds: Holds | None = None) -> Outcome:
        """See `EventLog`. Two round trips without a race.

        Raises:
            BadSetting: the set has outgrown the metadata store's bound.
        """
        last: Outcome | None = None

        def decide(found: bytes | None) -> bytes | None:
            nonlocal last
            before = _decode(found)
            if holds is not None and not holds(before):
                last = Outcome(before, Verdict.STALE)
                return None
            lsn = before.through + 1
            assert lsn < LSN_BELOW, "events are some thousand a day"
            last = apply(before, lsn, event)
            if last.verdict is Verdict.TAKEN or ends_in_vain(event, last.verdict):
                return pack_set(last.after)
            last = Outcome(before, last.verdict)
            return None

        await change_repeatably(self._store, _KEY, decide)
        assert last is not None, "it was decided at least once"
        return last

    async def news(self, known: RebuildingSet | None, timeout_s: float) -> RebuildingSet:
        """Wait until the set is another than `known`; `known` itself if it is not in time."""
        # The mark is read before the value: a change in between is reported the next time.
        if self._mark is None:
            self._mark = await self._store.changed(_PREFIX, None, timeout_s)
        found = await self.read()
        if known is None or found != known:
            return found
        self._mark = await self._store.changed(_PREFIX, self._mark, timeout_s)
        found = await self.read()
        return known if found == known else found

    # The base of the replicated event log.

    async def read_base(self) -> Base | None:
        """The base from which the event log goes on; None while the events are in the metadata
        store.

        Raises:
            Unreachable: the metadata store did not answer.
            Corrupt: see `EventLog`.
        """
        found = await self._store.get(_KEY)
        if found is None or not is_base(found.value):
            return None
        return read_base(found.value)

    async def read_moved_base(self) -> Base:
        """The base, for a caller that knows that the events have moved.

        Raises:
            Unreachable: the metadata store did not answer.
            Corrupt: it has no base: it is a copy from before the move. Or see `EventLog`.
        """
        found = await self._store.get(_KEY)
        return _moved_base(found.value if found is not None else None)

    async def note_follower(self, node: NodeId, incarnation: int) -> None:
        """Note that this start of a node follows the event log from the move on.

        A start of an earlier version notes nothing, and has another incarnation.
        """
        said = msgspec.json.encode(_Follower(incarnation))
        key = f"{_FOLLOWERS}{node}"
        await change_repeatably(self._store, key, lambda found: said if found != said else None)

    async def not_following(self, members: Iterable[Member]) -> tuple[NodeId, ...]:
        """The members whose present start may not follow the event log, in node order.

        Raises:
            Malformed: what a node said cannot be read.
        """
        said = {
            key.removeprefix(_FOLLOWERS): _followed_since(key, found.value)
            for key, found in await self._store.list(_FOLLOWERS)
        }
        return tuple(sorted(m.node for m in members if said.get(str(m.node)) != m.incarnation))

    async def move(self) -> Base:
        """Move the events to the event log: from here on this value gets no event.

        One compare-and-set, so an event is in the base, or its writer is told `EventsMoved`.

        Returns:
            The base; that of an earlier call where the events have moved already.
        """

        def decide(found: bytes | None) -> bytes | None:
            if found is not None and is_base(found):
                return None
            return pack_base(Base(_decode(found)))

        stored = await change_repeatably(self._store, _KEY, decide)
        assert stored is not None, "a base was there, or is now"
        return read_base(stored)

    async def note_base(self, rebuilding: RebuildingSet) -> Base:
        """Keep a later set of the event log as its base. An earlier set changes nothing, nor does
        a set without the restatement that was begun last.

        Returns:
            The base from now on. It includes the set unless its fence is above `restated`.
        Raises:
            Corrupt: the metadata store is an older copy, see `read_moved_base`.
        """

        def decide(found: bytes | None) -> bytes | None:
            base = _moved_base(found)
            if rebuilding.restated < base.fence or rebuilding.through <= base.set.through:
                return None
            return pack_base(Base(rebuilding, base.fence))

        stored = await change_repeatably(self._store, _KEY, decide)
        assert stored is not None, "a base was there"
        return read_base(stored)

    async def fence(self, tail: int) -> Base:
        """Begin a restatement behind `tail`, or go on with a restatement that was begun there: from
        here on the base takes no set without it.

        The fence is the tail. So nodes that restate the same log agree on the number, and a number
        never comes again: after a restated set that was stored and is lost, the tail is later.

        Args:
            tail: LSN of the event log's tail, as its sequencer told it.
        Returns:
            The base. All that is in its set must be in the restated set.
        Raises:
            Corrupt: the metadata store is an older copy, see `read_moved_base`.
        """

        def decide(found: bytes | None) -> bytes | None:
            base = _moved_base(found)
            return None if base.fence >= tail else pack_base(Base(base.set, tail))

        stored = await change_repeatably(self._store, _KEY, decide)
        assert stored is not None, "a base was there"
        return read_base(stored)


def _decode(value: bytes | None) -> RebuildingSet:
    if value is None:
        return RebuildingSet()
    if is_base(value):
        raise EventsMoved("the events of lost nodes are in the event log, and not here")
    return read_set(value)


def _moved_base(value: bytes | None) -> Base:
    """The base, once the events have moved: they move once, and nothing deletes the base."""
    if value is None or not is_base(value):
        raise Corrupt(
            "the metadata store has no base of the event log, and the events of lost nodes have "
            "moved there: it is an older copy, from before the move. Bring back the metadata store "
            "that has the base (`rebuilding/set`)"
        )
    return read_base(value)


def _followed_since(key: str, value: bytes) -> int:
    """The incarnation of a node that said that it follows the event log."""
    return read_json(value, _Follower, key).incarnation
