"""Bugs in the replicated event log.

Source: docs/protocol/event-log.md; docs/sources/logdevice.md 2.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from cordwood.admin import replicated_events
from cordwood.admin.replicated_events import ReplicatedEventLog
from cordwood.client.store import Store
from cordwood.errors import OutcomeUnknown
from cordwood.layout.rebuild_events import Base, read_record
from cordwood.lsn import EVENT_LOG
from cordwood.metadata.event_log import EventLog, StoredEventLog
from cordwood.nodes import Member, NodeId, Nodeset, Replication
from cordwood.protocol import event_log_restating
from cordwood.protocol.event_log import Verdict, apply, replication_with_place
from cordwood.protocol.event_log_follower import EventFollower, Taken
from cordwood.rebuilding import NeedsRebuild, RebuildEvent, RebuildingSet, Restated
from cordwood.sequencer.activation import Activation
from cordwood.sim.planted.bug import PlantedBug, at, together
from cordwood.sim.planted.rebuilding_scenarios import EVENTS_LOST, EVENTS_REPLICATED
from cordwood.storage.rebuild import donor
from cordwood.storage.rebuild.admission import Admission
from cordwood.storage.rebuild.drain_orders import Came, DrainOrders
from cordwood.storage.rebuild.epoch_nodesets import heard_nodesets
from cordwood.storage.rebuild.role import RebuildRole
from cordwood.wire.peers import Peers


async def _appended_anywhere(
    self: ReplicatedEventLog, store: Store, follower: EventFollower, value: bytes
) -> int | None:
    try:
        return int(await store.append(EVENT_LOG, value))
    except OutcomeUnknown:
        await asyncio.sleep(replicated_events.RACED_S)
        return None


async def _restated_anywhere(
    right: Any, self: ReplicatedEventLog, store: Store, follower: EventFollower, value: bytes
) -> int | None:
    if isinstance(read_record(value), Restated):
        return int(await store.append(EVENT_LOG, value))
    found: int | None = await right(self, store, follower, value)
    return found


def _snapshot_passed(self: EventFollower, lsn: int, found: RebuildingSet) -> Taken:
    # Taken for one more delta, of which nothing is known.
    self.deltas += 1
    return Taken.SAME


def _applied_again(
    right: Any, self: EventFollower, lsn: int, found: RebuildEvent | RebuildingSet | Restated
) -> Any:
    taken = right(self, lsn, found)
    if taken is Taken.SEEN and not isinstance(found, RebuildingSet | Restated):
        before = replace(self.set, through=lsn - 1)
        self.set = replace(apply(before, lsn, found).after, through=self.set.through)
    return taken


def _gap_passed(right: Any, self: EventFollower, last: int, kind: Any) -> None:
    is_whole = self.is_whole
    right(self, last, kind)
    self.is_whole = is_whole


async def _all_follow(self: StoredEventLog, members: Iterable[Member]) -> tuple[NodeId, ...]:
    return ()


async def _nothing_heard(peers: Peers, log: int, members: Mapping[NodeId, Member]) -> None:
    return None


async def _never_restated(self: ReplicatedEventLog) -> None:
    return


def _least(sets: Iterable[RebuildingSet]) -> RebuildingSet:
    return min(sets, key=lambda each: each.through)


async def _kept_beyond_the_fence(
    right: Any, self: StoredEventLog, rebuilding: RebuildingSet
) -> Base:
    base: Base = await right(self, rebuilding)
    return Base(base.set)


async def _fenced_by_an_earlier_number(right: Any, self: StoredEventLog, tail: int) -> Base:
    base = await self.read_base()
    if base is not None and base.fence > base.set.restated:
        return base
    begun: Base = await right(self, tail)
    return begun


def _as_asked(self: Activation, asked: Replication) -> Replication:
    return asked


def _emptied_counted(self: Activation, asked: Replication) -> Replication:
    able = tuple(member for member in self._said() if member.weight > 0)
    return replication_with_place(Nodeset(able), asked) if able else asked


async def _checked_before(
    self: DrainOrders, event: NeedsRebuild, came: Came | None = None
) -> Verdict:
    await self._check_event_log(NodeId(event.node))
    return await self._say(event)


class _NeverKept:
    """Adds events, and leaves the base as it is."""

    def __init__(self, events: EventLog) -> None:
        self._events = events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    async def keep(self) -> None:
        return


async def _counted_on_unkept(right: Any, self: RebuildRole) -> bool:
    events = self._events
    unkept: Any = _NeverKept(events)
    self._events = unkept
    try:
        return bool(await right(self))
    finally:
        self._events = events


async def _admitted_unkept(
    right: Any, self: Admission, seal: Callable[[], Awaitable[None]]
) -> None:
    events = self._events
    unkept: Any = _NeverKept(events)
    self._events = unkept
    try:
        await right(self, seal)
    finally:
        self._events = events


BUGS = (
    PlantedBug("event-tail-unchecked", "what is said of a node is appended wherever the event log "
               "ends by now: a word that arrives late counts once more",
               at(ReplicatedEventLog._append).instead(_appended_anywhere),
               scene="tests/storage/test_event_log_cluster.py"),
    PlantedBug("snapshot-passed", "a follower takes a snapshot of the event log for a delta, and "
               "goes on without what is in it",
               at(EventFollower._on_snapshot).instead(_snapshot_passed),
               scenario=EVENTS_REPLICATED),
    PlantedBug("event-applied-twice", "a follower applies an event once more where it reads the "
               "event log again: out of its order",
               at(EventFollower.on_record).around(_applied_again),
               scene="tests/protocol/test_event_log_follower.py"),
    PlantedBug("missing-events-passed", "a follower applies events behind records that it missed",
               at(EventFollower.on_gap).around(_gap_passed),
               scene="tests/protocol/test_event_log_follower.py"),
    PlantedBug("loss-never-restated", "followers of the event log that miss records wait for a "
               "snapshot that no node can write",
               at(ReplicatedEventLog.restate).instead(_never_restated), scenario=EVENTS_LOST),
    PlantedBug("restated-unfurthest", "after a loss in the event log nodes go on from a set that is "
               "not the furthest: an order that living nodes know is forgotten",
               at(event_log_restating.furthest).instead(_least),
               scene="tests/storage/test_event_log_cluster.py"),
    PlantedBug("fence-passed", "a node counts although its word may not be in the set that is being "
               "restated",
               at(StoredEventLog.note_base).around(_kept_beyond_the_fence),
               scene="tests/storage/test_event_log_cluster.py"),
    PlantedBug("restatement-number-again", "a restatement takes the number of an earlier "
               "restatement, whose set was stored and is lost: a node that read the lost set counts",
               at(StoredEventLog.fence).around(_fenced_by_an_earlier_number),
               scene="tests/metadata/test_event_log_fences.py"),
    PlantedBug("restated-anywhere", "the furthest set is appended without a condition on the tail "
               "of the event log: an event that came in between is forgotten",
               at(ReplicatedEventLog._append).around(_restated_anywhere),
               scene="tests/storage/test_event_log_counts.py"),
    PlantedBug("admitted-unkept", "a node that begins anew counts before the base has its event: by "
               "the base the node is still empty",
               together(at(Admission.complete).around(_admitted_unkept),
                        at(RebuildRole.is_counted_on).around(_counted_on_unkept)),
               scene="tests/storage/test_event_log_counts.py"),
    PlantedBug("nodesets-unheard", "a donor asks the metadata store alone for a nodeset that it was "
               "not told: it gives nothing while the store is away",
               at(heard_nodesets, within=donor).instead(_nothing_heard),
               scene="tests/storage/test_event_log_cluster.py"),
    PlantedBug("event-log-as-asked", "the event log is replicated as the root asks, although its "
               "nodes cannot record a loss so: after a loss no event is added, and no node rebuilt",
               at(Activation._of_event_log).instead(_as_asked),
               scene="tests/storage/test_event_log_place.py"),
    PlantedBug("event-log-counts-empty", "the event log counts nodes that are drained for good as "
               "nodes for its copies: with two of five drained no further loss is recorded",
               at(Activation._of_event_log).instead(_emptied_counted),
               scene="tests/storage/test_event_log_place.py"),
    PlantedBug("event-log-drains-cross", "of two drains at once each is checked without the other: no "
               "event can be stored any more, not even the end of a drain",
               at(DrainOrders.begin).instead(_checked_before),
               scene="tests/storage/test_event_log_place.py"),
    PlantedBug("events-moved-early", "events move into the event log while a node runs a version "
               "that does not follow it: it goes on by an older set",
               at(StoredEventLog.not_following).instead(_all_follow),
               scene="tests/storage/test_event_log_cluster.py"),
)  # fmt: skip
