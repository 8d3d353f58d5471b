"""Bugs in what is made of the words of operators.

Source: docs/sources/logdevice.md 2.9 (storage states); docs/sources/reliability.md §6.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed

_ENGINE = "storage.engine:StorageEngine"


def _as_if_writable(right: Any) -> Any:
    def refusal_of(engine: Any, *rest: Any) -> Any:
        said, engine.read_only = engine.read_only, ""
        try:
            return right(engine, *rest)
        finally:
            engine.read_only = said

    return refusal_of


def _space_all_the_same(right: Any) -> Any:
    def free_bytes(self: Any) -> int:
        said, self.read_only = self.read_only, ""
        try:
            room: int = right.fget(self)
        finally:
            self.read_only = said
        return room

    return property(free_bytes)


def _starts_writable(right: Any) -> Any:
    def note_storage(self: Any, mine: Any) -> bool:
        # As if a start's entry were a new one, and nothing had been said before.
        said = self._planted_first = getattr(self, "_planted_first", mine.read_only)
        news: bool = right(self, dataclasses.replace(mine, read_only=mine.read_only and not said))
        return news

    return note_storage


def _weighs_one(right: Any) -> Any:
    return lambda node_id, value: dataclasses.replace(right(node_id, value), weight=1.0)


def _stops_short(right: Any) -> Any:
    async def scan_node(c: Any, node: Any, log: int, start: int, stop: int, token: str = "") -> Any:
        return await right(c, node, log, start, stop - 1, token)

    return scan_node


def _damage_unsaid(right: Any) -> Any:
    def on_frame(self: Any, connection: Any, frame: Any) -> None:
        right(self, connection, frame)
        self.is_damaged = False

    return on_frame


def _accepted_in_memory(right: Any) -> Any:
    async def accept_loss(self: Any, upto: int) -> None:
        self.lost, self._accepted = (), upto

    return accept_loss


def _as_if_all_there(right: Any) -> Any:
    def refusal_of(engine: Any, *rest: Any) -> Any:
        said, engine.rebuilding = engine.rebuilding, frozenset()
        try:
            return right(engine, *rest)
        finally:
            engine.rebuilding = said

    return refusal_of


BUGS = (
    PlantedBug("read-only-stores", "a read-only node stores what it is sent",
               changed({f"{_ENGINE}.free_bytes": _space_all_the_same,
                        "storage.engine:refusal_of": _as_if_writable,
                        "storage.amends:refusal_of": _as_if_writable}),
               scenario=scenarios.READ_ONLY),
    PlantedBug("read-only-until-restart", "a node that was read-only stores again once it starts",
               changed({"node:Node._note_storage": _starts_writable}), scenario=scenarios.READ_ONLY),
    PlantedBug("weight-unread", "every node counts as much as any, whatever its weight",
               changed({"metadata.membership:_member": _weighs_one}), scenario=scenarios.WEIGHTS),
    PlantedBug("scan-stops-short", "a scan of a node's copies leaves out the last LSN",
               changed({"client.read.replica_scan:scan_node": _stops_short}), scenario=scenarios.AUDITED),
    PlantedBug("scan-damage-unsaid", "a scan does not say that a node lost something",
               changed({"client.read.replica_scan:_Scan.on_frame": _damage_unsaid}),
               scenario=scenarios.AUDITED_ROT),
    PlantedBug("acceptance-unwritten", "a loss that was accepted is there again after a restart",
               changed({"storage.logs_db.logs_store:LogsStore.accept_loss": _accepted_in_memory}),
               scenario=scenarios.ACCEPTED),
    PlantedBug("given-up-named", "a node stores what names a node that it takes for gone",
               changed({"storage.engine:refusal_of": _as_if_all_there,
                        "storage.amends:refusal_of": _as_if_all_there}),
               scenario=scenarios.GIVEN_UP),
)  # fmt: skip
