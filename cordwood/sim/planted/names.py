"""Planted bugs of names: what is kept, read or remembered by a name instead of a number."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from cordwood.sim.planted import scenarios
from cordwood.sim.planted.bug import PlantedBug, changed, instead


def _by_name(name: str) -> str:
    return str(1 + crc32(name.encode()))


def _kept_by_name(right: Any) -> Any:
    def init(self: Any, infos: Any, ask: Any, read: Any) -> None:
        right(self, infos, ask, read)
        self._names = {_by_name(name): name for name in self.names}

    return init


def _asked_by_name(right: Any) -> Any:
    async def ask_log(self: Any, key: Any, create: bool, timeout_s: float) -> Any:
        known = self._known.get(key)
        if isinstance(key, int) and known is not None:
            key = known.name
        return await right(self, key, create, timeout_s)

    return ask_log


def _opened_by_name(right: Any) -> Any:
    def find_log(self: Any, log: Any, **options: Any) -> Any:
        known = self._known.get(log) if isinstance(log, int) else None
        return right(self, log if known is None else known.name, **options)

    return find_log


def _any_version(right: Any) -> Any:
    async def change(
        store: Any, key: str, decide: Any, known: Any = None, version: int | None = None
    ) -> Any:
        return await right(store, key, decide, known)

    return change


def _resets_unseen(right: Any) -> Any:
    def save(group: Any, positions: Any, *, resets: Any = None, **how: Any) -> Any:
        return right(group, positions, **how)

    return save


BUGS = (
    PlantedBug("resets-unseen", "a consumer without members saves over a reset",
               changed({"admin.consumer_calls:save": _resets_unseen}),
               scene="tests/client/read/test_consumer.py"),
    PlantedBug("any-version", "attributes are set over a change that their caller did not see",
               changed({"metadata.change:change": _any_version}),
               scene="tests/client/admin/test_late_changes.py"),
    PlantedBug("position-by-name", "a consumer's position is kept by the name of its log",
               changed({
                   "client.read.consumer_logs:ConsumerLogs.__init__": _kept_by_name,
                   "client.read.consumer_logs:ConsumerLogs._key":
                       instead(lambda self, log: _by_name(log)),
               }), scenario=scenarios.NAMES),
    PlantedBug("read-by-name", "a log that is asked for by its number is looked for by its name",
               changed({
                   "client.find.log_finding:LogFinding._ask_log": _asked_by_name,
                   "client.find.log_finding:LogFinding.find_log": _opened_by_name,
               }), scenario=scenarios.NAMES),
    PlantedBug("cached-number-kept", "a client believes a name for as long as it runs",
               changed({
                   "client.find.known_logs:KnownLogs.has_changed": instead(lambda self, log: False),
                   "client.find.known_logs:KnownLogs.is_old": instead(lambda self, log: False),
               }), scenario=scenarios.NAMES),
    PlantedBug("change-unasked", "a node changes a log without asking for its tokens",
               changed({"metadata.log_rights:_changed": instead(lambda was, becomes: ())}),
               scenario=scenarios.RIGHTS),
)  # fmt: skip
