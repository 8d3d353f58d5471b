"""Bugs of clients, of connections and of the metadata store's users.

Source: docs/sources/reliability.md §2 (etcd, Redpanda), §6.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cordwood.block import Gap
from cordwood.errors import OutcomeUnknown, Retryable
from cordwood.sim.planted import appending_scenarios, scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead

_APPENDS = "client.append.log_appends:LogAppends"


def _unknown_resent(right: Any) -> Any:
    def on_down(self: Any, connection: Any) -> None:
        lost = [token for token, (_, used) in self._sent.items() if used is connection]
        for token in sorted(lost, reverse=True):
            batch, _ = self._sent.pop(token)
            self._owner.sent.pop(token, None)
            self._requeue(batch, token)
        right(self, connection)

    return on_down


def _deadline_ignored(right: Any) -> Any:
    def sweep(self: Any, now: float) -> None:
        self._pump()

    return sweep


def _doubt_forgotten(right: Any) -> Any:
    def on_fault(self: Any, token: int, error: Any, node: Any) -> None:
        found = self._sent.get(token)
        if found is not None and isinstance(error, Retryable):
            found[0].maybe = False
        right(self, token, error, node)

    return on_fault


def _no_compare(right: Any) -> Any:
    def compare_and_set(self: Any, key: str, value: bytes | None, expected: int) -> int | None:
        found = self.values.get(key)
        if key.startswith("epochs/") and found is not None:
            expected = found.version
        version: int | None = right(self, key, value, expected)
        return version

    return compare_and_set


def _unknown_is_done(right: Any) -> Any:
    async def change(
        store: Any, key: str, decide: Any, known: Any = None, version: Any = None
    ) -> bytes | None:
        wanted: bytes | None = None

        def noting(found: bytes | None) -> bytes | None:
            nonlocal wanted
            wanted = decide(found)
            return wanted

        found = await store.get(key)
        value = noting(found.value if found else None)
        if value is None:
            return found.value if found else None
        try:
            if await store.compare_and_set(key, value, found.version if found else 0):
                return value
        except OutcomeUnknown:
            return value
        done: bytes | None = await right(store, key, decide, None, version)
        return done

    return change


def _damage_told(right: Any) -> Any:
    def for_callers(self: Any, error: Any) -> Any:
        return error

    return for_callers


def _anybody_saves(right: Any) -> Any:
    def save(group: Any, positions: Any, *, member: str = "", **rest: Any) -> Any:
        return dataclasses.replace(
            right(dataclasses.replace(group, owners={}), positions, member=member, **rest),
            owners=group.owners,
        )

    return save


def _one_more(right: Any) -> Any:
    return lambda self, log: right(self, log) + 1


def _found_beside(right: Any) -> Any:
    async def first_keyed(stream: Any, name: str) -> Any:
        # As if nothing could stand behind a record without a key.
        async for item in stream:
            if not isinstance(item, Gap):
                stream.close()
                return (None if item.key is None else (item.key, item.lsn)), False
        return None, False

    return first_keyed


def _key_is_before(right: Any) -> Any:
    def search_key(self: Any, info: Any, tail: Any, key: bytes) -> Any:
        # As if the records of the key itself were lower ones.
        return right(self, info, tail, key + b"\0")

    return search_key


BUGS = (
    PlantedBug("unknown-resent", "a client sends again what may have been stored",
               changed({f"{_APPENDS}.on_down": _unknown_resent}), scenario=scenarios.RECOVERIES),
    PlantedBug("doubt-forgotten",
               "what may be stored is called not stored, once it is refused later",
               changed({f"{_APPENDS}.on_fault": _doubt_forgotten}),
               scenario=appending_scenarios.REFUSED_LATER),
    PlantedBug("key-behind-keyless", "find_key stops at a record without a key",
               changed({"client.admin.positions:_first_keyed": _found_beside}), scenario=scenarios.KEYS_SOUGHT),
    PlantedBug("key-off-by-one", "find_key takes the key's own records for lower ones",
               changed({"client.admin.positions:Positions._search_key": _key_is_before}),
               scenario=scenarios.KEYS_SOUGHT),
    PlantedBug("deadline-ignored", "a client waits for ever",
               changed({f"{_APPENDS}.sweep": _deadline_ignored}),
               scenario=scenarios.HANGING),
    PlantedBug("frame-crc-ignored", "damaged frames are taken for good ones",
               changed({"layout.frame:crc32c": instead(lambda data, crc=0: 0)}),
               scenario=scenarios.BAD_LINES),
    PlantedBug("damage-told", "a damaged frame's checksum error is what callers are told",
               changed({"wire.connection:Connection._for_callers": _damage_told}),
               scenario=scenarios.BAD_LINES),
    PlantedBug("pings-without-pause", "a node pings its peers hundreds of times a second",
               changed({"wire.peers:PING_EVERY_S": instead(0.005)})),
    PlantedBug("anybody-saves", "positions are saved by whoever has been a member once",
               changed({"admin.consumer_calls:save": _anybody_saves}), scenario=scenarios.CONSUMERS),
    PlantedBug("saves-ahead", "a consumer saves a position past a record that it was not given",
               changed({"client.read.reader:Reader.position": _one_more})),
    PlantedBug("epoch-without-compare", "the epoch store writes without comparing",
               changed({"metadata.memory:MemoryData.compare_and_set": _no_compare}),
               scenario=scenarios.BAD_METADATA),
    PlantedBug("unknown-is-done", "a write of unknown outcome is taken for done",
               changed({"metadata.change:change": _unknown_is_done}), scenario=scenarios.BAD_METADATA),
)  # fmt: skip
