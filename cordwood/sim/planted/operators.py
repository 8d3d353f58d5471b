"""Bugs in the effects of operators' reports.

Source: docs/sources/logdevice.md 2.9 (storage states); docs/sources/reliability.md §6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from typing import Any

import msgspec

from cordwood import node
from cordwood.admin import maintenance_calls
from cordwood.admin.fitness_calls import fitness_reply
from cordwood.admin.maintenance_calls import MaintenanceCalls
from cordwood.admin.replicated_events import ReplicatedEventLog
from cordwood.client.admin import orders
from cordwood.client.cluster import Cluster
from cordwood.client.read import replica_scan
from cordwood.client.read.replica_scan import _Scan
from cordwood.impact.maintenance import Drains, MaintenanceSet, drains_of, drains_or_will
from cordwood.layout.frame import Frame
from cordwood.layout.message_impact import FitnessReply
from cordwood.layout.message_rebuilding import SayRebalance, SayRebuild
from cordwood.metadata import membership
from cordwood.metadata.change import Decide
from cordwood.metadata.event_log import EventLog, Holds, StoredEventLog
from cordwood.metadata.membership import Membership
from cordwood.node import Node
from cordwood.nodes import Member, NodeId
from cordwood.protocol.event_log import Outcome, Verdict
from cordwood.protocol.wal_ring import clipped
from cordwood.rebuilding import NeedsRebuild, RebuildEvent, RebuildingSet, Undrained
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together
from cordwood.storage import amends, engine
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.rebuild import drain_orders, role
from cordwood.storage.rebuild.drain_orders import Came, DrainOrders, Say
from cordwood.storage.rebuild.order_events import Obeyed, end_of_drain, event_of
from cordwood.storage.rebuild.rebalance_orders import obey_rebalance
from cordwood.storage.rebuild.role import RebuildRole
from cordwood.storage.refusals import refusal_of
from cordwood.wire.connection import Connection


def _as_if_writable(right: Any, engine: StorageEngine, *rest: Any, **named: Any) -> Any:
    said, engine.read_only = engine.read_only, ""
    try:
        return right(engine, *rest, **named)
    finally:
        engine.read_only = said


def _no_mark_without_an_entry(right: Any, self: RebuildingSet, node: int, **named: Any) -> int:
    found: int = right(self, node, **named)
    return found if self.entry(node) is not None else 0


def _ends_all(
    right: Any, known: MaintenanceSet, draining: Set[int], empty: Set[int] = frozenset()
) -> Drains:
    ends: Drains = right(known, draining)
    return ends


def _space_all_the_same(right: Any, self: StorageEngine) -> int:
    said, self.read_only = self.read_only, ""
    try:
        room: int = right(self)
    finally:
        self.read_only = said
    return room


def _starts_writable(right: Any, self: Node, mine: Member) -> bool:
    # As if a start's entry were new, and no report had come before.
    said = notes_of(self).setdefault("first", mine.read_only)
    news: bool = right(self, dataclasses.replace(mine, read_only=mine.read_only and not said))
    return news


def _weighs_one(right: Any, node_id: NodeId, value: bytes) -> Any:
    return dataclasses.replace(right(node_id, value), weight=1.0)


async def _stops_short(
    right: Any, cluster: Cluster, node: NodeId, log: int, start: int, stop: int, token: str = ""
) -> Any:
    return await right(cluster, node, log, start, stop - 1, token)


def _damage_unsaid(right: Any, self: _Scan, connection: Connection, frame: Frame) -> None:
    right(self, connection, frame)
    self.is_damaged = False


async def _accepted_in_memory(right: Any, self: LogsStore, shown: Any, upto: int) -> None:
    self.lost, self._accepted = (), clipped(shown, 0, upto)


async def _accepted_whole(right: Any, self: LogsStore, shown: Any, upto: int) -> None:
    await right(self, [(0, upto)], upto)


async def _accepts_on(right: Any, self: LogsStore, end: int) -> None:
    """Keep what was accepted above the end, too."""


def _as_if_all_there(right: Any, engine: StorageEngine, *rest: Any, **named: Any) -> Any:
    said, engine.rebuilding = engine.rebuilding, frozenset()
    try:
        return right(engine, *rest, **named)
    finally:
        engine.rebuilding = said


def _of_any_node(known: RebuildingSet, node: int) -> RebuildEvent:
    return Undrained(node)


def _fit_before_sure(right: Any, engine: StorageEngine) -> FitnessReply:
    reply: FitnessReply = right(engine)
    return msgspec.structs.replace(reply, waits=False)


_EMPTY_UNLOOKED = at(end_of_drain, within=drain_orders).instead(_of_any_node)


async def _places_checked_before(
    self: DrainOrders, event: NeedsRebuild, came: Came | None = None
) -> Verdict:
    if not event.forced:
        await self._check_places(NodeId(event.node), self._known())
    return await self._say(event)


async def _kept_by_any_requests(
    right: Any, self: MaintenanceCalls, node: int, seen: tuple[MaintenanceSet, int] | None
) -> None:
    await right(self, node, await self._store.read())


def _noted_only(known: MaintenanceSet, node: int) -> bool:
    return node in known.drained


async def _judged_by_what_was_heard(right: Any, self: MaintenanceCalls) -> MaintenanceSet:
    async def nothing() -> None: ...

    self._refresh = nothing
    found: MaintenanceSet = await right(self)
    return found


def _never_anew(right: Any, call: SayRebuild, nodes: Any, *, anew: bool = False) -> RebuildEvent:
    event: RebuildEvent = right(call, nodes)
    return event


async def _always_taken(
    right: Any, self: RebuildRole, call: SayRebuild, *, anew: bool = False
) -> Obeyed:
    await right(self, call, anew=anew)
    return Obeyed.TAKEN


async def _by_any_mark(
    right: Any, call: SayRebalance, members: Any, known: Any, refresh: Any, say: Say
) -> None:
    await right(msgspec.structs.replace(call, if_mark=None), members, known, refresh, say)


def _never(right: Any, self: Any) -> bool:
    return False


def _by_any_set(self: Came, known: RebuildingSet) -> bool:
    return True


def _mark_unread(right: Any, self: Came, known: RebuildingSet) -> bool:
    held: bool = right(self._replace(mark=None), known)
    return held


async def _said_of_any_set(
    right: Any, self: EventLog, event: RebuildEvent, holds: Holds | None = None
) -> Outcome:
    outcome: Outcome = await right(self, event)
    return outcome


async def _as_of_now(
    right: Any, self: Membership, node_id: NodeId, decide: Decide, if_version: int
) -> Member:
    member: Member = await right(self, node_id, decide, 0)
    return member


async def _obeyed_if_it_differs(
    right: Any, self: Membership, node_id: NodeId, decide: Decide, if_version: int
) -> Member:
    found = await self._store.get(membership._key(node_id))
    if found is not None and decide(found.value) == found.value:
        return membership.parse_member(node_id, found.value)
    member: Member = await right(self, node_id, decide, if_version)
    return member


BUGS = (
    PlantedBug("read-only-stores", "a read-only node stores what it is sent",
               together(at(StorageEngine.free_bytes).around(_space_all_the_same),
                        at(refusal_of, within=engine).around(_as_if_writable),
                        at(refusal_of, within=amends).around(_as_if_writable)),
               scenario=scenarios.READ_ONLY),
    PlantedBug("read-only-until-restart", "a read-only node stores again after a restart",
               at(Node.note_storage).around(_starts_writable), scenario=scenarios.READ_ONLY),
    PlantedBug("request-end-stops-empty", "the end of a request ends the drain of an empty node, "
                                          "which stops",
               together(at(drains_of, within=maintenance_calls).around(_ends_all), _EMPTY_UNLOOKED),
               scene="tests/storage/test_replace_node.py"),
    PlantedBug("request-end-by-old-set", "the end of a request ends the drain of a node that is "
                                         "empty, as the node that ends it has not heard so yet",
               together(_EMPTY_UNLOOKED, at(Came.holds).around(_mark_unread)),
               scene="tests/storage/test_replace_node.py"),
    PlantedBug("drains-cross", "of two drains at once each is checked without the other: none ends, "
                               "and nobody reads what is appended meanwhile",
               at(DrainOrders.begin).instead(_places_checked_before),
               scene="tests/recovery/test_drained_nodes.py"),
    PlantedBug("late-drain-again", "a node that was cut off with the order of a drain carries it out "
                                   "after it was taken back",
               together(at(Came.is_late).around(_never),
                        at(Came.holds).instead(_by_any_set)),
               scene="tests/storage/test_drain_orders.py"),
    PlantedBug("order-given-twice", "an order that a node carried out before it died is given again after "
                                    "the contrary was acknowledged, and undoes it",
               at(orders._may_be_done).instead(lambda asked: False),
               scene="tests/client/admin/test_orders_once.py"),
    PlantedBug("late-order-said", "a node that was paused after it judged an order adds its event to "
                                  "any later set: a node is given up for an earlier loss",
               together(at(StoredEventLog.say).around(_said_of_any_set),
                        at(ReplicatedEventLog.say).around(_said_of_any_set)),
               scene="tests/storage/test_drain_orders.py"),
    PlantedBug("late-order-of-version", "a late order counts in the same version of the rebuilding "
                                        "set, although its node has joined since: it is drained",
               at(Came.holds).around(_mark_unread),
               scene="tests/storage/test_drain_orders.py"),
    PlantedBug("vain-end-unnoted", "the end of a drain that has not begun leaves the order to begin "
                                   "it in force",
               at(RebuildingSet.mark).around(_no_mark_without_an_entry),
               scene="tests/storage/test_drain_orders.py"),
    PlantedBug("late-drain-kept", "a late drain of an operator, which was taken back, makes a "
                                  "request's drain an operator's: it stays without the request",
               at(MaintenanceCalls._keep_drain).around(_kept_by_any_requests),
               scene="tests/storage/test_drains_of_two_words.py"),
    PlantedBug("kept-drain-unwritten", "an operator's drain leaves the requests as they are, and a "
                                       "node that is about to note it as a request's does so",
               at(drains_or_will, within=maintenance_calls).instead(_noted_only),
               scene="tests/storage/test_drains_of_two_words.py"),
    PlantedBug("drain-noted-unheard", "a node that has not heard of an operator's drain notes it as "
                                      "a request's: it ends with the request",
               at(MaintenanceCalls._drained).around(_judged_by_what_was_heard),
               scene="tests/storage/test_drains_of_two_words.py"),
    PlantedBug("kept-drain-not-anew", "the end of a request's drain, under way, ends the drain that "
                                      "an operator ordered meanwhile",
               at(event_of, within=role).around(_never_anew),
               scene="tests/storage/test_drains_of_two_words.py"),
    PlantedBug("drain-taken-as-begun", "a request that is over takes back a drain that an operator "
                                       "had ordered before it",
               at(RebuildRole.obey).around(_always_taken),
               scene="tests/storage/test_drains_of_two_words.py"),
    PlantedBug("late-rebalance", "a late order ends the next rebalance, or begins one again",
               at(obey_rebalance, within=role).around(_by_any_mark),
               scene="tests/storage/test_rebalance_orders.py"),
    PlantedBug("late-status-again", "a node that was cut off with an operator's word about a node "
                                    "carries it out after it came and went: records of a node that "
                                    "is only down are told as lost",
               at(Membership._obey).around(_as_of_now),
               scene="tests/client/admin/test_late_changes.py"),
    PlantedBug("status-unwritten", "an operator's word about a node that changes nothing leaves an "
                                   "earlier order in force",
               at(Membership._obey).around(_obeyed_if_it_differs),
               scene="tests/client/admin/test_late_changes.py"),
    PlantedBug("waiting-node-counted", "a node that could not read the event log at its start counts "
                                       "as in service: with the next node away its logs stand",
               together(at(fitness_reply).around(_fit_before_sure),
                        at(fitness_reply, within=node).around(_fit_before_sure)),
               scene="tests/client/admin/test_check_impact.py"),
    PlantedBug("weight-unread", "all nodes count alike, whatever their weight",
               at(membership.parse_member).around(_weighs_one), scenario=scenarios.WEIGHTS),
    PlantedBug("scan-stops-short", "a scan of a node's copies leaves out the last LSN",
               at(replica_scan.scan_node).around(_stops_short), scenario=scenarios.AUDITED),
    PlantedBug("scan-damage-unsaid", "a scan does not report that a node lost records",
               at(_Scan.on_frame).around(_damage_unsaid),
               scenario=scenarios.AUDITED_ROT),
    PlantedBug("acceptance-unwritten", "an accepted loss is reported again after a restart",
               at(LogsStore.accept_loss).around(_accepted_in_memory),
               scene="tests/storage/test_lost_records.py"),
    PlantedBug("acceptance-of-all-below", "an accepted loss stands for all records of the WAL that no "
                                          "flush has taken yet: those that rot later count as absent",
               at(LogsStore.accept_loss).around(_accepted_whole),
               scene="tests/storage/test_lost_records.py"),
    PlantedBug("acceptance-outlives-its-end", "a WAL that lost its end keeps what was accepted there: "
                                              "new records at these offsets rot unnoticed",
               at(LogsStore.keep_accepted_below).around(_accepts_on),
               scene="tests/storage/test_lost_records.py"),
    PlantedBug("given-up-named", "a node stores blocks whose copyset names a node that it knows "
                                 "to be gone",
               together(at(refusal_of, within=engine).around(_as_if_all_there),
                        at(refusal_of, within=amends).around(_as_if_all_there)),
               scenario=scenarios.GIVEN_UP),
)  # fmt: skip
