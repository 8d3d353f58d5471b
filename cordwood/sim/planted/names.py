"""Planted bugs of names: what is kept, read or remembered by a name instead of a number."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from cordwood.metadata.log_entries import name_key
from cordwood.sim.planted import appending_scenarios, scenarios
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


async def _takes_blindly(self: Any, name: str, log_id: Any) -> None:
    """A name is taken away from the log that it leads to, wherever the log is by then."""
    found = await self._store.get(name_key(name))
    if found is not None and await self.leads_to(name) == log_id:
        await self._store.compare_and_set(name_key(name), None, found.version)


async def _nothing(*rest: Any) -> None:
    pass


def _claims_last(right: Any) -> Any:
    async def move(self: Any, log_id: Any, name: str, new_name: str | None, check: Any) -> None:
        twin = type(self)(self._store, self._defaults)
        twin._entries.claim = _nothing
        await right(twin, log_id, name, new_name, check)
        if new_name is not None:
            await self._entries.claim(new_name, log_id)

    return move


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
    PlantedBug("name-taken-blindly", "an old name is taken away without a look at where its log is",
               changed({"metadata.log_entries:LogEntries.remove_name": instead(_takes_blindly)}),
               scenario=appending_scenarios.CROSSINGS),
    PlantedBug("name-claimed-last", "a log goes to its new name before the name is claimed",
               changed({"metadata.log_tree:LogTree._move": _claims_last}),
               scenario=appending_scenarios.CROSSINGS),
    PlantedBug("change-unasked", "a node changes a log without asking for its tokens",
               changed({"metadata.log_rights:_changed": instead(lambda was, becomes: ())}),
               scenario=scenarios.RIGHTS),
)  # fmt: skip
