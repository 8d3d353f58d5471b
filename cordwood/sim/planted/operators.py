"""Bugs in the effects of operators' reports.

Source: docs/sources/logdevice.md 2.9 (storage states); docs/sources/reliability.md §6.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cordwood.client.cluster import Cluster
from cordwood.client.read import replica_scan
from cordwood.client.read.replica_scan import _Scan
from cordwood.layout.frame import Frame
from cordwood.metadata import membership
from cordwood.node import Node
from cordwood.nodes import Member, NodeId
from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, at, notes_of, together
from cordwood.storage import amends, engine
from cordwood.storage.engine import StorageEngine
from cordwood.storage.logs_db.logs_store import LogsStore
from cordwood.storage.refusals import refusal_of
from cordwood.wire.connection import Connection


def _as_if_writable(right: Any, engine: StorageEngine, *rest: Any, **named: Any) -> Any:
    said, engine.read_only = engine.read_only, ""
    try:
        return right(engine, *rest, **named)
    finally:
        engine.read_only = said


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


async def _accepted_in_memory(right: Any, self: LogsStore, upto: int) -> None:
    self.lost, self._accepted = (), upto


def _as_if_all_there(right: Any, engine: StorageEngine, *rest: Any, **named: Any) -> Any:
    said, engine.rebuilding = engine.rebuilding, frozenset()
    try:
        return right(engine, *rest, **named)
    finally:
        engine.rebuilding = said


BUGS = (
    PlantedBug("read-only-stores", "a read-only node stores what it is sent",
               together(at(StorageEngine.free_bytes).around(_space_all_the_same),
                        at(refusal_of, within=engine).around(_as_if_writable),
                        at(refusal_of, within=amends).around(_as_if_writable)),
               scenario=scenarios.READ_ONLY),
    PlantedBug("read-only-until-restart", "a read-only node stores again after a restart",
               at(Node.note_storage).around(_starts_writable), scenario=scenarios.READ_ONLY),
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
    PlantedBug("given-up-named", "a node stores blocks whose copyset names a node that it knows "
                                 "to be gone",
               together(at(refusal_of, within=engine).around(_as_if_all_there),
                        at(refusal_of, within=amends).around(_as_if_all_there)),
               scenario=scenarios.GIVEN_UP),
)  # fmt: skip
